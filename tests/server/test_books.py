"""The server's ledger: it balances whatever happens, and shows what was lost on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugrl_gym.errors import RemoteProtocolError
from plugrl_gym.protocol import (
    Feedback,
    Infer,
    Metadata,
    ReceivedFeedback,
    ServerProtocol,
    encode,
)
from plugrl_gym.server import Client, RunStatistics
from plugrl_gym.server.books import Books
from plugrl_gym.server.runner import AgentRunner
from plugrl_gym.server.statistics import ClientBook
from tests.support.fuzzing import fuzz
from tests.support.raw_client import feedback_of, infer_of, raw_client
from tests.support.serving import FakeAgent, Running, running


class Keeping(FakeAgent):
    """Does not keep the rows of envs 5 and above, and counts what it keeps."""

    counted = 0

    @property
    def rows_stored(self) -> int:
        return self.counted

    def feedback(self, client: Client, feedback: Feedback) -> Mapping[str, int]:
        super().feedback(client, feedback)
        overridden = int((feedback.env_indices >= 5).sum())
        self.counted += len(feedback.env_indices) - overridden
        return {"overridden": overridden} if overridden else {}


def books_at_the_end(run: Running) -> Books:
    run.server.request_shutdown()
    assert run.ended() is False
    snapshot = run.server.statistics.snapshot()
    assert snapshot.book_errors == ()
    return snapshot.books


def test_every_row_ends_in_one_place() -> None:
    agent = Keeping(horizon=2)
    with running(agent) as run, raw_client(run.url) as client:
        client.infer(0, 1, 5, 6)
        client.say(feedback_of(0, 5, 7))
        client.say(infer_of(0))
        client.socket.recv(timeout=10)
        client.say(feedback_of(0, 1, rewards=[np.nan, 1.0]))
        agent.wait_for_rows(3)
        books = books_at_the_end(run)
    assert books.to_dict() == {
        "chunks_given": 5,
        "chunks_abandoned": 1,  # of env 6
        "chunks_open": 0,
        "rows_received": 5,
        "rows_answered": 4,
        "rows_stored": 2,
        "rows_discarded": {"non-finite": 1, "overridden": 1, "stale": 1},
        "rows_waiting": 0,
        "env_steps": 6,
    }


def test_row_that_is_both_stale_and_not_finite_is_discarded_once() -> None:
    agent = Keeping()
    with running(agent) as run, raw_client(run.url) as client:
        client.infer(0)
        client.say(feedback_of(0, 3, rewards=[1.0, np.inf]))
        agent.wait_for_rows(1)
        books = books_at_the_end(run)
    assert books.rows_discarded == {"stale": 1}


def test_rows_that_the_agent_cannot_use_are_discarded() -> None:
    agent = Keeping(fail_in="feedback", error=RemoteProtocolError("data.obs: missing"))
    with running(agent) as run, raw_client(run.url) as client:
        client.infer(0, 1)
        client.feed_back(0, 1)
        assert client.closed() == (1001, "plugrl-server-resync")
        books = books_at_the_end(run)
    assert (books.rows_stored, books.rows_discarded) == (0, {"unfit": 2})


def test_rows_that_a_failing_agent_lost_are_discarded() -> None:
    agent = Keeping(fail_in="feedback")
    with running(agent) as run, raw_client(run.url) as client:
        client.infer(0)
        client.feed_back(0)
        assert run.ended() is agent.error
        snapshot = run.server.statistics.snapshot()
    assert (snapshot.books.rows_discarded, snapshot.book_errors) == ({"failed": 1}, ())


def test_rows_that_come_while_the_agent_learns_wait_and_may_come_too_late() -> None:
    agent = Keeping(learn_after=1, stop_after=1)
    agent.may_learn.clear()
    with running(agent) as run, ExitStack() as stack:
        first, second = (stack.enter_context(raw_client(run.url)) for _ in range(2))
        second.infer(0, 1, 2)
        first.infer(0)
        first.feed_back(0)
        assert agent.learning.wait(10)
        second.feed_back(0, 1, 2)
        statistics = run.server.statistics
        wait_until(lambda: statistics.snapshot().books.rows_waiting == 3)
        live = statistics.snapshot()
        assert (live.book_errors, live.connections[2].chunks_open) == ((), 0)
        agent.may_learn.set()
        assert run.ended() is True
        snapshot = statistics.snapshot()
    assert (snapshot.books.rows_discarded, snapshot.book_errors) == ({"run over": 3}, ())


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll what changes on another thread and tells nobody."""
    for _ in range(2000):
        if condition():
            return
        WAIT.wait(0.005)
    raise AssertionError("it did not come true")


WAIT = threading.Event()


def test_env_that_asks_again_gives_up_its_chunk() -> None:
    agent = Keeping()
    with running(agent) as run, raw_client(run.url) as client:
        client.infer(0, 1)
        client.feed_back(1)
        client.say(infer_of(0))
        client.socket.recv(timeout=10)
        client.say(feedback_of(0))
        agent.wait_for_rows(2)
        books = books_at_the_end(run)
    assert (books.chunks_given, books.chunks_abandoned, books.rows_answered) == (3, 1, 2)


