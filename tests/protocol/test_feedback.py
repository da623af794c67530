"""Feedback as a value: its rows, and the statistics of episodes in its info (SPEC 6.5.20)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plugrl_gym.protocol import ChunkSteps, EpisodeStatistics, ExecutedActions, Observation
from tests.support.messages import feedback, observation

I2 = np.arange(2)
F2 = np.zeros(2, np.float32)


def test_episode_statistics_are_read_with_and_without_mask_and_success() -> None:
    info = {"episode": {"r": np.array([1.5, 0]), "l": np.array([3, 0])}}
    read = EpisodeStatistics.from_info(info, 2)
    assert read is not None
    assert read.returns.tolist() == [1.5, 0]
    assert read.lengths.tolist() == [3, 0]
    assert read.mask.tolist() == [True, True]
    assert read.success is None
    info["episode"].update(mask=np.array([True, False]), s=np.array([1, 0]))
    read = EpisodeStatistics.from_info(info, 2)
    assert read is not None
    assert read.mask.tolist() == [True, False]
    assert read.success is not None
    assert read.success.tolist() == [True, False]


@pytest.mark.parametrize(
    "episode",
    [
        None,
        [],
        {},
        {"r": F2},
        {"r": F2, "l": np.zeros(3)},
        {"r": [1.0, 2.0], "l": I2},
        {"r": np.array([np.nan, 0]), "l": I2},
        {"r": F2, "l": np.array([1e300, 0])},
        {"r": F2, "l": np.array([np.nan, 0])},
        {"r": F2, "l": np.array([-1, 0])},
        {"r": F2, "l": np.array([2**64 - 1, 0], np.uint64)},
        {"r": F2, "l": I2, "mask": I2},
        {"r": np.array(["a", "b"]), "l": I2},
    ],
)
def test_episode_statistics_that_make_no_sense_are_none(episode: Any) -> None:
    assert EpisodeStatistics.from_info({"episode": episode}, 2) is None


def test_feedback_select_keeps_rows_together() -> None:
    whole = feedback(
        [4, 7, 9],
        ended=[True, False, True],
        rewards=np.array([1, 2, 3], np.float32),
        info={
            "episode": {"r": np.arange(3.0), "l": np.arange(3), "s": np.arange(3) > 1},
            "mine": np.arange(3),
        },
    )
    part = whole.select([2, 0])
    assert part.env_indices.tolist() == [9, 4]
    assert part.rewards.tolist() == [3, 1]
    assert part.observation.states["obs"].tolist() == [[14, 15], [10, 11]]
    assert part.ended.tolist() == [True, True]
    assert set(part.info) == {"episode"}
    assert part.episode is not None
    assert part.episode.returns.tolist() == [2, 0]
    assert part.episode.success is not None
    assert part.episode.success.tolist() == [True, False]


def test_observations_join_in_order() -> None:
    one, two = observation(1, base=0), observation(2, base=50)
    joined = Observation.concatenate([two, one])
    assert joined.states["obs"].tolist() == [[50, 51], [52, 53], [0, 1]]
    assert joined.rows == 3


def test_feedback_select_cuts_steps_to_the_longest_row_left() -> None:
    whole = feedback(
        [1, 2],
        chunk_steps=ChunkSteps(np.array([1, 3]), np.array([[1, 1], [0, 1], [0, 1]], np.float32)),
        executed=ExecutedActions(np.arange(6.0).reshape(3, 2), np.array([True, False])),
    )
    part = whole.select([0])
    assert part.chunk_steps is not None
    assert part.executed is not None
    assert part.chunk_steps.rewards.tolist() == [[1]]
    assert part.executed.actions.tolist() == [[0]]
    assert part.executed.overridden.tolist() == [True]
    back = whole.select([1, 0])
    assert back.executed is not None
    assert back.executed.actions.tolist() == [[1, 0], [3, 2], [5, 4]]


def test_feedback_finds_non_finite_rows_wherever_they_are() -> None:
    bad = feedback(
        [0, 1, 2, 3],
        observation=observation(4, x=np.array([[0, 0], [0, np.nan], [0, 0], [0, 0]])),
        rewards=np.array([np.inf, 0, 0, 0], np.float32),
        chunk_steps=ChunkSteps(np.ones(4, int), np.array([[0, 0, -np.inf, 0]], np.float32)),
        executed=ExecutedActions(np.array([[[0], [0], [0], [np.nan]]]), np.zeros(4, bool)),
    )
    assert bad.non_finite_rows() == {
        0: "rewards", 1: "states.x", 2: "step_rewards", 3: "actions"
    }  # fmt: skip
    assert feedback().non_finite_rows() == {}
