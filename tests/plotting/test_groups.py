"""Which runs are one curve, and what that curve is."""

from __future__ import annotations

import numpy as np
import pytest

from plugrl_gym.plotting.groups import group_runs, spread
from plugrl_gym.plotting.runs import read_run
from tests.support.run_dirs import write_run


def line(x, y):
    return np.array(x, np.float64), np.array(y, np.float64)


def grouped(tmp_path, *settings):
    runs = [
        read_run(write_run(tmp_path / str(number), **chosen))
        for number, chosen in enumerate(settings)
    ]
    return [(group.told, [run.seed for run in group.runs]) for group in group_runs(runs)]


def test_runs_that_differ_in_their_seed_alone_are_one_group(tmp_path):
    assert grouped(
        tmp_path,
        {"seed": 0},
        {"seed": 0, "algorithm": "a2c"},
        {"seed": 1},
        {"seed": 0, "env_id": "Pendulum-v1"},
        {"seed": 2},
    ) == [("ppo (3 runs)", [0, 1, 2]), ("a2c", [0]), ("ppo", [0])]


def test_runs_with_other_settings_are_told_apart_by_them(tmp_path):
    assert grouped(tmp_path, {}, {"horizon": 4}, {"horizon": 4, "seed": 1}) == [
        ("ppo, horizon=1", [0]),
        ("ppo, horizon=4 (2 runs)", [0, 1]),
    ]


def test_runs_with_many_other_settings_are_told_apart_by_a_run(tmp_path):
    other = {"horizon": 4, "normalize": True, "preset": "none", "async_learn": True}
    same = {"normalize": False, "preset": "auto", "async_learn": False}
    assert grouped(tmp_path, same, other, {**other, "seed": 1}) == [
        (f"ppo, settings of {tmp_path / '0'}", [0]),
        (f"ppo, settings of {tmp_path / '1'} (2 runs)", [0, 1]),
    ]


def test_groups_of_two_envs_with_one_label_have_one_number(tmp_path):
    envs = [("CartPole-v1", "ppo"), ("CartPole-v1", "a2c"), ("Pendulum-v1", "a2c")]
    runs = [
        read_run(write_run(tmp_path / str(place), env_id=env_id, algorithm=algorithm))
        for place, (env_id, algorithm) in enumerate(envs)
    ]
    assert [(group.number, group.told_with_env) for group in group_runs(runs)] == [
        (0, "CartPole-v1, ppo"),
        (1, "CartPole-v1, a2c"),
        (1, "Pendulum-v1, a2c"),
    ]


def test_how_often_a_run_saves_makes_it_no_other(tmp_path):
    assert grouped(tmp_path, {"save_every": 1}, {"save_every": 2}) == [("ppo (2 runs)", [0, 0])]


def test_the_middle_is_the_median_and_the_band_holds_all():
    x = [0, 10, 20]
    lines = [line(x, [0, 1, 5]), line(x, [2, 7, 6]), line(x, [1, 3, 100])]
    curve = spread(lines, (0.0, 1.0))
    assert curve.x.tolist() == x
    assert curve.middle.tolist() == [1, 3, 6]
    assert curve.low.tolist() == [0, 1, 5]
    assert curve.high.tolist() == [2, 7, 100]


def test_a_band_of_quartiles_holds_the_middle_half():
    lines = [line([0], [value]) for value in (0, 1, 2, 3, 4)]
    curve = spread(lines, (0.25, 0.75))
    assert (curve.low[0], curve.middle[0], curve.high[0]) == (1, 2, 3)


def test_lines_of_different_places_meet_where_all_are_known():
    curve = spread([line([0, 10], [0, 10]), line([5, 15], [25, 15])], (0.0, 1.0))
    assert curve.x.tolist() == [5, 10]
    assert curve.low.tolist() == [5, 10]
    assert curve.high.tolist() == [25, 20]
    assert curve.middle.tolist() == [15, 15]


def test_lines_without_a_place_in_common_have_no_curve():
    assert spread([line([0, 1], [0, 0]), line([2, 3], [0, 0])], (0.0, 1.0)) is None


def test_a_long_log_is_thinned():
    x = np.arange(10_000.0)
    curve = spread([(x, 2 * x)], (0.0, 1.0))
    assert len(curve.x) == 400
    assert curve.middle == pytest.approx(2 * curve.x)
    assert (curve.x[0], curve.x[-1]) == (0, 9999)
