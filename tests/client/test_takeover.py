"""Somebody takes over: what is executed then, when, and what is told and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from plugrl_gym import PlugRLVectorEnv, UsageError
from plugrl_gym.client import Sometimes
from plugrl_gym.protocol import CHUNK_STEPS, EXECUTED_ACTIONS, Metadata
from tests.client.conftest import sync
from tests.support.memory import MemoryServer
from tests.support.tracing import CountingEnv

Wrap = Callable[..., PlugRLVectorEnv]
TOLD = Metadata(features=(EXECUTED_ACTIONS, CHUNK_STEPS))


def zeros(horizon: int = 1, metadata: Metadata = TOLD) -> MemoryServer:
    return MemoryServer(lambda envs: np.zeros((horizon, len(envs)), np.int64), metadata)


def test_what_took_over_is_executed_and_told(wrap: Wrap) -> None:
    server = zeros()
    envs = wrap(sync(CountingEnv(9), CountingEnv(9)), server)

    def second(observation: Any, actions: Any) -> Any:
        return np.ones_like(actions), np.array([False, True])

    executed = [info["action"].tolist() for *_, info in envs.rollout(max_steps=6, takeover=second)]
    assert executed == [[0, 1]] * 3
    assert [(row.env, row.executed.tolist(), row.overridden) for row in server.rows] == [
        (0, [0], False),
        (1, [1], True),
    ] * 3
    assert envs.stats.overridden_steps == 3


def test_it_sees_the_observations_of_this_step_and_the_servers_actions(wrap: Wrap) -> None:
    env = CountingEnv(3)
    envs = wrap(sync(env), zeros(2))
    seen = []

    def look(observation: Any, actions: Any) -> None:
        seen.append((observation.tolist(), actions.tolist()))
        actions[:] = 1  # its own copy

    shown = [[[0.0]]]  # of the reset
    shown += [step[0].tolist() for step in envs.rollout(max_steps=5, takeover=look)]
    assert seen == [(observation, [0]) for observation in shown[:5]]
    assert envs.stats.overridden_steps == 0


def test_all_of_them_without_a_mask(wrap: Wrap) -> None:
    server = zeros(2)
    envs = wrap(sync(CountingEnv(50), CountingEnv(50)), server)
    moments = iter([None, np.array([1, 0]), np.array([0, 0]), None])
    summary = envs.run(max_steps=8, takeover=lambda observation, actions: next(moments))
    assert [(row.env, row.executed.tolist(), row.overridden) for row in server.rows] == [
        (0, [0, 1], True),
        (1, [0, 0], False),
        (0, [0, 0], False),
        (1, [0, 0], False),
    ]
    assert summary.overridden_steps == 1


def test_ignored_steps_are_nobodys(wrap: Wrap) -> None:
    envs = wrap(sync(CountingEnv(2), mode=AutoresetMode.NEXT_STEP), zeros())
    envs.run(max_steps=6, takeover=lambda observation, actions: np.ones_like(actions))
    assert envs.stats.overridden_steps == envs.stats.env_steps == 6


def test_a_clipped_action_counts_as_overridden(wrap: Wrap) -> None:
    env = CountingEnv(50)
    env.action_space = spaces.Box(-1.0, 1.0, (1,))
    envs = wrap(sync(env), MemoryServer(lambda envs: np.array([[[0.5]], [[3.0]]]), TOLD))
    envs.run(max_steps=4)
    assert envs.stats.overridden_steps == 2


def test_a_server_that_cannot_be_told_is_not_lied_to(wrap: Wrap) -> None:
    env = CountingEnv(50)
    envs = wrap(sync(env), zeros(metadata=Metadata()))
    with pytest.raises(UsageError, match="gym-executed-actions"):
        envs.run(takeover=lambda observation, actions: 1 - actions)
    assert env.time == 0


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (np.zeros(3, np.int64), r"expected int64 \[2\], got int64 \[3\]"),
        (np.zeros(2), r"expected int64 \[2\], got float64 \[2\]"),
        ((np.zeros(2, np.int64), [1, 0]), r"takeover: expected a mask bool \[2\], got int64 \[2\]"),
        ((np.zeros(2, np.int64), [True]), r"takeover: expected a mask bool \[2\], got bool \[1\]"),
        (np.array([0, 2]), r"2 for env 1 lies outside Discrete\(2\)"),
        ([[0], [0, 1]], "takeover: expected one array"),
        ((np.zeros(2, np.int64), [[True], []]), "takeover: mask: expected one array"),
        ((np.zeros(2, np.int64),), r"takeover: expected actions, or \(actions, mask\), got 1 part"),
    ],
    ids=["shape", "dtype", "no mask", "short mask", "index", "ragged", "ragged mask", "no pair"],
)
def test_what_are_no_actions_is_refused(wrap: Wrap, wanted: Any, text: str) -> None:
    env = CountingEnv(9)
    envs = wrap(sync(env, CountingEnv(9)), zeros())
    with pytest.raises(UsageError, match=text):
        envs.run(takeover=lambda observation, actions: wanted)
    assert env.time == 0


def test_number_outside_a_box_is_dealt_with_as_a_servers(wrap: Wrap) -> None:
    env = CountingEnv(9)
    env.action_space = spaces.Box(-1.0, 1.0, (1,))

    def expert(observation: Any, actions: Any) -> Any:
        return np.full_like(actions, 5.0)

    server = MemoryServer(lambda envs: np.full((1, len(envs), 1), 0.5), TOLD)
    wrap(sync(env), server).run(max_steps=1, takeover=expert)
    assert [row.executed.tolist() for row in server.rows] == [[[1.0]]]
    strict = wrap(sync(env), MemoryServer(server.choose, TOLD), out_of_bounds="error")
    with pytest.raises(UsageError, match=r"5.0 for env 0 lies outside Box"):
        strict.run(max_steps=1, takeover=expert)


def test_what_it_says_of_envs_that_it_does_not_take_over_is_nothing(wrap: Wrap) -> None:
    env = CountingEnv(9)
    env.action_space = spaces.Box(-1.0, 1.0, (1,))
    server = MemoryServer(lambda envs: np.full((1, len(envs), 1), 0.5), TOLD)
    envs = wrap(sync(env, env), server)
    second = np.array([False, True])

    def expert(observation: Any, actions: Any) -> Any:
        return np.where(second[:, None], np.float32(1.0), np.float32(np.nan)), second

    envs.run(max_steps=2, takeover=expert)
    assert [row.executed.tolist() for row in server.rows] == [[[0.5]], [[1.0]]]
    with pytest.raises(UsageError, match="takeover: an action is NaN or infinite"):
        envs.run(max_steps=2, takeover=lambda *given: (expert(*given)[0], ~second))


# -- Sometimes ------------------------------------------------------------------------------------


def masks(share: float, length: int, steps: int = 4000, envs: int = 3) -> np.ndarray:
    sometimes = Sometimes(lambda observation, actions: np.ones_like(actions), share, length, seed=1)
    found = []
    for _ in range(steps):
        wanted = sometimes(None, np.zeros(envs, np.int64))
        found.append(np.zeros(envs, np.bool_) if wanted is None else wanted[1])
    return np.array(found)


@pytest.mark.parametrize("length", [1, 20])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.9, 1.0])
def test_it_takes_over_for_that_share_of_the_steps(share: float, length: int) -> None:
    assert masks(share, length).mean() == pytest.approx(share, abs=0.03)


def test_it_stays_for_that_many_steps_in_each_env_by_itself() -> None:
    column = masks(0.3, 5).T
    assert not np.array_equal(column[0], column[1])
    stretches = "".join("x" if one else " " for one in column[0]).split()
    assert {len(stretch) % 5 for stretch in stretches[:-1]} == {0}


def test_the_same_seed_takes_over_in_the_same_steps() -> None:
    assert np.array_equal(masks(0.4, 3), masks(0.4, 3))


def test_one_that_takes_over_itself_now_and_then_is_asked_only_in_its_steps() -> None:
    def first(observation: Any, actions: Any) -> Any:
        return np.full_like(actions, 7), np.arange(len(actions)) == 0

    sometimes = Sometimes(first, 0.5, seed=0)
    for _ in range(50):
        wanted = sometimes(None, np.zeros(2, np.int64))
        if wanted is not None:
            actions, mask = wanted
            assert actions.tolist() == [7, 0]
            assert mask.shape == (2,)


@pytest.mark.parametrize(
    ("arguments", "text"), [({"share": 1.2}, "share"), ({"share": 0.5, "length": 0}, "length")]
)
def test_a_share_that_cannot_be_is_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Sometimes(lambda observation, actions: None, **arguments)
