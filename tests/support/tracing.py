"""An env whose every step can be told from every other, and that remembers them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


@dataclass(frozen=True)
class Step:
    """One step as the env itself saw it."""

    episode: int
    time: int
    action: float
    reward: float
    terminated: bool
    truncated: bool


class TracingEnv(gym.Env):
    """Observation (env number, episode, time); episode lengths and rewards are drawn.

    Attributes:
        trace: Every step taken, in order.
        resets: How often it was reset.
    """

    def __init__(self, number: int, seed: int, longest: int = 7) -> None:
        self.observation_space = spaces.Box(-1.0, 1e9, (3,), np.float64)
        self.action_space = spaces.Box(-1e9, 1e9, (1,), np.float64)
        self.number = number
        self.trace: list[Step] = []
        self.resets = 0
        self._rng = np.random.default_rng([seed, number])
        self._longest = longest
        self._episode, self._time, self._length = -1, 0, 0
        self._over = True

    def _observe(self) -> np.ndarray:
        return np.array([self.number, self._episode, self._time], np.float64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self.resets += 1
        self._episode += 1
        self._time = 0
        self._length = int(self._rng.integers(1, self._longest + 1))
        self._over = False
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert not self._over, "stepped past the end of the episode"
        self._time += 1
        reward = float(self._rng.integers(-50, 50))
        self._over = self._time == self._length
        kind = int(self._rng.integers(3)) if self._over else -1
        terminated, truncated = kind in (0, 2), kind in (1, 2)
        self.trace.append(
            Step(self._episode, self._time - 1, float(action[0]), reward, terminated, truncated)
        )
        return self._observe(), reward, terminated, truncated, {}


class CountingEnv(gym.Env):
    """Observation 100 * episode + t, reward 1, ends after ``length`` steps."""

    def __init__(self, length: int, truncates: bool = False) -> None:
        self.observation_space = spaces.Box(0.0, 1e9, (1,), np.float64)
        self.action_space = spaces.Discrete(2)
        self.length, self.truncates = length, truncates
        self.episode, self.time = -1, 0
        self.resets = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.resets += 1
        self.episode += 1
        self.time = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        over = self.time == self.length
        return self._observe(), 1.0, over and not self.truncates, over and self.truncates, {}

    def _observe(self) -> np.ndarray:
        return np.array([100.0 * self.episode + self.time])
