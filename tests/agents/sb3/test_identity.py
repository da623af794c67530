"""Design rule 7: learning over the protocol is SB3's own learning, byte for byte."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import A2C
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from plugrl_gym.agents.sb3 import SB3Agent
from tests.support.agent_peer import AgentPeer
from tests.support.lockstep import (
    agent_weights,
    assert_different_weights,
    assert_same_weights,
    drive,
    make_envs,
    sb3_reference,
    weights_of,
)

CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "cartpole": ("CartPole-v1", 8, {"batch_size": 256}),
    "pendulum": ("Pendulum-v1", 4, {}),
    "pendulum-gsde": ("Pendulum-v1", 4, {"use_sde": True, "sde_sample_freq": 4}),
}


@pytest.mark.parametrize("case", CASES)
def test_ppo_in_lockstep_learns_the_very_weights_of_sb3(case: str) -> None:
    env_id, n_envs, settings = CASES[case]
    expected = sb3_reference(env_id, n_envs, 3, seed=0, n_steps=256, **settings)
    learned = agent_weights(env_id, n_envs, 3, seed=0, n_steps=256, **settings)
    assert_same_weights(learned, expected)


@pytest.mark.parametrize("case", CASES)
def test_another_seed_learns_other_weights(case: str) -> None:
    env_id, n_envs, settings = CASES[case]
    settings = {"n_steps": 32, **settings}
    expected = sb3_reference(env_id, n_envs, 1, seed=0, **settings)
    assert_same_weights(agent_weights(env_id, n_envs, 1, seed=0, **settings), expected)
    assert_different_weights(agent_weights(env_id, n_envs, 1, seed=1, **settings), expected)


@pytest.mark.parametrize(
    ("n_envs", "settings"),
    [
        (1, {"use_sde": True, "sde_sample_freq": 3}),
        (2, {"use_sde": True}),
        (2, {"use_sde": True, "policy_kwargs": {"squash_output": True}, "sde_sample_freq": 5}),
    ],
    ids=["one-env", "drawn-once", "squashed"],
)
def test_gsde_draws_its_noise_when_sb3_does(n_envs: int, settings: dict[str, Any]) -> None:
    settings = {"n_steps": 64, "n_epochs": 2, **settings}
    assert_same_weights(
        agent_weights("Pendulum-v1", n_envs, 2, **settings),
        sb3_reference("Pendulum-v1", n_envs, 2, **settings),
    )


def test_schedules_fall_as_in_sb3() -> None:
    settings = {
        "n_steps": 32,
        "batch_size": 64,
        "learning_rate": LinearSchedule(0.001, 0.0, 1.0),
        "clip_range": LinearSchedule(0.2, 0.0, 1.0),
    }
    spelled = {**settings, "learning_rate": "lin_0.001", "clip_range": "lin_2e-1"}
    expected = sb3_reference("CartPole-v1", 8, 4, **settings)
    assert_same_weights(agent_weights("CartPole-v1", 8, 4, **spelled), expected)


def test_a_class_that_shares_the_on_policy_loop_is_served_too() -> None:
    assert_same_weights(
        agent_weights("CartPole-v1", 8, 20, algorithm=A2C, n_steps=5),
        sb3_reference("CartPole-v1", 8, 20, algorithm=A2C, n_steps=5),
    )


class Forgetful(FlattenExtractor):
    """Drops features while it learns, and only then."""

    def __init__(self, observation_space: gym.Space[Any]) -> None:
        super().__init__(observation_space)
        self.flatten = nn.Sequential(nn.Flatten(), nn.Dropout(0.5))


def test_the_policy_collects_in_evaluation_mode_and_learns_in_training_mode() -> None:
    settings = {"n_steps": 32, "policy_kwargs": {"features_extractor_class": Forgetful}}
    assert_same_weights(
        agent_weights("CartPole-v1", 2, 3, **settings),
        sb3_reference("CartPole-v1", 2, 3, **settings),
    )


class Pictures(gym.Env[Any, np.int64]):
    """Random pictures, alone or beside numbers; episodes end both ways."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, kind: str, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        shape = (4, 40, 40) if kind == "channels-first" else (40, 44, 3)
        self.picture = spaces.Box(0, 255, shape, np.uint8)
        self.observation_space = self.picture
        if kind == "dict":
            self.observation_space = spaces.Dict(
                view=self.picture,
                place=spaces.Box(-1, 1, (3,), np.float64),
                room=spaces.Discrete(5),
            )
        self.action_space = spaces.Discrete(3)

    def _observe(self) -> Any:
        rng = self.np_random
        picture = rng.integers(0, 256, self.picture.shape, dtype=np.uint8)
        if self.observation_space is self.picture:
            return picture
        return {"view": picture, "place": rng.random(3), "room": int(rng.integers(5))}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        fallen = self.steps >= 5 and bool(self.np_random.random() < 0.2)
        return self._observe(), float(action), fallen, self.steps >= 9, {}


@pytest.mark.parametrize("kind", ["channels-last", "channels-first", "dict"])
def test_pictures_reach_the_network_as_in_sb3(kind: str) -> None:
    gym.register("test/Pictures-v0", Pictures)
    try:
        settings = {"n_steps": 24, "batch_size": 24, "n_epochs": 2, "env_kwargs": {"kind": kind}}
        policy = "MultiInputPolicy" if kind == "dict" else "CnnPolicy"
        expected = sb3_reference("test/Pictures-v0", 2, 2, policy=policy, **settings)
        assert_same_weights(agent_weights("test/Pictures-v0", 2, 2, **settings), expected)
    finally:
        del gym.registry["test/Pictures-v0"]


def test_an_evaluating_client_changes_no_weight() -> None:
    """It comes first, brings another number of envs, and asks between all the others' steps."""
    expected = sb3_reference("CartPole-v1", 4, 2, n_steps=64)
    agent = SB3Agent("ppo", total_timesteps=512, seed=0, preset="none", n_steps=64)
    drive(agent, make_envs("CartPole-v1", 3), mode="eval", max_steps=10)
    watcher = _watcher(agent)
    act = agent.act
    agent.act = lambda requests: (watcher(), act(requests))[1]  # type: ignore[method-assign]
    drive(agent, make_envs("CartPole-v1", 4), seed=0)
    assert agent.counters.updates == 2
    assert agent.model is not None
    assert_same_weights(weights_of(agent.model), expected)


def _watcher(agent: SB3Agent) -> Any:
    envs = make_envs("CartPole-v1", 3)
    observation, _ = envs.reset(seed=9)
    act = agent.act
    peer = AgentPeer(
        agent, envs.single_observation_space, envs.single_action_space, num_envs=3, mode="eval"
    )
    envs.close()

    def watch() -> None:
        peer.answer(act([peer.request(range(3), observation)])[0])
        peer.tell(range(3), observation, 1.0)

    return watch


def test_learning_in_another_thread_changes_no_weight() -> None:
    expected = sb3_reference("CartPole-v1", 4, 2, n_steps=64)
    agent = SB3Agent("ppo", total_timesteps=512, seed=0, preset="none", n_steps=64)
    learn = agent.learn
    with ThreadPoolExecutor(1) as pool:
        agent.learn = lambda: pool.submit(learn).result()  # type: ignore[method-assign]
        drive(agent, make_envs("CartPole-v1", 4), seed=0)
    assert agent.model is not None
    assert_same_weights(weights_of(agent.model), expected)
