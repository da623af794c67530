"""Every kind of vector env, in every reset mode: what is stored equals a bare twin's trace."""

from __future__ import annotations

import itertools
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import (
    ClipReward,
    NormalizeObservation,
    RecordVideo,
    TransformObservation,
)

from plugrl_gym.client.autoreset import read_autoreset_mode
from plugrl_gym.protocol import CHUNK_STEPS, REUSE_FEEDBACK_OBS, Metadata
from tests.client.conftest import sync
from tests.support.memory import MemoryServer
from tests.support.tracing import CountingEnv

NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
N = 3

gym.register_envs(ale_py)


def make(env_id: str, kind: str, mode: AutoresetMode | None) -> Any:
    if kind == "native":
        options = {} if mode is None else {"autoreset_mode": mode, "max_num_frames_per_episode": 80}
        return gym.make_vec(env_id, N, vectorization_mode="vector_entry_point", **options)
    kind, _, without = kind.partition(" without ")
    options: dict[str, Any] = {"autoreset_mode": mode}
    if kind == "async":
        options["context"] = "forkserver"
    if without:
        options[{"copies": "copy", "shared memory": "shared_memory"}[without]] = False
    return gym.make_vec(env_id, N, vectorization_mode=kind, vector_kwargs=options)


def wire(observation: np.ndarray) -> np.ndarray:
    """ALE's stacks of four grey frames travel channels last (SPEC 9.3.19)."""
    return np.moveaxis(observation, 0, -1) if observation.ndim == 3 else observation


def twin_trace(env: Any, mode: AutoresetMode, actions: list[np.ndarray]) -> list[list[Any]]:
    """(observation, next observation, reward, terminated, truncated) of each env's real steps."""
    trace: list[list[Any]] = [[] for _ in range(N)]
    observation = np.array(env.reset(seed=5)[0])
    resetting = np.zeros(N, bool)
    for action in actions:
        after, reward, terminated, truncated, info = env.step(action)
        after, ended = np.array(after), terminated | truncated
        for i in np.flatnonzero(~resetting):
            last = info["final_obs"][i] if mode is SAME and ended[i] else after[i]
            step = (observation[i], last, np.float32(reward[i]), terminated[i], truncated[i])
            trace[i].append(step)
        if mode is DISABLED and ended.any():
            after = np.array(env.reset(options={"reset_mask": ended})[0])
        resetting = ended if mode is NEXT else np.zeros(N, bool)
        observation = after
    env.close()
    return trace


KINDS = [
    *[("CartPole-v1", kind, mode) for kind in ("sync", "async") for mode in AutoresetMode],
    ("CartPole-v1", "sync without copies", SAME),
    ("CartPole-v1", "sync without copies", DISABLED),
    *[("CartPole-v1", "async without copies", mode) for mode in AutoresetMode],
    *[("CartPole-v1", "async without shared memory", mode) for mode in AutoresetMode],
    ("CartPole-v1", "native", None),
    ("ALE/Breakout-v5", "native", NEXT),
    ("ALE/Breakout-v5", "native", SAME),
    ("Pendulum-v1", "sync", SAME),
]


@pytest.mark.parametrize(
    ("env_id", "kind", "mode"), KINDS, ids=[f"{e}-{k}-{m and m.name}" for e, k, m in KINDS]
)
def test_stored_transitions_equal_a_bare_twins_trace(
    wrap: Any, env_id: str, kind: str, mode: AutoresetMode | None
) -> None:
    rng = np.random.default_rng(0)
    env = make(env_id, kind, mode)
    draw = env.single_action_space

    def choose(indices: np.ndarray) -> np.ndarray:
        if isinstance(draw, gym.spaces.Discrete):
            return rng.integers(0, 2, (1, len(indices)))
        return rng.uniform(-2, 2, (1, len(indices), 1)).astype(np.float32)

    server = MemoryServer(choose, Metadata(features=(REUSE_FEEDBACK_OBS, CHUNK_STEPS)))
    envs = wrap(env, server)
    actions = []
    envs.reset(seed=5)
    for _ in range(230):
        actions.append(envs.step()[4]["action"])
    envs.close()
    twin = make(env_id, kind, mode)
    expected = twin_trace(twin, mode or read_autoreset_mode(twin, None), actions)
    for i in range(N):
        rows = [row for row in server.rows if row.env == i]
        # A row may still be held when the run is cut off.
        assert len(expected[i]) - len(rows) in (0, 1)
        for row, (first, last, reward, terminated, truncated) in zip(
            rows, expected[i], strict=False
        ):
            np.testing.assert_array_equal(row.first, wire(first))
            np.testing.assert_array_equal(row.last, wire(last))
            assert (row.reward, row.terminated, row.truncated) == (reward, terminated, truncated)


