"""Envs with action bounds that some algorithms cannot serve: ``tests.benchmarks.bounds:ID``."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.pendulum import PendulumEnv

__all__ = ["DegenerateBound", "InfiniteBound"]


class InfiniteBound(PendulumEnv):
    """A pendulum that takes any torque, and limits it itself."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class DegenerateBound(PendulumEnv):
    """A pendulum with a second action that can only be 0."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        high = np.array([self.max_torque, 0.0], np.float32)
        self.action_space = spaces.Box(-high, high)

    def step(self, action: Any) -> Any:
        return super().step(action[:1])  # type: ignore[no-untyped-call]


gym.register("InfiniteBound-v0", InfiniteBound, max_episode_steps=200, disable_env_checker=True)
gym.register("DegenerateBound-v0", DegenerateBound, max_episode_steps=200, disable_env_checker=True)
