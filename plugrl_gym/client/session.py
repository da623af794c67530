"""The client's link to its server over many connections: dialing, re-dialing, the run's end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from plugrl_gym.client.connection import Connection, Endpoint
from plugrl_gym.errors import (
    ConnectionFailed,
    ConnectionLost,
    ConnectTimeout,
    PlugRLError,
    ReplyTimeout,
    RunFinished,
)
from plugrl_gym.protocol import Action, Feedback, Infer

__all__ = ["Session"]

_log = logging.getLogger("plugrl_gym.client")
_RETRY_DELAY: Final = 0.5
_FRUITLESS_LIMIT: Final = 20

T = TypeVar("T")


class Session:
    """Keeps a connection open as long as the run lasts.

    Args:
        endpoint: The server.
        reconnect_timeout: Seconds to go on trying after a lost connection.
        on_lost: Called whenever a connection is gone, before the next: what was open on it is
            lost (SPEC 8).

    Attributes:
        connections: How many were opened.
        finished: The server has ended the run.
    """

    def __init__(
        self, endpoint: Endpoint, reconnect_timeout: float, on_lost: Callable[[], None]
    ) -> None:
        self._endpoint = endpoint
        self._reconnect_timeout = reconnect_timeout
        self._on_lost = on_lost
        self._connection: Connection | None = None
        self._last_loss: PlugRLError | None = None
        self._end: PlugRLError | None = None
        self._fruitless = 0
        self.connections = 0

    @property
    def finished(self) -> bool:
        """Whether the server has ended the run."""
        return isinstance(self._end, RunFinished)

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
        limit = self._endpoint.connect_timeout
        if self.connections:
            limit = self._reconnect_timeout
        try:
            self._connection = self._dial(limit)
        except RunFinished as error:
            self._end = error
            raise
        self.connections += 1
        return True

    def _dial(self, limit: float) -> Connection:
        started = time.monotonic()
        if self._last_loss is not None and not isinstance(self._last_loss, ConnectTimeout):
            self._count_fruitless(self._last_loss)
        while True:
            left = limit - (time.monotonic() - started)
            try:
                return Connection(self._endpoint, max(min(left, 10.0), 0.1))
            except (ConnectTimeout, ConnectionLost) as error:
                waited = time.monotonic() - started
                if waited + _RETRY_DELAY >= limit:
                    raise ConnectTimeout(
                        f"no PlugRL server could be reached within {limit:.0f} s: {error}; start "
                        "one with `python -m plugrl_gym.serve`, or check the URL"
                    ) from None
                self._endpoint.wait_notice(started, f"a server at {self._endpoint.url}")
            time.sleep(_RETRY_DELAY)

    def _count_fruitless(self, loss: PlugRLError) -> None:
        self._fruitless += 1
        if self._fruitless > _FRUITLESS_LIMIT:
            raise ConnectionFailed(
                f"gave up after {_FRUITLESS_LIMIT} connections in a row on which nothing could "
                f"be fed back; the last one ended so: {loss}"
            )
        if self._fruitless > 1:
            time.sleep(_RETRY_DELAY)

    def infer(self, infer: Infer, accept: Callable[[Action], T]) -> T | None:
        """Ask for actions; None where the connection was lost instead of an answer."""
        return self._guard(lambda connection: connection.infer(infer, accept))

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
        if sent:
            self._fruitless = 0
        return sent

    def _guard(self, exchange: Callable[[Connection], T]) -> T | None:
        assert self._connection is not None
        try:
            return exchange(self._connection)
        except (ConnectionLost, ReplyTimeout) as error:
            _log.warning("%s; reconnecting", error)
            self._lose(error)
            if isinstance(error, ReplyTimeout):
                raise
            return None
        except BaseException as error:
            # LocalProtocolError included: what could not be sent leaves a chunk unanswered.
            if isinstance(error, PlugRLError) and not isinstance(error, ConnectionFailed):
                self._end = error if isinstance(error, RunFinished) else self._end
            self._lose(error if isinstance(error, PlugRLError) else None)
            raise

    def _lose(self, why: PlugRLError | None) -> None:
        if self._connection is not None:
            self._connection.abort()
        self._connection = None
        self._last_loss = why
        self._on_lost()

    def hang_up(self) -> None:
        """Close the open connection with code 1000."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._last_loss = None
            self._on_lost()
