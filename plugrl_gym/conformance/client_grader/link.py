"""The grading server's sockets: one connection at a time, and nothing hidden by a library.

The grader is a single thread. Whatever it waits for, :meth:`Listener.wait` keeps the sockets
served, so that pings are answered and frames are noticed while nobody asks for them.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

__all__ = ["Arrival", "Closing", "Link", "Listener"]

T = TypeVar("T")

_SLICE: Final = 0.02
_CHUNK: Final = 1 << 18
_CLOSE_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Arrival:
    """One data message from the client.

    Attributes:
        data: Its payload.
        text: Whether it came as text.
    """

    data: bytes
    text: bool


@dataclass(frozen=True)
class Closing:
    """How a connection ended.

    Attributes:
        code, reason: Of the client's close frame; None and empty if none came.
        broken: What the client did against RFC 6455, if that ended it.
    """

    code: int | None = None
    reason: str = ""
    broken: str = ""

    def __str__(self) -> str:
        if self.broken:
            return f"broke the WebSocket framing ({self.broken})"
        if self.code is None:
            return "dropped the connection without a close frame"
        reason = f" {self.reason!r}" if self.reason else ""
        return f"closed the connection with {self.code}{reason}"


class Link:
    """One connection, from the TCP handshake on.

    Attributes:
        request: The client's HTTP request, once it has come.
        open: Whether the WebSocket handshake was completed.
        arrivals: Data messages that nobody has taken yet.
        pongs: Payload of each ping that was answered -> when.
        deaf: While true nothing is read: to the client, this end computes.
        corked: While true nothing is written, so that what follows leaves in one piece with it.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket: socket.socket | None = connection
        self._protocol = ServerProtocol(extensions=None, max_size=None)
        self._unsent = bytearray()
        self._parts: list[bytes] = []
        self._text = False
        self.request: Request | None = None
        self.open = False
        self.arrivals: deque[Arrival] = deque()
        self.pongs: dict[bytes, float] = {}
        self.deaf = False
        self.corked = False
        self._received = False

    # -- what to do with it

    def accept(self) -> bool:
        """Answer the handshake; False if it was no valid one."""
        assert self.request is not None
        response = self._protocol.accept(self.request)
        self._protocol.send_response(response)
        self.open = response.status_code == 101
        self._send_out()
        return self.open

    def reject(self, status: int, text: str) -> None:
        """Answer the handshake with an HTTP status."""
        response = self._protocol.reject(status, f"{text}\n")
        self._protocol.send_response(response)
        self._send_out()

    def send(self, data: bytes | str) -> None:
        """Send one message: bytes as a binary frame, str as a text frame."""
        if self.closing is None:
            if isinstance(data, str):
                self._protocol.send_text(data.encode())
            else:
                self._protocol.send_binary(data)
            self._send_out()

    def ping(self, payload: bytes) -> None:
        """Send a ping; :attr:`pongs` tells when it was answered."""
        if self.closing is None:
            self._protocol.send_ping(payload)
            self._send_out()

    def send_close(self, code: int, reason: str) -> None:
        """Begin the closing handshake."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code, reason)
            self.corked = False
            self._send_out()

    def drop(self) -> None:
        """End the TCP connection without a close frame, as a killed server would."""
        self.corked = False
        self.write()
        self.discard()

    def discard(self) -> None:
        """Free the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # -- what became of it

    @property
    def closing(self) -> Closing | None:
        """How the client ended the connection; None while it has not."""
        if self._protocol.close_rcvd is not None:
            close = self._protocol.close_rcvd
            return Closing(int(close.code), close.reason)
        if self._protocol.parser_exc is not None and not isinstance(
            self._protocol.parser_exc, EOFError
        ):
            return Closing(broken=str(self._protocol.parser_exc))
        return Closing() if self._socket is None else None

    def first_event(self) -> Request | Closing | None:
        """The handshake's request, or how the client ended the connection without one."""
        return self.request or self.closing

    def next_event(self) -> Arrival | Closing | None:
        """The next message; if there is none, how the client ended the connection, if it did."""
        return self.arrivals.popleft() if self.arrivals else self.closing

    @property
    def spoke(self) -> bool:
        """Whether any byte came."""
        return self._received

    @property
    def headers(self) -> Headers:
        """The request's headers."""
        return self.request.headers if self.request is not None else Headers()

    # -- moving bytes

    def fileno(self) -> int:
        """For select; -1 once it is gone."""
        return -1 if self._socket is None else self._socket.fileno()

    @property
    def wants_to_write(self) -> bool:
        """Whether bytes wait to be sent."""
        return bool(self._unsent) and not self.corked

    def read(self) -> None:
        """Take what has come."""
        if self._socket is None:
            return
        try:
            data = self._socket.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if data:
            self._received = True
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            self._take(event)
        self._send_out()
        if not data:
            self.discard()

    def write(self) -> None:
        """Send what the peer is ready to take."""
        if self._socket is None or not self._unsent or self.corked:
            return
        try:
            sent = self._socket.send(memoryview(self._unsent)[:_CHUNK])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            # The peer is gone; what it sent before may still have to be read.
            self._unsent.clear()
            return
        del self._unsent[:sent]

    def _send_out(self) -> None:
        for data in self._protocol.data_to_send():
            self._unsent += data  # an empty one asks for a half-close: discard() does it
        self.write()

    def _take(self, event: Request | Frame | object) -> None:
        if isinstance(event, Request):
            self.request = event
        elif isinstance(event, Frame):
            if event.opcode is Opcode.PONG:
                self.pongs[bytes(event.data)] = time.monotonic()
            elif event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                if event.opcode is not Opcode.CONT:
                    self._parts, self._text = [], event.opcode is Opcode.TEXT
                self._parts.append(bytes(event.data))
                if event.fin:
                    self.arrivals.append(Arrival(b"".join(self._parts), self._text))


