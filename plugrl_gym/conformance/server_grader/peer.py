"""A WebSocket connection to a server, with a deadline on every wait and no opinion on content."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidMessage,
    InvalidStatus,
    InvalidURI,
    ProxyError,
)
from websockets.frames import Opcode
from websockets.sync.client import ClientConnection, connect

from plugrl_gym.protocol.close import REASON_FEEDBACK_TIMEOUT, REASON_RESYNC, REASON_STOP
from plugrl_gym.tls_socket import turn_taking

__all__ = ["CLOSE_TIMEOUT", "Closed", "Peer", "Received", "Unreachable", "open_peer"]

#: Seconds to wait for the server's half of a close that the grader begins.
CLOSE_TIMEOUT: Final = 2.0

_WATCHED: Final = 1 << 15
_GREETING_SECONDS: Final = 3.0

_logger = logging.getLogger("plugrl_gym.conformance.websocket")
_logger.addHandler(logging.NullHandler())
_logger.propagate = False  # what a broken server does is in the report, not in a traceback


class Unreachable(Exception):
    """No WebSocket came about.

    Attributes:
        status: The HTTP status, where the server answered the handshake with one.
    """

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Closed:
    """How a connection ended.

    Attributes:
        code, reason: Of the server's close frame; None and empty where there was none.
        complaint: What was wrong with the bytes that came, where they were no WebSocket frames.
    """

    code: int | None
    reason: str = ""
    complaint: str = ""

    @property
    def resync(self) -> bool:
        """The close of SPEC 8.4."""
        return (self.code, self.reason) == (1001, REASON_RESYNC)

    @property
    def stop(self) -> bool:
        """The close of SPEC 8.1."""
        return (self.code, self.reason) == (1001, REASON_STOP)

    @property
    def feedback_timeout(self) -> bool:
        """The close of SPEC 8.8."""
        return (self.code, self.reason) == (1001, REASON_FEEDBACK_TIMEOUT)

    def __str__(self) -> str:
        if self.complaint:
            return f"bytes that are no WebSocket frame: {self.complaint}"
        if self.code is None:
            return "the connection broke without a close frame"
        return f"the close {self.code} with the reason {self.reason!r}"


Received = bytes | str | Closed | None
"""A binary frame, a text frame, the end of the connection, or nothing before the deadline."""


class Peer:
    """One open connection; :func:`open_peer` makes them.

    Attributes:
        muted: Whether it leaves pings unanswered.
        aborted: Whether this end broke the connection off.
    """

    def __init__(self, connection: ClientConnection, patience: float) -> None:
        self.muted = self.aborted = False
        self._connection = connection
        self._patience = patience

    @property
    def extensions(self) -> list[str]:
        """The WebSocket extensions that were agreed on."""
        return [extension.name for extension in self._connection.protocol.extensions]

    def send(self, frame: bytes | str) -> None:
        """Send a binary frame, or a text frame; on a closed connection nothing happens."""
        watchdog = None
        if len(frame) > _WATCHED:  # more than buffers take: a server that does not read blocks us
            watchdog = threading.Timer(self._patience, self.abort)
            watchdog.daemon = True
            watchdog.start()
        with contextlib.suppress(ConnectionClosed):
            self._connection.send(frame)
        if watchdog is not None:
            watchdog.cancel()

    def receive(self, seconds: float) -> Received:
        """Wait for what comes next."""
        try:
            return self._connection.recv(timeout=max(seconds, 0))
        except TimeoutError:
            return None
        except ConnectionClosed as error:
            if error.rcvd is not None:
                return Closed(error.rcvd.code, error.rcvd.reason)
            # Our own library closes with these over frames that break RFC 6455.
            broken = error.sent is not None and error.sent.code in (1002, 1007)
            return Closed(None, complaint=str(error.sent.reason) if broken and error.sent else "")

    def ping(self) -> Ping:
        """Send a ping."""
        try:
            return Ping(self._connection.ping(ack_on_close=True))
        except ConnectionClosed:
            over = threading.Event()
            over.set()
            return Ping(over)

    def mute(self) -> None:
        """Answer no more pings, as a client that holds its interpreter's lock for minutes."""
        self.muted = True
        protocol: Any = self._connection.protocol
        send = protocol.send_frame
        protocol.send_frame = lambda frame: None if frame.opcode is Opcode.PONG else send(frame)

    def close(self, code: int = 1000) -> Closed:
        """Say goodbye properly; what the server says to that, or had just said."""
        self._connection.close(code)
        answer = self._connection.protocol.close_rcvd
        return Closed(None) if answer is None else Closed(answer.code, answer.reason)

    def abort(self) -> None:
        """Vanish without a close frame."""
        self.aborted = True
        with contextlib.suppress(OSError):
            self._connection.socket.shutdown(socket.SHUT_RDWR)


