"""Vector envs that hand out torch tensors, lists and other unusual types."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import NumpyToTorch

from plugrl_gym import UsageError
from tests.client.conftest import sync
from tests.support.memory import MemoryServer
from tests.support.tracing import CountingEnv


class Unusual(VectorEnv):
    """Two counting envs whose results pass through ``form``; checks what it is stepped with."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, form: Any, takes: type) -> None:
        self.num_envs, self.form, self.takes = 2, form, takes
        self.single_observation_space = spaces.Box(0, 100, (1,), np.float32)
        self.observation_space = spaces.Box(0, 100, (2, 1), np.float32)
        self.single_action_space = spaces.Discrete(3)
        self.action_space = spaces.MultiDiscrete([3, 3])
        self.time = np.zeros(2, np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.time[:] = 0
        return self.form(self.time[:, None].copy()), {}

    def step(self, actions: Any) -> Any:
        assert isinstance(actions, self.takes)
        over = self.time == 3
        assert all(int(a) == 1 for a, ignored in zip(actions, over, strict=True) if not ignored)
        self.time = np.where(over, 0, self.time + 1).astype(np.float32)
        ended = (self.time == 3) & ~over
        return (
            self.form(self.time[:, None].copy()),
            self.form(np.where(over, 0.0, 1.5)),
            self.form(ended.astype(np.uint8)),
            self.form(np.zeros(2, np.uint8)),
            {},
        )


class Duck:
    """An array of another library, such as JAX: NumPy can read it, and no more."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._array if dtype is None else self._array.astype(dtype)

    def __len__(self) -> int:
        return len(self._array)


@pytest.mark.parametrize(
    ("form", "takes"),
    [
        (torch.as_tensor, torch.Tensor),
        (lambda a: torch.as_tensor(a, dtype=torch.float32).requires_grad_(), torch.Tensor),
        (Duck, np.ndarray),
        (lambda a: a.tolist(), np.ndarray),
        (lambda a: a.astype(np.float16), np.ndarray),
        (lambda a: a.astype(np.int64) * 1.5 if a.dtype == np.float64 else a, np.ndarray),
    ],
    ids=["torch", "torch with grad", "another library", "lists", "float16", "floats"],
)
def test_every_numeric_type_is_read(wrap: Any, form: Any, takes: type) -> None:
    server = MemoryServer(lambda envs: np.ones((1, len(envs)), np.int64))
    envs = wrap(Unusual(form, takes), server)
    envs.reset()
    for _ in range(8):
        envs.step()
    stored = [(r.first[0], r.last[0], r.terminated) for r in server.rows if r.env == 0]
    once = [(0, 1, False), (1, 2, False), (2, 3, True)]
    assert stored == once * 2
    assert server.feedbacks[0].rewards.dtype == np.float32
    assert server.feedbacks[0].terminated.dtype == np.bool_


def test_gymnasiums_own_torch_wrapper_goes_below(wrap: Any) -> None:
    server = MemoryServer(lambda envs: np.ones((2, len(envs)), np.int64))
    # With SAME_STEP it fails in Gymnasium itself, on the object array of final_obs.
    inner = sync(CountingEnv(3), CountingEnv(4), mode=AutoresetMode.NEXT_STEP)
    envs = wrap(NumpyToTorch(inner, device="cpu"), server)
    observation, _ = envs.reset()
    assert isinstance(observation, torch.Tensor)
    for _ in range(8):
        envs.step()
    assert [(r.first[0], r.last[0]) for r in server.rows if r.env == 0][:3] == [
        (0, 2),
        (2, 3),
        (100, 102),
    ]


def test_rewards_of_two_columns_are_refused_by_name(wrap: Any) -> None:
    class Two(Unusual):
        def step(self, actions: Any) -> Any:
            result = super().step(actions)
            return result[0], np.ones((2, 2)), *result[2:]

    server = MemoryServer(lambda envs: np.ones((1, len(envs)), np.int64))
    envs = wrap(Two(np.asarray, np.ndarray), server)
    envs.reset()
    with pytest.raises(UsageError, match=r"reward: expected 2 numbers, got float64 \[2, 2\]"):
        envs.step()


class Instructed(gym.Env):
    """Shows a text."""

    def __init__(self, text: str) -> None:
        self.observation_space = spaces.Dict(
            at=spaces.Box(-1, 1, (2,)), goal=spaces.Text(20, charset="abcdefghijklmnopqrstuvwxyz ")
        )
        self.action_space = spaces.Discrete(2)
        self.text = text

    def _observe(self) -> Any:
        return {"at": np.zeros(2, np.float32), "goal": self.text}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        return self._observe(), 0.0, False, False, {}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_texts_arrive_as_the_envs_say_them(wrap: Any, kind: str) -> None:
    fns = [lambda: Instructed("pick"), lambda: Instructed("place cube")]
    inner = (
        gym.vector.SyncVectorEnv(fns)
        if kind == "sync"
        else gym.vector.AsyncVectorEnv(fns, shared_memory=False, context="forkserver")
    )
    server = MemoryServer(lambda envs: np.zeros((1, len(envs)), np.int64))
    with wrap(inner, server) as envs:
        envs.reset()
        envs.step()
    assert list(server.infers[0].observation.text) == ["pick", "place cube"]


def test_text_through_shared_memory_is_refused_at_construction(wrap: Any) -> None:
    inner = gym.vector.AsyncVectorEnv([lambda: Instructed("pick")], context="forkserver")
    try:
        with pytest.raises(UsageError, match="shared_memory=False"):
            wrap(inner, MemoryServer(lambda envs: envs))
    finally:
        inner.close()
