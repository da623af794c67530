"""What PlugRLVectorEnv tells the server, with handwritten values, in every reset mode."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics
from gymnasium.wrappers.vector import ClipReward
from gymnasium.wrappers.vector import RecordEpisodeStatistics as VectorStatistics

from plugrl_gym import (
    LocalProtocolError,
    PlugRLVectorEnv,
    RemoteProtocolError,
    RunFinished,
    UnsupportedSpace,
    UsageError,
)
from plugrl_gym.protocol import CHUNK_STEPS, EXECUTED_ACTIONS, REUSE_FEEDBACK_OBS, Metadata
from tests.client.conftest import sync
from tests.support.memory import MemoryServer, finished, lost
from tests.support.tracing import CountingEnv

NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
GYMNASIUM = tuple(int(part) for part in gym.__version__.split(".")[:2])
MODES = pytest.mark.parametrize("mode", [NEXT, SAME, DISABLED], ids=lambda m: m.name)


def zeros(horizon: int) -> MemoryServer:
    return MemoryServer(lambda envs: np.zeros((horizon, len(envs)), np.int64))


def transitions(server: MemoryServer, env: int) -> list[tuple[float, float]]:
    return [(row.first[0], row.last[0]) for row in server.rows if row.env == env]


class ScriptedEnv(gym.Env):
    """Pays the given rewards, one a step, and ends with the last."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, rewards: list[float]) -> None:
        self.rewards = rewards
        self.time = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.time = 0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        reward = self.rewards[self.time]
        self.time += 1
        return np.full(1, float(self.time)), reward, self.time == len(self.rewards), False, {}


# -- Autoreset ------------------------------------------------------------------------------


def test_next_step_stores_no_transition_for_the_ignored_step(wrap: Any) -> None:
    server = zeros(1)
    envs = wrap(sync(CountingEnv(3), CountingEnv(5), mode=NEXT), server)
    envs.reset()
    seen = [(o[0, 0], r[0]) for o, r, *_ in (envs.step() for _ in range(8))]
    assert seen == list(
        zip([1, 2, 3, 100, 101, 102, 103, 200], [1, 1, 1, 0, 1, 1, 1, 0], strict=True)
    )
    # Eight vector steps, of which steps 4 and 8 only reset env 0.
    assert transitions(server, 0) == [(0, 1), (1, 2), (2, 3), (100, 101), (101, 102), (102, 103)]
    assert [row.episode for row in server.rows if row.env == 0 and row.episode] == [(3, 3), (3, 3)]
    asked_alone = [i.env_indices.tolist() for i in server.infers]
    assert asked_alone[3] == [1]
    assert envs.stats.env_steps == 6 + 7


@pytest.mark.parametrize("mode", [SAME, DISABLED], ids=lambda m: m.name)
def test_same_step_stores_a_transition_in_every_step(wrap: Any, mode: AutoresetMode) -> None:
    server = zeros(1)
    envs = wrap(sync(CountingEnv(3), CountingEnv(5), mode=mode), server)
    envs.reset()
    for _ in range(8):
        envs.step()
    assert transitions(server, 0) == [
        (0, 1), (1, 2), (2, 3), (100, 101), (101, 102), (102, 103), (200, 201), (201, 202),
    ]  # fmt: skip


@MODES
def test_an_env_that_ends_in_mid_chunk_drops_the_rest_of_it(wrap: Any, mode: AutoresetMode) -> None:
    server = zeros(5)
    envs = wrap(sync(CountingEnv(3), CountingEnv(100), mode=mode), server)
    envs.reset()
    for _ in range(5):
        envs.step()
    envs.infer()
    ended = next(row for row in server.rows if row.env == 0)
    assert (ended.reward, ended.terminated, ended.last[0]) == (3.0, True, 3.0)
    whole = next(row for row in server.rows if row.env == 1)
    assert (whole.reward, whole.terminated, whole.last[0]) == (5.0, False, 5.0)
    again = [i for i in server.infers if 0 in i.env_indices.tolist()][1]
    row = again.env_indices.tolist().index(0)
    assert again.observation.states["obs"][row, 0] == 100.0
    assert again.step_ids[row] == 0


