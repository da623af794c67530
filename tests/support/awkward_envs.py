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


class _Shaped(Chatty):
    """Samples of whatever spaces a subclass sets; says nothing."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._taken = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._taken += 1
        return self.observation_space.sample(), 1.0, self._taken == 4, False, {}


class DictAction(_Shaped):
    """An action that has no encoding."""

    action_space = spaces.Dict(left=spaces.Discrete(2), right=spaces.Discrete(2))


class GraphObservation(_Shaped):
    """An observation that has no encoding."""

    observation_space = spaces.Graph(spaces.Box(-1, 1, (2,)), None)


class TinyImage(_Shaped):
    """An image smaller than a convolutional network takes."""

    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)


class Instructed(_Shaped):
    """A text beside numbers."""

    observation_space = spaces.Dict(at=spaces.Box(-1, 1, (2,)), goal=spaces.Text(8))


class Boundless(_Shaped):
    """An action without bounds."""

    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class Stuck(_Shaped):
    """An action of which one number cannot change."""

    action_space = spaces.Box(np.float32([-1, 0.5]), np.float32([1, 0.5]))


gym.register("Boundless-v0", Boundless)
gym.register("Stuck-v0", Stuck)
gym.register("DictAction-v0", DictAction)
gym.register("GraphObservation-v0", GraphObservation)
gym.register("TinyImage-v0", TinyImage)
gym.register("Instructed-v0", Instructed)
