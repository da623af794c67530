"""What envs executed in place of what the policy chose: stored, left out, counted, logged."""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from plugrl_gym import PlugRLVectorEnv
from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.errors import RemoteProtocolError
from tests.support.agent_peer import AgentPeer
from tests.support.lockstep import make_envs
from tests.support.replays import make_learner, stored
from tests.support.rollouts import (
    GAMMA,
    NUMBER,
    Kept,
    column,
    connect,
    critic_that_reads_the_observation,
    generalised_advantages,
    make_agent,
)
from tests.support.serving import running

# -- off-policy: what was executed is stored ------------------------------------------------------


@pytest.mark.parametrize("num_envs", [3, 1], ids=["lockstep", "ragged"])
def test_what_was_executed_is_stored_in_place_of_what_was_chosen(num_envs: int) -> None:
    space = spaces.Box(0.0, 10.0, (1,))
    agent, _ = make_learner("sac", num_envs=num_envs, action_space=space)
    peer = connect(agent, 3)
    chunk = peer.ask(range(3), column(0, 0, 0))
    ran = np.array([[[7.5], [12.0], chunk[0, 2]]], np.float64)
    peer.tell(range(3), column(1, 1, 1), 0.0, overridden=[True, True, False], executed=ran)
    held = stored(agent)["actions"]
    assert held[:2].tolist() == [0.5, 1.0]
    np.testing.assert_allclose(held[2], chunk[0, 2, 0] / 5 - 1, atol=1e-6)
    assert peer.left_out == {}
    assert agent.counters.overridden == agent.counters.overridden_steps == 2
    assert agent.model.replay_buffer.n_envs == num_envs


def test_a_discrete_action_that_was_executed_is_counted_from_zero() -> None:
    agent, _ = make_learner(action_space=spaces.Discrete(5, start=3))
    peer = connect(agent, 1)
    peer.ask([0], column(0))
    peer.tell([0], column(1), 0.0, overridden=[True], executed=[[6]])
    assert stored(agent)["actions"].tolist() == [3]


def test_an_executed_action_that_cannot_be_is_refused_and_nothing_is_stored() -> None:
    agent, _ = make_learner()
    peer = connect(agent, 1)
    peer.ask([0], column(0))
    with pytest.raises(RemoteProtocolError, match=r"feedback\.actions"):
        peer.tell([0], column(1), 0.0, overridden=[True], executed=[[7]])
    assert agent.counters.transitions_stored == agent.counters.overridden == 0


def test_of_a_chunk_that_ended_early_the_rest_is_what_the_policy_chose() -> None:
    space = spaces.Box(-2.0, 2.0, (1,))
    agent, _ = make_learner("sac", horizon=3, action_space=space)
    peer = connect(agent, 2)
    sent = peer.ask(range(2), column(0, 0))
    peer.tell(
        range(2),
        column(1, 1),
        [3.0, 1.0],
        terminated=[False, True],
        overridden=[True, True],
        executed=np.array([[[1.0], [1.0]], [[-2.0], [0.0]], [[2.0], [0.0]]]),
        step_rewards=[[1.0, 1.0, 1.0], [1.0]],
    )
    held = agent.model.replay_buffer.actions[:2, 0]
    assert peer.left_out == {}
    assert held[0].tolist() == [0.5, -1.0, 1.0]
    np.testing.assert_allclose(held[1], [0.5, sent[1, 1, 0] / 2, sent[2, 1, 0] / 2], atol=1e-6)


def test_of_a_chunk_some_of_whose_steps_were_overridden_all_is_stored_as_it_ran() -> None:
    agent, _ = make_learner("sac", horizon=2, action_space=spaces.Box(-2.0, 2.0, (2,)))
    peer = connect(agent, 1)
    ran = peer.ask([0], column(0)).astype(np.float64)
    ran[1, 0, 1] = -1.0  # one number of the second step
    expected = (ran[:, 0] / 2).reshape(-1)
    peer.tell([0], column(1), 2.0, overridden=[True], executed=ran, step_rewards=[[1.0, 1.0]])
    np.testing.assert_allclose(agent.model.replay_buffer.actions[0, 0], expected, atol=1e-6)
    assert agent.counters.overridden_steps == 1


