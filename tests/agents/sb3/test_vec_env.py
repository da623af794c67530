"""A vector env as Stable-Baselines3's VecEnv, and learning on remote envs by its own loop."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

from plugrl_gym import RemoteVectorEnv, UsageError
from plugrl_gym.agents.sb3.vec_env import SB3VecEnv
from tests.support.lockstep import (
    assert_different_weights,
    assert_same_weights,
    logless,
    weights_of,
)
from tests.support.raw_client import DEADLINE
from tests.support.trainers import make_envs, rolling

SETTINGS: dict[str, Any] = {"n_steps": 32, "batch_size": 64, "n_epochs": 2, "device": "cpu"}


class Corridor(gym.Env[Any, Any]):
    """Three moves, of which the one that the mask forbids ends the episode in an error."""

    observation_space = spaces.Dict(
        place=spaces.Box(0, 1, (3,), np.float32), action_mask=spaces.MultiBinary(3)
    )
    action_space = spaces.Discrete(3)

    def _observe(self) -> Any:
        mask = np.ones(3, np.int8)
        mask[self.steps % 3] = 0
        return {"place": np.eye(3, dtype=np.float32)[self.steps % 3], "action_mask": mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        assert action != self.steps % 3, "a forbidden action"
        self.steps += 1
        return self._observe(), 1.0, self.steps == 5, self.steps == 4, {}


def corridors(n: int) -> SyncVectorEnv:
    return SyncVectorEnv([Corridor] * n, autoreset_mode=AutoresetMode.SAME_STEP)


# -- the adapter ------------------------------------------------------------------------------


def test_steps_are_those_of_sb3_s_own_vec_env() -> None:
    ours = SB3VecEnv(make_envs("MountainCarContinuous-v0", 2, max_episode_steps=6))
    make = [lambda: gym.make("MountainCarContinuous-v0", max_episode_steps=6)] * 2
    theirs = DummyVecEnv(make)
    rng = np.random.default_rng(0)
    ours.envs.reset(seed=3)
    theirs.seed(3)
    theirs.reset()
    for step in range(14):
        actions = rng.uniform(-1, 1, (2, 1)).astype(np.float32)
        got, expected = ours.step(actions), theirs.step(actions)
        assert got[1].dtype == np.float32
        assert np.array_equal(got[1], expected[1])
        assert np.array_equal(got[2], expected[2])
        for mine, other in zip(got[3], expected[3], strict=True):
            assert mine["TimeLimit.truncated"] == other["TimeLimit.truncated"] == (step in (5, 11))
            assert ("terminal_observation" in mine) == ("terminal_observation" in other)
            if "terminal_observation" in mine:
                assert np.array_equal(mine["terminal_observation"], other["terminal_observation"])
        if step < 5:  # the first observations of later episodes are each env's own
            assert np.array_equal(got[0], expected[0])
    ours.close()
    theirs.close()


def test_episode_that_ends_both_ways_is_no_time_limit() -> None:
    envs = SB3VecEnv(corridors(1))
    envs.reset()
    for action in (1, 2, 1, 1):
        _, _, done, infos = envs.step(np.array([action]))
    assert done.all()
    assert infos[0]["TimeLimit.truncated"]


def test_info_of_an_env_does_not_stand_in_for_how_its_episode_ended() -> None:
    class Talkative(Corridor):
        def step(self, action: Any) -> Any:
            said = {"TimeLimit.truncated": False, "terminal_observation": 9.0, "speed": 2.0}
            return *super().step(action)[:4], said

    envs = SB3VecEnv(SyncVectorEnv([Talkative], autoreset_mode=AutoresetMode.SAME_STEP))
    envs.reset()
    for action in (1, 2, 1, 1):
        _, _, _, infos = envs.step(np.array([action]))
    assert infos[0]["TimeLimit.truncated"] is True
    assert infos[0]["terminal_observation"]["place"].tolist() == [0.0, 1.0, 0.0]
    assert infos[0]["speed"] == 2.0


def test_masks_are_those_that_the_envs_show() -> None:
    envs = SB3VecEnv(corridors(2), action_masks="action_mask")
    envs.reset()
    assert envs.has_attr("action_masks")
    assert [m.tolist() for m in envs.env_method("action_masks")] == [[False, True, True]] * 2
    envs.step(np.array([1, 1]))
    (mask,) = envs.env_method("action_masks", indices=1)
    assert mask.tolist() == [True, False, True]


def test_what_cannot_be_reached_is_said_so() -> None:
    envs = SB3VecEnv(corridors(2))
    assert not envs.has_attr("action_masks")
    assert envs.get_attr("render_mode") == [None, None]
    assert envs.env_is_wrapped(gym.Wrapper) == [False, False]
    assert envs.seed(5) == [None, None]
    with pytest.raises(AttributeError, match=r"as_sb3_vec_env\(action_masks='action_mask'\)"):
        envs.env_method("action_masks")
    with pytest.raises(AttributeError, match="gravity"):
        envs.get_attr("gravity")
    with pytest.raises(AttributeError, match="gravity"):
        envs.set_attr("gravity", 1.0)
    with pytest.raises(AttributeError, match=r"jump\(\)"):
        envs.env_method("jump")
    envs.set_options({"x": 1})
    with pytest.raises(UsageError, match="set_options"):
        envs.reset()
    with pytest.raises(UsageError, match="no key 'masks'"):
        SB3VecEnv(corridors(1), action_masks="masks")


def test_observation_is_the_caller_s() -> None:
    envs = SB3VecEnv(corridors(1), action_masks="action_mask")
    observation = envs.reset()
    assert isinstance(observation, dict)
    observation["action_mask"][:] = 0
    assert envs.env_method("action_masks")[0].any()


# -- learning on remote envs ------------------------------------------------------------------


def local_weights(seed: int = 0) -> Any:
    envs = DummyVecEnv([lambda: gym.make("CartPole-v1")] * 4)
    model = logless(PPO("MlpPolicy", envs, seed=seed, **SETTINGS))
    model.learn(2 * 4 * 32)
    return weights_of(model)


def remote_weights() -> Any:
    with (
        RemoteVectorEnv(4, port=0, connect_timeout=DEADLINE) as envs,
        rolling(envs.url, make_envs("CartPole-v1", 4), seed=0) as client,
    ):
        model = logless(PPO("MlpPolicy", envs.as_sb3_vec_env(), seed=0, **SETTINGS))
        model.learn(2 * 4 * 32)
        assert len(model.ep_info_buffer or ()) > 0  # the episodes of the client
        envs.close()
        client.ended()
    return weights_of(model)


def test_ppo_learns_the_very_weights_that_it_learns_on_the_same_envs_here() -> None:
    learned = remote_weights()
    assert_same_weights(learned, local_weights())
    assert_different_weights(learned, local_weights(seed=1))


@pytest.mark.parametrize(
    ("algorithm", "policy", "env_id", "settings"),
    [
        (RecurrentPPO, "MlpLstmPolicy", "CartPole-v1", {**SETTINGS, "batch_size": 32}),
        (SAC, "MlpPolicy", "Pendulum-v1", {"learning_starts": 20, "device": "cpu"}),
    ],
    ids=["RecurrentPPO", "SAC"],
)
def test_other_algorithms_learn_on_remote_envs(
    algorithm: Any, policy: str, env_id: str, settings: dict[str, Any]
) -> None:
    with (
        RemoteVectorEnv(2, port=0, connect_timeout=DEADLINE) as envs,
        rolling(envs.url, make_envs(env_id, 2)),
    ):
        vec_env = VecNormalize(VecMonitor(envs.as_sb3_vec_env()))
        model = logless(algorithm(policy, vec_env, seed=0, **settings))
        before = weights_of(model)
        model.learn(64)
        envs.close()
    assert_different_weights(weights_of(model), before)


def test_maskable_ppo_takes_no_action_that_an_env_forbids() -> None:
    with (
        RemoteVectorEnv(2, port=0, connect_timeout=DEADLINE) as envs,
        rolling(envs.url, corridors(2)) as client,
    ):
        vec_env = envs.as_sb3_vec_env(action_masks="action_mask")
        model = logless(MaskablePPO("MultiInputPolicy", vec_env, seed=0, **SETTINGS))
        model.learn(2 * 32)
        envs.close()
        assert client.ended().env_steps >= 64
