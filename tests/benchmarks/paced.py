"""An env that takes its time: ``tests.benchmarks.paced:Paced-v0``, with ``seconds`` for a step."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

__all__ = ["Paced"]


class Paced(gym.Env[Any, Any]):
    """Shows zeros, pays nothing, ends every 100 steps.

    Args:
        seconds: That a step takes, as one of a machine in the real world does.
    """

    def __init__(self, seconds: float) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (4,))
        self.action_space = spaces.Discrete(2)
        self._seconds = seconds

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(self._seconds)
        return np.zeros(4, np.float32), 0.0, False, False, {}


gym.register("Paced-v0", Paced, max_episode_steps=100, disable_env_checker=True)