class Listener:
    """A listening socket on this machine, and the one connection that is being served.

    Attributes:
        port: Where it listens; the system chose it.
        link: The connection that is served while something is waited for.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._socket = socket.create_server((host, 0), backlog=16)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self.link: Link | None = None
        self._links: list[Link] = []

    def accept(self) -> Link | None:
        """The next TCP connection, if one waits."""
        try:
            connection, _ = self._socket.accept()
        except OSError:  # none waits, or it is gone again
            return None
        self._links.append(Link(connection))
        return self._links[-1]

    def wait(self, ready: Callable[[], T], seconds: float) -> T | None:
        """Serve the connection until ``ready`` returns something, or for ``seconds``.

        Returns:
            What ``ready`` returned; None at the deadline.
        """
        deadline = time.monotonic() + seconds
        while True:
            found = ready()
            if found is not None:
                return found
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._serve(min(left, _SLICE))

    def close_link(self, code: int, reason: str) -> Closing | None:
        """Close the served connection in the WebSocket's way and wait for the client's answer.

        Returns:
            The client's close frame; None if it did not answer in time.
        """
        link = self.link
        if link is None:
            return None
        link.send_close(code, reason)
        closing = self.wait(lambda: link.closing, _CLOSE_SECONDS)
        link.discard()
        return closing

    def stop(self) -> None:
        """Free the sockets."""
        for link in self._links:
            link.discard()
        self._socket.close()

    def _serve(self, seconds: float) -> None:
        link = self.link
        if link is None or link.fileno() < 0:
            with contextlib.suppress(OSError):
                select.select([self._socket], [], [], seconds)
            return
        readers = [] if link.deaf else [link]
        writers = [link] if link.wants_to_write else []
        if not readers and not writers:
            time.sleep(seconds)
            return
        readable, writable, _ = select.select(readers, writers, [], seconds)
        if writable:
            link.write()
        if readable:
            link.read()
