"""Pings that go on while an env steps or the caller sleeps, so that a dead peer is noticed.

A peer that has vanished without a word (a cable, a power cut, ``kill -STOP``) keeps its connection
half open: nothing that this side does would ever fail. Of a peer that is alive at most every fourth
part of the limit asks for a pong. Whatever comes is a sign of life, for a ping may find no way:
while a message is being sent none can be.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from plugrl_gym.latency import Histogram

__all__ = ["Heartbeat", "Listening", "Pulse", "sever"]

# A large message on a slow link keeps pongs waiting: it is given this long.
_SLOWEST: Final = 100_000.0  # bytes per second


class Pulse:
    """Decides when a silent peer counts as gone (pure).

    Args:
        limit: Seconds of silence. A peer that answers nothing more is found out after at most
            that many, and no sooner than three quarters of them after it fell silent.

    Attributes:
        period: Seconds from one tick to the next.
        silence: Seconds without a sign of life.
    """

    def __init__(self, limit: float) -> None:
        self.period = limit / 4
        self.silence = 0.0

    def tick(self, elapsed: float, alive: bool, patience: float = 0.0) -> bool:
        """A period is over.

        Args:
            elapsed: Seconds since the last tick, on any clock.
            alive: The peer was heard since.
            patience: Further seconds that it may take.

        Returns:
            Whether the peer counts as gone.
        """
        # A process that was stopped, or whose env kept the interpreter to itself, has heard
        # nothing because it did not listen.
        heard = min(elapsed, self.period)
        self.silence = 0.0 if alive else self.silence + heard
        return self.silence >= 2.9 * self.period + patience  # the third tick, give or take


class Listening(ClientConnection):
    """A connection that notes signs of life.

    Attributes:
        heard: Set when bytes arrive, be they a part of a long message or a pong.
    """

    heard = True

    def __init__(self, socket: Any, protocol: ClientProtocol, **options: Any) -> None:
        receive = protocol.receive_data

        def note(data: bytes | bytearray) -> None:
            self.heard = True
            receive(data)

        # Its reading begins within the constructor.
        protocol.receive_data = note  # type: ignore[method-assign]
        super().__init__(socket, protocol, **options)


class Heartbeat:
    """Pings the peer of one connection from a thread of its own.

    Args:
        connection: Open; it is severed where the peer is gone.
        limit: Seconds of silence, as for :class:`Pulse`.

    Attributes:
        gone: Seconds of silence after which the peer was given up; None while it was not.
    """

    def __init__(self, connection: Listening, limit: float) -> None:
        self.gone: float | None = None
        self._connection = connection
        self._pulse = Pulse(limit)
        self._writing = threading.Lock()
        self._patience = 0.0
        self._asked: threading.Event | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="plugrl-heartbeat")
        self._thread.start()

    @contextlib.contextmanager
    def sending(self, size: int) -> Iterator[None]:
        """While the block sends a message of ``size`` bytes no ping is tried, and more is borne."""
        with self._writing:
            self._patience = size / _SLOWEST
            began = time.monotonic()
            try:
                yield
            finally:
                self._patience = 0.0
            if time.monotonic() - began > self._pulse.period:
                # The peer has read, and nothing of it was: a message takes all of the connection.
                self._connection.heard = True

    def measure(self, wire: Histogram) -> None:
        """Enter the time of the last ping, once its pong has come."""
        asked = self._asked
        if asked is not None and asked.is_set():
            self._asked = None
            with self._connection.protocol_mutex:  # the library sets it a moment later
                wire.observe(self._connection.latency)

    def stop(self) -> None:
        """The connection is closed."""
        self._stopped.set()

    def _run(self) -> None:
        pulse, last = self._pulse, time.monotonic()
        with contextlib.suppress(ConnectionClosed, OSError, ValueError):
            pong = self._ping()  # for the sake of its time
            while not self._stopped.wait(pulse.period):
                now = time.monotonic()
                alive, self._connection.heard = self._connection.heard, False
                if pulse.tick(now - last, alive, self._patience):
                    self.gone = pulse.silence
                    sever(self._connection)
                    return
                last = now
                if pong is None or pong.is_set():
                    pong = self._ping()

    def _ping(self) -> threading.Event | None:
        """Send a ping; None where it would have to wait."""
        if not self._writing.acquire(blocking=False):
            return None
        try:
            if not _writable(self._connection.socket):
                return None
            self._asked = self._connection.ping()
            return self._asked
        finally:
            self._writing.release()


def _writable(sock: socket.socket) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_WRITE)
        return bool(selector.select(0))


def sever(connection: ClientConnection) -> None:
    """End the TCP connection, and with it whatever waits in ``send`` or ``recv``."""
    with contextlib.suppress(OSError):
        # close() alone would not wake a thread that waits to send.
        connection.socket.shutdown(socket.SHUT_RDWR)
