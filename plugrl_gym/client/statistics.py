"""What a client has done so far."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ClientStatistics"]


@dataclass(slots=True)
class ClientStatistics:
    """Counts over all envs and connections.

    Attributes:
        env_steps: Steps executed by envs; NEXT_STEP's ignored steps count nowhere.
        episodes: Episodes finished.
        returns: Undiscounted returns of the last 100 of them.
        lengths: Their lengths in env steps.
        chunks_received: Action chunks, one for each env of an action message.
        chunks_fed_back: Chunks whose feedback was handed to the network.
        chunks_dropped: Chunks lost with a connection, or by a reset in mid episode.
        steps_dropped: Env steps that had been run for these.
        connections: Connections opened.
    """

    env_steps: int = 0
    episodes: int = 0
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=100))
    chunks_received: int = 0
    chunks_fed_back: int = 0
    chunks_dropped: int = 0
    steps_dropped: int = 0
    connections: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def mean_return(self) -> float | None:
        """Mean of :attr:`returns`; None before the first episode has finished."""
        return sum(self.returns) / len(self.returns) if self.returns else None

    def count_step(
        self,
        active: npt.NDArray[np.bool_],
        ended: npt.NDArray[np.bool_],
        returns: npt.NDArray[Any],
        lengths: npt.NDArray[Any],
    ) -> None:
        """Enter one step of the vector env; all arrays [n]."""
        self.env_steps += int(active.sum())
        if ended.any():
            self.episodes += int(ended.sum())
            self.returns.extend(returns[ended].tolist())
            self.lengths.extend(lengths[ended].tolist())
