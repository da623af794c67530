"""One connection's conversation: metadata, then infer, action, feedback, again (SPEC 5)."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import numpy.typing as npt

from plugrl_gym.errors import LocalProtocolError
from plugrl_gym.protocol import Infer, ReceivedFeedback, ServerProtocol
from plugrl_gym.protocol.close import CloseCode
from plugrl_gym.server.agent import Client, Refusal, Request
from plugrl_gym.server.batching import Batcher, Departed
from plugrl_gym.server.capacity import Capacity
from plugrl_gym.server.link import Link
from plugrl_gym.server.meters import Meters
from plugrl_gym.server.page.camera import Camera
from plugrl_gym.server.patience import Patience
from plugrl_gym.server.runner import AgentRunner
from plugrl_gym.server.statistics import ClientBook, RunStatistics

__all__ = ["Services", "Session", "Warnings"]

logger = logging.getLogger("plugrl_gym.server")

_QUIET_SECONDS: Final = 10.0


class Warnings:
    """Warnings of one kind come at most once in ten seconds, with the number left out."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._held: dict[str, int] = {}

    def warn(self, kind: str, text: str) -> None:
        """Log ``text`` unless another of its ``kind`` was logged a moment ago."""
        now = time.monotonic()
        if now - self._last.get(kind, -_QUIET_SECONDS) < _QUIET_SECONDS:
            self._held[kind] = self._held.get(kind, 0) + 1
            return
        self._last[kind] = now
        held = self._held.pop(kind, 0)
        logger.warning("%s%s", text, f" (and {held} like it before)" if held else "")


@dataclass(frozen=True, slots=True)
class Services:
    """What the sessions of one server share.

    Attributes:
        feedback_timeout: Seconds from an action to its feedback (SPEC 8.8).
    """

    runner: AgentRunner
    batcher: Batcher
    statistics: RunStatistics
    warnings: Warnings
    patience: Patience
    capacity: Capacity
    meters: Meters
    camera: Camera
    feedback_timeout: float


