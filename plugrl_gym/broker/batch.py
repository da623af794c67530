"""What a trainer collects (pure data)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from plugrl_gym.server import Client

__all__ = ["Batch", "EnvEvent"]


@dataclass(frozen=True, slots=True)
class EnvEvent:
    """An env came or went.

    Attributes:
        kind: ``"joined"``: the slot has an env that it had not before, and a row of the same batch
            is its first. ``"left"``: its connection has ended; the slot is free, and the next env
            that joins may get it.
        slot: Which.
        client: Its connection: number, address, and what it declared.
        env: Its index within that.
    """

    kind: Literal["joined", "left"]
    slot: int
    client: Client
    env: int


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows of m envs, and what happened besides; m may be 0.

    Attributes:
        slots: int64 [m], each at most once.
        observation: What each env shows now, m rows, batched as a vector env batches it. Where an
            episode has ended it is the next one's first; the terminal one is in ``info``.
        reward: float64 [m], of the action before, summed over its chunk; 0 in a first row.
        terminated, truncated: bool [m], how the episode ended that the action before was in.
        first: bool [m]: no transition leads here, for the env has just joined, or the row that
            would have led here was lost on its way (one with a NaN, say).
        waiting: bool [m]: the env waits for an action. False where its client left after it had
            fed back: the transition is real, its observation the last one of this env.
        evaluation: bool [m]: of a client with ``mode: "eval"``, of which nothing may be learned.
        info: In Gymnasium's form, each key with its mask ``_key``: ``final_obs``, the terminal
            observations; ``episode``, with ``r`` and ``l``, and what else the client forwards;
            ``overridden`` and ``executed`` where other actions ran than those given ([m, *da],
            with a horizon [m, H, *da], zero after the last); with a horizon ``chunk_steps`` and
            ``step_rewards`` [m, H] where the client tells.
        events: Joins and leaves, in order.
    """

    slots: npt.NDArray[np.int64]
    observation: Any
    reward: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    first: npt.NDArray[np.bool_]
    waiting: npt.NDArray[np.bool_]
    evaluation: npt.NDArray[np.bool_]
    info: dict[str, Any] = field(default_factory=dict)
    events: tuple[EnvEvent, ...] = ()

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def joined(self) -> tuple[int, ...]:
        """Slots whose env is new."""
        return tuple(event.slot for event in self.events if event.kind == "joined")

    @property
    def left(self) -> tuple[int, ...]:
        """Slots whose env is gone."""
        return tuple(event.slot for event in self.events if event.kind == "left")
