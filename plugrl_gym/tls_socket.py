"""TLS for a connection that one thread reads while others write.

An ``ssl.SSLSocket`` hands every call to OpenSSL as it comes, and OpenSSL allows one call at a time
for one connection (openssl-threads(7)): two that overlap may end a sound connection with "EOF
occurred in violation of protocol". A client reads in a thread of its own, so here the calls take
turns. No turn includes a wait for the network.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from typing import Any, Final

__all__ = ["TlsSocket", "turn_taking"]

_CHUNK: Final = 1 << 18


class TlsSocket:
    """What a WebSocket library needs of a socket, over TLS.

    Args:
        sock: Connected; its timeout, if it has one, is for the handshake as a whole.
        context: Checks the server's certificate.
        server_hostname: Whom the certificate must name.

    Raises:
        ssl.SSLError: The handshake failed; the certificate is not trusted, say.
        OSError: The connection broke, or the time is up (TimeoutError).
    """

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, server_hostname: str | None
    ) -> None:
        self._socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_hostname=server_hostname
        )
        self._over = False  # nothing comes any more
        self._parted = False  # nothing can be sent any more
        self._turn = threading.Lock()
        self._sending = threading.Lock()  # records leave in the order in which they were made
        self._shake_hands()

        self.family = sock.family
        self.fileno = sock.fileno
        self.getpeername = sock.getpeername
        self.getsockname = sock.getsockname
        self.settimeout = sock.settimeout
        self.shutdown = sock.shutdown

    def close(self) -> None:
        """End the connection, and with it whatever waits in :meth:`recv`."""
        with contextlib.suppress(OSError):
            # close() alone does not wake a thread that waits for the rest of a record.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def recv(self, size: int) -> bytes:
        """Wait for bytes, as ``socket.recv`` does; ``size`` is what to take off the network.

        None stay behind: whoever waits for the socket to be readable would not hear of them.
        """
        data = b""
        while not (data or self._over):
            records = self._socket.recv(size)
            if not records:
                self._over = True
                break
            with self._turn:
                self._incoming.write(records)
                data = self._read()
            self._reply()
        return data

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of ``data``, as ``socket.sendall`` does; nothing after a farewell."""
        rest = memoryview(data)
        with self._sending:
            while rest:
                with self._turn:
                    if self._parted:
                        return  # as TCP takes what follows the other end's FIN
                    part = rest[:_CHUNK]
                    while part:
                        part = part[self._tls.write(part) :]
                rest = rest[_CHUNK:]
                self._send()

    def _read(self) -> bytes:
        """What can be read now; it may be the last."""
        parts = []
        try:
            while part := self._tls.read(_CHUNK):
                parts.append(part)
            # The other end has bidden farewell. It may wait for ours before it closes, and whoever
            # waits for the socket to be readable waits for that.
            self._over = self._parted = True
            self._tls.unwrap()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self._over = True
            if not parts:  # what came before the error counts
                raise
        return b"".join(parts)

    def _reply(self) -> None:
        """Send what TLS itself answers, to a farewell or to new keys.

        Where another thread is sending it may have to wait until we read on; then the answer goes
        with what is sent next.
        """
        if self._outgoing.pending and self._sending.acquire(blocking=self._over):
            try:
                # Where the connection is broken what has come is read all the same.
                with contextlib.suppress(OSError):
                    self._send()
            finally:
                self._sending.release()

    def _send(self) -> None:
        with self._turn:
            records = self._outgoing.read()
        self._socket.sendall(records)

    def _shake_hands(self) -> None:
        limit = self._socket.gettimeout()
        deadline = None if limit is None else time.monotonic() + limit
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._send()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._send()  # the other end is told why
                raise
            else:
                self._send()
                return
            if deadline is not None:
                self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            records = self._socket.recv(_CHUNK)
            if records:
                self._incoming.write(records)
            else:
                self._incoming.write_eof()


class _TurnTaking:
    """The part of an ``ssl.SSLContext`` that a WebSocket library calls."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.wrap_bio = context.wrap_bio
        self._context = context

    def wrap_socket(self, sock: socket.socket, *, server_hostname: str | None) -> TlsSocket:
        return TlsSocket(sock, self._context, server_hostname)


def turn_taking(context: ssl.SSLContext | None) -> Any:
    """What to give to ``websockets.sync.client.connect`` as ``ssl`` for ``context``."""
    return None if context is None else _TurnTaking(context)
