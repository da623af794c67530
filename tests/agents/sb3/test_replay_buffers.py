"""Replay buffers that leave their columns: n-step returns, and memory that was saved."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer

from plugrl_gym.agents.sb3.learners.replay_buffers import LinkedReplayBuffer, to_one_column
from tests.support.replays import ONE, check_stored, make_learner
from tests.support.rollouts import GAMMA, NUMBER, Lane, RaggedClient, play_at_random

N = 3


def check_n_step(agent: Any, lanes: list[Lane], first: dict[int, int] | None = None) -> None:
    """Every sample is the n-step return of some lane's row, and all rows are sampled.

    ``first`` has for each lane the first of its rows that is still stored (default: 0).
    """
    by_observation = {row["obs"]: (lane, k) for lane in lanes for k, row in enumerate(lane.rows)}
    samples = agent.model.replay_buffer.sample(2000)
    seen = set()
    for k, observation in enumerate(samples.observations[:, 0].tolist()):
        lane, start = by_observation[observation]
        seen.add(observation)
        rows = []
        for row in lane.rows[start : start + N]:
            rows.append(row)
            if row["done"]:
                break
        reward = sum(GAMMA**step * row["reward"] for step, row in enumerate(rows))
        assert samples.rewards[k].item() == pytest.approx(reward, rel=1e-4)
        assert samples.next_observations[k].item() == rows[-1]["next"]
        assert samples.dones[k].item() == (rows[-1]["done"] and not rows[-1]["truncated"])
        assert samples.discounts[k].item() == pytest.approx(GAMMA ** len(rows))
    kept = [row["obs"] for lane in lanes for row in lane.rows[(first or {}).get(lane.number, 0) :]]
    assert seen == set(kept)


def test_n_step_returns_of_two_clients_follow_each_its_own_trajectory() -> None:
    agent, _ = make_learner(num_envs=5, n_steps=N)
    left, right = RaggedClient(agent, 0, 2), RaggedClient(agent, 2, 3)
    play_at_random([left, right], np.random.default_rng(0), messages=60)
    assert isinstance(agent.model.replay_buffer, LinkedReplayBuffer)
    check_n_step(agent, left.lanes + right.lanes)


def test_n_step_returns_never_reach_over_what_was_overwritten() -> None:
    agent, _ = make_learner(num_envs=2, n_steps=N, buffer_size=30)
    quick, slow = RaggedClient(agent, 0, 1), RaggedClient(agent, 1, 1)
    slow.ask(0)
    slow.tell(0)
    slow.ask(0)
    for _ in range(31):  # overwrites the slow one's first row
        quick.ask(0)
        quick.tell(0)
    slow.tell(0)
    quick.ask(0)
    quick.tell(0)
    check_n_step(agent, [*quick.lanes, *slow.lanes], {0: 32 - 29, 1: 1})


@pytest.mark.parametrize("together", [True, False], ids=["in lockstep", "one by one"])
def test_n_step_returns_end_where_a_client_left_and_another_took_its_columns(
    together: bool,
) -> None:
    agent, _ = make_learner(num_envs=2, n_steps=N)
    first, second = RaggedClient(agent, 0, 2), RaggedClient(agent, 2, 2)
    for client in (first, second):
        for _ in range(5):
            client.ask(0, 1)
            client.tell(0, 1)
        client.ask(0, 1)
        if client is first:
            client.peer.leave()
    if not together:
        second.tell(1)
    assert isinstance(agent.model.replay_buffer, LinkedReplayBuffer) is not together
    check_n_step(agent, first.lanes + second.lanes)


def test_linked_rows_are_sampled_as_sb3_samples_neighbours() -> None:
    """The same transitions of one env, wrapped around: the same draws, the same numbers."""
    settings: Any = (20, NUMBER, ONE)
    plain = NStepReplayBuffer(*settings, device="cpu", n_steps=N, gamma=GAMMA)
    linked = LinkedReplayBuffer.of(
        NStepReplayBuffer(*settings, device="cpu", n_steps=N, gamma=GAMMA), [1]
    )
    rng = np.random.default_rng(0)
    for step in range(33):
        done = step % 7 == 6
        infos: Any = [{"TimeLimit.truncated": step == 20, "trajectory": 1}]
        row = np.full((1, 1), float(step)), np.full((1, 1), step + 1.0), rng.random((1, 1))
        for buffer in (plain, linked):
            buffer.add(*row, rng.random(1) * 0 + step, np.array([done]), infos)  # type: ignore[arg-type]
    for _ in range(20):
        np.random.seed(1)
        ours = linked.sample(64)
        np.random.seed(1)
        theirs = plain.sample(64)
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-6)


def optimized(num_envs: int) -> Any:
    return make_learner(
        num_envs=num_envs,
        buffer_size=24,
        optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False},
    )[0]


@pytest.mark.parametrize("steps", [5, 20], ids=["half full", "wrapped around"])
@pytest.mark.parametrize("gap", ["ragged", "reconnected"])
def test_saved_memory_is_taken_when_a_transition_follows_no_other(
    gap: str, steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    agent = optimized(2)
    first = RaggedClient(agent, 0, 2)
    for _ in range(steps):
        first.ask(0, 1)
        first.tell(0, 1)
    assert agent.model.replay_buffer.optimize_memory_usage
    if gap == "reconnected":
        first.peer.leave()
    second = RaggedClient(agent, 2, 2 if gap == "reconnected" else 1)
    envs = range(len(second.lanes))
    with caplog.at_level(logging.WARNING):
        second.ask(*envs)
        second.tell(*envs)
    assert "twice the memory" in caplog.text
    buffer = agent.model.replay_buffer
    assert not buffer.optimize_memory_usage
    assert buffer.n_envs == (2 if gap == "reconnected" else 1)
    if steps == 5:
        assert check_stored(agent, first.lanes + second.lanes) == 10 + len(second.lanes)
    truth = {row["obs"]: row["next"] for lane in first.lanes + second.lanes for row in lane.rows}
    samples = buffer.sample(500)
    pairs = zip(samples.observations[:, 0], samples.next_observations[:, 0], strict=True)
    assert {float(before): float(after) for before, after in pairs}.items() <= truth.items()


def test_one_column_shares_the_memory_of_the_columns() -> None:
    buffer = ReplayBuffer(20, NUMBER, ONE, device="cpu", n_envs=4)
    before = buffer.observations
    to_one_column(buffer)
    assert buffer.observations.shape == (20, 1, 1)
    assert np.shares_memory(buffer.observations, before)
