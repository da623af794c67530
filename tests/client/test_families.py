"""Real env families through a real server: every stored transition equals the env's own trace."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import ale_py
import gymnasium as gym
import minigrid  # noqa: F401 - importing it registers its envs
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation

from plugrl_gym import PlugRLVectorEnv
from plugrl_gym.agents.random_agent import RandomAgent
from plugrl_gym.protocol import Feedback, Infer
from plugrl_gym.server import Client, Request
from tests.support.serving import running

gym.register_envs(ale_py)
N, STEPS, LONGEST = 2, 45, 17


def atari() -> gym.Env:
    env = gym.make("ALE/Breakout-v5", obs_type="grayscale", max_episode_steps=LONGEST)
    return FrameStackObservation(env, 4)


def plain(env_id: str) -> Callable[[], gym.Env]:
    return lambda: gym.make(env_id, max_episode_steps=LONGEST)


def state(observation: Any) -> dict[str, Any]:
    return {"obs": np.ravel(observation)}


# How each family's observation must look on the wire, written by hand (SPEC 9.3).
FAMILIES: dict[str, tuple[Callable[[], gym.Env], Callable[[Any], dict[str, Any]]]] = {
    "classic control": (plain("Acrobot-v1"), state),
    "toy text": (plain("Taxi-v4"), state),
    "toy text, tuple": (
        plain("Blackjack-v1"),
        lambda o: {"0": np.array([o[0]]), "1": np.array([o[1]]), "2": np.array([o[2]])},
    ),
    "Box2D": (plain("LunarLander-v3"), state),
    "Box2D, pixels": (plain("CarRacing-v3"), lambda o: {"obs": o}),
    "MuJoCo": (plain("HalfCheetah-v5"), state),
    "Atari, stacked": (atari, lambda o: {"obs": np.moveaxis(o, 0, -1)}),
    "MiniGrid": (
        plain("MiniGrid-Empty-5x5-v0"),
        lambda o: {"image": o["image"], "direction": np.array([o["direction"]])},
    ),
}


class Recorder(RandomAgent):
    """Random actions; keeps each env's transitions in wire form."""

    def __init__(self, horizon: int) -> None:
        super().__init__(horizon=horizon, seed=3)
        self.open: dict[int, tuple[dict[str, Any], npt.NDArray[Any]]] = {}
        self.stored: dict[int, list[Any]] = {env: [] for env in range(N)}
        self.texts: set[str] = set()
        self.took = threading.Condition()
        self.steps = 0

    def wait_for_steps(self, number: int) -> None:
        """Until feedback for that many env steps has come."""
        with self.took:
            assert self.took.wait_for(lambda: self.steps >= number, 10), self.steps

    def act(self, requests: Sequence[Request]) -> list[npt.NDArray[np.generic]]:
        chunks = super().act(requests)
        (request,) = requests
        for row, env in enumerate(request.infer.env_indices.tolist()):
            self.open[env] = (_row(request.infer, row), chunks[0][:, row])
        return chunks

    def feedback(self, client: Client, feedback: Feedback) -> None:
        with self.took:
            self._store(client, feedback)
            assert feedback.chunk_steps is not None
            self.steps += int(feedback.chunk_steps.steps.sum())
            self.took.notify_all()

    def _store(self, client: Client, feedback: Feedback) -> None:
        super().feedback(client, feedback)
        self.texts.update(feedback.observation.text)
        for row, env in enumerate(feedback.env_indices.tolist()):
            first, chunk = self.open.pop(env)
            assert feedback.chunk_steps is not None
            self.stored[env].append(
                (
                    first,
                    chunk[: feedback.chunk_steps.steps[row]],
                    feedback.rewards[row],
                    _row(feedback, row),
                    bool(feedback.terminated[row]),
                    bool(feedback.truncated[row]),
                )
            )


def _row(message: Infer | Feedback, row: int) -> dict[str, Any]:
    parts = {**message.observation.images, **message.observation.states}
    return {name: array[row] for name, array in parts.items()}


class Trace(gym.Wrapper):
    """Remembers every step of an env."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.steps: list[Any] = []

    def reset(self, **kwargs: Any) -> Any:
        self.last, info = self.env.reset(**kwargs)
        return self.last, info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        before = self.last
        self.steps.append((before, np.array(action), reward, observation, terminated, truncated))
        self.last = observation
        return observation, reward, terminated, truncated, info


def assert_equal_rows(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name])


@pytest.mark.parametrize("horizon", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_stored_transitions_equal_the_envs_own_trace(family: str, horizon: int) -> None:
    make, wire = FAMILIES[family]
    traces = [Trace(make()) for _ in range(N)]
    vector = SyncVectorEnv([lambda t=t: t for t in traces], autoreset_mode=AutoresetMode.SAME_STEP)
    recorder = Recorder(horizon)
    with running(recorder) as server, PlugRLVectorEnv(vector, server.url) as envs:
        envs.run(seed=1, max_steps=N * STEPS)
        envs.close()
        recorder.wait_for_steps(N * STEPS - envs.stats.steps_dropped)
    for env, trace in enumerate(traces):
        told = iter(trace.steps)
        for first, chunk, reward, last, terminated, truncated in recorder.stored[env]:
            ran = [next(told) for _ in chunk]
            assert_equal_rows(first, wire(ran[0][0]))
            np.testing.assert_allclose(np.stack([r[1] for r in ran]), chunk, rtol=1e-6)
            assert reward == np.float32(sum(float(r[2]) for r in ran))
            assert_equal_rows(last, wire(ran[-1][3]))
            assert (terminated, truncated) == ran[-1][4:]
    if family == "MiniGrid":
        assert recorder.texts == {"get to the green goal square"}
