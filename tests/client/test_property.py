"""Any space, mode, horizon and episode length: what is stored equals the envs' own traces."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from plugrl_gym import PlugRLVectorEnv, UnsupportedSpace
from plugrl_gym.client import session
from plugrl_gym.protocol import CHUNK_STEPS, GYM_SPACES, REUSE_FEEDBACK_OBS, Metadata, Observation
from plugrl_gym.spaces import ObservationLayout
from tests.support.memory import MemoryServer
from tests.support.spaces import any_space

ACTIONS: list[spaces.Space[Any]] = [
    spaces.Box(-1, 1, (2, 3)),
    spaces.Box(np.array([-5.0]), np.array([np.inf]), dtype=np.float64),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiBinary(3),
]


def sampled(space: spaces.Space[Any], rng: np.random.Generator) -> Any:
    """One sample, drawn from ``rng``."""
    if isinstance(space, spaces.Dict):
        return {key: sampled(part, rng) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(sampled(part, rng) for part in space.spaces)
    space.seed(int(rng.integers(2**31)))
    value = space.sample()
    if isinstance(space, spaces.Box):  # some versions of Gymnasium sample beyond a bound
        value = np.asarray(np.minimum(np.maximum(value, space.low), space.high))
    return value


class Sampling(gym.Env):
    """Observes samples of its space; keeps (observation, action, reward, next, flags)."""

    def __init__(self, observation: Any, action: Any, length: int, seed: int) -> None:
        self.observation_space, self.action_space = observation, action
        self._length, self._rng = length, np.random.default_rng(seed)
        self.trace: list[tuple[Any, ...]] = []

    def _observe(self) -> Any:
        return sampled(self.observation_space, self._rng)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self._time, self._last = 0, self._observe()
        return self._last, {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self._time += 1
        over, reward = self._time == self._length, float(self._rng.integers(-9, 9))
        terminated = over and bool(self._rng.integers(2))
        before, self._last = self._last, self._observe()
        self.trace.append((before, np.array(action), reward, self._last, terminated, over))
        return self._last, reward, terminated, over and not terminated, {}


def row(observation: Observation, number: int) -> dict[str, Any]:
    parts = {**observation.images, **observation.states}
    return {"text": observation.text[number], **{k: v[number] for k, v in parts.items()}}


def same(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name])


@given(
    observation=any_space(),
    action=st.sampled_from(ACTIONS),
    mode=st.sampled_from(list(AutoresetMode)),
    horizon=st.sampled_from([1, 3, 5]),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    reuse=st.booleans(),
    seed=st.integers(0, 2**16),
)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@pytest.mark.filterwarnings("ignore::UserWarning:gymnasium")
def test_what_is_stored_equals_the_envs_own_trace(
    monkeypatch: pytest.MonkeyPatch,
    observation: Any,
    action: Any,
    mode: AutoresetMode,
    horizon: int,
    lengths: list[int],
    reuse: bool,
    seed: int,
) -> None:
    subs = [Sampling(observation, action, length, seed + i) for i, length in enumerate(lengths)]
    vector = SyncVectorEnv([lambda s=s: s for s in subs], autoreset_mode=mode)
    rng = np.random.default_rng(seed)

    def choose(envs: np.ndarray) -> np.ndarray:
        return np.array([[sampled(action, rng) for _ in envs] for _ in range(horizon)])

    features = (GYM_SPACES, CHUNK_STEPS, *((REUSE_FEEDBACK_OBS,) if reuse else ()))
    server = MemoryServer(choose, Metadata(features=features), view=row)
    monkeypatch.setattr(session, "Connection", server.connect)
    try:
        envs = PlugRLVectorEnv(vector)
    except UnsupportedSpace:
        assume(False)
    envs.run(max_steps=12 * len(subs))
    envs.close()
    assert server.rows
    layout = ObservationLayout(observation)
    for number, sub in enumerate(subs):
        told = iter(sub.trace)
        for stored in (r for r in server.rows if r.env == number):
            ran = [next(told) for _ in range(stored.steps)]
            same(stored.first, row(layout.encode_one(ran[0][0]), 0))
            same(stored.last, row(layout.encode_one(ran[-1][3]), 0))
            assert stored.reward == sum(step[2] for step in ran)
            assert (stored.terminated, stored.terminated or stored.truncated) == ran[-1][4:]
            np.testing.assert_array_equal(
                np.stack([step[1] for step in ran]), stored.chunk[: stored.steps]
            )
    steps = sum(len(sub.trace) for sub in subs)
    assert steps == sum(r.steps for r in server.rows) + envs.stats.steps_dropped