@MODES
def test_it_resets_once_and_then_once_for_each_finished_episode(
    wrap: Any, mode: AutoresetMode
) -> None:
    subs = [CountingEnv(3), CountingEnv(4)]
    envs = wrap(sync(*subs, mode=mode), zeros(2))
    envs.reset(seed=7)
    while envs.stats.episodes < 10:
        envs.step()
    # NEXT_STEP resets in the step after, which the last episodes have not seen.
    unseen = 1 if mode is NEXT else 0
    assert sum(sub.resets for sub in subs) in range(12 - 2 * unseen, 13)


@MODES
def test_one_step_episodes_are_all_told(wrap: Any, mode: AutoresetMode) -> None:
    server = zeros(3)
    envs = wrap(sync(CountingEnv(1, truncates=True), mode=mode), server)
    envs.reset()
    for _ in range(6):
        envs.step()
    envs.close()
    assert len(server.rows) == (3 if mode is NEXT else 6)
    assert all(row.truncated and not row.terminated and row.reward == 1.0 for row in server.rows)


def test_disabled_presents_itself_as_same_step(wrap: Any) -> None:
    inner = sync(CountingEnv(2), CountingEnv(3), mode=DISABLED, copy=False)
    envs = wrap(inner, zeros(1))
    assert envs.metadata["autoreset_mode"] is SAME
    assert inner.metadata["autoreset_mode"] is DISABLED
    envs.reset()
    envs.step()
    observation, _, terminated, _, info = envs.step()
    assert observation[:, 0].tolist() == [100.0, 2.0]
    assert terminated.tolist() == [True, False]
    assert info["final_obs"][0].tolist() == [2.0]
    assert info["final_obs"][1] is None
    assert info["_final_obs"].tolist() == [True, False]


class IgnoresMask(VectorEnv):
    """A native vector env that resets every row, whatever the mask."""

    def __init__(self, metadata: dict[str, Any], **step_info: Any) -> None:
        self.num_envs = 2
        self.metadata = metadata
        self.single_observation_space = spaces.Box(0, 100, (1,), np.float32)
        self.observation_space = spaces.Box(0, 100, (2, 1), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.action_space = spaces.MultiDiscrete([2, 2])
        self.time = np.zeros(2)
        self.step_info = step_info

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.time[:] = 0
        return self.time[:, None].astype(np.float32), {}

    def step(self, actions: Any) -> Any:
        self.time += 1
        ended = self.time >= np.array([2, 3])
        observation = self.time[:, None].astype(np.float32)
        info = {}
        if ended.any() and self.metadata.get("autoreset_mode") != DISABLED:
            if "dense" in self.step_info:
                info["final_obs"] = observation.copy()
            self.time[ended] = 0
            observation = self.time[:, None].astype(np.float32)
        flags = ended.astype(np.uint8)
        return observation, np.ones((2, 1), np.float16), flags, np.zeros(2, np.uint8), info


def test_a_masked_reset_that_changes_another_row_is_an_error(wrap: Any) -> None:
    envs = wrap(IgnoresMask({"autoreset_mode": DISABLED}), zeros(1))
    envs.reset()
    envs.step()
    with pytest.raises(UsageError, match="changed env 1 in a reset whose reset_mask left it out"):
        envs.step()


def test_a_dense_final_observation_without_mask_is_read(wrap: Any) -> None:
    server = zeros(1)
    envs = wrap(IgnoresMask({"autoreset_mode": "SameStep"}, dense=True), server)
    envs.reset()
    for _ in range(2):
        envs.step()
    assert transitions(server, 0) == [(0, 1), (1, 2)]
    assert [row.reward for row in server.rows] == [1.0] * 4


def test_same_step_without_a_final_observation_is_an_error(wrap: Any) -> None:
    envs = wrap(IgnoresMask({"autoreset_mode": SAME}), zeros(1))
    envs.reset()
    envs.step()
    with pytest.raises(UsageError, match="no 'final_obs'"):
        envs.step()
    with pytest.raises(UsageError, match="reset"):
        envs.step()


def test_an_env_without_a_tag_asks_for_autoreset_mode(wrap: Any) -> None:
    with pytest.raises(UsageError, match="autoreset_mode="):
        wrap(IgnoresMask({}), zeros(1))
    assert wrap(IgnoresMask({}, dense=True), zeros(1), autoreset_mode="next-step")


# -- Rewards and statistics -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "horizon", "expected"),
    [
        ([0.0, 5.0, 0.0, 0.0], 4, 5.0),
        ([1.0, -10.0], 4, -9.0),
        ([0.1] * 1000, 1000, 100.0),
        ([16777216.0, 1.0, 1.0, 1.0], 4, 16777220.0),
    ],
)
@MODES
def test_rewards_are_summed_in_float64_and_cast_once(
    wrap: Any, mode: AutoresetMode, rewards: list[float], horizon: int, expected: float
) -> None:
    server = zeros(horizon)
    envs = wrap(sync(ScriptedEnv(rewards), ScriptedEnv([0.0] * 2000), mode=mode), server)
    envs.reset()
    for _ in range(len(rewards) + 1):
        envs.step()
    envs.close()
    assert next(row for row in server.rows if row.env == 0).reward == np.float32(expected)


