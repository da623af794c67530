"""The agent learns in a thread of its own while its server stays alive (SPEC 2.13, 8.9)."""

from __future__ import annotations

from typing import Any

import pytest

from plugrl_gym.protocol.close import REASON_SHUTDOWN, REASON_STOP
from tests.support.raw_client import raw_client
from tests.support.serving import FakeAgent, running


def test_server_learns_before_it_answers_the_next_infer() -> None:
    agent = FakeAgent(learn_after=2)
    with running(agent) as run, raw_client(run.url) as client:
        client.exchange(0)
        client.exchange(0)
        client.infer(0)
        assert agent.learned == 1
        client.feed_back(0)
        client.infer(0)
        assert agent.learned == 1
        snapshot = run.server.statistics.snapshot()
    assert snapshot.learning_seconds > 0.0


def test_server_answers_pings_and_greets_clients_while_it_learns() -> None:
    agent = FakeAgent(learn_after=1)
    agent.may_learn.clear()
    with running(agent) as run, raw_client(run.url) as client:
        client.exchange(0)
        assert agent.learning.wait(10)
        client.ask(0)
        assert client.socket.ping().wait(10)
        with raw_client(run.url) as second:
            assert second.metadata.algorithm == "fake"
            second.ask(0)
            assert second.socket.ping().wait(10)
            assert agent.batches == [[1]]
            agent.may_learn.set()
            client.answer()
            second.answer()
    assert agent.overlaps == 0
    assert agent.learned == 1


def test_no_call_reaches_the_agent_while_it_learns() -> None:
    agent = FakeAgent(learn_after=1)
    agent.may_learn.clear()
    with running(agent) as run, raw_client(run.url) as acting, raw_client(run.url) as asking:
        acting.ask(0)
        asking.infer(0)
        acting.answer()
        asking.feed_back(0)
        assert agent.learning.wait(10)
        acting.feed_back(0)
        with raw_client(run.url) as leaving:
            leaving.ask(0)
        asking.ask(0)
        # The ping comes after the feedback on the same connection: it has been read by now.
        assert acting.socket.ping().wait(10)
        assert asking.socket.ping().wait(10)
        assert agent.rows == 1
        agent.may_learn.set()
        agent.wait_for_rows(2)
        asking.answer()
    assert agent.overlaps == 0


def test_client_that_leaves_while_the_agent_learns_is_not_answered() -> None:
    agent = FakeAgent(learn_after=1)
    agent.may_learn.clear()
    with running(agent) as run, raw_client(run.url) as client:
        with raw_client(run.url) as leaving:
            client.ask(0)
            leaving.exchange(5)
            assert agent.learning.wait(10)
            leaving.ask(5)
            client.answer()
        agent.may_learn.set()
        agent.wait_for_departures(1)
        client.feed_back(0)
        client.infer(0)
    assert [2] not in agent.batches[2:]


def test_shutdown_lets_learning_end_before_the_agent_is_closed() -> None:
    agent = FakeAgent(learn_after=1)
    agent.may_learn.clear()
    with running(agent) as run, raw_client(run.url) as client:
        client.exchange(0)
        assert agent.learning.wait(10)
        run.server.request_shutdown()
        assert client.closed() == (1001, REASON_SHUTDOWN)
        assert agent.closed == 0
        agent.may_learn.set()
        assert run.ended() is False
    assert (agent.learned, agent.left, agent.closed, agent.overlaps) == (1, [1], 1, 0)


@pytest.mark.parametrize("stop_after", [1, 2])
def test_what_the_last_feedback_completed_is_learned_from(stop_after: int) -> None:
    agent = FakeAgent(learn_after=1, stop_after=stop_after)
    with running(agent) as run, raw_client(run.url) as client:
        for _ in range(stop_after):
            client.exchange(0)
        assert run.ended() is True
    assert agent.learned == stop_after


class Lingering(FakeAgent):
    """Once two rows have come, its run is over when somebody asks again, or leaves."""

    over = False

    def prepare(self, client: Any, infer: Any) -> Any:
        self.over = self.rows >= 2
        return super().prepare(client, infer)

    def leave(self, client: Any) -> None:
        super().leave(client)
        self.over = self.rows >= 2

    @property
    def finished(self) -> bool:
        return self.over


def test_a_run_may_end_where_a_further_action_is_asked_for() -> None:
    agent = Lingering()
    with running(agent) as run, raw_client(run.url) as client:
        client.exchange(0)
        client.exchange(0)
        agent.wait_for_rows(2)
        client.ask(0)
        assert client.closed() == (1001, REASON_STOP)
        assert run.ended() is True
    assert agent.batches == [[1], [1]]


def test_a_run_may_end_where_a_client_leaves() -> None:
    agent = Lingering()
    with running(agent) as run:
        with raw_client(run.url) as client:
            client.exchange(0)
        with raw_client(run.url) as client:
            client.exchange(0)
        assert run.ended() is True
    assert agent.closed == 1
