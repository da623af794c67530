"""Info of many envs as one map, and as one for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from plugrl_gym.broker.info import join_info, split_info


def test_numbers_of_one_shape_become_an_array_with_zeros_in_the_gaps() -> None:
    joined = join_info([{"x": 1}, {}, {"x": 2.5}])
    assert joined["x"].tolist() == [1.0, 0.0, 2.5]
    assert joined["_x"].tolist() == [True, False, True]


def test_anything_else_becomes_an_object_array_with_none_in_the_gaps() -> None:
    joined = join_info([{"x": "go", "y": np.zeros(2)}, {"y": np.zeros(3)}])
    assert joined["x"].tolist() == ["go", None]
    assert joined["y"].dtype == object
    assert [len(each) for each in joined["y"]] == [2, 3]


def test_maps_are_joined_one_level_down() -> None:
    joined = join_info([{}, {"episode": {"r": 3.0, "l": 2}}])
    assert joined["_episode"].tolist() == [False, True]
    assert joined["episode"]["r"].tolist() == [0.0, 3.0]
    assert joined["episode"]["_l"].tolist() == [False, True]


def test_terminal_observations_stay_single_even_where_they_are_maps_or_tuples() -> None:
    finals: list[dict[str, Any]] = [{"final_obs": {"a": 1}}, {}, {"final_obs": (1, 2)}]
    assert join_info(finals)["final_obs"].tolist() == [{"a": 1}, None, (1, 2)]


def test_what_was_joined_can_be_split_again() -> None:
    rows: list[dict[str, Any]] = [
        {"x": 1, "word": "a", "episode": {"r": 1.5}},
        {},
        {"x": 3, "final_obs": {"eye": 0}, "list": [1, 2]},
    ]
    assert split_info(join_info(rows), 3) == rows


def test_info_of_a_foreign_client_is_split_where_it_can_be() -> None:
    info = {
        "speed": np.array([1.0, 2.0]),
        "note": "for all",
        "names": ["a", "b"],
        "short": np.array([1.0]),
        "deep": {"q": np.array([5, 6]), "r": np.zeros(3)},
        "_word": "no mask",
        "_speeds": np.ones((2, 3)),
    }
    assert split_info(info, 2) == [
        {"speed": 1.0, "names": "a", "deep": {"q": 5}},
        {"speed": 2.0, "names": "b", "deep": {"q": 6}},
    ]
