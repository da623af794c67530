"""Batches of any structure."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from plugrl_gym.broker import trees

SPACE = spaces.Dict(
    {
        "arm": spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(4)]),
        "say": spaces.Text(5),
    }
)
BATCH = {
    "arm": (np.arange(6, dtype=np.float32).reshape(3, 2), np.array([0, 1, 2])),
    "say": ("a", "b", "c"),
}


def test_rows_are_taken_in_order() -> None:
    taken = trees.take(SPACE, BATCH, [2, 0])
    assert taken["arm"][0].tolist() == [[4, 5], [0, 1]]
    assert taken["arm"][1].tolist() == [2, 0]
    assert taken["say"] == ("c", "a")


def test_batches_are_joined_one_after_the_other() -> None:
    joined = trees.join(SPACE, [BATCH, trees.take(SPACE, BATCH, [1])])
    assert joined["arm"][1].tolist() == [0, 1, 2, 1]
    assert joined["say"] == ("a", "b", "c", "b")


def test_rows_are_put_into_a_copy() -> None:
    replaced = trees.put(SPACE, BATCH, [0, 1], trees.take(SPACE, BATCH, [2, 0]))
    assert replaced["arm"][1].tolist() == [2, 0, 2]
    assert replaced["say"] == ("c", "a", "c")
    assert BATCH["say"] == ("a", "b", "c")
    assert BATCH["arm"][1].tolist() == [0, 1, 2]


def test_a_copy_has_memory_of_its_own() -> None:
    copied = trees.copy(SPACE, BATCH)
    copied["arm"][0][:] = 0
    assert BATCH["arm"][0].any()
    assert copied["say"] == BATCH["say"]


def test_an_empty_batch_has_the_structure_and_no_row() -> None:
    nothing = trees.empty(SPACE)
    assert nothing["arm"][0].shape == (0, 2)
    assert nothing["say"] == ()
