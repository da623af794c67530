"""``tests.chaos.envs:Ledgered-v0``: an env whose every step can be told from every other."""

from __future__ import annotations

import itertools
import json
import os
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

__all__ = ["CUES", "Ledgered", "Tag", "read_cue", "read_tag"]

CUES = 4
# Powers of two: exact in float32, and small enough not to disturb a policy.
_SCALES = np.array([2.0**10, 2.0**6, 2.0**20, 2.0**6, 2.0**4])
_numbers = itertools.count()


class Tag(NamedTuple):
    """Whose observation it is: ``step`` steps into an episode of one env of one client process.

    ``echo`` is the action that led here, -1 after a reset.
    """

    client: int
    env: int
    episode: int
    step: int
    echo: int


def read_tag(row: npt.NDArray[Any]) -> Tag:
    """The tag of an observation, one row [CUES + 5]."""
    numbers = np.rint(row[CUES:].astype(np.float64) * _SCALES).astype(int).tolist()
    return Tag(*numbers)


def read_cue(row: npt.NDArray[Any]) -> int:
    """The right action, as the observation shows it."""
    return int(row[:CUES].argmax())


class Ledgered(gym.Env[Any, Any]):
    """A cue for each episode; the action that fits it earns 1 per step.

    Args:
        client: Number of this client process.
        log: A line of JSON for each step is appended to this file before the step returns.
    """

    def __init__(self, client: int = 0, log: str | None = None) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (CUES + 5,), np.float32)
        self.action_space = spaces.Discrete(CUES)
        self._client, self._env = client, next(_numbers)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._log = None if log is None else os.open(log, flags, 0o644)
        self._episode, self._step, self._echo = -1, 0, -1
        self._cue = 0

    def _observe(self) -> npt.NDArray[np.float32]:
        numbers = [self._client, self._env, self._episode, self._step, self._echo]
        tag = np.array(numbers) / _SCALES
        return np.concatenate([np.eye(CUES)[self._cue], tag]).astype(np.float32)

    @property
    def _length(self) -> int:
        return 12 + (5 * self._env + 3 * self._episode) % 7

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode += 1
        self._step, self._echo = 0, -1
        self._cue = (3 * self._client + self._env + 7 * self._episode) % CUES
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        number = (self._client * 31 + self._env * 17 + self._episode * 7 + self._step) % 16
        # The fraction tells neighbouring steps apart, and adds up without rounding.
        reward = float(action == self._cue) + number / 1024
        self._echo = int(action)
        self._step += 1
        over = self._step == self._length
        terminated = over and self._episode % 3 > 0
        self._write(reward, terminated, over and not terminated)
        return self._observe(), reward, terminated, over and not terminated, {}

    def _write(self, reward: float, terminated: bool, truncated: bool) -> None:
        if self._log is None:
            return
        place = [self._client, self._env, self._episode, self._step - 1]
        line = json.dumps([*place, self._echo, reward, int(terminated), int(truncated)])
        os.write(self._log, f"{line}\n".encode())

    def close(self) -> None:
        if self._log is not None:
            os.close(self._log)
            self._log = None


gym.register("Ledgered-v0", Ledgered)