@MODES
@pytest.mark.parametrize("place", ["none", "per env", "inside", "outside"])
def test_every_episode_is_told_with_its_return_and_length(
    wrap: Any, mode: AutoresetMode, place: str
) -> None:
    subs: list[gym.Env] = [CountingEnv(3), CountingEnv(5)]
    if place == "per env":
        subs = [RecordEpisodeStatistics(sub) for sub in subs]
    inner = sync(*subs, mode=mode)
    server = zeros(2)
    envs = wrap(VectorStatistics(inner) if place == "inside" else inner, server)
    outer = VectorStatistics(envs) if place == "outside" else envs
    outer.reset()
    for _ in range(40):
        outer.step(None)
    told = {row.env: set() for row in server.rows}
    for row in server.rows:
        if row.episode is not None:
            told[row.env].add(row.episode)
    assert told == {0: {(3.0, 3)}, 1: {(5.0, 5)}}
    # Before gymnasium 1.3 its vector wrapper counts every mode as if it were NEXT_STEP.
    if place == "outside" and (mode is NEXT or GYMNASIUM >= (1, 3)):
        assert set(outer.return_queue) == {3.0, 5.0}


def test_a_statistics_wrapper_under_a_reward_wrapper_has_the_last_word(wrap: Any) -> None:
    inner = ClipReward(VectorStatistics(sync(ScriptedEnv([10.0, 20.0]))), -1.0, 1.0)
    server = zeros(1)
    envs = wrap(inner, server)
    envs.reset()
    for _ in range(2):
        envs.step()
    assert [row.reward for row in server.rows] == [1.0, 1.0]
    assert server.rows[1].episode == (30.0, 2)


# -- Actions --------------------------------------------------------------------------------


def test_info_holds_what_was_executed(wrap: Any) -> None:
    server = MemoryServer(lambda envs: np.arange(3)[:, None].repeat(len(envs), 1) % 2)
    envs = wrap(sync(CountingEnv(50), CountingEnv(50)), server)
    envs.reset()
    assert [envs.step()[4]["action"].tolist() for _ in range(3)] == [[0, 0], [1, 1], [0, 0]]
    assert len(server.infers) == 1


def test_replaced_actions_need_the_feature(wrap: Any) -> None:
    env = CountingEnv(50)
    envs = wrap(sync(env), zeros(2))
    envs.reset()
    with pytest.raises(UsageError, match="gym-executed-actions"):
        envs.step(1 - envs.infer())
    assert env.time == 0
    envs.step(envs.infer())
    assert env.time == 1


