"""``gym-chunk-steps``: a feedback tells the reward of each step of its chunks (SPEC 9.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plugrl_gym.errors import RemoteProtocolError
from plugrl_gym.protocol.fields import float_array, index_vector

__all__ = ["ChunkSteps"]


@dataclass(frozen=True, slots=True, eq=False)
class ChunkSteps:
    """How long each chunk ran and what each of its steps paid.

    Attributes:
        steps: int64 [m], env steps run for the chunk, at least 1.
        rewards: float32 [K, m], K = max(steps); zero after a row's last step.
    """

    steps: npt.NDArray[np.int64]
    rewards: npt.NDArray[np.float32]

    def select(self, rows: npt.NDArray[np.intp]) -> ChunkSteps:
        """The given rows, at least one (copies)."""
        steps = self.steps[rows]
        return ChunkSteps(steps, self.rewards[: steps.max(), rows])

    def to_wire(self) -> dict[str, Any]:
        """The keys that the feedback gains at its top level."""
        return {"steps": self.steps, "step_rewards": _float32(self.rewards)}

    @classmethod
    def from_wire(cls, message: dict[str, Any], rows: int) -> ChunkSteps | None:
        """Validate the keys of a received feedback; None where it has neither.

        A reward may be NaN or infinite: that spoils its row, not the message (SPEC 9.4.6).

        Raises:
            RemoteProtocolError: One key without the other, or a wrong shape or value.
        """
        if "steps" not in message and "step_rewards" not in message:
            return None
        steps = index_vector(message.get("steps"), "feedback.steps", rows)
        shortest, longest = int(steps.min()), int(steps.max())
        if shortest < 1:
            raise RemoteProtocolError(f"feedback.steps: {shortest} is less than one step")
        rewards = float_array(message.get("step_rewards"), "feedback.step_rewards", (longest, rows))
        if shortest < longest and rewards[np.arange(longest)[:, None] >= steps].any():
            raise RemoteProtocolError(
                "feedback.step_rewards: not zero after the last step of its row"
            )
        return cls(steps, _float32(rewards))


def _float32(rewards: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):  # too large a number becomes infinite, and is dropped as such
        return np.asarray(rewards, dtype=np.float32)
