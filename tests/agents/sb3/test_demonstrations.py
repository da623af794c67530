"""Batches with a share of demonstrations: who is drawn, and what cannot have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer

from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.errors import UsageError
from tests.support.agent_peer import AgentPeer
from tests.support.replays import ONE, make_learner
from tests.support.rollouts import NUMBER, column, connect

NESTED = spaces.Dict(a=spaces.Box(-1.0, 1.0, (2,)), b=spaces.Discrete(3))


def fill(agent: SB3Agent, overridden: list[bool]) -> None:
    """One env; a step that is overridden pays 1, another one 0."""
    peer = connect(agent, 1)
    for t, one in enumerate(overridden):
        peer.ask([0], column(t))
        peer.tell([0], column(t + 1), float(one), overridden=[one])


def demonstrations(agent: SB3Agent, batch: int) -> int:
    return int(agent.model.replay_buffer.sample(batch).rewards.sum())


@pytest.mark.parametrize(("share", "expected"), [(0.5, 8), (0.25, 4), (1.0, 16), (0.3, 5)])
def test_each_batch_has_that_share_of_demonstrations(share: float, expected: int) -> None:
    agent, _ = make_learner("sac", demonstrations_share=share)
    fill(agent, [False] * 90 + [True] * 10)
    assert [demonstrations(agent, 16) for _ in range(20)] == [expected] * 20


@pytest.mark.parametrize("only", [False, True], ids=["policy", "demonstrations"])
def test_a_batch_is_made_of_what_there_is(only: bool) -> None:
    agent, _ = make_learner("sac", demonstrations_share=0.5)
    fill(agent, [only] * 5)
    assert demonstrations(agent, 16) == 16 * only


def test_without_a_share_all_have_even_chances_in_a_buffer_of_sb3s_own() -> None:
    agent, _ = make_learner("sac")
    fill(agent, [False] * 90 + [True] * 10)
    assert type(agent.model.replay_buffer) is ReplayBuffer
    found = [demonstrations(agent, 16) for _ in range(200)]
    assert 0.08 < sum(found) / (200 * 16) < 0.12


def test_a_full_buffer_forgets_old_demonstrations() -> None:
    agent, _ = make_learner("sac", demonstrations_share=0.5, buffer_size=10)
    fill(agent, [True] * 10 + [False] * 9)
    assert demonstrations(agent, 16) == 8
    fill(agent, [False])
    assert demonstrations(agent, 16) == 0


def test_a_client_that_demonstrates_fills_the_half_beside_one_that_learns() -> None:
    agent, _ = make_learner("sac", num_envs=2, demonstrations_share=0.5)
    learner, demonstrator = connect(agent, 2), connect(agent, 1)
    for t in range(20):
        demonstrator.ask([0], column(t))
        demonstrator.tell([0], column(t + 1), 1.0, overridden=[True], executed=[[[0.75]]])
        learner.ask(range(2), column(t, t))
        learner.tell(range(2), column(t + 1, t + 1), 0.0)
    batch = agent.model.replay_buffer.sample(64)
    assert int((batch.rewards == 1.0).sum()) == 32
    np.testing.assert_allclose(batch.actions[batch.rewards == 1.0], 0.75)


def learned(agent: SB3Agent) -> bytes:
    parameters = agent.model.policy.parameters()
    return torch.cat([part.detach().flatten() for part in parameters]).numpy().tobytes()


@pytest.mark.parametrize(
    ("algorithm", "observation", "action", "horizon"),
    [
        ("sac", NESTED, ONE, 2),
        ("td3", NUMBER, ONE, 1),
        ("dqn", NESTED, spaces.Discrete(3), 1),
    ],
)
def test_algorithms_learn_from_such_batches(
    algorithm: str, observation: Any, action: Any, horizon: int
) -> None:
    agent = SB3Agent(
        algorithm,
        total_timesteps=60,
        num_envs=2,
        seed=1,
        preset="none",
        horizon=horizon,
        demonstrations_share=0.5,
        observation_space=observation,
        action_space=action,
        learning_starts=20,
        batch_size=8,
        policy_kwargs={"net_arch": [8]},
    )
    before = learned(agent)
    peer = AgentPeer(agent, observation, action, num_envs=2)
    observation.seed(0)
    seen = [observation.sample(), observation.sample()]
    while not agent.finished:
        peer.ask(range(2), stacked(seen))
        rewards = [[1.0] * horizon] * 2
        zeros = np.zeros((horizon, 2, *action.shape), action.dtype)
        peer.tell(
            range(2),
            stacked(seen),
            float(horizon),
            overridden=[True, False],
            executed=zeros,
            step_rewards=rewards,
        )
    assert learned(agent) != before


def stacked(seen: list[Any]) -> Any:
    if isinstance(seen[0], dict):
        return {key: np.stack([one[key] for one in seen]) for key in seen[0]}
    return np.stack(seen)


# -- runs -----------------------------------------------------------------------------------------


def agent_in(run_dir: Path, **arguments: Any) -> SB3Agent:
    return SB3Agent(
        run_dir=run_dir,
        observation_space=NUMBER,
        action_space=ONE,
        num_envs=1,
        preset="none",
        total_timesteps=10**6,
        hyperparameters={"learning_starts": 10**6, "buffer_size": 100, "device": "cpu"},
        **arguments,
    )


def test_a_run_that_goes_on_knows_its_demonstrations(tmp_path: Path) -> None:
    agent = agent_in(tmp_path, algorithm="sac", demonstrations_share=0.5)
    fill(agent, [False] * 20 + [True] * 3)
    agent.close()
    resumed = SB3Agent(resume=tmp_path)
    assert demonstrations(resumed, 16) == 8
    fill(resumed, [False] * 97)
    assert demonstrations(resumed, 16) == 8
    fill(resumed, [False] * 3)
    assert demonstrations(resumed, 16) == 0
    resumed.close()


def test_a_run_goes_on_with_its_own_share(tmp_path: Path) -> None:
    agent = agent_in(tmp_path, algorithm="sac", demonstrations_share=0.5)
    fill(agent, [True])
    agent.close()
    with pytest.raises(UsageError, match=r"demonstrations_share=0\.5.*demonstrations_share=0\.25"):
        SB3Agent(resume=tmp_path, demonstrations_share=0.25)


# -- what cannot be -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "settings", "text"),
    [
        ("ppo", {}, "ppo cannot learn from demonstrations"),
        ("dqn", {"n_steps": 3}, "n_steps does not go with demonstrations_share"),
        ("sac", {"optimize_memory_usage": True}, "optimize_memory_usage does not go with"),
        ("sac", {"replay_buffer_class": NStepReplayBuffer}, "NStepReplayBuffer knows no demonstr"),
    ],
)
def test_what_knows_no_demonstrations_is_refused(
    algorithm: str, settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        SB3Agent(algorithm, preset="none", demonstrations_share=0.5, hyperparameters=settings)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_is_from_0_to_1(share: float) -> None:
    with pytest.raises(UsageError, match="demonstrations_share: expected 0 to 1"):
        SB3Agent("sac", demonstrations_share=share)


def test_a_model_that_was_loaded_is_looked_at_too(tmp_path: Path) -> None:
    agent, _ = make_learner("dqn", n_steps=3)
    agent.model.save(tmp_path / "model.zip")
    with pytest.raises(UsageError, match="n_steps does not go with demonstrations_share"):
        SB3Agent(
            load=tmp_path / "model.zip",
            demonstrations_share=0.5,
            num_envs=1,
            observation_space=NUMBER,
            action_space=spaces.Discrete(7),
        )
