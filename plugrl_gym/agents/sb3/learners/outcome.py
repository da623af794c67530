"""What a chunk of steps came to: the reward that a learner sees, and how far it discounts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plugrl_gym.errors import RemoteProtocolError
from plugrl_gym.protocol import Feedback
from plugrl_gym.spaces.casting import LARGEST, too_large

__all__ = ["Outcome", "check_rewards"]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The chunks of one feedback.

    Attributes:
        reward: float32 [m], sum of gamma^k times the reward of step k, k from 0; the plain sum
            where the client does not tell the rewards of the steps.
        steps: int64 [m], env steps run: what the client tells (``gym-chunk-steps``), else the
            horizon.
        discount: float64 [m], gamma^steps: what the value of the next observation counts.
        overridden: int64 [m], how many of the steps ran another action than the policy's.
    """

    reward: npt.NDArray[np.float32]
    steps: npt.NDArray[np.int64]
    discount: npt.NDArray[np.float64]
    overridden: npt.NDArray[np.int64]

    @classmethod
    def of(cls, feedback: Feedback, horizon: int, gamma: float) -> Outcome:
        """The outcome of a feedback's rows, as if no step was overridden.

        Raises:
            RemoteProtocolError: A reward that no network can calculate with.
        """
        told = feedback.chunk_steps
        reward = feedback.rewards
        steps = np.full(len(reward), horizon, np.int64) if told is None else told.steps
        if told is not None and len(told.rewards) > 1:
            reward = gamma ** np.arange(len(told.rewards)) @ told.rewards.astype(np.float64)
        check_rewards(reward)
        none = np.zeros(len(steps), np.int64)
        return cls(np.array(reward, dtype=np.float32), steps, np.float64(gamma) ** steps, none)


def check_rewards(reward: npt.NDArray[Any]) -> None:
    """Find out whether rewards can be calculated with.

    Raises:
        RemoteProtocolError: One is too large.
    """
    beyond = too_large(reward)
    if beyond.any():
        raise RemoteProtocolError(
            f"feedback.data.rewards: a network cannot calculate with {reward[beyond][0]} "
            f"(at most {LARGEST:.3g})"
        )
