"""Frames over a socket: handshakes and frames by hand, so that nothing is too broken to be sent."""

from __future__ import annotations

import random
import socket
import struct
from typing import Final

from plugrl_gym.protocol import encode
from tests.support.messages import feedback, infer

__all__ = ["Hang", "Visitor"]

_HANDSHAKE: Final = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
_INFER: Final = encode(infer([0, 1]).to_wire())
_FEEDBACK: Final = encode(feedback([0, 1]).to_wire())
_BINARY: Final = 0x82
_CLOSE: Final = 8
_UNFINISHED: Final = (5, 8)
_GARBAGE: Final = b"\xc1"  # no msgpack: whatever came before, the server closes
_REQUESTS: Final = (
    b"",
    b"\x00" * 50,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
    b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 300 + b"\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
    b"GET / HTTP/9.9\r\nUpgrade: websocket\r\n\r\n",
    b"GET " + b"/a" * 9000 + b" HTTP/1.1\r\n\r\n",
)


class Hang(Exception):
    """The server neither answered nor closed."""


def _framed(payload: bytes, first: int = _BINARY) -> bytes:
    """A WebSocket frame from a client, with a mask of zeros."""
    size = len(payload)
    if size < 126:
        head = struct.pack(">BB", first, 0x80 | size)
    elif size < 2**16:
        head = struct.pack(">BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack(">BBQ", first, 0x80 | 127, size)
    return head + b"\x00\x00\x00\x00" + payload


class Visitor:
    """Comes to a server again and again, never in good order.

    Args:
        port: Of the server, on 127.0.0.1.
        draw: Decides.
        patience: Seconds for anything that the server must do.
    """

    def __init__(self, port: int, draw: random.Random, patience: float = 20.0) -> None:
        self._address = ("127.0.0.1", port)
        self._draw = draw
        self._patience = patience

    def visit(self, frame: bytes) -> None:
        """Connect, send ``frame`` in some state or some way, and see the connection closed.

        Raises:
            Hang: It was not, in time.
            OSError: The server accepts nobody.
        """
        with socket.create_connection(self._address, self._patience) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                self._say(sock, frame)
            except (ConnectionError, BrokenPipeError):
                return  # closed in the middle of what was sent: that is an answer, too
            except TimeoutError:
                raise Hang(f"no close in {self._patience:.0f} s after {frame[:60].hex()}") from None

    def _say(self, sock: socket.socket, frame: bytes) -> None:
        draw = self._draw
        way = draw.randrange(20)
        if way == 0:
            sock.sendall(draw.choice(_REQUESTS) + frame)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
            return None
        self._open(sock)
        before = draw.choice((b"", _framed(_INFER), _framed(_INFER) + _framed(_FEEDBACK)))
        sock.sendall(before + self._wrapped(frame, way) + _framed(_GARBAGE))
        if way == 1:
            return None  # leaves without a word
        if way in _UNFINISHED:
            sock.shutdown(socket.SHUT_WR)  # a server may wait for the rest as long as it likes
        return self._read_out(sock)

    def _wrapped(self, frame: bytes, way: int) -> bytes:
        """``frame`` as the one binary frame that it should be, or not quite."""
        draw = self._draw
        if way == 2:
            return _framed(frame, 0x81)  # text
        if way == 3:
            return _framed(frame, draw.choice((0x83, 0x8B, 0xC2, 0xF2, 0x80)))  # reserved
        if way == 4:
            cut = draw.randrange(len(frame) + 1)
            return _framed(frame[:cut], 0x02) + _framed(frame[cut:], 0x80)  # fragments
        if way == 5:
            return struct.pack(">BBQ", _BINARY, 0xFF, 2**63 + 5) + frame  # an impossible length
        if way == 6:
            return struct.pack(">BB", _BINARY, min(len(frame), 125)) + frame  # without a mask
        if way == 7:
            return _framed(frame[:125], draw.choice((0x88, 0x89, 0x8A)))  # close, ping, pong
        if way == 8:
            return _framed(frame)[: draw.randrange(len(frame) + 6)]  # in part
        return _framed(frame)

    def _open(self, sock: socket.socket) -> None:
        """Shake hands."""
        sock.sendall(_HANDSHAKE % self._address[1])
        received = b""
        while not received.endswith(b"\r\n\r\n"):
            data = sock.recv(1)  # no byte of a frame
            if not data:
                raise ConnectionError
            received += data
        if not received.startswith(b"HTTP/1.1 101"):
            raise AssertionError(f"the server refused a good handshake: {received[:200]!r}")

    def _read_out(self, sock: socket.socket) -> None:
        """Read on until the server's close frame, and answer it; or until it just ends."""
        with sock.makefile("rb") as stream:
            while head := stream.read(2):
                size = head[-1] & 0x7F
                if size > 125:
                    size = int.from_bytes(stream.read(2 if size == 126 else 8), "big")
                stream.read(size)
                if head[0] & 0x0F == _CLOSE:
                    sock.sendall(_framed(struct.pack(">H", 1000), 0x88))
                    sock.shutdown(socket.SHUT_WR)
                    stream.read()
                    return
