"""Chunks: a policy over H stacked actions, and discounts by the env steps that a chunk ran."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer

from plugrl_gym import PlugRLVectorEnv
from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.agents.sb3.policy_actions import PolicyActions
from plugrl_gym.errors import RemoteProtocolError, UnsupportedSpace, UsageError
from plugrl_gym.server import PlugRLServer
from tests.support.agent_peer import AgentPeer
from tests.support.lockstep import make_envs
from tests.support.rollouts import (
    GAMMA,
    LAMBDA,
    NUMBER,
    RaggedClient,
    check_against_truth,
    column,
    connect,
    critic_that_reads_the_observation,
    make_agent,
    play_at_random,
)
from tests.support.serving import running

H = 3


class Plain:
    """A policy that does not squash."""

    squash_output = False


class Squashing:
    """A policy that gives numbers in [-1, 1] for a Box of other bounds."""

    squash_output = True

    def __init__(self, space: spaces.Box) -> None:
        self.space = space

    def unscale_action(self, scaled: np.ndarray) -> np.ndarray:
        low, high = self.space.low, self.space.high
        return low + 0.5 * (scaled + 1.0) * (high - low)


# -- the policy's space ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "stacked"),
    [
        (spaces.Discrete(3), spaces.MultiDiscrete([3, 3, 3])),
        (spaces.Discrete(3, start=5), spaces.MultiDiscrete([3, 3, 3])),
        (spaces.MultiDiscrete([2, 5]), spaces.MultiDiscrete([2, 5, 2, 5, 2, 5])),
        (spaces.MultiBinary(2), spaces.MultiBinary(6)),
        (
            spaces.Box(np.float32([0, -1]), np.float32([9, 1])),
            spaces.Box(np.float32([0, -1] * 3), np.float32([9, 1] * 3)),
        ),
        (spaces.Box(-1.0, 1.0, (2, 2), np.float64), spaces.Box(-1.0, 1.0, (12,), np.float64)),
        (spaces.Box(-2, 2, (1,), np.int64), spaces.Box(-2.0, 2.0, (3,), np.float32)),
        (spaces.Box(-1.0, 1.0, (), np.float32), spaces.Box(-1.0, 1.0, (3,), np.float32)),
    ],
    ids=str,
)
def test_the_actions_of_a_chunk_are_stacked_flat(
    space: spaces.Space[Any], stacked: spaces.Space[Any]
) -> None:
    assert PolicyActions(space, H).space == stacked


def test_infinite_bounds_are_cut_in_every_step() -> None:
    space = PolicyActions(spaces.Box(-np.inf, np.inf, (2,), np.float32), H).space
    assert space.shape == (6,)
    assert np.isfinite(space.low).all()
    assert np.isfinite(space.high).all()


def test_a_horizon_of_one_leaves_the_space_as_it_is() -> None:
    for space in (spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2, 2), np.float64)):
        assert PolicyActions(space, 1).space == space


def test_the_first_numbers_are_the_first_step() -> None:
    actions = PolicyActions(spaces.MultiDiscrete([9, 9], start=[10, 20]), H)
    raw = np.array([[0, 1, 2, 3, 4, 5], [6, 7, 8, 0, 1, 2]])
    expected = [[[10, 21], [16, 27]], [[12, 23], [18, 20]], [[14, 25], [11, 22]]]
    chunk = actions.to_wire(raw, Plain())
    assert chunk.tolist() == expected
    assert chunk.flags.c_contiguous


def test_each_number_is_clipped_to_its_own_bounds() -> None:
    actions = PolicyActions(spaces.Box(np.float32([0, -1]), np.float32([9, 1])), 2)
    chunk = actions.to_wire(np.float32([[-4, -4, 4, 4]]), Plain())
    assert chunk.tolist() == [[[0.0, -1.0]], [[4.0, 1.0]]]


def test_a_squashing_policy_is_scaled_to_each_numbers_own_bounds() -> None:
    actions = PolicyActions(spaces.Box(np.float32([0, -1]), np.float32([10, 1])), 2)
    chunk = actions.to_wire(np.float32([[0, 0, 1, 0.5]]), Squashing(actions.space))
    assert chunk.tolist() == [[[5.0, 0.0]], [[10.0, 0.5]]]


SPACES = [
    spaces.Discrete(3),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 5]),
    spaces.MultiDiscrete([2, 2], start=[10, 20]),
    spaces.MultiBinary(3),
    spaces.Box(0.0, 10.0, (2,), np.float32),
    spaces.Box(-1.0, 1.0, (2, 3), np.float64),
    spaces.Box(-2, 2, (2,), np.int64),
    spaces.Box(-np.inf, np.inf, (2,), np.float32),
    spaces.Box(-1.0, 1.0, (), np.float32),
]


@pytest.mark.parametrize("horizon", [1, H])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_what_envs_executed_comes_back_as_the_policy_would_have_said_it(
    space: spaces.Space[Any], horizon: int
) -> None:
    actions = PolicyActions(space, horizon)
    space.seed(0)
    chunk = np.array([[space.sample() for _ in range(4)] for _ in range(horizon)])
    said = actions.from_wire(chunk)
    assert said.shape == (4, *(actions.space.shape or ()))
    assert said.dtype == actions.space.dtype
    np.testing.assert_array_equal(actions.to_wire(said, Plain()), chunk)


@pytest.mark.parametrize("value", [3, -1, 0.5, 2**62, float(2**63)])
def test_an_executed_action_that_the_space_does_not_have_is_refused(value: float) -> None:
    actions = PolicyActions(spaces.Discrete(3), 2)
    with pytest.raises(RemoteProtocolError, match=r"feedback.actions: .* lies outside Discrete"):
        actions.from_wire(np.array([[0, 1], [2, value]]))


def test_an_executed_action_outside_a_box_counts_as_its_nearest_bound() -> None:
    said = PolicyActions(spaces.Box(0.0, 1.0, (1,), np.float32), 2).from_wire(
        np.array([[[-3.0]], [[0.25]]])
    )
    assert said.tolist() == [[0.0, 0.25]]


# -- the agent ------------------------------------------------------------------------------------


def test_an_agent_tells_its_horizon_and_the_size_of_a_single_step() -> None:
    agent, _ = make_agent(2, 4, spaces.Box(-1.0, 1.0, (2,), np.float32), horizon=H)
    assert (agent.metadata().action_horizon, agent.metadata().action_dim) == (H, 2)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_every_action_of_a_chunk_lies_in_the_clients_space(space: spaces.Space[Any]) -> None:
    numbers = spaces.Box(-1.0, 1.0, (3,), np.float32)
    settings = {"n_steps": 4, "batch_size": 8, "n_epochs": 1, "device": "cpu"}
    agent = SB3Agent("ppo", total_timesteps=17, seed=0, horizon=H, **settings)
    peer = AgentPeer(agent, numbers, space, num_envs=2)
    seen = np.zeros((2, 3), np.float32)
    while not agent.finished:
        chunk = peer.ask(range(2), seen)
        assert len(chunk) == H
        assert all(np.asarray(action) in space for step in chunk for action in step)
        peer.tell(range(2), seen, 1.0, truncated=[False, True])
    assert agent.counters.updates == 1
    assert agent.timesteps == 8 * H
    assert all(torch.isfinite(p).all() for p in agent.model.policy.parameters())


def test_an_evaluating_client_gets_whole_chunks_too() -> None:
    agent, _ = make_agent(2, 4, horizon=H)
    observation = column(-3, 0, 3)
    peer = AgentPeer(agent, NUMBER, spaces.Discrete(7), num_envs=3, mode="eval")
    chunk = peer.ask(range(3), observation)
    expected, _ = agent.model.predict(observation, deterministic=True)
    np.testing.assert_array_equal(chunk, expected.T)


def test_a_horizon_of_no_step_is_refused() -> None:
    with pytest.raises(UsageError, match="horizon: expected at least 1, got 0"):
        SB3Agent("ppo", horizon=0)


def test_actions_without_a_flat_form_are_refused_as_without_a_horizon() -> None:
    with pytest.raises(UnsupportedSpace, match="ppo takes Box, Discrete, 1-d MultiDiscrete"):
        make_agent(2, 4, spaces.MultiDiscrete([[2, 3], [4, 5]]), horizon=H)


# -- discounts ------------------------------------------------------------------------------------


def test_a_truncation_is_bootstrapped_with_the_discount_of_the_steps_that_ran() -> None:
    agent, kept = make_agent(num_envs=3, n_steps=2, horizon=4)
    critic_that_reads_the_observation(agent)
    peer = connect(agent, 3)
    peer.ask(range(3), column(0, 0, 0))
    paid = [[1.0] * 4, [1.0], [1.0, 1.0]]
    ended = {"truncated": [True, True, True], "terminated": [False, False, True]}
    peer.tell(range(3), column(2, 2, 2), [4.0, 1.0, 2.0], **ended, step_rewards=paid)
    peer.ask(range(3), column(50, 50, 50))
    peer.tell(range(3), column(51, 51, 51), 0.0, step_rewards=[[0.0]] * 3)
    (rollout,) = kept.rollouts
    inside = [1 + GAMMA + GAMMA**2 + GAMMA**3, 1.0, 1 + GAMMA]
    expected = [inside[0] + 0.96059601 * 2, inside[1] + GAMMA * 2, inside[2]]
    np.testing.assert_allclose(rollout["rewards"][0], expected, rtol=1e-6)


def test_a_client_that_tells_no_steps_is_taken_to_have_run_them_all() -> None:
    agent, kept = make_agent(num_envs=1, n_steps=2, horizon=4)
    critic_that_reads_the_observation(agent)
    peer = connect(agent, 1)
    for observation in (0, 1):
        peer.ask([0], column(observation))
        peer.tell([0], column(observation + 1), 5.0)
    (rollout,) = kept.rollouts
    np.testing.assert_allclose(rollout["returns"][1], 5.0 + GAMMA**4 * 2, rtol=1e-6)
    assert agent.timesteps == 8


@pytest.mark.parametrize("kind", ["plain", "dict"])
@pytest.mark.parametrize("ragged", [False, True], ids=["columns", "segments"])
def test_advantages_discount_by_env_steps_and_weigh_by_decisions(kind: str, ragged: bool) -> None:
    """Handwritten: three transitions of 4, 1 and 2 steps, V(o) = o, no episode ends."""
    space = NUMBER if kind == "plain" else spaces.Dict(a=NUMBER)
    agent, kept = make_agent(num_envs=1, n_steps=3, observation_space=space, horizon=4)
    seen = (lambda value: column(value)) if kind == "plain" else (lambda v: {"a": column(v)})
    agent.model.policy.predict_values = lambda obs: (obs if kind == "plain" else obs["a"]).float()
    peer = connect(agent, 2 if ragged else 1)
    values, rewards, discounts = [], [], []
    for observation, paid in [(0, [1.0] * 4), (4, [2.0]), (5, [0.0, 3.0])]:
        peer.ask([0], seen(observation))
        following = seen(observation + len(paid))
        peer.tell([0], following, sum(paid), step_rewards=[paid])
        rewards.append(sum(GAMMA**k * reward for k, reward in enumerate(paid)))
        discounts.append(GAMMA ** len(paid))
    (rollout,) = kept.rollouts
    values = [*rollout["values"][:, 0].tolist(), 7.0]
    errors = [rewards[k] + discounts[k] * values[k + 1] - values[k] for k in range(3)]
    last = errors[2]
    middle = errors[1] + discounts[1] * LAMBDA * last
    first = errors[0] + discounts[0] * LAMBDA * middle
    np.testing.assert_allclose(rollout["advantages"][:, 0], [first, middle, last], rtol=1e-5)
    np.testing.assert_allclose(
        rollout["returns"][:, 0], np.add([first, middle, last], values[:3]), rtol=1e-5
    )


def test_without_the_discounts_of_the_rows_the_advantages_are_wrong() -> None:
    """What SB3's own buffer makes of the same rollout: gamma once for each chunk."""
    agent, kept = make_agent(num_envs=1, n_steps=2, horizon=4)
    critic_that_reads_the_observation(agent)
    client = RaggedClient(agent, 0, 1)
    for ran in (4, 3):
        client.ask(0)
        client.tell(0, steps=[ran])
    (right,) = kept.rollouts
    wrong = RolloutBuffer(2, NUMBER, spaces.MultiDiscrete([7] * 4), "cpu", LAMBDA, GAMMA, 1)
    for row in range(2):
        wrong.add(
            right["observations"][row],
            right["actions"][row],
            right["rewards"][row],
            right["episode_starts"][row],
            torch.as_tensor(right["values"][row]),
            torch.as_tensor(right["log_probs"][row]),
        )
    wrong.compute_returns_and_advantage(torch.tensor([[7.0]]), np.array([False]))
    error = right["rewards"][1, 0] + GAMMA**3 * 7.0 - right["values"][1, 0]
    assert math.isclose(right["advantages"][1, 0], error, rel_tol=1e-5)
    assert math.isclose(wrong.advantages[1, 0] - error, (GAMMA - GAMMA**3) * 7.0, rel_tol=1e-4)


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "ragged"])
def test_uneven_chunks_of_several_envs_give_the_advantages_of_their_definition(
    lockstep: bool,
) -> None:
    agent, kept = make_agent(num_envs=3, n_steps=6, horizon=5, max_policy_lag=10**6)
    rng = np.random.default_rng(1)
    client = RaggedClient(agent, 0, 3)
    if lockstep:
        for _ in range(18):
            client.ask(0, 1, 2)
            ran = rng.integers(1, 6, 3).tolist()
            client.tell(0, 1, 2, truncated=bool(rng.random() < 0.2), steps=ran)
    else:
        play_at_random([client], rng, messages=60, horizon=5)
    assert len(kept.rollouts) >= 3
    assert kept.rollouts[0]["rewards"].shape == ((6, 3) if lockstep else (18, 1))
    stored = check_against_truth(agent, kept, client.lanes, 18)
    assert stored == 18 * len(kept.rollouts)
    rows = [row for lane in client.lanes for row in lane.rows]
    assert agent.timesteps == sum(row["steps"] for row in rows)


