"""How a client comes back after a lost connection, on a clock of the test's."""

from __future__ import annotations

from typing import Any

import pytest

from plugrl_gym import (
    ConnectionFailed,
    ConnectionLost,
    ConnectTimeout,
    RemoteProtocolError,
    ReplyTimeout,
    RunFinished,
    ServerRefused,
)
from plugrl_gym.client import session
from plugrl_gym.client.backoff import Backoff
from plugrl_gym.client.connection import Endpoint
from plugrl_gym.client.session import Session

URL = "ws://127.0.0.1:1"


class World:
    """Time that passes only in sleep, and connections that turn out as the test says.

    Attributes:
        outcomes: What attempts to connect come to, in order: an exception, or None for success.
            The last is repeated.
        slept: Each delay between two attempts.
        attempts: When each attempt was made.
        notices: What was told while waiting.
    """

    def __init__(self, *outcomes: Exception | None) -> None:
        self.now = 1000.0
        self.outcomes = list(outcomes)
        self.attempts: list[float] = []
        self.notices: list[str] = []
        self.lost: list[str] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def connect(self, endpoint: Endpoint, timeout: float) -> Open:
        self.attempts.append(self.now - 1000.0)
        self.now += min(timeout, 0.01)
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if outcome is not None:
            raise outcome
        return Open()

    def session(self, reconnect_timeout: float | None = 300.0, **options: Any) -> Session:
        endpoint = Endpoint(URL, on_wait=lambda seconds, what: self.notices.append(what), **options)
        backoff = Backoff(0.2, 15.0, draw=lambda: 1.0)
        return Session(
            endpoint,
            reconnect_timeout,
            self.lost.append,
            backoff,
            clock=lambda: self.now,
            sleep=self.sleep,
        )


class Open:
    """A connection; ``broken`` makes its next exchange fail."""

    features = ()
    broken: Exception | None = None

    def feedback(self, feedback: Any) -> None:
        if self.broken is not None:
            raise self.broken

    def infer(self, infer: Any, accept: Any) -> Any:
        if self.broken is not None:
            raise self.broken
        return accept("answer")

    def abort(self) -> None:
        pass

    close = abort


FULL = ConnectionLost(f"{URL}: 1013 4 envs at most, 3 are here, client has 2", "no room")
REFUSED = ConnectTimeout(f"{URL}: nothing listens there")
LOST = ConnectionLost(f"{URL}: 1001 plugrl-server-resync", "resync")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(None)
    monkeypatch.setattr(session, "Connection", lambda *args: world.connect(*args))
    return world


def lose(link: Session, error: Exception = LOST) -> None:
    assert link._connection is not None
    link._connection.broken = error  # type: ignore[attr-defined]
    assert link.infer(None, str) is None  # type: ignore[arg-type]


def test_delays_grow_from_a_fifth_of_a_second_to_fifteen(world: World) -> None:
    world.outcomes = [*[REFUSED] * 9, None]
    assert world.session(connect_timeout=300.0).connect()
    gaps = [round(b - a, 1) for a, b in zip(world.attempts, world.attempts[1:], strict=False)]
    assert gaps == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0]


def test_delays_are_drawn_from_zero_to_their_bound() -> None:
    draws = iter([0.0, 0.5, 0.25])
    backoff = Backoff(0.2, 15.0, draw=lambda: next(draws))
    assert [backoff.next() for _ in range(3)] == [0.0, 0.2, 0.2]


def test_first_attempt_after_a_loss_is_made_at_once(world: World) -> None:
    link = world.session()
    link.connect()
    lose(link)
    before = world.now
    link.connect()
    assert world.attempts[-1] == before - 1000.0


def test_connections_that_come_to_nothing_are_held_back_more_each_time(world: World) -> None:
    link = world.session()
    link.connect()
    for _ in range(4):
        lose(link)
        link.connect()
    gaps = [round(b - a, 1) for a, b in zip(world.attempts, world.attempts[1:], strict=False)]
    assert gaps == [0.0, 0.2, 0.4, 0.8]


def test_answer_after_a_feedback_ends_the_holding_back(world: World) -> None:
    link = world.session()
    link.connect()
    for _ in range(4):
        lose(link)
        link.connect()
    assert link.feedback(None)  # type: ignore[arg-type]
    assert link.infer(None, str)  # type: ignore[arg-type]
    lose(link)
    before = world.now
    link.connect()
    assert world.attempts[-1] == before - 1000.0


def test_twenty_connections_without_progress_are_enough(world: World) -> None:
    link = world.session(reconnect_timeout=None)
    link.connect()
    for _ in range(20):
        lose(link)
        link.connect()
    lose(link)
    with pytest.raises(ConnectionFailed, match=r"gave up after 20 .*plugrl-server-resync"):
        link.connect()


