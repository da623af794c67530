"""A WebSocket server that does with each connection what a test says."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from plugrl_gym.protocol import Metadata, ServerProtocol

Handler = Callable[["Peer"], None]


class Peer:
    """The server's end of one connection."""

    def __init__(self, socket: ServerConnection, number: int) -> None:
        self.socket, self.number = socket, number
        self.protocol = ServerProtocol()

    def greet(self, **metadata: Any) -> None:
        self.socket.send(self.protocol.send_metadata(Metadata(**metadata)))

    def receive(self, timeout: float = 10.0) -> Any:
        return self.protocol.receive(self.socket.recv(timeout=timeout))

    def act(self, chunk: np.ndarray) -> None:
        self.socket.send(self.protocol.send_action(chunk))

    def exchange(self, times: int = 1, horizon: int = 1) -> None:
        """Serve whole exchanges of a Discrete env."""
        for _ in range(times):
            infer = self.receive()
            self.act(np.zeros((horizon, len(infer.env_indices)), np.int64))
            self.receive()

    def break_off(self) -> None:
        """End the TCP connection without a close frame."""
        self.socket.close_socket()


class Scripted:
    """The running server.

    Attributes:
        url: Where it listens.
        peers: The connections so far.
        ends: (close code, reason) that each connection ended with, in order of ending.
    """

    def __init__(self, handlers: list[Handler]) -> None:
        self._handlers = handlers
        self._changed = threading.Condition()
        self.peers: list[Peer] = []
        self.ends: list[tuple[int | None, str | None]] = []
        self.errors: list[BaseException] = []
        self.url = ""

    def handle(self, socket: ServerConnection) -> None:
        with self._changed:
            peer = Peer(socket, len(self.peers))
            self.peers.append(peer)
        handler = self._handlers[min(peer.number, len(self._handlers) - 1)]
        try:
            handler(peer)
        except ConnectionClosed:
            pass
        except BaseException as error:
            self.errors.append(error)
        finally:
            with self._changed:
                self.ends.append((socket.close_code, socket.close_reason))
                self._changed.notify_all()

    def wait_for_ends(self, number: int, timeout: float = 10.0) -> list[tuple[Any, Any]]:
        """Wait until ``number`` connections have ended."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.ends) >= number, timeout), self.ends
        return self.ends


@contextlib.contextmanager
def scripted(*handlers: Handler, **options: Any) -> Iterator[Scripted]:
    """Serve the n-th connection by the n-th handler, and any further by the last."""
    running = Scripted(list(handlers))
    options = {"compression": None, "max_size": None, "ping_interval": None, **options}
    server: Server = serve(running.handle, "127.0.0.1", 0, close_timeout=10, **options)
    host, port = server.socket.getsockname()[:2]
    running.url = f"ws://{host}:{port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        thread.join(10)
        for peer in running.peers:
            peer.break_off()
    if running.errors:
        raise running.errors[0]
