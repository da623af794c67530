"""Off-policy learning from clients in any order: what is stored, and what is learned from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.noise import ActionNoise

from tests.support.replays import check_stored, make_learner, stored
from tests.support.rollouts import GAMMA, RaggedClient, column, connect, play_at_random

# -- D01, D03 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_envs", [4, 1], ids=["lockstep", "ragged"])
def test_only_a_truncation_that_is_no_termination_leaves_the_value_of_what_followed(
    num_envs: int,
) -> None:
    agent, _ = make_learner(num_envs=num_envs)
    peer = connect(agent, 4)
    peer.ask(range(4), column(0, 0, 0, 0))
    # truncated alone, terminated alone, both, neither
    terminated, truncated = [False, True, True, False], [True, False, True, False]
    peer.tell(range(4), column(2, 3, 4, 5), 1.0, terminated, truncated)
    buffer = agent.model.replay_buffer
    assert buffer.n_envs == num_envs
    rows = stored(agent)
    assert rows["next_observations"].tolist() == [2, 3, 4, 5]
    assert rows["dones"].tolist() == [1, 1, 1, 0]
    assert (rows["dones"] * (1 - rows["timeouts"])).tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("learning_starts", [0, 10**6], ids=["policy", "warm-up"])
@pytest.mark.parametrize("num_envs", [3, 1], ids=["lockstep", "ragged"])
@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_the_buffer_holds_scaled_actions(
    algorithm: str, num_envs: int, learning_starts: int
) -> None:
    space = spaces.Box(np.float32([-2, 0]), np.float32([2, 10]))
    agent, _ = make_learner(
        algorithm, num_envs=num_envs, action_space=space, learning_starts=learning_starts
    )
    peer = connect(agent, 3)
    ran = []
    for step in range(60):
        chunk = peer.ask(range(3), column(step, step, step))
        ran.append(chunk[0])
        peer.tell(range(3), column(step + 1, step + 1, step + 1), 0.0)
    ran = np.concatenate(ran)
    assert np.array([space.contains(action) for action in ran]).all()
    held = agent.model.replay_buffer.actions[: agent.model.replay_buffer.size()].reshape(-1, 2)
    np.testing.assert_allclose(held, ran / [2, 5] - [0, 1], atol=1e-6)
    if learning_starts:
        assert ran.min(0).tolist() < [-1.8, 0.5]
        assert (ran.max(0) > [1.8, 9.5]).all()


# -- whose row is whose ---------------------------------------------------------------------------


def test_two_clients_fill_one_column_and_no_row_is_mixed_up() -> None:
    agent, _ = make_learner(num_envs=5)
    left, right = RaggedClient(agent, 0, 2), RaggedClient(agent, 2, 3)
    play_at_random([left, right], np.random.default_rng(0), messages=120)
    lanes = left.lanes + right.lanes
    assert check_stored(agent, lanes) == sum(len(lane.rows) for lane in lanes)
    assert agent.counters.transitions_stored == agent.timesteps == check_stored(agent, lanes)
    assert agent.model.replay_buffer.n_envs == 1


def test_what_was_stored_in_lockstep_stays_when_a_second_client_comes() -> None:
    agent, _ = make_learner(num_envs=3, buffer_size=60)
    first = RaggedClient(agent, 0, 3)
    for _ in range(25):  # more than the 20 rows of the three columns
        first.ask(0, 1, 2)
        first.tell(0, 1, 2)
    buffer = agent.model.replay_buffer
    assert (buffer.n_envs, buffer.pos, buffer.full) == (3, 5, True)
    second = RaggedClient(agent, 3, 1)
    second.ask(0)
    second.tell(0)
    buffer = agent.model.replay_buffer
    assert (buffer.buffer_size, buffer.n_envs, buffer.pos, buffer.full) == (60, 1, 16, True)
    for lane in first.lanes:
        lane.rows = lane.rows[-20:]
    first.lanes[0].rows = first.lanes[0].rows[1:]  # made room for the second client's
    assert check_stored(agent, [*first.lanes, *second.lanes]) == 60


def test_envs_that_come_back_go_on_in_columns() -> None:
    agent, _ = make_learner(num_envs=2)
    for number in (0, 2):
        client = RaggedClient(agent, number, 2)
        client.ask(0, 1)
        client.tell(0, 1)
        client.ask(0, 1)
        client.peer.leave()
    assert agent.model.replay_buffer.n_envs == 2
    assert agent.counters.chunks_dropped == 4
    assert agent.counters.transitions_stored == 4


def test_a_chunk_that_no_feedback_answered_is_not_stored() -> None:
    agent, _ = make_learner(num_envs=2)
    client, other = RaggedClient(agent, 0, 2), RaggedClient(agent, 2, 1)
    client.ask(0, 1)
    other.ask(0)
    client.tell(1)
    client.peer.leave()
    other.tell(0)
    assert agent.counters.chunks_dropped == 1
    assert check_stored(agent, [*client.lanes, *other.lanes]) == 2


# -- SB3's ratio ----------------------------------------------------------------------------------


@pytest.mark.parametrize("horizon", [1, 3])
def test_gradient_steps_per_env_step_are_those_of_sb3_whatever_comes_together(
    horizon: int,
) -> None:
    agent, updates = make_learner("sac", num_envs=5, train_freq=2, horizon=horizon)
    left, right = RaggedClient(agent, 0, 2), RaggedClient(agent, 2, 3)
    rng = np.random.default_rng(1)
    play_at_random([left, right], rng, 60, horizon)
    left.peer.leave()
    play_at_random([right], rng, 20, horizon)
    back = RaggedClient(agent, 5, 2)
    play_at_random([right, back], rng, 60, horizon)
    lanes = [*left.lanes, *right.lanes, *back.lanes]
    steps = sum(row["steps"] for lane in lanes for row in lane.rows)
    assert agent.timesteps == steps
    assert updates == [1] * (steps // 10)  # train_freq * E
    assert agent.counters.updates == len(updates) > 10


def test_as_many_gradient_steps_as_env_steps_where_that_was_asked_for() -> None:
    agent, updates = make_learner(num_envs=5, train_freq=2, gradient_steps=-1)
    play_at_random([RaggedClient(agent, 0, 7)], np.random.default_rng(1), 60)
    assert set(updates) == {10}
    assert 0 <= agent.timesteps - sum(updates) < 10


def test_rows_that_come_together_are_learned_from_one_update_after_the_other() -> None:
    agent, updates = make_learner(num_envs=1)
    client = RaggedClient(agent, 0, 4)
    client.ask(0, 1, 2, 3)
    client.tell(0, 1, 2)
    assert updates == [1, 1, 1]


def test_learning_starts_counts_env_steps() -> None:
    agent, updates = make_learner("sac", num_envs=1, horizon=4, learning_starts=10)
    client = RaggedClient(agent, 0, 2)
    for steps, expected in (((4, 1), 0), ((3, 2), 0), ((1, 1), 2)):
        client.ask(0, 1)
        client.tell(0, 1, steps=steps)
        assert len(updates) == expected  # after 5, 10 and 12 env steps


def test_env_steps_that_come_together_begin_to_be_learned_from_where_they_do_in_sb3() -> None:
    agent, updates = make_learner("sac", num_envs=1, horizon=4, learning_starts=6)
    client = RaggedClient(agent, 0, 2)
    client.ask(0, 1)
    client.tell(0, 1, steps=(4, 4))
    assert len(updates) == 2  # after the 7th and the 8th


def test_env_steps_beyond_the_last_are_not_learned_from() -> None:
    agent, updates = make_learner(num_envs=1, total_timesteps=6)
    client = RaggedClient(agent, 0, 4)
    for _ in range(2):
        client.ask(0, 1, 2, 3)
        client.tell(0, 1, 2, 3)
    assert agent.finished
    assert len(updates) == 6


def test_the_target_network_follows_env_steps() -> None:
    agent, _ = make_learner(num_envs=4, target_update_interval=8, tau=1.0)
    model = agent.model
    client = RaggedClient(agent, 0, 3)
    for _ in range(9):
        client.ask(0, 1, 2)
        client.tell(0, 1, 2)
    assert model._n_calls == 27 // 4


def test_no_update_is_made_of_nothing() -> None:
    """The client does not tell how long its chunks ran, and of two steps it tells one."""
    agent, updates = make_learner("sac", horizon=2)
    peer = connect(agent, 1)
    for _ in range(3):
        peer.ask([0], column(0))
        peer.tell([0], column(1), 0.0, overridden=[True])
    assert peer.left_out == {"overridden": 1}
    assert updates == []
    assert agent.timesteps == 6


def test_the_run_ends_at_the_update_that_completes_it() -> None:
    agent, updates = make_learner(num_envs=2, train_freq=5, total_timesteps=25)
    client = RaggedClient(agent, 0, 3)
    asked = 0
    while not agent.finished:
        client.ask(0, 1, 2)
        client.tell(0, 1, 2)
        asked += 3
    assert asked == 30
    assert len(updates) == 3


# -- exploration ----------------------------------------------------------------------------------


def coins(num_envs: int) -> list[int]:
    """How many of 40 envs acted at random, in each of several steps."""
    agent, _ = make_learner(num_envs=num_envs, action_space=spaces.Discrete(1000))
    model = agent.model
    model.exploration_schedule = lambda remaining: 0.5
    model.exploration_rate = 0.5
    peer = connect(agent, 40)
    greedy = model.policy.predict(np.zeros((1, 1)), deterministic=True)[0]
    found = []
    for _ in range(12):
        chunk = peer.ask(range(40), np.zeros((40, 1)))
        found.append(int((chunk != greedy).sum()))
        peer.tell(range(40), np.zeros((40, 1)), 0.0)
    return found


def test_epsilon_is_drawn_for_each_env() -> None:
    assert all(8 <= random <= 32 for random in coins(num_envs=1))


def test_in_lockstep_epsilon_is_drawn_for_the_batch_as_in_sb3() -> None:
    found = coins(num_envs=40)
    assert all(random == 0 or random >= 38 for random in found)
    assert 0 in found
    assert max(found) >= 38


class Counting(ActionNoise):
    """Adds how often it was called since it was reset, in hundredths."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        return np.full(1, self.calls / 100, np.float32)

    def reset(self) -> None:
        self.calls = 0


