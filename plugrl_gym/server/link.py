"""A server's WebSocket connection that a peer can neither fill nor keep open by silence."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

from websockets.asyncio.server import ServerConnection
from websockets.frames import DATA_OPCODES, Frame
from websockets.protocol import OPEN

__all__ = ["MOST_FRAMES", "Link"]

#: Frames that may wait to be read. Some libraries send a message of 1 MB as 250 of them, and a
#: server that stopped reading there would answer no ping while it learns (SPEC 2.14).
MOST_FRAMES: Final = 16_384
# An infer and a feedback are all that may wait to be read (SPEC 5).
_MOST_MESSAGES: Final = 4

_MARGIN: Final = 0.5
# How TLS begins (RFC 8446, 5.1: handshake, version 3.x), and what OpenSSL calls plain text.
_TLS_HELLO: Final = b"\x16\x03"
_NO_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n"
    b"This port speaks no TLS: use ws:// or http://\n"
)
# To other methods than GET the WebSocket library gives no answer (RFC 9110, 9 and 15.5.6).
_OTHER_METHOD: Final = re.compile(rb"(HEAD|POST|PUT|DELETE|CONNECT|OPTIONS|TRACE|PATCH) ")
_ONLY_GET: Final = (
    b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET\r\nConnection: close\r\n"
    b"Content-Type: text/plain\r\n\r\n"
)
_ONLY_GET_TEXT: Final = b"This is a PlugRL server, which answers GET alone.\n"


class Link(ServerConnection):
    """Notes signs of life, and reads nothing from a peer that does not read.

    Attributes:
        heard: Set when bytes arrive, be they a part of a long message or a pong.
    """

    heard = True
    _unread = 0  # messages that have come as a whole

    async def receive(self) -> bytes | str:
        """The next message.

        Raises:
            ConnectionClosed: There is none.
        """
        message: bytes | str = await self.recv()
        self._unread -= 1
        self._read_on()
        return message

    def process_event(self, event: Any) -> None:
        super().process_event(event)
        if isinstance(event, Frame) and event.opcode in DATA_OPCODES and event.fin:
            self._unread += 1
            if self._unread > _MOST_MESSAGES:
                self.transport.pause_reading()

    def _read_on(self) -> None:
        """Let the peer go on where nothing speaks against it."""
        if not (self.paused or self.recv_messages.paused or self._unread > _MOST_MESSAGES):
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self.heard = True
        answer = _unlike_websocket(data) if self.request is None else None
        if answer is not None:
            # The other end would take silence for a network that failed.
            self.transport.write(answer)
            self.transport.close()
            return
        super().data_received(data)

    def probe(self) -> None:
        """Send a ping, and wait for nothing."""
        if self.protocol.state is OPEN:
            self.protocol.send_ping(b"")
            self.send_data()

    async def shut(self, code: int, reason: str, patience: float) -> None:
        """Close within about ``patience`` seconds, whether or not the peer reads."""
        try:
            # The library's own limit begins only once what was sent before has been taken.
            async with asyncio.timeout(patience + _MARGIN):
                await self.close(code, reason)
        except TimeoutError:
            self.transport.abort()

    def pause_writing(self) -> None:
        """The peer reads too slowly: what it sends would only bring more to be written to it."""
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read_on()


def _unlike_websocket(data: bytes) -> bytes | None:
    """What to answer to the beginning of a connection; None to what may become a request."""
    if data.startswith(_TLS_HELLO):
        return _NO_TLS
    method = _OTHER_METHOD.match(data)
    if method is None:
        return None
    return _ONLY_GET if method[1] == b"HEAD" else _ONLY_GET + _ONLY_GET_TEXT