# -- how many steps -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "other"),
    [
        (spaces.Discrete(7, start=4), 1),
        (spaces.MultiDiscrete([3, 9]), [0, 1]),
        (spaces.Box(-1.0, 1.0, (2,), np.float64), [0.0, 0.25]),
    ],
    ids=["discrete", "multi-discrete", "box"],
)
def test_steps_that_differ_from_what_was_sent_are_counted(
    space: spaces.Space[Any], other: Any
) -> None:
    agent, _ = make_agent(num_envs=3, n_steps=10, horizon=4, action_space=space)
    peer = connect(agent, 3)
    sent = peer.ask(range(3), column(0, 0, 0))
    ran = sent.copy()
    values = getattr(space, "n", getattr(space, "nvec", None))
    for step, env in ((0, 0), (2, 0), (1, 1)):
        changed = ran[step, env] + other
        if values is None:
            ran[step, env] = np.where(changed > 1.0, changed - 2.0, changed)
        else:
            start = getattr(space, "start", 0)
            ran[step, env] = (changed - start) % values + start
    ran[3, 0] = 0  # env 0 ended after three steps
    if values is None:
        ran = ran.astype(np.float32)  # no difference where it only rounds
    rewards = [[1.0] * 3, [1.0] * 4, [1.0] * 4]
    paid = [3.0, 4.0, 4.0]
    told = {"overridden": [True, True, False], "executed": ran, "step_rewards": rewards}
    peer.tell(range(3), column(1, 1, 1), paid, terminated=[True, False, False], **told)
    assert agent.counters.overridden == 2
    assert agent.counters.overridden_steps == 3
    assert agent.timesteps == 11


def test_a_row_that_is_said_to_be_overridden_counts_for_one_step_at_least() -> None:
    agent, _ = make_learner("sac", horizon=2)
    peer = connect(agent, 1)
    ran = peer.ask([0], column(0))
    told = {"overridden": [True], "executed": ran, "step_rewards": [[0.0, 0.0]]}
    peer.tell([0], column(1), 0.0, **told)
    assert agent.counters.overridden_steps == 1


# -- on-policy: left out of the loss --------------------------------------------------------------


def play(agent: SB3Agent, kept: Kept, rollouts: int, horizon: int = 1) -> list[list[Any]]:
    """Three envs, a third of whose chunks are overridden; the truth, row by row, env by env."""
    rng = np.random.default_rng(5)
    peer = connect(agent, 3)
    t = np.zeros(3, np.int64)
    rows: list[list[Any]] = [[], [], []]
    for _ in range(200):
        if len(kept.rollouts) >= rollouts:
            break
        before = 1000.0 * np.arange(3) + t
        sent = peer.ask(range(3), before[:, None])
        overridden, ended = rng.random(3) < 0.3, rng.random(3) < 0.1
        t += horizon + 10 * ended
        after = 1000.0 * np.arange(3) + t
        paid = np.where(overridden, 100.0, 0.5)
        ran = np.where(overridden[:, None] if sent.ndim > 2 else overridden, 1 - sent, sent)
        peer.tell(
            range(3), after[:, None], paid, ended, overridden=overridden.tolist(), executed=ran,
            step_rewards=[[float(p)] + [0.0] * (horizon - 1) for p in paid],
        )  # fmt: skip
        for env in range(3):
            row = {"obs": before[env], "next": after[env], "reward": paid[env], "done": ended[env]}
            rows[env].append(row | {"overridden": overridden[env], "discount": GAMMA**horizon})
    return rows


def own_segments(rows: list[Any], seen: set[float]) -> list[list[Any]]:
    """The rows of one env that are in a rollout, split where one between them is missing."""
    segments: list[list[Any]] = [[]]
    for row in rows:
        if row["obs"] in seen:
            segments[-1].append(row)
        elif segments[-1]:
            segments.append([])
    return [segment for segment in segments if segment]


@pytest.mark.parametrize("horizon", [1, 3])
def test_advantages_are_those_of_the_policy_alone(horizon: int) -> None:
    agent, kept = make_agent(
        num_envs=3, n_steps=8, horizon=horizon, action_space=spaces.Discrete(2)
    )
    critic_that_reads_the_observation(agent)
    rows = play(agent, kept, 3, horizon)
    every_own = [row["obs"] for env in rows for row in env if not row["overridden"]]
    found: list[float] = []
    for rollout in kept.rollouts:
        flat = {name: part[:, 0] for name, part in rollout.items()}
        at = {float(obs): place for place, obs in enumerate(flat["observations"][:, 0])}
        found += at
        for env in rows:
            for segment in own_segments(env, set(at)):
                places = [at[row["obs"]] for row in segment]
                rewards, values = [row["reward"] for row in segment], flat["values"][places]
                expected = generalised_advantages(agent, values, rewards, segment)
                np.testing.assert_allclose(flat["advantages"][places], expected, rtol=1e-3)
    assert set(found) <= set(every_own)
    assert len(found) == len(set(found)) == 3 * 24
    assert max(kept.rollouts[0]["rewards"].ravel()) == 0.5