def silent_actor(agent: Any) -> None:
    agent.model.policy.predict = lambda obs, *a, **k: (np.zeros((len(obs), 1), np.float32), None)


@pytest.mark.parametrize("num_envs", [3, 1], ids=["lockstep", "ragged"])
def test_each_env_has_its_own_noise_which_begins_anew_with_an_episode(num_envs: int) -> None:
    agent, _ = make_learner("td3", num_envs=num_envs, action_noise=Counting())
    silent_actor(agent)
    peer = connect(agent, 3)
    seen = []
    for step in range(4):
        chunk = peer.ask(range(3), column(0, 0, 0))
        seen.append(np.rint(100 * chunk[0, :, 0]).tolist())
        peer.tell(range(3), column(1, 1, 1), 0.0, terminated=[False, step == 1, False])
    assert seen == [[1, 1, 1], [2, 2, 2], [3, 1, 3], [4, 2, 4]]


def test_an_env_that_takes_the_place_of_one_that_left_begins_with_fresh_noise() -> None:
    agent, _ = make_learner("td3", num_envs=1, action_noise=Counting())
    silent_actor(agent)
    for number in range(3):
        peer = connect(agent, 2)
        for _ in range(number + 1):
            chunk = peer.ask(range(2), column(0, 0))
            peer.tell(range(2), column(1, 1), 0.0)
        assert np.rint(100 * chunk[0, :, 0]).tolist() == [number + 1, number + 1]
        peer.leave()