class Session:
    """The server's end of one connection.

    Attributes:
        client: As the agent knows it.
        host: Where it comes from, without the port.
        joined: Whether the agent has accepted it, and so must be told when it leaves.
        closing: Set when this end has decided to close: what still arrives is not read.
        left: Whether the client had closed when the run was told to end: what it had sent counts.
        deadline: When its feedback is due, on ``AgentRunner.clock``; None while none is.
        task: Runs :meth:`converse`.
        watch: Ends when the connection has.
    """

    def __init__(self, socket: Link, number: int, services: Services) -> None:
        address = socket.remote_address
        self.host: str = address[0] if isinstance(address, tuple) else str(address)
        port = f":{address[1]}" if isinstance(address, tuple) else ""
        name = f"[{self.host}]" if ":" in self.host else self.host
        self.client = Client(number, f"{name}{port}")
        self.socket = socket
        self.joined = False
        self.closing = False
        self.left = False
        self.deadline: float | None = None
        task = asyncio.current_task()
        assert task is not None  # websockets runs each connection's handler in a task
        self.task: asyncio.Task[Any] = task
        self.watch: asyncio.Task[None] = asyncio.create_task(socket.wait_closed())
        self.watch.add_done_callback(lambda _: services.batcher.leave(self))
        self._protocol = ServerProtocol()
        self._services = services
        self._book: ClientBook | None = None
        self._proven = False
        self._envs: set[int] = set()
        self._claimed = 0
        self._acted_at = 0.0
        self._decoding = 0.0  # seconds, of the last feedback

    async def converse(self) -> None:
        """Talk until the connection ends.

        Raises:
            ConnectionClosed: The client left, or was lost.
            Departed: The same, found while its request waited; or this end is closing.
            RemoteProtocolError: The client broke the protocol.
            Refusal: The agent, or a server of this size, cannot serve it.
            Full: There is no room for its envs now.
            RunEnded: The run is over.
        """
        runner, batcher = self._services.runner, self._services.batcher
        latency = self._services.statistics.latency
        batcher.enter(self)
        await self.socket.send(self._protocol.send_metadata(runner.metadata))
        while True:
            frame = await self.socket.receive()
            if self.closing:
                raise Departed
            arrived = time.perf_counter()
            message = self._protocol.receive(frame)
            if isinstance(message, Infer):
                await self._answer(message, arrived)
            else:
                self.deadline = None
                latency["client"].observe(arrived - self._acted_at)
                self._decoding = time.perf_counter() - arrived
                await self._take(message)
                batcher.expect(self)

    async def _answer(self, infer: Infer, arrived: float) -> None:
        services, client = self._services, self.client
        latency = services.statistics.latency
        decoding = time.perf_counter() - arrived
        earlier, self._decoding = self._decoding, 0.0
        self._find_room(infer)
        book = self._book or await self._join()
        prepared = await services.runner.prepare(client, infer)
        decoding += services.runner.preparing
        latency["decode"].observe(earlier + decoding)
        book.asked(infer)
        services.camera.look(client, infer)
        answer = await services.batcher.submit(
            self, Request(client, infer, prepared), since=arrived + decoding
        )
        action = await self._wait_for(answer) if isinstance(answer, Future) else answer
        encoded = -time.perf_counter()
        frame = self._pack(action)
        latency["encode"].observe(encoded + time.perf_counter())
        book.acted(infer.env_indices, len(action))
        self.deadline = services.runner.clock() + services.feedback_timeout
        await self.socket.send(frame)
        self._acted_at = time.perf_counter()
        latency["answer"].observe(self._acted_at - arrived)

    async def _wait_for(self, answer: Future[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """What an agent answers later, unless the connection ends before that."""
        waiting = asyncio.wrap_future(answer)
        either: tuple[asyncio.Future[Any], ...] = (waiting, self.watch)
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise Departed
            if waiting.cancelled():
                raise LocalProtocolError("the agent took back its promise of an answer")
            return waiting.result()
        except (Departed, Refusal):
            raise
        except Exception as error:
            raise self._services.runner.fail(error) from None
        finally:
            waiting.cancel()

    def _find_room(self, infer: Infer) -> None:
        self._envs.update(infer.env_indices.tolist())
        declared = self.client.declaration = self._protocol.declaration
        envs = max(len(self._envs), 0 if declared is None else declared.num_envs)
        if envs > self._claimed:
            self._services.capacity.claim(self, envs)
            self._claimed = envs

    async def _join(self) -> ClientBook:
        client, services = self.client, self._services
        await services.runner.join(client)
        self.joined = True
        services.runner.end_if_finished()
        self._book = services.statistics.enter(client.learning, client.number)
        declared = client.declaration
        logger.info(
            "%s joined: %s",
            client,
            "undeclared spaces"
            if declared is None
            else f"{declared.env_id or 'unnamed envs'} x {declared.num_envs}, "
            f"{declared.autoreset}, {declared.mode}",
        )
        return self._book

    def _pack(self, action: npt.NDArray[Any]) -> bytes:
        try:
            return self._protocol.send_action(action)
        except LocalProtocolError as error:
            # A NaN or a wrong shape: no connection is to blame, and none would get better.
            raise self._services.runner.fail(error) from None

    async def _take(self, received: ReceivedFeedback) -> None:
        book = self._book
        assert book is not None  # a feedback is only legal after an action (SPEC 5)
        book.received(received)
        if received.stale or received.non_finite:
            self._report(received)
        feedback = received.feedback
        if feedback is None:
            await self._services.runner.feedback_dropped(self.client)
        else:
            runner = self._services.runner
            await runner.feedback(self.client, feedback, book, lambda: self.left)
            if not self._proven:
                self._proven = True
                self._services.patience.forgive(self.host)

    def _report(self, received: ReceivedFeedback) -> None:
        warn = self._services.warnings.warn
        if received.stale:
            envs = ", ".join(map(str, received.stale[:16]))
            warn("stale", f"{self.client}: dropped feedback of envs {envs}: they hold no action")
        for row in received.non_finite[:1]:
            more = len(received.non_finite) - 1
            warn(
                "non-finite",
                f"{self.client}: dropped the chunk of env {row.env}, step {row.step_id}: "
                f"{row.place} is not finite{f' (and {more} more)' if more else ''}",
            )

    def release(self) -> int:
        """Close the book, and make room for others.

        Returns:
            The number of chunks that were given and not fed back.
        """
        self._services.capacity.leave(self)
        abandoned = len(self._protocol.holding)
        if self._book is not None:
            self._book.leave(abandoned)
        return abandoned

    def log_departure(self, abandoned: int, run_over: bool) -> None:
        """Say that the connection is closed, with so many chunks that were not fed back.

        It is no news where the run is over, nor of a client whose refusal has just been told.
        """
        code = self.socket.close_code
        logger.log(
            logging.DEBUG if run_over or code == CloseCode.POLICY_VIOLATION else logging.INFO,
            "%s left: %s %s; open chunks: %d",
            self.client,
            code,
            self.socket.close_reason or "",
            abandoned,
        )
