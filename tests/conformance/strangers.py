"""Programs at the other end that are no PlugRL servers, in a thread of the test."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgpack
from websockets.sync.server import ServerConnection, serve


@contextlib.contextmanager
def websocket(handler: Callable[[ServerConnection], None]) -> Iterator[str]:
    """A WebSocket server that runs ``handler`` for each connection; its URL."""
    with serve(handler, "127.0.0.1", 0, compression=None, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


def silent(connection: ServerConnection) -> None:
    """Accepts, and never says a word."""
    for _ in connection:
        pass


def openpi(connection: ServerConnection) -> None:
    """Greets as openpi's policy servers do."""
    connection.send(msgpack.packb({"action_horizon": 10, "policy": "pi0"}))
    silent(connection)


def chatty(connection: ServerConnection) -> None:
    """Greets with something that is no map."""
    connection.send(msgpack.packb("hello"))
    silent(connection)


def brusque(connection: ServerConnection) -> None:
    """Closes at once."""
    connection.close(1013, "try again later")


def babbling(connection: ServerConnection) -> None:
    """Greets rightly and then sends undecodable bytes for ever."""
    connection.send(msgpack.packb({"message_type": "metadata", "data": {}}))
    for _ in connection:
        connection.send(b"\xc1")


def deaf(connection: ServerConnection) -> None:
    """Greets rightly and answers nothing."""
    connection.send(msgpack.packb({"message_type": "metadata", "data": {}}))
    silent(connection)


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def web_server() -> Iterator[str]:
    """A plain HTTP server, addressed as a WebSocket."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def plain_socket(greeting: bytes) -> Iterator[str]:
    """Something that takes TCP connections and sends ``greeting``; nothing at all if empty."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken: list[socket.socket] = []

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(listener.accept()[0])
                    taken[-1].sendall(greeting)

        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in taken:
                connection.close()


def free_port() -> int:
    """A port at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
