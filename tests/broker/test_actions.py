"""What a trainer may answer with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from plugrl_gym.broker.actions import read_actions, read_slots
from plugrl_gym.errors import UsageError
from plugrl_gym.spaces import ActionLayout

BOX = ActionLayout(spaces.Box(-1, 1, (2,)))
DISCRETE = ActionLayout(spaces.Discrete(3, start=1))


@pytest.mark.parametrize(
    ("given", "horizon", "layout", "shape"),
    [
        ([[0.5, 2.0], [0, 0]], 1, BOX, (1, 2, 2)),
        (np.zeros((1, 2, 2)), 1, BOX, (1, 2, 2)),
        (np.zeros((4, 2, 2), np.float64), 4, BOX, (4, 2, 2)),
        ([1, 3], 1, DISCRETE, (1, 2)),
        ([[1, 2], [3, 1]], 2, DISCRETE, (2, 2)),
        (np.array([1.0, 2.0]), 1, DISCRETE, (1, 2)),
    ],
)
def test_actions_come_as_a_chunk_of_the_space_s_dtype(
    given: Any, horizon: int, layout: ActionLayout, shape: tuple[int, ...]
) -> None:
    read = read_actions(given, [0, 1], horizon, layout)
    assert (read.shape, read.dtype) == (shape, layout.dtype)


def test_a_number_outside_a_box_is_let_through() -> None:
    assert read_actions([[7.0, 0.0]], [0], 1, BOX)[0, 0, 0] == 7.0


@pytest.mark.parametrize(
    ("given", "horizon", "layout", "words"),
    [
        ([[0.0], [0.0]], 1, BOX, r"expected numbers \[2, 2\] or \[1, 2, 2\] for 2 slots"),
        (np.zeros((2, 2)), 3, BOX, r"expected numbers \[3, 2, 2\] for 2 slots"),
        ([["a", "b"], ["c", "d"]], 1, BOX, "expected numbers"),
        ([[0.0, 0.0], [0.0]], 1, BOX, "actions: expected one array"),
        ([[0.0, 0.0], [np.nan, 0.0]], 1, BOX, "slot 9 would get nan"),
        ([[0.0, 1e300], [0.0, 0.0]], 1, BOX, r"slot 4 would get 1e\+300"),
        ([1, 0], 1, DISCRETE, "slot 9 would get 0, which is not in Discrete"),
        ([4, 1], 1, DISCRETE, "slot 4 would get 4"),
        ([1.5, 1.0], 1, DISCRETE, "slot 4 would get 1.5"),
    ],
)
def test_actions_that_the_space_cannot_hold_are_refused_by_name(
    given: Any, horizon: int, layout: ActionLayout, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        read_actions(given, [4, 9], horizon, layout)


def test_slots_are_distinct_integers() -> None:
    assert read_slots(np.array([3, 1])) == [3, 1]
    assert read_slots([]) == []
    assert read_slots(2) == [2]
    with pytest.raises(UsageError, match="named twice"):
        read_slots([1, 1])
    with pytest.raises(UsageError, match="expected integers"):
        read_slots([0.5])
    with pytest.raises(UsageError, match="slots: expected one array"):
        read_slots([[1], [2, 3]])