def test_a_buffer_class_with_returns_of_its_own_is_refused_with_a_horizon() -> None:
    class Odd(RolloutBuffer):
        def compute_returns_and_advantage(self, last_values: Any, dones: Any) -> None:
            self.returns = self.advantages = self.rewards

    make_agent(1, 4, rollout_buffer_class=Odd)
    with pytest.raises(UsageError, match="rollout_buffer_class Odd estimates returns in its own"):
        make_agent(1, 4, horizon=2, rollout_buffer_class=Odd)


# -- over the wire --------------------------------------------------------------------------------


def serve_chunks(total_timesteps: int) -> tuple[SB3Agent, PlugRLServer, Any]:
    agent = SB3Agent(
        "ppo",
        total_timesteps=total_timesteps,
        seed=0,
        preset="none",
        horizon=4,
        hyperparameters={"device": "cpu", "n_steps": 16, "batch_size": 32, "n_epochs": 1},
    )
    with (
        running(agent) as server,
        PlugRLVectorEnv(make_envs("CartPole-v1", 2), server.url) as envs,
    ):
        summary = envs.run(seed=0)
    return agent, server.server, summary


def test_the_books_of_the_server_count_the_env_steps_of_the_learner() -> None:
    agent, server, summary = serve_chunks(300)
    statistics = server.statistics.snapshot()
    assert summary.finished
    assert statistics.env_steps == agent.timesteps
    # The client has begun on chunks that the end of the run left unanswered.
    assert 0 <= summary.env_steps - agent.timesteps < 4 * 2
    assert agent.counters.transitions_stored == statistics.transitions
    assert agent.counters.updates * 32 == agent.counters.transitions_stored
    # The last rollout is the one that reaches 300, and a rollout has at most 32 chunks of 4.
    assert 300 <= agent.timesteps < 300 + 32 * 4
    assert agent.timesteps < 4 * agent.counters.transitions_stored  # episodes ended inside chunks


def test_a_model_of_chunks_is_a_plain_model_of_sb3(tmp_path: Any) -> None:
    from stable_baselines3 import PPO

    agent, _, _ = serve_chunks(100)
    agent.model.save(tmp_path / "model.zip")
    model = PPO.load(tmp_path / "model.zip", device="cpu")
    assert model.action_space == spaces.MultiDiscrete([2] * 4)
    assert model.rollout_buffer_class is RolloutBuffer
    env = gym.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    chosen, _ = model.predict(observation, deterministic=True)
    assert all(action in env.action_space for action in chosen)
    env.close()