def test_replaced_actions_are_told(wrap: Any) -> None:
    server = zeros(2)
    server.metadata = Metadata(features=(EXECUTED_ACTIONS, CHUNK_STEPS))
    envs = wrap(sync(CountingEnv(50), CountingEnv(50)), server)
    envs.reset()
    envs.step(np.array([1, 0]))
    envs.step()
    assert [(row.executed.tolist(), row.overridden) for row in server.rows] == [
        ([1, 0], True),
        ([0, 0], False),
    ]


def test_a_clipped_action_counts_as_overridden(wrap: Any) -> None:
    env = CountingEnv(50)
    env.action_space = spaces.Box(-1.0, 1.0, (2,))
    chunk = np.array([[[0.25, -1.0]], [[0.5, 3.0]], [[0.1, 0.1]]])
    server = MemoryServer(lambda envs: chunk)
    server.metadata = Metadata(features=(EXECUTED_ACTIONS, CHUNK_STEPS))
    envs = wrap(sync(env), server)
    envs.reset()
    for _ in range(3):
        envs.step()
    envs.step()
    envs.close()
    assert [row.overridden for row in server.rows] == [True, False]
    assert server.rows[0].executed[1].tolist() == [0.5, 1.0]


def test_executed_actions_have_the_shape_of_the_action(wrap: Any) -> None:
    server = MemoryServer(lambda envs: np.ones((1, len(envs), 1), np.int64))
    server.metadata = Metadata(features=(EXECUTED_ACTIONS, CHUNK_STEPS))
    envs = wrap(sync(CountingEnv(50), CountingEnv(50)), server)
    envs.reset()
    envs.step(np.array([0, 1]))
    assert [row.executed.tolist() for row in server.rows] == [[[0]], [[1]]]
    assert [row.overridden for row in server.rows] == [True, False]


@pytest.mark.parametrize(
    ("chunk", "text"),
    [
        (np.zeros((1, 2, 3)), r"takes \[H, n\], got shape \[1, 2, 3\]"),
        (np.full((1, 2), 0.5), "cannot hold 0.5"),
        (np.full((1, 2), 7), "outside Discrete"),
    ],
)
def test_an_action_that_the_space_cannot_hold_moves_no_env(
    wrap: Any, chunk: np.ndarray, text: str
) -> None:
    env = CountingEnv(5)
    envs = wrap(sync(env, CountingEnv(5)), MemoryServer(lambda envs: chunk))
    envs.reset()
    with pytest.raises(RemoteProtocolError, match=text):
        envs.step()
    assert env.time == 0


# -- Resets ---------------------------------------------------------------------------------


@MODES
def test_a_reset_before_any_step_costs_nothing(wrap: Any, mode: AutoresetMode) -> None:
    server = zeros(3)
    envs = wrap(sync(CountingEnv(3), CountingEnv(4), mode=mode), server)
    envs.reset()
    envs.reset()
    envs.step()
    assert server.connections == 1


@MODES
def test_a_reset_in_mid_chunk_opens_a_new_connection(wrap: Any, mode: AutoresetMode) -> None:
    server = zeros(3)
    envs = wrap(sync(CountingEnv(9), CountingEnv(9), mode=mode), server)
    envs.reset()
    envs.step()
    envs.reset(options={"reset_mask": np.array([True, False])})
    observation, *_ = envs.step()
    assert observation[:, 0].tolist() == [101.0, 2.0]
    assert server.connections == 2
    assert server.closes == [1000]
    assert (envs.stats.chunks_dropped, envs.stats.steps_dropped) == (2, 2)
    assert server.infers[-1].observation.states["obs"][:, 0].tolist() == [100.0, 1.0]