def test_left_out_chunks_are_counted_and_their_env_steps_too() -> None:
    agent, kept = make_agent(num_envs=3, n_steps=8, horizon=3, action_space=spaces.Discrete(2))
    rows = [row for env in play(agent, kept, 2, 3) for row in env]
    overridden = sum(bool(row["overridden"]) for row in rows)
    assert agent.counters.overridden == overridden > 10
    assert agent.counters.overridden_steps == 3 * overridden
    assert agent.counters.transitions_stored == len(rows) - overridden
    assert agent.timesteps == 3 * len(rows)


def test_a_rollout_that_nobody_lets_the_policy_fill_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent, kept = make_agent(num_envs=2, n_steps=3)
    peer = connect(agent, 2)
    with caplog.at_level(logging.WARNING):
        for t in range(9):
            assert len(caplog.records) == (t >= 3)
            peer.ask(range(2), column(t, t))
            peer.tell(range(2), column(t + 1, t + 1), 1.0, overridden=[True, True])
    assert kept.rollouts == []
    assert "ppo learns from its own actions only" in caplog.text


# -- the log --------------------------------------------------------------------------------------


def shares(run_dir: Path) -> list[str | None]:
    with (run_dir / "progress.csv").open(newline="") as file:
        return [line.get("rollout/overridden_share") for line in csv.DictReader(file)]


def run_for(peer: AgentPeer, overridden: list[bool]) -> None:
    for t, one in enumerate(overridden):
        peer.ask([0], column(t))
        peer.tell([0], column(t + 1), 1.0, terminated=t % 4 == 3, overridden=[one], executed=[[0]])


def with_log(run_dir: Path, algorithm: str = "ppo", **arguments: Any) -> SB3Agent:
    settings = {"n_steps": 4, "batch_size": 4} if algorithm == "ppo" else {"learning_starts": 10**6}
    return SB3Agent(
        algorithm,
        total_timesteps=1000,
        num_envs=1,
        run_dir=run_dir,
        observation_space=NUMBER,
        action_space=spaces.Discrete(3),
        preset="none",
        log_interval=1,
        hyperparameters={"device": "cpu", **settings},
        **arguments,
    )


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_each_line_of_the_log_has_the_share_of_the_steps_since_the_last(
    tmp_path: Path, algorithm: str
) -> None:
    agent = with_log(tmp_path, algorithm)
    run_for(connect(agent, 1), [False] * 4 + [True] * 4 + [False, True] * 4)
    agent.close()
    # PPO's second rollout has the policy's own 4 of the 11 env steps that follow the first.
    expected = ["", str(7 / 11)] if algorithm == "ppo" else ["", "1.0", "0.5", "0.5"]
    assert shares(tmp_path) == expected


def test_a_run_in_which_nobody_took_over_has_no_such_column(tmp_path: Path) -> None:
    agent = with_log(tmp_path)
    run_for(connect(agent, 1), [False] * 8)
    agent.close()
    assert shares(tmp_path) == [None, None]


def test_a_run_that_goes_on_counts_from_where_it_was(tmp_path: Path) -> None:
    agent = with_log(tmp_path, "dqn")
    run_for(connect(agent, 1), [True] * 4 + [True, True])
    agent.close()
    resumed = SB3Agent(resume=tmp_path)
    assert resumed.counters.overridden_steps == 6
    run_for(connect(resumed, 1), [False] * 4)
    resumed.close()
    assert shares(tmp_path) == ["1.0", str(2 / 6)]


# -- over the wire --------------------------------------------------------------------------------


def test_both_sides_count_the_same_steps_and_the_experts_actions_are_learned_from() -> None:
    agent = SB3Agent(
        "sac",
        total_timesteps=120,
        seed=0,
        preset="none",
        horizon=3,
        policy_kwargs={"net_arch": [8]},
        learning_starts=50,
    )

    def expert(observation: Any, actions: Any) -> Any:
        return np.full_like(actions, 1.0), observation[:, 0] > 0.0

    with running(agent) as server, PlugRLVectorEnv(make_envs("Pendulum-v1", 2), server.url) as envs:
        summary = envs.run(seed=0, takeover=expert)
    buffer = agent.model.replay_buffer
    held, seen = buffer.actions[: buffer.size(), 0], buffer.observations[: buffer.size(), 0]
    begun_by_expert = seen[:, 0] > 0.0
    np.testing.assert_allclose(held[begun_by_expert, 0], 0.5)
    assert not np.isclose(held[~begun_by_expert, 0], 0.5).any()
    assert 20 < summary.overridden_steps < 100
    assert agent.counters.overridden_steps == summary.overridden_steps
    assert envs.stats.book_errors == ()
