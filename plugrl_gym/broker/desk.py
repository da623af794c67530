"""The bookkeeping between a server's thread and a trainer's: who asks, who is answered.

A *slot* is one env of one connection. Its life goes round: its env *asks* (a row is queued), the
trainer *takes* the row, *answers* it, and in time the env tells what came of that and asks again.
Numbers of slots are used again only after the trainer has taken the news that their env has left,
so an answer never reaches another env than the one that it was meant for.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from plugrl_gym.broker.batch import EnvEvent
from plugrl_gym.errors import UsageError
from plugrl_gym.server import Client, Refusal

__all__ = ["Desk", "Row", "Told"]


@dataclass(frozen=True, slots=True)
class Told:
    """What came of an action.

    Attributes:
        observation, row: A batch, and where in it is what followed; terminal where it ended.
    """

    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    observation: Any
    row: int


@dataclass(frozen=True, slots=True)
class Row:
    """One row for the trainer.

    Attributes:
        told: None in a first row.
        observation, row: A batch, and where in it is what the env shows now.
        waiting: Whether it can be answered.
    """

    slot: int
    client: Client
    told: Told | None
    observation: Any
    row: int
    waiting: bool


@dataclass(slots=True, eq=False)
class _Ask:
    """One infer that has not been answered as a whole."""

    answer: Future[npt.NDArray[Any]]
    rows: int
    missing: set[int] = field(default_factory=set)
    actions: npt.NDArray[Any] | None = None


@dataclass(slots=True, eq=False)
class _Slot:
    number: int
    client: Client
    env: int
    ask: _Ask | None = None  # while its row of it is not answered
    row: int = 0  # within ``ask``
    shown: Any = None  # the observation of that row, and where in it
    shown_row: int = 0
    taken: bool = False
    told: Told | None = None  # until it asks again
    told_at: float = 0.0
    gone: bool = False


class Desk:
    """Both sides of the exchange; every method may be called from any thread.

    Attributes:
        delivered: Rows with a transition that the trainer has taken.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._listeners: set[Callable[[], None]] = set()
        self._slots: dict[int, _Slot] = {}
        self._of: dict[Client, dict[int, _Slot]] = {}
        self._idle: dict[Client, float] = {}  # since when it has fed back and not asked
        self._numbers = itertools.count()
        self._free: list[int] = []
        self._queue: deque[_Slot | EnvEvent] = deque()
        self._ready = 0
        self._news = False
        self._failure: BaseException | None = None
        self.delivered = 0

    # -- the server's side ----------------------------------------------------------------

    def ask(
        self, client: Client, envs: Sequence[int], observation: Any
    ) -> Future[npt.NDArray[Any]]:
        """Envs of one connection ask for their next action.

        Args:
            client: The connection.
            envs: n indices within it.
            observation: What they show, n rows.
        """
        ask = _Ask(Future(), len(envs), set(range(len(envs))))
        with self._changed:
            self._idle.pop(client, None)
            mine = self._of.setdefault(client, {})
            for row, env in enumerate(envs):
                slot = mine.get(env)
                if slot is None:
                    slot = mine[env] = self._join(client, env)
                slot.ask, slot.row, slot.taken = ask, row, False
                slot.shown, slot.shown_row = observation, row
                self._queue.append(slot)
            self._ready += len(envs)
            self._notify()
        return ask.answer

    def _join(self, client: Client, env: int) -> _Slot:
        number = heapq.heappop(self._free) if self._free else next(self._numbers)
        slot = self._slots[number] = _Slot(number, client, env)
        self._queue.append(EnvEvent("joined", number, client, env))
        return slot

    def tell(self, client: Client, envs: Sequence[int], told: Sequence[Told]) -> int:
        """What came of the actions of ``envs``; they ask again, or their connection ends.

        Returns:
            How many of them had been given up, and so are told of in vain.
        """
        with self._changed:
            now = self._idle[client] = time.monotonic()
            mine = self._of[client]
            for env, each in zip(envs, told, strict=True):
                if env in mine:
                    mine[env].told, mine[env].told_at = each, now
            return sum(env not in mine for env in envs)

    def idle(self, client: Client) -> None:
        """A connection has fed back nothing that could be told; it asks again, or it ends."""
        with self._changed:
            self._idle[client] = time.monotonic()

    def leave(self, client: Client) -> None:
        """A connection has ended, and with it its slots; what they have told is still a row."""
        with self._changed:
            self._idle.pop(client, None)
            self._part(self._of.pop(client, {}).values())

    def _part(self, slots: Iterable[_Slot]) -> None:
        for slot in slots:
            slot.gone = True
            queued = slot.ask is not None and not slot.taken
            if slot.told is not None and not queued:
                slot.shown, slot.shown_row = slot.told.observation, slot.told.row
                self._queue.append(slot)
                self._ready += 1
            self._queue.append(EnvEvent("left", slot.number, slot.client, slot.env))
            self._news = True
        self._notify()

    def fail(self, error: BaseException) -> None:
        """Nothing more will come: the trainer's next call raises ``error``."""
        with self._changed:
            self._failure = self._failure or error
            self._notify()

    def uncollected(self) -> int:
        """Rows with a transition that the trainer has not taken."""
        with self._changed:
            queued = [each for each in self._queue if isinstance(each, _Slot)]
            held = (slot for mine in self._of.values() for slot in mine.values())
            return sum(slot.told is not None for slot in {*queued, *held})

    def _notify(self) -> None:
        self._changed.notify_all()
        for wake in self._listeners:
            wake()

    # -- the trainer's side ---------------------------------------------------------------

    def take(self, at_least: int) -> tuple[list[Row], tuple[EnvEvent, ...]] | None:
        """All rows and events, if there are that many rows or an env has left; else None.

        Raises:
            BaseException: What :meth:`fail` was told.
        """
        with self._changed:
            self._check()
            if self._ready < at_least and not self._news:
                return None
            return self._take()

    def _take(self) -> tuple[list[Row], tuple[EnvEvent, ...]]:
        rows: list[Row] = []
        events: list[EnvEvent] = []
        for each in self._queue:
            if isinstance(each, EnvEvent):
                events.append(each)
                if each.kind == "left":
                    del self._slots[each.slot]
                    heapq.heappush(self._free, each.slot)
            elif not each.gone or each.told is not None:
                rows.append(self._row(each))
        self._queue.clear()
        self._ready, self._news = 0, False
        self.delivered += sum(row.told is not None for row in rows)
        return rows, tuple(events)

    def _row(self, slot: _Slot) -> Row:
        told, slot.told, slot.taken = slot.told, None, True
        shown, row = slot.shown, slot.shown_row
        return Row(slot.number, slot.client, told, shown, row, not slot.gone)

    def again(self) -> list[Row]:
        """The rows that were taken and still wait for an answer, as first rows."""
        with self._changed:
            self._check()
            return [
                self._row(slot)
                for slot in self._slots.values()
                if slot.ask is not None and slot.taken and not slot.gone
            ]

    def wait(self, at_least: int, timeout: float | None) -> bool:
        """Block until :meth:`take` has something, it has failed, or ``timeout`` seconds passed."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._ready >= at_least or self._news or self._failure is not None, timeout
            )

    @contextlib.contextmanager
    def listening(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call ``wake``, from any thread, whenever something has changed."""
        with self._changed:
            self._listeners.add(wake)
        try:
            yield
        finally:
            with self._changed:
                self._listeners.discard(wake)

    def answer(self, slots: Sequence[int], actions: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Answer rows that were taken; an infer goes out once all its rows are answered.

        Args:
            slots: m of them.
            actions: [H, m, *da].

        Returns:
            bool [m]: False where the env has left meanwhile.

        Raises:
            UsageError: A slot that does not wait for an answer; none is answered.
        """
        with self._changed:
            self._check()
            found = [self._find(number) for number in slots]
            for column, slot in enumerate(found):
                if not slot.gone:
                    _enter(slot, actions[:, column])
            return np.array([not slot.gone for slot in found], np.bool_)

    def refuse(self, slots: Sequence[int], sentence: str) -> None:
        """Close the connections of slots that wait for an answer, in one sentence.

        Raises:
            UsageError: A slot that does not wait for an answer; none is refused.
        """
        with self._changed:
            self._check()
            for slot in [self._find(number) for number in slots]:
                if slot.ask is not None:
                    with contextlib.suppress(InvalidStateError):
                        slot.ask.answer.set_exception(Refusal(sentence))

    def give_up(self, slots: Iterable[int], seconds: float) -> list[int]:
        """Let go of envs whose client has fed back and has not asked again for so many seconds.

        It is as if they had left; where they ask after all, they join anew. Envs of which the
        client has told nothing are among them: it can tell no more before it has asked (SPEC 5).

        Returns:
            Those of ``slots`` that this concerns.
        """
        since = time.monotonic() - seconds
        with self._changed:
            found = [self._slots[number] for number in slots if number in self._slots]
            mute = [s for s in found if not s.gone and not s.ask and self._mute_since(s) <= since]
            for slot in mute:
                del self._of[slot.client][slot.env]
            self._part(mute)
            return [slot.number for slot in mute]

    def _mute_since(self, slot: _Slot) -> float:
        return self._idle.get(slot.client, math.inf) if slot.told is None else slot.told_at

    def _find(self, number: int) -> _Slot:
        slot = self._slots.get(number)
        if slot is None:
            here = ", ".join(map(str, sorted(self._slots)[:16])) or "none"
            raise UsageError(f"slot {number}: no env is there; slots with an env: {here}")
        if not slot.gone and (slot.ask is None or not slot.taken):
            why = "its row has not been collected" if slot.ask else "it has been answered"
            raise UsageError(f"slot {number} does not wait for an action: {why}")
        return slot

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


def _enter(slot: _Slot, action: npt.NDArray[Any]) -> None:
    """Write one row [H, *da] of an answer, and send the answer if it is complete."""
    ask = slot.ask
    assert ask is not None
    if ask.actions is None:
        ask.actions = np.zeros((len(action), ask.rows, *action.shape[1:]), action.dtype)
    ask.actions[:, slot.row] = action
    ask.missing.discard(slot.row)
    slot.ask = None
    if not ask.missing:
        with contextlib.suppress(InvalidStateError):  # the client has just left
            ask.answer.set_result(ask.actions)
