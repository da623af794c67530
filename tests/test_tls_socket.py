"""TLS that is read and written at the same time, against Python's own server side of it."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from plugrl_gym.server import tls_context
from plugrl_gym.tls_socket import TlsSocket
from tests.support.certificates import Files, certificate_files
from tests.support.raw_client import DEADLINE


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return certificate_files(tmp_path_factory.mktemp("certificates"))


@contextmanager
def peer(serve: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    """Connect to ``serve``, which has a thread and one connection; its failure is the test's."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def run() -> None:
            connection, _ = listener.accept()
            connection.settimeout(DEADLINE)
            with connection:
                serve(connection)

        served = pool.submit(run)
        with socket.create_connection(listener.getsockname()[:2], DEADLINE) as sock:
            yield sock
        served.result(DEADLINE)


def encrypted(files: Files, talk: Callable[[ssl.SSLSocket], None]) -> Callable[..., None]:
    """Serve TLS."""

    def serve(connection: socket.socket) -> None:
        context = tls_context(files.cert, files.key)
        with context.wrap_socket(connection, server_side=True) as wrapped:
            talk(wrapped)

    return serve


def trust(files: Files) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files.ca)


def read(wrapped: ssl.SSLSocket | TlsSocket, size: int) -> bytes:
    """So many bytes, or less where the connection ends before."""
    received = bytearray()
    while len(received) < size and (data := wrapped.recv(65_536)):
        received += data
    return bytes(received)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_one_thread_reads_while_another_writes(files: Files, version: ssl.TLSVersion) -> None:
    messages = [bytes([number % 256]) * 100 for number in range(10_000)]

    def echo(wrapped: ssl.SSLSocket) -> None:
        while data := wrapped.recv(65_536):
            wrapped.sendall(data)

    context = trust(files)
    context.maximum_version = version
    with peer(encrypted(files, echo)) as sock, ThreadPoolExecutor(1) as pool:
        wrapped = TlsSocket(sock, context, "127.0.0.1")
        reading = pool.submit(read, wrapped, 1_000_000)
        for message in messages:
            wrapped.sendall(message)
        assert reading.result(DEADLINE) == b"".join(messages)


def test_a_large_message_arrives_whole_and_none_of_it_is_kept_back(files: Files) -> None:
    message = bytes(range(256)) * 20_000

    def answer(wrapped: ssl.SSLSocket) -> None:
        wrapped.sendall(read(wrapped, len(message))[::-1])

    with peer(encrypted(files, answer)) as sock:
        wrapped = TlsSocket(sock, trust(files), "127.0.0.1")
        wrapped.sendall(message)
        received = bytearray()
        while len(received) < len(message):
            # As a reader does that first waits for the socket: nothing may lie behind it.
            assert socket_has_more(sock)
            received += wrapped.recv(65_536)
        assert received == message[::-1]


class ByHand:
    """The server's side of a connection, whose records are sent when the test wants it."""

    def __init__(self, connection: socket.socket, files: Files) -> None:
        self.connection = connection
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = tls_context(files.cert, files.key)
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.until(self.tls.do_handshake)

    def until(self, done: Callable[[], object]) -> None:
        while True:
            try:
                done()
                return
            except ssl.SSLWantReadError:
                self.connection.sendall(self.outgoing.read())
                self.incoming.write(self.connection.recv(65_536))


def say_and_part(connection: socket.socket, files: Files, data: bytes) -> None:
    """Data and the farewell of TLS in one piece; the end once that is answered."""
    server = ByHand(connection, files)
    server.tls.write(data)
    server.until(server.tls.unwrap)


def socket_has_more(sock: socket.socket) -> bool:
    return bool(sock.recv(1, socket.MSG_PEEK))


def test_the_end_is_the_end_with_and_without_a_farewell_of_tls(files: Files) -> None:
    def vanish(wrapped: ssl.SSLSocket) -> None:
        wrapped.sendall(b"last")

    with peer(encrypted(files, vanish)) as sock:
        assert read(TlsSocket(sock, trust(files), "127.0.0.1"), 100) == b"last"
    with peer(lambda connection: say_and_part(connection, files, b"last")) as sock:
        wrapped = TlsSocket(sock, trust(files), "127.0.0.1")
        assert wrapped.recv(100) == b"last"
        assert select.select([sock], [], [], DEADLINE)[0]
        assert wrapped.recv(100) == b""


def test_a_close_ends_the_wait_for_the_rest_of_a_record(files: Files) -> None:
    begun, over = threading.Event(), threading.Event()

    def begin(connection: socket.socket) -> None:
        server = ByHand(connection, files)
        server.tls.write(bytes(1000))
        connection.sendall(server.outgoing.read()[:-500])
        begun.set()
        assert over.wait(DEADLINE)

    with peer(begin) as sock, ThreadPoolExecutor(1) as pool:
        wrapped = TlsSocket(sock, trust(files), "127.0.0.1")
        reading = pool.submit(wrapped.recv, 65_536)
        assert begun.wait(DEADLINE)
        wrapped.close()
        failure = reading.exception(DEADLINE)
        assert failure is None or isinstance(failure, OSError)
        over.set()


def test_what_is_sent_after_the_others_farewell_is_taken_and_lost(files: Files) -> None:
    with peer(lambda connection: say_and_part(connection, files, b"last")) as sock:
        wrapped = TlsSocket(sock, trust(files), "127.0.0.1")
        assert wrapped.recv(100) == b"last"
        wrapped.sendall(b"an answer")  # a Close, of a WebSocket that has just read the other one
        assert wrapped.recv(100) == b""


def test_the_server_is_told_that_its_certificate_is_not_trusted(files: Files) -> None:
    def serve(connection: socket.socket) -> None:
        with pytest.raises(ssl.SSLError, match=r"(?i)unknown.ca"):
            encrypted(files, lambda wrapped: None)(connection)

    with peer(serve) as sock, pytest.raises(ssl.SSLCertVerificationError):
        TlsSocket(sock, ssl.create_default_context(), "127.0.0.1")


def test_a_certificate_of_another_name_is_refused(files: Files, tmp_path: Path) -> None:
    other = certificate_files(tmp_path / "other", "elsewhere.example")

    def serve(connection: socket.socket) -> None:
        with pytest.raises(ssl.SSLError):
            encrypted(other, lambda wrapped: None)(connection)

    with peer(serve) as sock, pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        TlsSocket(sock, trust(other), "127.0.0.1")


def test_a_server_that_leaves_in_the_handshake_is_an_error(files: Files) -> None:
    with peer(lambda connection: None) as sock, pytest.raises(OSError):
        TlsSocket(sock, trust(files), "127.0.0.1")


def test_the_handshake_has_one_deadline_however_often_bytes_arrive(files: Files) -> None:
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        # A record of 16 KB, a byte at a time: it never becomes whole.
        connection.sendall(b"\x16\x03\x03\x40\x00")
        with contextlib.suppress(OSError):
            while not over.wait(0.02):
                connection.sendall(b"\x02")

    with peer(drip) as sock:
        sock.settimeout(0.3)
        try:
            with pytest.raises(TimeoutError):
                TlsSocket(sock, trust(files), "127.0.0.1")
        finally:
            over.set()