def test_caller_may_try_again_after_it_was_given_up(world: World) -> None:
    link = world.session()
    link.connect()
    for _ in range(20):
        lose(link)
        link.connect()
    lose(link)
    with pytest.raises(ConnectionFailed, match="gave up"):
        link.connect()
    assert link.connect()


def test_full_server_is_asked_again_until_the_time_is_up(world: World) -> None:
    link = world.session(reconnect_timeout=900.0)
    link.connect()

    def be_turned_away() -> None:
        for _ in range(200):
            lose(link, FULL)
            link.connect()

    with pytest.raises(ConnectTimeout, match=r"no room for 900 s: .*4 envs at most"):
        be_turned_away()
    assert len(world.attempts) > 60
    assert world.now - 1000.0 == pytest.approx(900.0, abs=1.0)
    assert link.connect()


def test_time_without_room_begins_anew_with_an_answer(world: World) -> None:
    link = world.session(reconnect_timeout=60.0)
    link.connect()
    for _ in range(5):
        until = world.now + 50.0
        while world.now < until:
            lose(link, FULL)
            link.connect()
        assert link.infer(None, str)  # type: ignore[arg-type]


def test_feedback_after_which_nothing_comes_is_no_progress(world: World) -> None:
    link = world.session(reconnect_timeout=None)
    link.connect()
    for _ in range(20):
        assert link.infer(None, str)  # type: ignore[arg-type]
        assert link.feedback(None)  # type: ignore[arg-type]
        lose(link)
        link.connect()
    gaps = [round(b - a, 1) for a, b in zip(world.attempts, world.attempts[1:], strict=False)]
    assert gaps[:4] == [0.0, 0.2, 0.4, 0.8]
    lose(link)
    with pytest.raises(ConnectionFailed, match=r"gave up after 20 .*plugrl-server-resync"):
        link.connect()


def test_reconnecting_ends_at_its_limit_and_names_both_failures(world: World) -> None:
    link = world.session(reconnect_timeout=60.0)
    link.connect()
    lose(link)
    world.outcomes = [REFUSED]
    with pytest.raises(
        ConnectTimeout, match=r"within 60 s: .*nothing listens.*last connection.*re"
    ):
        link.connect()
    assert 60.0 <= world.attempts[-1] < 61.0


def test_reconnecting_without_a_limit_goes_on_for_days(world: World) -> None:
    link = world.session(reconnect_timeout=None)
    link.connect()
    lose(link)
    world.outcomes = [*[REFUSED] * 12_000, None]
    assert link.connect()
    assert world.now > 2 * 86_400


@pytest.mark.parametrize(
    "failure",
    [
        ReplyTimeout("waited for the server's metadata"),
        ConnectionFailed("the host name does not resolve"),
        ConnectionLost("1001 Server shutdown"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_server_that_was_there_once_is_waited_for_whatever_is_wrong(
    world: World, failure: Exception
) -> None:
    link = world.session()
    link.connect()
    lose(link)
    world.outcomes = [failure, None]
    assert link.connect()


@pytest.mark.parametrize(
    "answer",
    [ServerRefused("wants a key"), RemoteProtocolError("no PlugRL"), RunFinished("over")],
    ids=lambda error: type(error).__name__,
)
def test_answer_that_will_not_change_ends_the_attempts(world: World, answer: Exception) -> None:
    link = world.session()
    link.connect()
    lose(link)
    world.outcomes = [REFUSED, answer]
    before = len(world.attempts)
    with pytest.raises(type(answer)):
        link.connect()
    assert len(world.attempts) == before + 2


@pytest.mark.parametrize(
    "failure", [ReplyTimeout("no metadata"), ConnectionFailed("no such host")], ids=str
)
def test_first_attempt_is_the_last_where_there_is_no_such_server(
    world: World, failure: Exception
) -> None:
    world.outcomes = [failure]
    with pytest.raises(type(failure)):
        world.session().connect()
    assert len(world.attempts) == 1


def test_waiting_is_told_once_a_second(world: World) -> None:
    world.outcomes = [REFUSED]
    with pytest.raises(ConnectTimeout):
        world.session(connect_timeout=30.0).connect()
    assert 30 <= len(world.notices) <= 40
    assert set(world.notices) == {f"a server at {URL}"}


def test_reason_of_a_loss_reaches_the_books(world: World) -> None:
    link = world.session()
    link.connect()
    lose(link, LOST)
    link.connect()
    link.hang_up("reset")
    link.connect()
    link._connection.broken = ReplyTimeout("late")  # type: ignore[union-attr]
    with pytest.raises(ReplyTimeout):
        link.infer(None, str)  # type: ignore[arg-type]
    assert world.lost == ["resync", "reset", "no answer"]
