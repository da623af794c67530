"""The client's link to its server over many connections: dialing, re-dialing, the run's end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from plugrl_gym.client.backoff import Backoff
from plugrl_gym.client.books import drop_reason
from plugrl_gym.client.connection import NO_ROOM, Connection, Endpoint
from plugrl_gym.durations import check_seconds
from plugrl_gym.errors import (
    ConnectionFailed,
    ConnectionLost,
    ConnectTimeout,
    PlugRLError,
    RunFinished,
)
from plugrl_gym.protocol import Action, Feedback, Infer

__all__ = ["Session"]

_log = logging.getLogger("plugrl_gym.client")
_FIRST_DELAY: Final = 0.2
_LONGEST_DELAY: Final = 15.0
_FRUITLESS_LIMIT: Final = 20
# The longest of one attempt, so that a server that comes back is not missed for long.
_ATTEMPT: Final = 10.0
# The last attempt may begin when the time is up; a server that is there can still say so.
_LEAST_ATTEMPT: Final = 2.0
_NOTICE: Final = 1.0

T = TypeVar("T")


class Session:
    """Keeps a connection open as long as the run lasts.

    Args:
        endpoint: The server.
        reconnect_timeout: Seconds to go on trying after a lost connection; None for ever.
        on_lost: Called with the reason whenever a connection is gone, before the next: what was
            open on it is lost (SPEC 8).
        backoff: How long to wait between two attempts; None for 0.2 s to 15 s.
        clock, sleep: As in :mod:`time`.

    Attributes:
        connections: How many were opened.
        why: Why the last connection ended, as ``on_lost`` was told.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        reconnect_timeout: float | None,
        on_lost: Callable[[str], None],
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        check_seconds(reconnect_timeout=reconnect_timeout, none=True)
        self._endpoint = endpoint
        self._reconnect_timeout = reconnect_timeout
        self._on_lost = on_lost
        self._backoff = backoff or Backoff(_FIRST_DELAY, _LONGEST_DELAY)
        self._clock, self._sleep = clock, sleep
        self._connection: Connection | None = None
        self._last_loss: PlugRLError | None = None
        self._end: PlugRLError | None = None
        self._fruitless = 0
        self._turned_away: float | None = None  # since when, on one connection after the other
        self._has_fed_back = False  # on the open connection
        self.connections = 0
        self.why = ""

    @property
    def finished(self) -> bool:
        """Whether the server has ended the run."""
        return isinstance(self._end, RunFinished)

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._endpoint.url

    @property
    def connected(self) -> bool:
        """Whether a connection is open, as far as this side knows."""
        return self._connection is not None

    @property
    def features(self) -> tuple[str, ...]:
        """What the server of the open connection offers; empty without one."""
        return () if self._connection is None else self._connection.features

    def connect(self) -> bool:
        """Make sure that a connection is open.

        Returns:
            Whether a new one was opened.

        Raises:
            RunFinished: The run is over.
            ConnectTimeout, ConnectionFailed, ServerRefused, RemoteProtocolError: None could be.
        """
        if self._end is not None:
            raise type(self._end)(*self._end.args)
        if self._connection is not None:
            return False
        try:
            self._connection = self._dial()
        except RunFinished as error:
            self._end = error
            raise
        self.connections += 1
        return True

    def _dial(self) -> Connection:
        limit = self._reconnect_timeout if self.connections else self._endpoint.connect_timeout
        started = self._clock()
        loss = self._last_loss
        if isinstance(loss, ConnectionLost) and loss.why == NO_ROOM:
            started = self._wait_for_room(loss, started, limit)
        else:
            self._turned_away = None
            self._hold_back(started)
        while True:
            try:
                patience = max(self._left(started, limit, _ATTEMPT), _LEAST_ATTEMPT)
                connection = Connection(self._endpoint, patience)
            except ConnectionFailed as error:
                if not self._may_pass(error):
                    raise
                if limit is not None and self._clock() - started >= limit:
                    raise self._gave_up(limit, error) from None
                self._wait(self._left(started, limit, self._backoff.next()), started)
                continue
            waited = self._clock() - started
            if waited >= _NOTICE:
                _log.info("connected to %s after %.0f s", self._endpoint.url, waited)
            return connection

    def _left(self, started: float, limit: float | None, wanted: float) -> float:
        """``wanted`` seconds, or what is left of ``limit`` if that is less; never negative."""
        if limit is None:
            return wanted
        return max(min(limit - (self._clock() - started), wanted), 0.0)

    def _wait_for_room(self, loss: ConnectionLost, now: float, limit: float | None) -> float:
        """A full server turned this client away; when it first did (SPEC 8.47)."""
        if self._turned_away is None:
            self._turned_away = now
        if limit is not None and now - self._turned_away >= limit:
            since, self._turned_away = now - self._turned_away, None
            raise ConnectTimeout(f"the server had no room for {since:.0f} s: {loss}")
        self._wait(self._left(self._turned_away, limit, self._backoff.next()), self._turned_away)
        return self._turned_away

    def _hold_back(self, started: float) -> None:
        """Slow down where one connection after the other comes to nothing (SPEC 8.35)."""
        loss = self._last_loss
        if loss is None:
            return
        self._fruitless += 1
        if self._fruitless > _FRUITLESS_LIMIT:
            self._fruitless = 0  # a caller who tries again means it
            raise ConnectionFailed(
                f"gave up after {_FRUITLESS_LIMIT} connections in a row on which the server took "
                f"no feedback; the last one ended so: {loss}"
            )
        if self._fruitless > 1:
            self._wait(self._backoff.next(), started)

    def _may_pass(self, error: ConnectionFailed) -> bool:
        """Whether it may help to try again: a server that was there once may come back."""
        return self.connections > 0 or isinstance(error, ConnectTimeout | ConnectionLost)

    def _wait(self, seconds: float, started: float) -> None:
        """Sleep, and tell what for, in pieces."""
        end = self._clock() + seconds
        while (left := end - self._clock()) > 0:
            self._sleep(min(left, _NOTICE))
            self._endpoint.on_wait(self._clock() - started, f"a server at {self._endpoint.url}")

    def _gave_up(self, limit: float, error: PlugRLError) -> ConnectTimeout:
        lost = "" if self._last_loss is None else f" (the last connection: {self._last_loss})"
        return ConnectTimeout(
            f"no PlugRL server could be reached within {limit:.0f} s: {error}{lost}; start "
            "one with `python -m plugrl_gym.serve`, or check the URL"
        )

    def infer(self, infer: Infer, accept: Callable[[Action], T]) -> T | None:
        """Ask for actions; None where the connection was lost instead of an answer."""
        answer = self._guard(lambda connection: connection.infer(infer, accept))
        if answer is not None:
            self._turned_away = None
        if answer is not None and self._has_fed_back:
            # Sending proves nothing: a server that refuses a feedback says so only afterwards.
            self._fruitless = 0
            self._backoff.reset()
        return answer

    def feedback(self, feedback: Feedback) -> bool:
        """Report finished chunks; whether they were handed to the network.

        The run's end is not raised here: it shows where the next action is asked for.
        """

        def send(connection: Connection) -> bool:
            connection.feedback(feedback)
            return True

        try:
            sent = self._guard(send) is True
        except RunFinished:
            return False
        self._has_fed_back |= sent
        return sent

    def _guard(self, exchange: Callable[[Connection], T]) -> T | None:
        assert self._connection is not None
        try:
            return exchange(self._connection)
        except ConnectionLost as error:
            _log.warning("%s; reconnecting", error)
            self.lose(error)
            return None
        except BaseException as error:
            # LocalProtocolError included: what could not be sent leaves a chunk unanswered.
            if isinstance(error, RunFinished):
                self._end = error
            self.lose(error)
            raise

    def lose(self, error: BaseException) -> None:
        """An exchange ended in ``error``: its connection is of no more use."""
        if self._connection is not None:
            self._connection.abort()
            self._forget(drop_reason(error))
        self._last_loss = error if isinstance(error, PlugRLError) else None

    def hang_up(self, why: str) -> None:
        """Close the open connection with code 1000, for a reason that the books will name."""
        if self._connection is not None:
            self._connection.close()
            self._last_loss = None
            self._forget(why)

    def _forget(self, why: str) -> None:
        self._connection = None
        self._has_fed_back = False
        self.why = why
        self._on_lost(why)
