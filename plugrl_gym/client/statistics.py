"""What a client has done so far."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from plugrl_gym.client.books import Books
from plugrl_gym.client.chunks import Open
from plugrl_gym.latency import Latency

__all__ = ["STAGES", "ClientStatistics"]

_MOST_ERRORS: Final = 20

#: What a client measures the time of.
STAGES: Final = (
    "env",  # step() of the wrapped envs, all of them together
    "encode",  # to bytes: an infer, with the observations and the feedback since the last one
    "exchange",  # from sending an infer to the arrival of its action: the wire and the server
    "wire",  # of these the wire, by a WebSocket ping now and then, and its pong
    "decode",  # an action, from bytes to what the envs take
)
_Numbers: TypeAlias = npt.NDArray[Any]


@dataclass(slots=True)
class ClientStatistics:
    """Counts over all envs and connections; called, it gives them as plain values.

    Attributes:
        episodes: Episodes finished.
        overridden_steps: Env steps that ran another action than the server's: the caller's own, or
            one that had to be clipped, where the server can be told of that.
        returns: Undiscounted returns of the last 100 of them.
        lengths: Their lengths in env steps.
        connections: Connections opened.
        open: Tells which chunks are open now.
        book: The ledger of the present connection, without what is open.
        stages: The times of :data:`STAGES`.
        on_episodes: Called with ``ended`` bool [n], returns and lengths [n] where episodes ended.
    """

    episodes: int = 0
    overridden_steps: int = 0
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=100))
    connections: int = 0
    started: float = field(default_factory=time.monotonic)
    open: Callable[[], Open] = lambda: Open(0, 0)
    book: Books = field(default_factory=Books)
    stages: Latency = field(default_factory=lambda: Latency(STAGES))
    on_episodes: Callable[[npt.NDArray[np.bool_], _Numbers, _Numbers], None] | None = None
    _ended: Books = field(default_factory=Books)
    _errors: list[str] = field(default_factory=list)

    @property
    def env_steps(self) -> int:
        """Steps executed by envs; NEXT_STEP's ignored steps count nowhere."""
        return self._ended.env_steps + self.book.env_steps

    @property
    def chunks_received(self) -> int:
        """Action chunks, one for each env of an action message."""
        return self._ended.chunks_received + self.book.chunks_received

    @property
    def chunks_fed_back(self) -> int:
        """Chunks whose feedback was handed to the network."""
        return self._ended.chunks_fed_back + self.book.chunks_fed_back

    @property
    def chunks_dropped(self) -> int:
        """Chunks lost with a connection, or by a reset in mid episode."""
        return self._ended.chunks_dropped.total() + self.book.chunks_dropped.total()

    @property
    def steps_dropped(self) -> int:
        """Env steps that had been run for these."""
        return self._ended.steps_dropped.total() + self.book.steps_dropped.total()

    @property
    def connection_books(self) -> Books:
        """The ledger of the present connection, or of the last."""
        books, now = self.book.copy(), self.open()
        books.chunks_open, books.steps_open = now.chunks, now.steps
        return books

    @property
    def books(self) -> Books:
        """The ledger of all connections."""
        books = self.connection_books
        books.add(self._ended)
        return books

    @property
    def book_errors(self) -> tuple[str, ...]:
        """Accounts that do not balance, one sentence each; empty where all do."""
        return (*self._errors, *self.books.errors())

    @property
    def mean_return(self) -> float | None:
        """Mean of :attr:`returns`; None before the first episode has finished."""
        return sum(self.returns) / len(self.returns) if self.returns else None

    @property
    def mean_length(self) -> float | None:
        """Mean of :attr:`lengths`, in env steps; None before the first episode has finished."""
        return sum(self.lengths) / len(self.lengths) if self.lengths else None

    def latency(self) -> dict[str, dict[str, float]]:
        """Stage -> ``p50``, ``p95`` and ``p99`` in seconds and ``count``, over all connections.

        Each is within a tenth of the true one. A stage that never ran is left out.
        """
        return self.stages.snapshot()

    def __call__(self) -> dict[str, Any]:
        """The state of now, as JSON: the counts, ``books`` and :meth:`latency`."""
        return {
            "env_steps": self.env_steps,
            "overridden_steps": self.overridden_steps,
            "episodes": self.episodes,
            "mean_return": self.mean_return,
            "mean_length": self.mean_length,
            "chunks_received": self.chunks_received,
            "chunks_fed_back": self.chunks_fed_back,
            "chunks_dropped": self.chunks_dropped,
            "steps_dropped": self.steps_dropped,
            "connections": self.connections,
            "books": self.books.to_dict() | {"errors": list(self.book_errors)},
            "latency": self.latency(),
        }

    def connected(self) -> None:
        """A new connection: the account of the one before is closed."""
        errors = self.connection_books.errors(closed=True)
        room = _MOST_ERRORS - len(self._errors)
        self._errors += [f"connection {self.connections}: {error}" for error in errors[:room]]
        self._ended.add(self.book)
        self.book = Books()
        self.connections += 1

    def count_step(
        self,
        active: npt.NDArray[np.bool_],
        ended: npt.NDArray[np.bool_],
        returns: _Numbers,
        lengths: _Numbers,
        overridden: int = 0,
    ) -> None:
        """Enter one step of the vector env; all arrays [n], ``overridden`` of its env steps."""
        self.book.env_steps += int(active.sum())
        self.overridden_steps += overridden
        if ended.any():
            self.episodes += int(ended.sum())
            self.returns.extend(returns[ended].tolist())
            self.lengths.extend(lengths[ended].tolist())
            if self.on_episodes is not None:
                self.on_episodes(ended, returns, lengths)
