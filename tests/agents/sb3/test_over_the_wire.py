"""Design rule 7 end to end: a real server, real sockets, the real client."""

from __future__ import annotations

from typing import Any

import pytest
from stable_baselines3 import DQN, SAC

from plugrl_gym import PlugRLVectorEnv
from plugrl_gym.agents.sb3 import SB3Agent
from tests.support.lockstep import (
    assert_different_weights,
    assert_same_weights,
    make_envs,
    sb3_model,
    sb3_reference,
    weights_of,
)
from tests.support.serving import running

UPDATES = 3
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "cartpole": ("CartPole-v1", 8, {}),
    "pendulum": ("Pendulum-v1", 4, {}),
    "pendulum-gsde": ("Pendulum-v1", 4, {"use_sde": True, "sde_sample_freq": 4}),
}


def wire_weights(env_id: str, n_envs: int, n_steps: int, seed: int, **settings: Any) -> Any:
    agent = SB3Agent(
        "ppo",
        total_timesteps=UPDATES * n_envs * n_steps,
        seed=0,
        preset="none",
        hyperparameters={"device": "cpu", "n_steps": n_steps, **settings},
    )
    with running(agent) as server, PlugRLVectorEnv(make_envs(env_id, n_envs), server.url) as envs:
        summary = envs.run(seed=seed)
    assert summary.finished
    assert summary.env_steps == UPDATES * n_envs * n_steps
    assert agent.counters.updates == UPDATES
    assert agent.model is not None
    return weights_of(agent.model)


@pytest.mark.parametrize("case", CASES)
def test_ppo_over_the_wire_learns_the_very_weights_of_sb3(case: str) -> None:
    env_id, n_envs, settings = CASES[case]
    expected = sb3_reference(env_id, n_envs, UPDATES, seed=0, n_steps=256, **settings)
    assert_same_weights(wire_weights(env_id, n_envs, 256, 0, **settings), expected)


def test_other_env_seeds_learn_other_weights() -> None:
    expected = sb3_reference("CartPole-v1", 8, UPDATES, seed=0, n_steps=32)
    assert_same_weights(wire_weights("CartPole-v1", 8, 32, 0), expected)
    assert_different_weights(wire_weights("CartPole-v1", 8, 32, 1), expected)


@pytest.mark.parametrize(
    ("algorithm", "env_id", "n_envs"),
    [(SAC, "Pendulum-v1", 1), (DQN, "CartPole-v1", 4)],
    ids=["sac", "dqn"],
)
def test_off_policy_over_the_wire_learns_the_very_weights_of_sb3(
    algorithm: Any, env_id: str, n_envs: int
) -> None:
    settings = {"learning_starts": 60, "batch_size": 16, "policy_kwargs": {"net_arch": [16]}}
    expected = sb3_model(env_id, n_envs, 160, algorithm, **settings)
    agent = SB3Agent(
        algorithm,
        total_timesteps=160,
        seed=0,
        preset="none",
        hyperparameters={"device": "cpu", **settings},
    )
    with running(agent) as server, PlugRLVectorEnv(make_envs(env_id, n_envs), server.url) as envs:
        summary = envs.run(seed=0)
    assert summary.finished
    assert summary.env_steps == 160
    assert agent.model is not None
    assert_same_weights(weights_of(agent.model), weights_of(expected))