# -- Any sequence -----------------------------------------------------------------------------


class Model:
    """Connections that talk to real protocol objects, and an agent that does what it likes."""

    def __init__(self) -> None:
        self.run = RunStatistics()
        self.open: dict[int, tuple[ServerProtocol, ClientBook]] = {}
        self.stored = 0

    def connect(self, number: int) -> None:
        protocol = ServerProtocol()
        protocol.send_metadata(Metadata())
        self.open[number] = protocol, self.run.enter(True, number)

    def exchange(self, number: int, asked: list[int], told: list[int], data: st.DataObject) -> None:
        protocol, book = self.open[number]
        infer = protocol.receive(encode(infer_of(*asked).to_wire()))
        assert isinstance(infer, Infer)
        book.asked(infer)
        protocol.send_action(np.zeros((2, len(asked), 1)))
        book.acted(infer.env_indices, 2)
        rewards = [np.nan if data.draw(st.integers(0, 9)) == 0 else 1.0 for _ in told]
        message = feedback_of(*told, rewards=rewards)
        received = protocol.receive(encode(message.to_wire()))
        assert isinstance(received, ReceivedFeedback)
        book.received(received)
        self.hand(book, received.feedback, data)

    def hand(self, book: ClientBook, feedback: Feedback | None, data: st.DataObject) -> None:
        if feedback is None:
            return
        rows = len(feedback.env_indices)
        if data.draw(st.integers(0, 4)) == 0:
            book.left_out(feedback, "unfit")
            return
        overridden = data.draw(st.integers(0, rows))
        book.fed_back(feedback, {"overridden": overridden})
        self.stored += rows - overridden

    def leave(self, number: int) -> None:
        protocol, book = self.open.pop(number)
        book.leave(len(protocol.holding))


ENVS = st.lists(st.integers(0, 6), min_size=1, max_size=5, unique=True)


@given(st.data())
@fuzz(100)
def test_books_balance_after_any_sequence(data: st.DataObject) -> None:
    model = Model()
    for _ in range(data.draw(st.integers(1, 12))):
        number = data.draw(st.integers(0, 3))
        if number not in model.open:
            model.connect(number)
        elif data.draw(st.integers(0, 5)) == 0:
            model.leave(number)
        else:
            model.exchange(number, data.draw(ENVS), data.draw(ENVS), data)
        snapshot = model.run.snapshot()
        assert snapshot.book_errors == ()
        assert sum((b.chunks_open for b in snapshot.connections.values()), 0) == sum(
            len(protocol.holding) for protocol, _ in model.open.values()
        )
    for number in list(model.open):
        model.leave(number)
    model.run.audit(model.stored)
    snapshot = model.run.snapshot()
    assert snapshot.book_errors == ()
    assert (snapshot.books.chunks_open, snapshot.books.rows_waiting) == (0, 0)


# -- Bugs that lose something -----------------------------------------------------------------


def loses_a_row_while_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = ServerProtocol._receive_feedback

    def partial(self: ServerProtocol, frame: bytes | str) -> ReceivedFeedback:
        received = receive(self, frame)
        assert received.feedback is not None
        return ReceivedFeedback(received.feedback.select([0]), received.rows)

    monkeypatch.setattr(ServerProtocol, "_receive_feedback", partial)


def forgets_to_hand_a_feedback_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: AgentRunner, *args: Any) -> None:
        pass

    monkeypatch.setattr(AgentRunner, "feedback", nothing)


def gives_a_chunk_that_nobody_knows_of(monkeypatch: pytest.MonkeyPatch) -> None:
    acted = ClientBook.acted

    def partial(self: ClientBook, envs: Any, horizon: int) -> None:
        acted(self, envs, horizon)
        self.books.chunks_given -= 1

    monkeypatch.setattr(ClientBook, "acted", partial)


def forgets_who_holds_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerProtocol, "holding", property(lambda self: set()))


def claims_more_than_there_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keeping, "feedback", lambda *args: {"overridden": 9})


def stores_one_row_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keeping, "rows_stored", property(lambda self: self.counted - 1))


@pytest.mark.parametrize(
    "bug",
    [
        loses_a_row_while_reading,
        forgets_to_hand_a_feedback_over,
        gives_a_chunk_that_nobody_knows_of,
        forgets_who_holds_a_chunk,
        claims_more_than_there_was,
        stores_one_row_less,
    ],
)
def test_bug_that_loses_something_unbalances_the_books(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    bug: Callable[[pytest.MonkeyPatch], None],
) -> None:
    bug(monkeypatch)
    with running(Keeping()) as run, raw_client(run.url) as client:
        client.infer(0, 1)
        client.feed_back(0, 1)
        client.infer(0)
        run.server.request_shutdown()
        assert run.ended() is False
    assert run.server.statistics.snapshot().book_errors != ()
    assert "the books do not balance: " in caplog.text