class Ping:
    """A ping that waits for its pong."""

    def __init__(self, pong: threading.Event) -> None:
        self._pong = pong
        self._sent = time.monotonic()

    def answered(self, seconds: float) -> bool:
        """Whether the pong, or the end of the connection, comes within ``seconds`` of the ping."""
        return self._pong.wait(max(0.0, self._sent + seconds - time.monotonic()))


@contextlib.contextmanager
def open_peer(
    url: str,
    seconds: float,
    *,
    api_key: str | None = None,
    trust: ssl.SSLContext | None = None,
    compression: bool = False,
) -> Iterator[Peer]:
    """Connect within ``seconds``.

    Raises:
        Unreachable: With a sentence that says what was found instead of a server.
    """
    headers = {} if api_key is None else {"Authorization": f"Api-Key {api_key}"}
    with contextlib.ExitStack() as stack:
        try:
            connection = stack.enter_context(
                connect(
                    url,
                    ssl=turn_taking(trust),
                    compression="deflate" if compression else None,
                    additional_headers=headers,
                    proxy=None,
                    open_timeout=seconds,
                    close_timeout=CLOSE_TIMEOUT,
                    ping_interval=None,
                    max_size=None,
                    logger=_logger,
                )
            )
        except Exception as error:  # of the network, the handshake, or an assertion of the library
            raise _unreachable(url, seconds, error) from None
        peer = Peer(connection, seconds)
        try:
            yield peer
        finally:
            peer.close()


def _greeting(url: str) -> bytes:
    """What is said there to a client that says nothing; no server of HTTP speaks first."""
    parts = urlsplit(url)
    with (
        contextlib.suppress(OSError),
        socket.create_connection((parts.hostname, parts.port or 80), _GREETING_SECONDS) as probe,
    ):
        return probe.recv(40)
    return b""


def _unreachable(url: str, seconds: float, error: Exception) -> Unreachable:
    # The library either runs into an assertion over such a greeting, or waits in vain.
    if isinstance(error, TimeoutError | AssertionError) and (said := _greeting(url)):
        return Unreachable(f"{url} is no WebSocket server: it speaks first, and says {said!r}")
    match error:
        case InvalidStatus():
            status = error.response.status_code
            if status == 401:
                return Unreachable(f"{url} asks for a key (HTTP 401): pass --api-key", status)
            return Unreachable(
                f"{url} answers the WebSocket handshake with HTTP status {status}: it seems to "
                "be a plain HTTP server, or another path is meant",
                status,
            )
        case InvalidMessage() if "HTTP/1.0" in str(error.__cause__):
            return Unreachable(f"{url} seems to be a plain HTTP server: it answers in HTTP/1.0")
        case InvalidMessage():
            return Unreachable(f"{url} is no WebSocket server: it does not answer in HTTP")
        case InvalidURI():
            return Unreachable(f"{url} is no WebSocket address: expected ws://HOST:PORT")
        case InvalidHandshake() | ProxyError():
            return Unreachable(f"{url} refuses the WebSocket handshake: {error}")
        case TimeoutError():
            return Unreachable(f"{url} did not complete a WebSocket handshake within {seconds:g} s")
        case ConnectionRefusedError():
            return Unreachable(f"nothing listens at {url}: connection refused")
        case ssl.SSLCertVerificationError():
            return Unreachable(
                f"the certificate of {url} is not trusted ({error.verify_message}): name that of "
                "its authority, or its own, with --ca-file"
            )
        case socket.gaierror():
            return Unreachable(f"the host of {url} is unknown: {error.strerror}")
    return Unreachable(f"{url} cannot be reached: {error or type(error).__name__}")
