"""A mountain car that is paid at the goal only: ``tests.benchmarks.sparse_mountain_car:ID``.

Beside it an expert that knows how to get there, for ``rollout --takeover``.
"""

from __future__ import annotations

from typing import Any, Final

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv

__all__ = ["SPARSE", "SparseMountainCar", "push_along"]

SPARSE: Final = "SparseMountainCarContinuous-v0"


class SparseMountainCar(Continuous_MountainCarEnv):
    """MountainCarContinuous without its cost of force: 100 at the goal, 0 in every other step."""

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, 100.0 * terminated, terminated, truncated, info


def push_along(
    observation: npt.NDArray[np.float32], actions: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Full force in the direction in which the car moves, which swings it higher and higher.

    Args:
        observation: [n, 2], position and speed.
        actions: [n, 1], of the server.
    """
    return np.where(observation[:, 1:] < 0.0, -1.0, 1.0).astype(actions.dtype)


gym.register(SPARSE, SparseMountainCar, max_episode_steps=999, disable_env_checker=True)
