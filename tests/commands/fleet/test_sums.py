"""The results of several client processes as one."""

from __future__ import annotations

import doctest

import pytest

from plugrl_gym.commands.fleet import sums
from plugrl_gym.commands.fleet.sums import mean_return, summed, summed_books


def result(steps, episodes, mean, **more):
    return {
        "env_steps": steps,
        "overridden_steps": 1,
        "episodes": episodes,
        "mean_return": mean,
        "mean_length": mean,
        "steps_per_second": 1.0,
        "wall_seconds": 9.0,
        "chunks_received": steps,
        "chunks_dropped": 2,
        "connections": 1,
        "finished": True,
        "books": {"env_steps": steps, "chunks_dropped": {"run over": 2}, "errors": []},
        **more,
    }


def test_counts_add_up_and_means_are_weighted():
    total = summed([result(30, 1, 10.0), result(70, 3, 20.0)], wall_seconds=4.0)
    assert total["env_steps"] == 100
    assert total["episodes"] == 4
    assert total["overridden_steps"] == 2
    assert total["mean_return"] == total["mean_length"] == 17.5
    assert (total["steps_per_second"], total["wall_seconds"]) == (25.0, 4.0)
    assert total["finished"] is True
    assert total["books"] == {"env_steps": 100, "chunks_dropped": {"run over": 4}, "errors": []}


def test_what_a_process_took_along_is_missing():
    died = {"env_steps": 5, "episodes": 0, "mean_return": None}
    total = summed([result(30, 1, 10.0), died], wall_seconds=1.0)
    assert (total["env_steps"], total["mean_return"], total["finished"]) == (35, 10.0, False)
    assert total["books"]["env_steps"] == 30


def test_a_mean_of_a_hundred_episodes_weighs_no_more_than_that():
    assert mean_return([(100_000, 1.0), (100, 3.0)]) == 2.0
    assert mean_return([(0, None)]) is None


def test_books_that_do_not_balance_name_the_process():
    books = {"env_steps": 1, "errors": ["env steps 1 is not fed back 0"]}
    assert summed_books([None, books])["errors"] == ["process 2: env steps 1 is not fed back 0"]


def test_evaluations_are_judged_over_all_episodes():
    one = {"returns": (1.0, 3.0), "lengths": (4, 6), "env_steps": 10, "finished": False}
    two = {"returns": (5.0,), "lengths": (5,), "env_steps": 5, "finished": False}
    total = summed([one, two], wall_seconds=1.0)
    assert (total["episodes"], total["mean_return"], total["env_steps"]) == (3, 3.0, 15)
    assert total["std_return"] == pytest.approx((8 / 3) ** 0.5)


def test_the_examples_in_docstrings_are_true():
    tried = doctest.testmod(sums)
    assert (tried.failed, tried.attempted > 0) == (0, True)


def test_of_no_process_nothing_is_finished():
    assert not summed([], 1.0)["finished"]
