"""Agents that answer by a future, from another thread and in any order."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from plugrl_gym.errors import LocalProtocolError
from plugrl_gym.server import PlugRLServer, Refusal, Request
from tests.support.raw_client import DEADLINE, declare, raw_client
from tests.support.serving import FakeAgent, running


class Later(FakeAgent):
    """Promises every answer.

    Attributes:
        promised: (client number, its future) in the order in which they asked.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.promised: queue.SimpleQueue[tuple[int, Future[Any]]] = queue.SimpleQueue()
        self.let_go: Mapping[str, int] | None = None

    def act(self, requests: Sequence[Request]) -> list[Any]:
        futures: list[Future[Any]] = [Future() for _ in requests]
        for request, future in zip(requests, futures, strict=True):
            self.promised.put((request.client.number, future))
        return futures

    def promise(self) -> Future[Any]:
        """The next one."""
        return self.promised.get(timeout=DEADLINE)[1]

    def close(self) -> Mapping[str, int] | None:  # type: ignore[override]
        super().close()
        return self.let_go


def answer(future: Future[Any], value: int = 0) -> None:
    future.set_result(np.full((1, 1), value))


def test_answer_comes_when_the_agent_has_it() -> None:
    agent = Later()
    with running(agent) as run, raw_client(run.url) as client:
        client.ask(0)
        answer(agent.promise(), 7)
        assert client.answer().action.item() == 7


def test_clients_are_answered_in_any_order() -> None:
    agent = Later()
    with running(agent) as run, raw_client(run.url) as first, raw_client(run.url) as second:
        first.ask(0)
        slow = agent.promise()
        second.ask(0)
        answer(agent.promise(), 2)
        assert second.answer().action.item() == 2
        second.feed_back(0)
        second.ask(0)
        answer(agent.promise(), 3)
        assert second.answer().action.item() == 3
        answer(slow, 1)
        assert first.answer().action.item() == 1


def test_time_that_an_answer_takes_is_the_server_s_own() -> None:
    agent = Later()
    with running(agent, feedback_timeout=0.05) as run, raw_client(run.url) as client:
        client.ask(0)
        promise = agent.promise()
        with pytest.raises(TimeoutError):
            client.closed(timeout=0.2)
        answer(promise)
        client.answer()
        assert client.closed() == (1001, "Feedback timeout")


def test_departure_of_a_client_takes_its_request_back() -> None:
    agent = Later()
    with running(agent) as run, raw_client(run.url) as stays:
        with raw_client(run.url) as leaves:
            leaves.ask(0)
            promise = agent.promise()
        with pytest.raises(CancelledError):
            promise.result(DEADLINE)
        agent.wait_for_departures(1)
        stays.ask(0)
        answer(agent.promise())
        stays.answer()
    assert run.server.statistics.snapshot().books.chunks_given == 1


def test_refusal_closes_the_one_client_that_it_is_for() -> None:
    agent = Later()
    with running(agent) as run, raw_client(run.url) as first, raw_client(run.url) as second:
        first.ask(0, spaces=declare(spaces.Discrete(2)))
        refused = agent.promise()
        second.ask(0)
        kept = agent.promise()
        refused.set_exception(Refusal("not this one"))
        assert first.closed() == (1008, "not this one")
        answer(kept)
        second.answer()


@pytest.mark.parametrize("way", ["raises", "gives up"])
def test_promise_that_is_not_kept_is_the_failure_of_the_run(way: str) -> None:
    agent = Later()
    with running(agent) as run, raw_client(run.url) as client, raw_client(run.url) as other:
        client.ask(0)
        promise = agent.promise()
        if way == "raises":
            promise.set_exception(agent.error)
        else:
            promise.cancel()
        assert client.closed() == (1011, "Internal server error.")
        assert other.closed() == (1011, "Internal server error.")
        outcome = run.ended()
    if way == "raises":
        assert outcome is agent.error
    else:
        assert isinstance(outcome, LocalProtocolError)


def test_answer_of_a_wrong_shape_is_the_failure_of_the_run() -> None:
    agent = Later()
    with running(agent) as run, raw_client(run.url) as client:
        client.ask(0)
        agent.promise().set_result(np.zeros((1, 5)))
        assert client.closed() == (1011, "Internal server error.")
        assert isinstance(run.ended(), LocalProtocolError)


@pytest.mark.parametrize(
    ("end", "reason", "outcome"),
    [
        (PlugRLServer.request_shutdown, "Server shutdown", False),
        (PlugRLServer.request_stop, "plugrl-server-stop", True),
    ],
)
def test_end_of_the_run_waits_for_no_promise(end: Any, reason: str, outcome: bool) -> None:
    agent = Later()
    with running(agent) as run, raw_client(run.url) as client:
        client.ask(0)
        promise = agent.promise()
        end(run.server)
        assert client.closed() == (1001, reason)
        assert run.ended() is outcome
    assert promise.cancelled()


def test_run_can_be_over_before_it_began() -> None:
    server = PlugRLServer(FakeAgent(), port=0)
    server.request_stop()
    assert server.serve() is True


def test_rows_that_came_to_nothing_at_the_end_are_in_the_books() -> None:
    agent = Later()
    agent.let_go = {"not collected": 1}
    with running(agent) as run, raw_client(run.url) as client:
        client.ask(0)
        answer(agent.promise())
        client.answer()
        client.feed_back(0)
        agent.wait_for_rows(1)
        run.server.request_shutdown()
        run.ended()
        snapshot = run.server.statistics.snapshot()
    assert (snapshot.books.rows_stored, snapshot.books.rows_discarded) == (0, {"not collected": 1})
    assert snapshot.book_errors == ()
