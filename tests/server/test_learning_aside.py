"""An agent that wants to learn while its clients are served (``Agent.learning_wanted``)."""

from __future__ import annotations

import threading

from plugrl_gym.protocol.close import REASON_INTERNAL, REASON_SHUTDOWN, REASON_STOP
from tests.support.raw_client import DEADLINE, raw_client
from tests.support.serving import FakeAgent, running


class AsideAgent(FakeAgent):
    """Learns beside acting; acting waits once ``bound`` rows are not learned from."""

    def __init__(self, bound: int = 100, learn_times: int | None = None, fail_in: str = "") -> None:
        super().__init__(fail_in=fail_in)
        self.bound, self.learn_times = bound, learn_times
        self.may_learn.clear()

    @property
    def learning_wanted(self) -> bool:
        return self.unlearned > 0 and not self.finished

    @property
    def learning_due(self) -> bool:
        return self.unlearned >= self.bound and not self.finished

    @property
    def finished(self) -> bool:
        return self.learn_times is not None and self.learned >= self.learn_times


def test_clients_are_served_while_the_agent_learns() -> None:
    agent = AsideAgent()
    with running(agent) as run, raw_client(run.url) as client:
        client.exchange(0)
        assert agent.learning.wait(10)
        for _ in range(3):
            client.exchange(0)
        with raw_client(run.url) as second:
            second.exchange(0)
        agent.wait_for_departures(1)
        assert agent.learning.wait(DEADLINE)
        assert agent.rows == 5
        assert agent.learned == 0
        agent.may_learn.set()
    assert agent.overlaps >= 8
    assert agent.closed == 1


def test_what_comes_while_the_agent_learns_is_learned_from_after_that() -> None:
    agent = AsideAgent()
    learn, seen, twice = agent.learn, [], threading.Event()

    def learn_all() -> None:
        before = agent.unlearned
        learn()
        agent.unlearned = agent.rows - sum(seen) - before
        seen.append(before)
        if len(seen) == 2:
            twice.set()

    agent.learn = learn_all  # type: ignore[method-assign]
    with running(agent) as run, raw_client(run.url) as client:
        client.exchange(0)
        assert agent.learning.wait(10)
        client.exchange(0)
        client.exchange(0)
        client.infer(0)
        agent.may_learn.set()
        assert twice.wait(DEADLINE)
    assert seen == [1, 2]


def test_no_action_is_chosen_while_learning_is_due() -> None:
    agent = AsideAgent(bound=3)
    with running(agent) as run, raw_client(run.url) as client:
        for _ in range(3):
            client.exchange(0)
        client.ask(0)
        assert client.socket.ping().wait(10)
        assert len(agent.batches) == 3
        assert agent.learning.wait(DEADLINE)
        agent.may_learn.set()
        client.answer()
    assert agent.learned >= 1


def test_the_run_ends_when_learning_has_finished_it_though_no_client_says_a_word() -> None:
    agent = AsideAgent(learn_times=1)
    with running(agent) as run, raw_client(run.url) as client:
        client.exchange(0)
        assert agent.learning.wait(10)
        client.infer(0)
        agent.may_learn.set()
        assert client.closed() == (1001, REASON_STOP)
        assert run.ended() is True


def test_a_failure_of_learning_ends_the_run() -> None:
    agent = AsideAgent(fail_in="learn")
    with running(agent) as run, raw_client(run.url) as client:
        client.infer(0)
        client.feed_back(0)
        assert client.closed() == (1011, REASON_INTERNAL)
        assert run.ended() is agent.error
    assert agent.closed == 1


def test_a_failure_of_learning_ends_the_run_for_those_who_wait_for_it() -> None:
    agent = AsideAgent(bound=2)
    learn = agent.learn

    def fail() -> None:
        learn()
        raise agent.error

    agent.learn = fail  # type: ignore[method-assign]
    with running(agent) as run, raw_client(run.url) as client:
        client.exchange(0)
        assert agent.learning.wait(10)
        client.infer(0)
        client.feed_back(0)
        client.ask(0)
        assert client.socket.ping().wait(10)
        agent.may_learn.set()
        assert client.closed() == (1011, REASON_INTERNAL)
        assert run.ended() is agent.error


def test_shutdown_waits_for_learning() -> None:
    agent = AsideAgent()
    with running(agent) as run, raw_client(run.url) as client:
        client.exchange(0)
        assert agent.learning.wait(10)
        run.server.request_shutdown()
        assert client.closed() == (1001, REASON_SHUTDOWN)
        assert agent.closed == 0
        agent.may_learn.set()
        assert run.ended() is False
    assert (agent.learned, agent.closed) == (1, 1)