# -- older policies -------------------------------------------------------------------------------


def test_rows_of_an_older_policy_are_counted_and_stored() -> None:
    agent, updates = make_learner(num_envs=1, train_freq=1)
    quick, slow = RaggedClient(agent, 0, 1), RaggedClient(agent, 1, 1)
    slow.ask(0)
    for _ in range(3):
        quick.ask(0)
        quick.tell(0)
    slow.tell(0)
    assert len(updates) == 4
    assert agent.counters.stale == 1
    assert check_stored(agent, [*quick.lanes, *slow.lanes]) == 4


# -- chunks ---------------------------------------------------------------------------------------


def test_each_chunk_has_the_discount_of_the_steps_that_it_ran() -> None:
    agent, _ = make_learner("sac", num_envs=2, horizon=4)
    client = RaggedClient(agent, 0, 2)
    for steps in ((4, 4), (1, 3), (2, 4)):
        client.ask(0, 1)
        client.tell(0, 1, steps=steps)
    assert check_stored(agent, client.lanes) == 6
    samples = agent.model.replay_buffer.sample(200)
    by_reward = {
        round(row["reward"], 3): GAMMA ** row["steps"] for lane in client.lanes for row in lane.rows
    }
    pairs = zip(samples.rewards[:, 0].tolist(), samples.discounts[:, 0].tolist(), strict=True)
    for reward, discount in pairs:
        assert discount == pytest.approx(by_reward[round(reward, 3)])
    assert len(set(samples.rewards[:, 0].tolist())) == 6