def test_two_vector_envs_over_one_class_keep_their_own_modes() -> None:
    same, disabled = sync(CountingEnv(3), mode=SAME), sync(CountingEnv(3), mode=DISABLED)
    # What gymnasium did before 1.4: one metadata dict for both.
    disabled.metadata = same.metadata
    assert read_autoreset_mode(same, None) is SAME
    assert read_autoreset_mode(disabled, None) is DISABLED


@pytest.mark.parametrize("given", ["SameStep", "same-step", "SAME_STEP", SAME])
def test_the_callers_word_on_the_mode_wins(given: Any) -> None:
    assert read_autoreset_mode(SyncVectorEnv([lambda: CountingEnv(3)]), given) is SAME


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::UserWarning:gymnasium")
def test_envpool_is_wrapped_as_it_comes(wrap: Any) -> None:
    envpool = pytest.importorskip("envpool")
    server = MemoryServer(
        lambda envs: np.zeros((2, len(envs)), np.int64), Metadata(features=(CHUNK_STEPS,))
    )
    envs = wrap(envpool.make_gymnasium("CartPole-v1", num_envs=N, seed=1), server)
    envs.run(max_steps=120)
    envs.close()
    by_env = [[row for row in server.rows if row.env == env] for env in range(N)]
    assert sum(len(rows) for rows in by_env) == envs.stats.chunks_fed_back
    for rows in by_env:
        for row, following in itertools.pairwise(rows):
            # Constant action 0: an episode ends in 8 to 11 steps, and the next begins elsewhere.
            assert row.reward == row.steps
            if row.episode is None:
                np.testing.assert_array_equal(row.last, following.first)
            else:
                assert 8 <= row.episode[1] <= 11
                assert row.episode[0] == row.episode[1]
                assert not np.array_equal(row.last, following.first)


def test_wrappers_below_change_what_the_server_sees(wrap: Any) -> None:
    server = MemoryServer(lambda envs: np.zeros((1, len(envs)), np.int64))
    inner = NormalizeObservation(sync(CountingEnv(99), CountingEnv(99), mode=NEXT))
    envs = wrap(inner, server)
    seen = [o.copy() for o, *_ in envs.rollout(max_steps=12)]
    envs.close()
    first = [row.last for row in server.rows if row.env == 0]
    np.testing.assert_array_equal(np.concatenate(first), [o[0, 0] for o in seen][: len(first)])


def test_videos_are_recorded_below(wrap: Any, tmp_path: Any) -> None:
    inner = RecordVideo(
        gym.make_vec("CartPole-v1", 2, vectorization_mode="sync", render_mode="rgb_array"),
        str(tmp_path / "videos"),
        episode_trigger=lambda episode: episode == 0,
    )
    server = MemoryServer(lambda envs: np.zeros((1, len(envs)), np.int64))
    envs = wrap(inner, server)
    envs.run(max_steps=60)
    envs.close()
    assert list((tmp_path / "videos").glob("*.mp4"))


def test_wrappers_above_change_only_what_the_caller_sees(wrap: Any) -> None:
    server = MemoryServer(lambda envs: np.zeros((2, len(envs)), np.int64))
    # Gymnasium's observation wrappers do not know SAME_STEP.
    envs = wrap(sync(CountingEnv(3), CountingEnv(4), mode=NEXT), server)
    outer = ClipReward(TransformObservation(envs, lambda o: o + 0.5), 0.0, 0.25)
    observation, _ = outer.reset()
    assert observation[:, 0].tolist() == [0.5, 0.5]
    observation, reward, *_ = outer.step(None)
    assert (observation[:, 0].tolist(), reward.tolist()) == ([1.5, 1.5], [0.25, 0.25])
    outer.step(None)
    outer.close()
    assert [(row.last[0], row.reward) for row in server.rows] == [(2.0, 2.0)] * 2