@MODES
def test_a_reset_of_an_env_whose_episode_ended_costs_nothing(
    wrap: Any, mode: AutoresetMode
) -> None:
    server = zeros(4)
    envs = wrap(sync(CountingEnv(2), CountingEnv(9), mode=mode), server)
    envs.reset()
    envs.step()
    envs.step()
    envs.reset(options={"reset_mask": np.array([True, False])})
    for _ in range(4):
        envs.step()
    assert server.connections == 1
    assert transitions(server, 0)[0] == (0, 2)


def test_a_failed_reset_must_be_made_good_before_the_next_step(wrap: Any) -> None:
    server = zeros(3)
    envs = wrap(IgnoresMask({"autoreset_mode": NEXT}), server)
    envs.reset()
    envs.step()
    with pytest.raises(UsageError, match="changed env 1 in a reset"):
        envs.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(UsageError, match=r"call reset\(\)"):
        envs.step()
    assert server.rows == []
    envs.reset()
    envs.step()
    assert server.infers[-1].observation.states["obs"][:, 0].tolist() == [0.0, 0.0]


def test_seeds_reach_the_envs(wrap: Any) -> None:
    bare = gym.make_vec("CartPole-v1", 3, vectorization_mode="sync")
    wrapped = wrap(gym.make_vec("CartPole-v1", 3, vectorization_mode="sync"), zeros(1))
    for seed in (7, [3, 1, 2]):
        np.testing.assert_array_equal(bare.reset(seed=seed)[0], wrapped.reset(seed=seed)[0])


# -- Lost connections and the run's end -----------------------------------------------------


def failing(server: MemoryServer, message: str, number: int, error: Exception) -> MemoryServer:
    """Let the ``number``-th message of a kind fail once."""
    left = [number]

    def fault(name: str) -> Exception | None:
        left[0] -= name == message
        return error if name == message and left[0] == 0 else None

    server.fault = fault
    return server


@MODES
@pytest.mark.parametrize("message", ["infer", "action", "feedback"])
def test_a_lost_connection_makes_nothing_up(wrap: Any, mode: AutoresetMode, message: str) -> None:
    server = failing(zeros(2), message, 2, lost())
    envs = wrap(sync(CountingEnv(3), CountingEnv(7), mode=mode), server)
    envs.reset()
    for _ in range(12):
        envs.step()
    envs.close()
    assert server.connections == 2
    steps = {0: 9 if mode is NEXT else 12, 1: 11 if mode is NEXT else 12}
    told = {env: sum(int(b - a) for a, b in transitions(server, env)) for env in (0, 1)}
    assert sum(told.values()) == sum(steps.values()) - envs.stats.steps_dropped
    for first, last in transitions(server, 0):
        assert first // 100 == last // 100


def test_the_end_of_the_run_shows_where_the_next_action_is_asked_for(wrap: Any) -> None:
    server = failing(zeros(1), "feedback", 2, finished())
    envs = wrap(sync(CountingEnv(5)), server)
    envs.reset()
    envs.step()
    observation, *_ = envs.step()
    assert observation[0, 0] == 2.0
    for _ in range(2):
        with pytest.raises(RunFinished):
            envs.step()
    assert envs.finished
    envs.reset()
    with pytest.raises(RunFinished):
        envs.infer()
    assert server.connections == 1


def test_rollout_yields_every_step_and_simply_ends(wrap: Any) -> None:
    server = failing(zeros(1), "action", 4, finished())
    envs = wrap(sync(CountingEnv(5)), server)
    assert [o[0, 0] for o, *_ in envs.rollout()] == [1.0, 2.0, 3.0]


def test_rollout_keeps_its_limits(wrap: Any) -> None:
    envs = wrap(sync(CountingEnv(3), CountingEnv(3)), zeros(2))
    assert len(list(envs.rollout(max_steps=10))) == 5
    summary = envs.run(max_episodes=4)
    assert (summary.episodes, summary.mean_return, summary.finished) == (6, 3.0, False)


