"""Rows of feedback before they are sent (pure data)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from plugrl_gym.client.info import InfoForwarder, InfoRow
from plugrl_gym.protocol import (
    CHUNK_STEPS,
    EXECUTED_ACTIONS,
    ChunkSteps,
    EpisodeStatistics,
    ExecutedActions,
    Feedback,
    Observation,
)

__all__ = ["Rows"]

_STEP_MAJOR = frozenset({"step_rewards", "actions"})


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Finished chunks of m envs, each env once.

    Attributes:
        envs: int64 [m].
        step_ids: int64 [m].
        observation: m rows, after each chunk's last step.
        rewards: float64 [m], summed over the chunk.
        terminated, truncated: bool [m].
        steps: int64 [m], env steps run.
        step_rewards: float64 [K, m], zero after a row's last step.
        actions: [K, m, *da], executed, zero after a row's last step.
        overridden: bool [m].
        returns, lengths: float64 [m] and int64 [m], of rows whose episode ended; zero elsewhere.
        success: float64 [m]; NaN where the env does not tell.
        info: m maps of values to forward.
    """

    envs: npt.NDArray[np.int64]
    step_ids: npt.NDArray[np.int64]
    observation: Observation
    rewards: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    steps: npt.NDArray[np.int64]
    step_rewards: npt.NDArray[np.float64]
    actions: npt.NDArray[Any]
    overridden: npt.NDArray[np.bool_]
    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    success: npt.NDArray[np.float64]
    info: list[InfoRow]

    def __len__(self) -> int:
        return len(self.envs)

    def select(self, rows: npt.NDArray[Any]) -> Rows:
        """The given rows (an index or boolean array) as new rows."""
        index = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        parts: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Observation):
                parts[each.name] = value.select(index)
            elif isinstance(value, list):
                parts[each.name] = [value[row] for row in index.tolist()]
            else:
                parts[each.name] = value[:, index] if each.name in _STEP_MAJOR else value[index]
        return Rows(**parts)

    @staticmethod
    def join(pieces: Sequence[Rows]) -> Rows:
        """All rows of ``pieces``, in order."""
        if len(pieces) == 1:
            return pieces[0]
        longest = max(len(piece.step_rewards) for piece in pieces)
        parts: dict[str, Any] = {}
        for each in fields(Rows):
            values = [getattr(piece, each.name) for piece in pieces]
            if each.name == "observation":
                parts[each.name] = Observation.concatenate(values)
            elif each.name == "info":
                parts[each.name] = [row for value in values for row in value]
            elif each.name in _STEP_MAJOR:
                parts[each.name] = np.concatenate([_pad(v, longest) for v in values], axis=1)
            else:
                parts[each.name] = np.concatenate(values)
        return Rows(**parts)

    def to_feedback(
        self, features: Sequence[str], forwarder: InfoForwarder, action_shape: tuple[int, ...]
    ) -> Feedback:
        """The message for these rows.

        Args:
            features: What the server offers.
            forwarder: Picks the info to send along.
            action_shape: da of the action messages; (1,) where a server so sends a Discrete.
        """
        longest = int(self.steps.max())
        ended = self.terminated | self.truncated
        episode = {"episode": self._episode(ended).to_wire()} if ended.any() else {}
        return Feedback(
            env_indices=self.envs,
            step_ids=self.step_ids,
            observation=self.observation,
            rewards=self.rewards.astype(np.float32),
            terminated=self.terminated,
            truncated=self.truncated,
            info={**episode, **forwarder.message(self.info)},
            chunk_steps=ChunkSteps(self.steps, self.step_rewards[:longest].astype(np.float32))
            if CHUNK_STEPS in features
            else None,
            executed=ExecutedActions(
                self.actions[:longest].reshape(longest, len(self), *action_shape), self.overridden
            )
            if EXECUTED_ACTIONS in features
            else None,
        )

    def _episode(self, ended: npt.NDArray[np.bool_]) -> EpisodeStatistics:
        # Servers may read success without asking whether it is there (SPEC 6.5.21).
        success = (self.success == 1.0) & ended
        return EpisodeStatistics(self.returns, self.lengths, ended, success)


def _pad(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    if len(array) == length:
        return array
    padded = np.zeros((length, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return padded
