"""Registered envs that misbehave: ``tests.support.awkward_envs:Crashing-v0`` and others."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Chatty(gym.Env[Any, Any]):
    """Prints to stdout, as Python code and as a C library do; episodes of 4 steps, reward 1."""

    observation_space = spaces.Box(0.0, 10.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    _taken = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        print("hello from Python")
        os.write(1, b"hello from C\n")
        self._taken = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._taken += 1
        return np.full(1, self._taken, np.float32), 1.0, self._taken == 4, False, {}


class Crashing(Chatty):
    """Its simulator crashes in the first step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        raise RuntimeError("sim crashed")


gym.register("Chatty-v0", Chatty)
gym.register("Crashing-v0", Crashing)
