"""Transitions that an older policy chose than the one that learns from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.agents.sb3.learners.staleness import LARGEST_RATIO
from plugrl_gym.errors import UsageError
from tests.support.rollouts import (
    GAMMA,
    NUMBER,
    Kept,
    RaggedClient,
    check_against_truth,
    column,
    connect,
    make_agent,
    value_at,
)


def change_policy_at_each_update(agent: SB3Agent, by: float = 0.5) -> None:
    """Let every update make action 0 likelier and all values greater by one."""
    policy, train = agent.model.policy, agent.model.train

    def learn() -> None:
        train()
        with torch.no_grad():
            policy.action_net.bias[0] += by
            policy.value_net.bias += 1.0

    agent.model.train = learn  # type: ignore[method-assign]


def log_prob(agent: SB3Agent, observation: float, action: int) -> float:
    policy = agent.model.policy
    with torch.no_grad():
        distribution = policy.get_distribution(torch.tensor([[observation]]))
        return float(distribution.log_prob(torch.tensor([action])))


def step(client: RaggedClient, times: int = 1) -> None:
    for _ in range(times):
        client.ask(0)
        client.tell(0)


def late(updates: int, **settings: object) -> tuple[SB3Agent, Kept, RaggedClient, RaggedClient]:
    """Rollouts of 4; a slow env still runs the first action after ``updates`` of them."""
    agent, kept = make_agent(num_envs=2, n_steps=2, **settings)
    change_policy_at_each_update(agent)
    slow, quick = RaggedClient(agent, 0, 1), RaggedClient(agent, 1, 1)
    slow.ask(0)
    step(quick, 4 * updates)
    assert agent.counters.updates == updates
    assert agent.counters.stale == 0
    return agent, kept, slow, quick


def test_in_lockstep_nothing_is_stale() -> None:
    agent, kept = make_agent(num_envs=3, n_steps=4)
    client = RaggedClient(agent, 0, 3)
    for _ in range(12):
        client.ask(0, 1, 2)
        client.tell(0, 1, 2)
        assert client.peer.left_out == {}
    assert len(kept.rollouts) == 3
    assert (agent.counters.stale, agent.counters.stale_left_out) == (0, 0)


def test_a_transition_one_update_old_keeps_what_its_own_policy_said_of_it() -> None:
    agent, kept = make_agent(num_envs=2, n_steps=2)
    change_policy_at_each_update(agent)
    slow, quick = RaggedClient(agent, 0, 1), RaggedClient(agent, 1, 1)
    slow.ask(0)
    (action,) = slow.lanes[0].action
    then = log_prob(agent, 0.0, action), value_at(agent, 0.0)
    step(quick, 4)
    slow.tell(0)
    assert slow.peer.left_out == {}
    step(quick, 3)
    rollout = kept.rollouts[1]
    (row,) = np.flatnonzero(rollout["observations"][:, 0, 0] == 0.0)
    stored = rollout["log_probs"][row, 0], rollout["values"][row, 0]
    np.testing.assert_allclose(stored, then, rtol=1e-5)
    assert (agent.counters.stale, agent.counters.stale_left_out) == (1, 0)


def test_an_older_transition_is_left_out_and_the_next_of_its_env_is_kept() -> None:
    agent, kept, slow, quick = late(updates=2)
    slow.tell(0)
    assert slow.peer.left_out == {"stale-policy": 1}
    assert (agent.counters.stale, agent.counters.stale_left_out) == (1, 1)
    assert agent.timesteps == 8 + 1, "it counts as an env step all the same"
    step(slow)
    assert slow.peer.left_out == {}
    step(quick, 3)
    rollout = kept.rollouts[2]
    (row,) = np.flatnonzero(rollout["observations"][:, 0, 0] == 1.0)
    assert rollout["episode_starts"][row, 0] == 0.0
    assert 0.0 not in rollout["observations"]


def test_what_follows_the_end_of_an_episode_that_was_left_out_begins_one() -> None:
    _, kept, slow, quick = late(updates=2)
    slow.tell(0, terminated=True)
    step(slow)
    step(quick, 3)
    rollout = kept.rollouts[2]
    (row,) = np.flatnonzero(rollout["observations"][:, 0, 0] == 11.0)
    assert rollout["episode_starts"][row, 0] == 1.0


@pytest.mark.parametrize(("lag", "left_out"), [(0, {"stale-policy": 1}), (2, {})])
def test_how_old_a_transition_may_be_is_up_to_the_caller(
    lag: int, left_out: dict[str, int]
) -> None:
    _, _, slow, _ = late(updates=1, max_policy_lag=lag)
    slow.tell(0)
    assert slow.peer.left_out == left_out


def test_no_transition_is_younger_than_its_policy() -> None:
    with pytest.raises(UsageError, match="max_policy_lag: expected at least 0, got -1"):
        make_agent(num_envs=2, n_steps=2, max_policy_lag=-1)


def test_a_message_larger_than_a_rollout_counts_as_its_parts_are_learned_from() -> None:
    agent, kept = make_agent(num_envs=2, n_steps=1)
    client = RaggedClient(agent, 0, 7)
    client.ask(*range(7))
    client.tell(*range(7))
    assert [rollout["observations"].flatten().tolist() for rollout in kept.rollouts] == [
        [0.0, 1000.0],
        [2000.0, 3000.0],
    ]
    assert client.peer.left_out == {"stale-policy": 3}
    assert (agent.counters.stale, agent.counters.stale_left_out) == (5, 3)


def stale_advantage(algorithm: str, by: float = 0.5) -> tuple[float, float, float]:
    """Of a transition one update old: as learned from, as estimated, and its ratio."""
    agent, kept = make_agent(num_envs=2, n_steps=2, algorithm=algorithm)
    change_policy_at_each_update(agent, by)
    slow, quick = RaggedClient(agent, 0, 1), RaggedClient(agent, 1, 1)
    slow.ask(0)
    (action,) = slow.lanes[0].action
    then, value = log_prob(agent, 0.0, action), value_at(agent, 0.0)
    step(quick, 4 + 1)
    now = log_prob(agent, 0.0, action)
    slow.tell(0)
    following = value_at(agent, 1.0)
    step(quick, 2)
    rollout = kept.rollouts[1]
    (row,) = np.flatnonzero(rollout["observations"][:, 0, 0] == 0.0)
    estimated = 0.001 + GAMMA * following - value  # the trajectory has no other transition
    np.testing.assert_allclose(
        rollout["returns"][row, 0], estimated + value, rtol=1e-4, err_msg="returns are not weighed"
    )
    return float(rollout["advantages"][row, 0]), estimated, float(np.exp(now - then))


def test_a2c_weighs_an_older_policys_action_by_how_likely_it_has_become() -> None:
    learned, estimated, ratio = stale_advantage("a2c")
    assert abs(ratio - 1.0) > 0.02
    np.testing.assert_allclose(learned, ratio * estimated, rtol=1e-4)


def test_a2c_weighs_what_a_dict_has_shown_too() -> None:
    agent, kept = make_agent(2, 2, algorithm="a2c", observation_space=spaces.Dict(a=NUMBER))
    change_policy_at_each_update(agent)
    slow, quick = connect(agent, 1), connect(agent, 1)

    def seen(number: float) -> dict[str, np.ndarray]:
        return {"a": column(number)}

    def chance(action: int) -> float:
        policy = agent.model.policy
        with torch.no_grad():
            distribution = policy.get_distribution({"a": torch.tensor([[5.0]])})
            return float(distribution.log_prob(torch.tensor([action])).exp())

    (action,) = slow.ask([0], seen(5.0))[0]
    then = chance(int(action))
    for number in range(7):
        quick.ask([0], seen(1000.0 + number))
        quick.tell([0], seen(1001.0 + number), 0.0)
        if number == 3:
            ratio = chance(int(action)) / then
            slow.tell([0], seen(6.0), 2.0)
    rollout = kept.rollouts[1]
    (row,) = np.flatnonzero(rollout["observations.a"][:, 0, 0] == 5.0)
    estimated = rollout["returns"][row, 0] - rollout["values"][row, 0]
    assert abs(ratio - 1.0) > 0.02
    np.testing.assert_allclose(rollout["advantages"][row, 0], ratio * estimated, rtol=1e-4)


def test_the_weight_is_bounded() -> None:
    for by in (20.0, -20.0):  # the action is 0 or not: one of them makes it much likelier
        learned, estimated, ratio = stale_advantage("a2c", by)
        np.testing.assert_allclose(learned, min(ratio, LARGEST_RATIO) * estimated, rtol=1e-3)


def test_ppo_weighs_by_itself_so_its_advantages_stay() -> None:
    learned, estimated, ratio = stale_advantage("ppo")
    assert abs(ratio - 1.0) > 0.02
    np.testing.assert_allclose(learned, estimated, rtol=1e-4)


def test_clients_of_very_different_speed_are_never_joined_across_what_is_left_out() -> None:
    agent, kept = make_agent(num_envs=2, n_steps=3)
    rng = np.random.default_rng(5)
    clients = [RaggedClient(agent, number, 1) for number in range(4)]
    chance = [1.0, 0.5, 0.1, 0.02]
    for _ in range(300):
        for client, quick in zip(clients, chance, strict=True):
            (lane,) = client.lanes
            if lane.action is None:
                client.ask(0)
            elif rng.random() < quick:
                age = agent.counters.updates - lane.chosen_at
                client.tell(0, truncated=bool(rng.random() < 0.1))
                assert client.peer.left_out == ({"stale-policy": 1} if age > 1 else {})
                lane.rows[-1]["kept"] = age <= 1
    lanes = [client.lanes[0] for client in clients]
    rows = sum(len(lane.rows) for lane in lanes)
    for lane in lanes:
        lane.rows = [row for row in lane.rows if row["kept"]]
    left_out = rows - sum(len(lane.rows) for lane in lanes)
    assert left_out > 10
    assert agent.counters.stale_left_out == left_out
    assert check_against_truth(agent, kept, lanes, 6) == 6 * len(kept.rollouts)
