"""Which transitions a rollout holds, whose they are, and what is estimated from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.support.agent_peer import AgentPeer
from tests.support.rollouts import (
    GAMMA,
    NUMBER,
    RaggedClient,
    check_against_truth,
    column,
    connect,
    critic_that_reads_the_observation,
    make_agent,
    play_at_random,
)

# -- D01 ----------------------------------------------------------------------------------------


def test_only_a_truncation_that_is_no_termination_is_bootstrapped() -> None:
    agent, kept = make_agent(num_envs=4, n_steps=2)
    critic_that_reads_the_observation(agent)
    peer = connect(agent, 4)
    peer.ask(range(4), column(0, 0, 0, 0))
    # truncated alone, terminated alone, both, neither; the last goes on from observation 2
    terminated, truncated = [False, True, True, False], [True, False, True, False]
    peer.tell(range(4), column(2, 2, 2, 2), 1.0, terminated, truncated)
    peer.ask(range(4), column(50, 50, 50, 2))
    peer.tell(range(4), column(51, 51, 51, 3), 1.0)
    (rollout,) = kept.rollouts
    assert rollout["rewards"].shape == (2, 4)
    np.testing.assert_allclose(rollout["rewards"][0], [2.98, 1.0, 1.0, 1.0], rtol=1e-6)
    assert 50.5 not in rollout["rewards"]  # 1 + gamma * V(reset)
    np.testing.assert_array_equal(rollout["episode_starts"], [[1, 1, 1, 1], [1, 1, 1, 0]])
    np.testing.assert_array_equal(rollout["rewards"][1], 1.0)


def test_a_rollout_that_ends_in_mid_episode_is_bootstrapped_and_a_finished_one_is_not() -> None:
    agent, kept = make_agent(num_envs=2, n_steps=1)
    critic_that_reads_the_observation(agent)
    peer = connect(agent, 2)
    peer.ask(range(2), column(0, 0))
    peer.tell(range(2), column(10, 10), 1.0, terminated=[True, False])
    (rollout,) = kept.rollouts
    np.testing.assert_allclose(rollout["returns"][0], [1.0, 1.0 + GAMMA * 10], rtol=1e-6)


# -- ragged feedback, several clients -------------------------------------------------------------


def test_ragged_feedback_of_one_client_stays_with_its_envs() -> None:
    agent, kept = make_agent(num_envs=3, n_steps=4)
    client = RaggedClient(agent, 0, 3)
    client.ask(0, 1, 2)
    client.tell(2, 0)
    client.ask(2, 0)
    client.tell(1)
    client.ask(1)
    client.tell(0, 2, terminated=True)
    client.ask(2)
    client.tell(1, 2, truncated=True)
    client.ask(0, 1, 2)
    client.tell(2, 1, 0)
    assert agent.counters.transitions_stored == 10
    client.ask(2)
    client.tell(2)
    client.ask(1)
    client.tell(1)
    assert len(kept.rollouts) == 1
    assert kept.rollouts[0]["rewards"].shape == (12, 1)
    assert check_against_truth(agent, kept, client.lanes, 12) == 12


def test_two_clients_share_a_rollout_and_neither_touches_the_others_rows() -> None:
    agent, kept = make_agent(num_envs=5, n_steps=6)
    left, right = RaggedClient(agent, 0, 2), RaggedClient(agent, 2, 3)
    play_at_random([left, right], np.random.default_rng(0), messages=120)
    stored = len(kept.rollouts) * 30
    assert len(kept.rollouts) >= 3
    assert check_against_truth(agent, kept, left.lanes + right.lanes, 30) == stored
    assert agent.counters.transitions_stored == sum(
        len(lane.rows) for lane in left.lanes + right.lanes
    )
    assert agent.counters.chunks_dropped == 0


def test_a_client_that_leaves_cuts_its_trajectories_and_no_other_ones() -> None:
    agent, kept = make_agent(num_envs=5, n_steps=4)
    left, right = RaggedClient(agent, 0, 2), RaggedClient(agent, 2, 3)
    left.ask(0, 1)
    right.ask(0, 1, 2)
    for _ in range(3):
        left.tell(0, 1)
        left.ask(0, 1)
        right.tell(2, 0)
        right.ask(2, 0)
    right.peer.leave()
    assert agent.counters.chunks_dropped == 3
    back = RaggedClient(agent, 7, 3)  # the same client again: other lanes, the same env indices
    back.ask(0, 1, 2)
    back.tell(0, 1, 2)
    for _ in range(3):
        left.tell(0, 1)
        left.ask(0, 1)
    lanes = left.lanes + right.lanes + back.lanes
    assert len(kept.rollouts) == 1
    assert check_against_truth(agent, kept, lanes, 20) == 20


def test_a_rollout_holds_exactly_its_size_and_the_rest_waits_for_the_next() -> None:
    agent, kept = make_agent(num_envs=2, n_steps=3)
    client = RaggedClient(agent, 0, 4)
    for _ in range(5):
        client.ask(0, 1, 2, 3)
        client.tell(3, 1, 0, 2)
    assert [rollout["rewards"].size for rollout in kept.rollouts] == [6, 6, 6]
    assert agent.counters.updates == 3
    assert agent.counters.transitions_stored == 20
    assert agent.timesteps == 20
    assert check_against_truth(agent, kept, client.lanes, 6) == 18


def test_one_message_may_complete_several_rollouts() -> None:
    agent, kept = make_agent(num_envs=2, n_steps=1, max_policy_lag=2)
    client = RaggedClient(agent, 0, 7)
    client.ask(*range(7))
    client.tell(*range(7))
    assert [rollout["rewards"].size for rollout in kept.rollouts] == [2, 2, 2]
    assert not agent.learning_due


def test_envs_that_join_one_step_late_after_a_reset_are_ragged_but_whole() -> None:
    """NEXT_STEP: a finished env is held out of one exchange."""
    agent, kept = make_agent(num_envs=2, n_steps=8)
    client = RaggedClient(agent, 0, 2)
    client.ask(0, 1)
    for _ in range(4):
        client.tell(1)
        client.ask(1)
        client.tell(0, terminated=True)
        client.ask(0)
        client.tell(0, 1)
        client.ask(0, 1)
    assert check_against_truth(agent, kept, client.lanes, 16) == 16
    assert kept.rollouts[0]["episode_starts"].sum() == 2 + 4


def test_lockstep_has_a_column_for_each_env_in_the_order_of_the_messages() -> None:
    agent, kept = make_agent(num_envs=3, n_steps=2)
    client = RaggedClient(agent, 0, 3)
    for _ in range(4):
        client.ask(2, 0, 1)
        client.tell(2, 0, 1)
    assert [rollout["rewards"].shape for rollout in kept.rollouts] == [(2, 3), (2, 3)]
    first = kept.rollouts[0]["observations"][..., 0]
    np.testing.assert_array_equal(first, [[2000, 0, 1000], [2001, 1, 1001]])
    assert check_against_truth(agent, kept, client.lanes, 6) == 12


# -- what is left out -----------------------------------------------------------------------------


def test_an_overridden_step_is_left_out_and_nothing_is_estimated_across_it() -> None:
    agent, kept = make_agent(num_envs=1, n_steps=4)
    critic_that_reads_the_observation(agent)
    peer = connect(agent, 1)
    for t, overridden in enumerate([False, False, True, False, False]):
        peer.ask([0], column(t))
        peer.tell([0], column(t + 1), 1.0, overridden=[overridden])
    (rollout,) = kept.rollouts
    np.testing.assert_array_equal(rollout["observations"][:, 0, 0], [0, 1, 3, 4])
    np.testing.assert_array_equal(rollout["episode_starts"][:, 0], [1, 0, 0, 0])
    values = rollout["values"][:, 0]
    last_error = 1.0 + GAMMA * 2.0 - values[1]  # bootstrapped from observation 2, held last
    np.testing.assert_allclose(rollout["advantages"][1, 0], last_error, rtol=1e-5)
    assert agent.counters.overridden == 1
    assert agent.counters.transitions_stored == 4
    assert agent.timesteps == 5


def test_a_row_that_never_comes_leaves_a_gap() -> None:
    """The server drops a row with a NaN; the env is then asked for again."""
    agent, kept = make_agent(num_envs=1, n_steps=4)
    critic_that_reads_the_observation(agent)
    peer = connect(agent, 1, foreign=True)
    for t, reward in enumerate([1.0, 1.0, np.nan, 1.0, 1.0]):
        peer.ask([0], column(t))
        peer.tell([0], column(t + 1), reward)
    assert agent.counters.chunks_dropped == 1
    (rollout,) = kept.rollouts
    np.testing.assert_array_equal(rollout["observations"][:, 0, 0], [0, 1, 3, 4])
    np.testing.assert_array_equal(rollout["episode_starts"][:, 0], [1, 0, 0, 0])
    last_error = 1.0 + GAMMA * 2.0 - rollout["values"][1, 0]
    np.testing.assert_allclose(rollout["advantages"][1, 0], last_error, rtol=1e-5)


def test_an_evaluating_client_gets_the_most_likely_action_and_is_not_learned_from() -> None:
    agent, _ = make_agent(num_envs=2, n_steps=4)
    peer = AgentPeer(agent, NUMBER, spaces.Discrete(7), num_envs=3, mode="eval")
    observation = column(-3, 0, 3)
    generator = torch.get_rng_state()
    expected, _ = agent.model.predict(observation, deterministic=True)
    for _ in range(6):
        np.testing.assert_array_equal(peer.ask(range(3), observation)[0], expected)
        peer.tell(range(3), observation, 1.0)
    peer.leave()
    assert torch.equal(torch.get_rng_state(), generator)
    assert agent.counters.transitions_stored == 0
    assert agent.counters.chunks_dropped == 0
    assert agent.timesteps == 0


def test_each_env_keeps_its_own_gsde_noise_in_whatever_groups_they_ask() -> None:
    agent, _ = make_agent(
        num_envs=3, n_steps=8, action_space=spaces.Box(-9.0, 9.0, (2,)), use_sde=True
    )
    peer = connect(agent, 4)  # one more than a rollout is measured in
    groups = [[0, 1, 2, 3], [2], [3, 0], [1], [0, 1, 2, 3]]
    seen: dict[int, Any] = {}
    for group in groups:
        chunk = peer.ask(group, column(*[5.0] * len(group)))
        for env, action in zip(group, chunk[0], strict=True):
            np.testing.assert_allclose(action, seen.setdefault(env, action), rtol=1e-5)
        peer.tell(group, column(*[5.0] * len(group)), 0.0)
    assert len({tuple(np.round(action, 4)) for action in seen.values()}) == 4


def test_the_noise_of_a_client_that_left_is_free_for_the_next() -> None:
    agent, _ = make_agent(
        num_envs=2, n_steps=8, action_space=spaces.Box(-9.0, 9.0, (1,)), use_sde=True
    )
    for _ in range(4):
        peer = connect(agent, 2)
        peer.ask([0, 1], column(0, 0))
        peer.leave()
    assert len(agent.model.policy.action_dist.exploration_matrices) == 2


# -- callbacks and counters -----------------------------------------------------------------------


def test_episode_statistics_reach_the_log_with_or_without_the_clients_help() -> None:
    agent, _ = make_agent(num_envs=1, n_steps=100)
    peer = connect(agent, 1)
    for returns in (None, 77.0):
        for t in range(3):
            peer.ask([0], column(t))
            peer.tell([0], column(t + 1), 2.0, t == 2, returns=returns, lengths=5)
    episodes = list(agent.model.ep_info_buffer)
    assert [(episode["r"], episode["l"]) for episode in episodes] == [(6.0, 3), (77.0, 5)]


def test_an_episode_whose_end_is_lost_does_not_count_into_the_next() -> None:
    agent, _ = make_agent(num_envs=1, n_steps=100)
    peer = connect(agent, 1, foreign=True)
    for t, reward in enumerate([1.0, np.nan, 2.0, 4.0]):
        peer.ask([0], column(t))
        peer.tell([0], column(t + 1), reward, terminated=t in (1, 3))
    episodes = list(agent.model.ep_info_buffer)
    assert [(episode["r"], episode["l"]) for episode in episodes] == [(6.0, 2)]


def test_a_callback_is_called_as_by_sb3_and_may_end_the_run() -> None:
    from stable_baselines3.common.callbacks import BaseCallback

    class Witness(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[str] = []

        def _on_training_start(self) -> None:
            self.calls.append("training starts")

        def _on_rollout_start(self) -> None:
            self.calls.append("rollout starts")

        def _on_step(self) -> bool:
            self.calls.append(f"step {self.num_timesteps}")
            return self.num_timesteps < 6

        def _on_rollout_end(self) -> None:
            self.calls.append("rollout ends")

        def _on_training_end(self) -> None:
            self.calls.append("training ends")

    witness = Witness()
    agent, _ = make_agent(num_envs=2, n_steps=2, callback=witness)
    client = RaggedClient(agent, 0, 2)
    while not agent.finished:
        client.ask(0, 1)
        client.tell(0, 1)
    agent.close()
    assert witness.calls == [
        "training starts",
        "rollout starts",
        "step 2",
        "step 4",
        "rollout ends",
        "rollout starts",
        "step 6",
        "training ends",
    ]
    assert agent.counters.updates == 1


@pytest.mark.parametrize(("total", "updates"), [(1, 1), (8, 1), (9, 2), (100, 13)])
def test_a_run_ends_after_the_rollout_that_reaches_its_timesteps(total: int, updates: int) -> None:
    agent, _ = make_agent(num_envs=2, n_steps=4, total_timesteps=total)
    client = RaggedClient(agent, 0, 2)
    while not agent.finished:
        client.ask(0, 1)
        client.tell(0, 1)
    assert (agent.counters.updates, agent.timesteps) == (updates, updates * 8)