def test_close_feeds_back_what_was_begun(wrap: Any) -> None:
    server = zeros(5)
    envs = wrap(sync(CountingEnv(9), CountingEnv(9)), server)
    envs.reset()
    envs.step()
    envs.step()
    envs.close()
    envs.close()
    assert [(row.reward, row.last[0], row.terminated) for row in server.rows] == [
        (2.0, 2.0, False)
    ] * 2
    assert server.closes == [1000]
    assert envs.stats.chunks_dropped == 0


def test_an_env_that_crashes_closes_the_connection_and_raises_its_own_error(wrap: Any) -> None:
    class Crashing(CountingEnv):
        def step(self, action: Any) -> Any:
            if self.time == 4:
                raise RuntimeError("sim crashed")
            return super().step(action)

    server = zeros(3)
    envs = wrap(sync(Crashing(9)), server)
    envs.reset()
    for _ in range(4):
        envs.step()
    with pytest.raises(RuntimeError, match="sim crashed"):
        envs.step()
    assert server.closes == [1000]
    assert len(server.rows) == 1


@pytest.mark.parametrize("reward", [np.nan, np.inf])
def test_a_reward_that_is_not_finite_is_never_sent(wrap: Any, reward: float) -> None:
    server = zeros(1)
    envs = wrap(sync(ScriptedEnv([1.0, reward, 1.0])), server)
    envs.reset()
    envs.step()
    with pytest.raises(LocalProtocolError, match="env 0 is NaN or infinite at env step 1"):
        envs.step()
    assert [row.reward for row in server.rows] == [1.0]


def test_an_observation_that_is_not_finite_is_never_sent(wrap: Any) -> None:
    class Nan(CountingEnv):
        def _observe(self) -> np.ndarray:
            return np.array([np.nan if self.time == 2 else 0.0])

    server = zeros(1)
    envs = wrap(sync(CountingEnv(5), Nan(5)), server)
    envs.reset()
    envs.step()
    with pytest.raises(LocalProtocolError, match=r"states\.obs of env 1 is NaN"):
        envs.step()
    assert len(server.rows) == 2


# -- Features -------------------------------------------------------------------------------


def test_reuse_sends_only_the_first_observation_of_an_episode(wrap: Any) -> None:
    server = zeros(1)
    server.metadata = Metadata(features=(REUSE_FEEDBACK_OBS,))
    envs = wrap(sync(CountingEnv(2), CountingEnv(3)), server)
    envs.reset()
    for _ in range(4):
        envs.step()
    assert [i.reuse.tolist() for i in server.infers] == [
        [False, False],
        [True, True],
        [False, True],
        [True, False],
    ]
    assert [i.observation.rows for i in server.infers] == [2, 0, 1, 1]
    assert transitions(server, 1) == [(0, 1), (1, 2), (2, 3), (100, 101)]


def test_no_feature_is_used_that_is_not_offered(wrap: Any) -> None:
    server = zeros(2)
    envs = wrap(sync(CountingEnv(3)), server)
    envs.reset()
    for _ in range(6):
        envs.step()
    assert all(i.reuse is None and i.spaces is None for i in server.infers)
    assert all(f.chunk_steps is None and f.executed is None for f in server.feedbacks)


# -- Construction ---------------------------------------------------------------------------


def test_a_plain_env_is_told_how_to_become_a_vector_env() -> None:
    with pytest.raises(UsageError, match=r"gym\.make_vec"):
        PlugRLVectorEnv(gym.make("CartPole-v1"))


def test_spaces_without_an_encoding_are_refused_at_construction(wrap: Any) -> None:
    env = CountingEnv(3)
    env.action_space = spaces.Dict(a=spaces.Discrete(2))
    with pytest.raises(UnsupportedSpace, match="Dict"):
        wrap(sync(env), zeros(1))


def test_it_refuses_to_be_copied(wrap: Any) -> None:
    envs = wrap(sync(CountingEnv(3)), zeros(1))
    for copying in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled"):
            copying(envs)


def test_constructing_connects_to_nothing(wrap: Any) -> None:
    server = zeros(1)
    with wrap(sync(CountingEnv(3)), server):
        assert server.connections == 0
