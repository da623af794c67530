"""Requests of many connections, one forward pass (SPEC 7).

A connection is *due* while nothing but an infer can come from it next. Requests wait only for
connections that are due: one that runs a chunk may run it for minutes. With nobody else to wait
for a request is answered at once, so a single client pays nothing for batching.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from plugrl_gym.server.agent import Answer, Request
from plugrl_gym.server.meters import Meters

__all__ = ["Batcher", "Departed"]


class Departed(Exception):
    """The connection ended while its request waited."""


@dataclass(slots=True, eq=False)
class _Pending:
    request: Request
    answer: asyncio.Future[Answer]
    since: float


class Batcher:
    """Merges requests; every method belongs to one event loop.

    Args:
        act: Answers a batch: for each request one array, or the future of one.
        lock: Held by the server while the agent learns; a batch waits for it.
        wait: Longest time, in seconds, that a request waits for connections that are due.
        meters: Told of every batch.
    """

    def __init__(
        self,
        act: Callable[[Sequence[Request]], Sequence[Answer]],
        lock: asyncio.Lock,
        wait: float,
        meters: Meters,
    ) -> None:
        self._act = act
        self._lock = lock
        self._wait = wait
        self._meters = meters
        self._members: set[Hashable] = set()
        self._due: set[Hashable] = set()
        self._pending: dict[Hashable, _Pending] = {}
        self._deadline = 0.0
        self._timer: asyncio.Handle | None = None
        self._next_turn: asyncio.Handle | None = None
        self._flushing: asyncio.Task[None] | None = None

    def enter(self, key: Hashable) -> None:
        """A connection opened; its first message is an infer."""
        self._members.add(key)
        self._due.add(key)

    def expect(self, key: Hashable) -> None:
        """A connection fed back; its next message is an infer."""
        if key in self._members:
            self._due.add(key)

    def leave(self, key: Hashable) -> None:
        """A connection ended: nobody waits for it, and its request is given up (SPEC 7.4)."""
        self._members.discard(key)
        self._due.discard(key)
        pending = self._pending.pop(key, None)
        if pending is not None and not pending.answer.done():
            pending.answer.set_exception(Departed())
        self._consider()

    async def submit(self, key: Hashable, request: Request, since: float | None = None) -> Answer:
        """Answer ``request``, alone or together with others.

        Args:
            key: Of its connection.
            request: What is asked.
            since: From when on it has waited, by ``time.perf_counter``; None for now.

        Returns:
            What the agent chose for this request: [H, n, *da], or the future of that.

        Raises:
            Departed: :meth:`leave` was called for ``key``, before or meanwhile.
        """
        if key not in self._members:
            raise Departed  # it left while its request was prepared
        since = time.perf_counter() if since is None else since
        self._due.discard(key)
        if len(self._members) == 1 and not self._lock.locked():
            return self._measured([request], [since])[0]
        loop = asyncio.get_running_loop()
        if not self._pending:
            self._deadline = loop.time() + self._wait
        answer: asyncio.Future[Answer] = loop.create_future()
        self._pending[key] = _Pending(request, answer, since)
        self._consider()
        return await answer

    def _consider(self) -> None:
        """Flush now, in the next turn of the loop, or when the wait is over."""
        loop = asyncio.get_running_loop()
        if not self._pending:
            self._disarm()
        elif len(self._pending) >= len(self._members):
            self._flush()
        elif self._due:
            if self._timer is None:
                self._timer = loop.call_at(self._deadline, self._flush)
        elif self._next_turn is None:
            # Even with nobody due one turn of the loop passes: it takes in what arrived in the
            # sockets during the last forward pass.
            self._next_turn = loop.call_soon(self._flush_unless_due)

    def _flush_unless_due(self) -> None:
        self._next_turn = None
        if self._due:
            self._consider()
        else:
            self._flush()

    def _disarm(self) -> None:
        for handle in (self._timer, self._next_turn):
            if handle is not None:
                handle.cancel()
        self._timer = self._next_turn = None

    def _flush(self) -> None:
        self._disarm()
        if len(self._pending) < len(self._members):
            # Who let the wait run out is not waited for again before it has asked.
            self._due.clear()
        if not self._lock.locked():
            self._answer()
        elif self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush_when_free())

    async def _flush_when_free(self) -> None:
        async with self._lock:
            self._flushing = None
            self._disarm()
            self._answer()

    def _answer(self) -> None:
        batch = list(self._pending.values())
        self._pending.clear()
        if not batch:
            return
        try:
            actions = self._measured(
                [pending.request for pending in batch], [pending.since for pending in batch]
            )
        except Exception as error:
            for pending in batch:
                if not pending.answer.done():
                    pending.answer.set_exception(error)
            return
        for pending, action in zip(batch, actions, strict=True):
            if not pending.answer.done():
                pending.answer.set_result(action)

    def _measured(self, requests: Sequence[Request], since: Sequence[float]) -> Sequence[Answer]:
        began = time.perf_counter()
        actions = self._act(requests)
        self._meters.batch(requests, since, began, time.perf_counter())
        return actions
