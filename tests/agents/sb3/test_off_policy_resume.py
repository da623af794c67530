"""What an off-policy learner carries over the end of its process, out of lockstep too."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise

from plugrl_gym.agents.sb3 import SB3Agent
from tests.support.lockstep import assert_same_weights, weights_of
from tests.support.replays import ONE, stored
from tests.support.rollouts import NUMBER, RaggedClient, play_at_random

RED = OrnsteinUhlenbeckActionNoise(np.zeros(1), np.full(1, 0.5))
NO_TIMEOUTS = {"handle_timeout_termination": False}
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "ragged": ("td3", 4, {"action_noise": RED}),
    "ragged, n-step": ("dqn", 4, {"n_steps": 3, "exploration_fraction": 1.0}),
    "ragged, gsde": ("sac", 4, {"use_sde": True, "sde_sample_freq": 5}),
    "ragged, memory": (
        "dqn",
        4,
        {"optimize_memory_usage": True, "replay_buffer_kwargs": NO_TIMEOUTS},
    ),
    "together, n-step": ("dqn", 3, {"n_steps": 3, "target_update_interval": 6}),
    "together, memory": (
        "dqn",
        3,
        {"optimize_memory_usage": True, "replay_buffer_kwargs": NO_TIMEOUTS},
    ),
}


def agent_of(case: str, run_dir: Path) -> SB3Agent:
    algorithm, num_envs, settings = CASES[case]
    return SB3Agent(
        algorithm,
        total_timesteps=1000,
        seed=5,
        num_envs=num_envs,
        preset="none",
        run_dir=run_dir,
        save_every=0,
        observation_space=NUMBER,
        action_space=spaces.Discrete(7) if algorithm == "dqn" else ONE,
        hyperparameters={
            "device": "cpu",
            "learning_starts": 20,
            "batch_size": 8,
            "buffer_size": 90,
            "train_freq": 3,
            "policy_kwargs": {"net_arch": [8]},
            **settings,
        },
    )


def play(agent: SB3Agent, case: str, number: int) -> None:
    """A client of three envs comes, goes through some exchanges and leaves."""
    client = RaggedClient(agent, 3 * number, 3)
    if case.startswith("together"):
        for _ in range(17):
            client.ask(0, 1, 2)
            client.tell(0, 1, 2)
    else:
        play_at_random([client], np.random.default_rng(number), 25)
    client.peer.leave()


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_goes_on_as_if_its_client_had_come_back(case: str, tmp_path: Path) -> None:
    with closing(agent_of(case, tmp_path / "whole")) as expected:
        for number in range(3):
            play(expected, case, number)
    for number in range(3):
        resumed = SB3Agent(resume=tmp_path / "parts") if number else None
        with closing(resumed or agent_of(case, tmp_path / "parts")) as agent:
            play(agent, case, number)
    assert agent.counters == expected.counters
    assert agent.counters.updates > 5
    ours, theirs = stored(agent), stored(expected)
    for name, column in theirs.items():
        np.testing.assert_array_equal(ours[name], column)
    assert_same_weights(weights_of(agent.model), weights_of(expected.model))
