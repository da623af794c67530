"""A TCP proxy between clients and a server that breaks connections in every way a network can."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from enum import StrEnum
from typing import Any

__all__ = ["Cut", "Proxy", "proxy"]

DEADLINE = 10.0
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with RST instead of FIN
_BINARY = 0x82  # first byte of a whole binary frame (RFC 6455, 5.2)


class Cut(StrEnum):
    """Where a connection ends."""

    NOW = "at once"
    MID_FRAME = "in mid frame"
    BEFORE_REPLY = "between infer and action"


class _Link:
    """One client's connection, and the one that leads on to the server."""

    def __init__(self, proxy: Proxy, client: Any, server: Any) -> None:
        self._proxy = proxy
        self._ends = (client, server)
        self.cut: Cut | None = None

    async def run(self) -> None:
        (from_client, to_client), (from_server, to_server) = self._ends
        pumps = [
            asyncio.create_task(self._pump(from_client, to_server, inward=False)),
            asyncio.create_task(self._pump(from_server, to_client, inward=True)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self.end()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inward: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._proxy.hold(len(data))
                if self.cut is Cut.BEFORE_REPLY and inward and data[0] == _BINARY:
                    return self._proxy.took_effect(self.cut)
                if self.cut is Cut.MID_FRAME and len(data) > 1:
                    writer.write(data[: self._proxy.random.randrange(1, len(data))])
                    await writer.drain()
                    return self._proxy.took_effect(self.cut)
                writer.write(data)
                await writer.drain()
        return None

    def end(self) -> None:
        """End both connections, by a reset or in good order."""
        for _, writer in self._ends:
            if self._proxy.random.random() < 0.5:
                with contextlib.suppress(OSError):
                    sock = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


class Proxy:
    """Stands between clients and one server; its methods may be called from any thread.

    Args:
        port: Of the server, on 127.0.0.1.
        seed: Of everything that is left to chance.

    Attributes:
        url: For clients.
        cuts: Kind -> connections that were cut so.
        latency, jitter: Seconds that everything takes longer, and the most that is added at random.
        rate: Bytes per second and direction; None for no limit.
    """

    def __init__(self, port: int, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.cuts: Counter[str] = Counter()
        self.latency, self.jitter = 0.0, 0.0
        self.rate: float | None = None
        self.url = ""
        self._port = port
        self._links: list[_Link] = []
        self._handlers: set[asyncio.Task[Any]] = set()
        self._passing: asyncio.Event | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="proxy")
        self._thread.start()
        self._server = self._call(self._listen())

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE)

    async def _listen(self) -> asyncio.Server:
        self._passing = asyncio.Event()
        self._passing.set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            server = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
        else:
            link = _Link(self, (reader, writer), server)
            self._links.append(link)
            await link.run()
            self._links.remove(link)
        finally:
            self._handlers.discard(task)

    async def hold(self, size: int) -> None:
        """Wait as the network would with ``size`` bytes."""
        assert self._passing is not None
        await self._passing.wait()
        delay = self.latency + self.jitter * self.random.random()
        if self.rate is not None:
            delay += size / self.rate
        if delay:
            await asyncio.sleep(delay)
            await self._passing.wait()

    def took_effect(self, cut: Cut) -> None:
        self.cuts[cut] += 1

    def cut(self, kind: Cut) -> bool:
        """Cut a connection taken at random, now or when the next fitting bytes come.

        Returns:
            Whether there was one to cut.
        """

        async def arm() -> bool:
            links = [link for link in self._links if link.cut is None]
            if not links:
                return False
            link = self.random.choice(links)
            link.cut = kind
            if kind is Cut.NOW:
                link.end()
                self.took_effect(kind)
            return True

        armed: bool = self._call(arm())
        return armed

    def stall(self, stalled: bool) -> None:
        """Swallow everything, and end nothing, until it is called with False."""

        async def switch() -> None:
            assert self._passing is not None
            if stalled:
                self._passing.clear()
            else:
                self._passing.set()

        self._call(switch())

    def close(self) -> None:
        """End all connections and stop listening."""

        async def end() -> None:
            self._server.close()
            for task in self._handlers:
                task.cancel()
            await asyncio.gather(*self._handlers, return_exceptions=True)

        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE)
        self._loop.close()


@contextlib.contextmanager
def proxy(port: int, seed: int = 0) -> Iterator[Proxy]:
    """A proxy in front of the server on ``port`` of 127.0.0.1."""
    running = Proxy(port, seed)
    try:
        yield running
    finally:
        running.close()
