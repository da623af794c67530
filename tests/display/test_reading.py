"""What there is to show, in words."""

from __future__ import annotations

import doctest

import pytest

from plugrl_gym.display import Reading, pace, reading


def test_a_reading_in_full_and_as_a_bar_has_it():
    of_server = Reading(
        1200,
        10_000,
        rate=345.6,
        mean_return=1.5,
        latency=0.0012,
        clients=2,
        note="evaluation 9.0",
        activity="learning",
    )
    rest = "p50 1.2 ms, 2 clients, evaluation 9.0, learning"
    assert str(of_server) == f"1,200 of 10,000 steps, 346 steps/s, mean return 1.5, {rest}"
    assert of_server.text == f"346 steps/s, return 1.5, {rest}"


def test_what_nobody_knows_is_left_out():
    assert str(Reading(7)) == "7 steps"
    assert str(Reading(0, 5, clients=1)) == "0 of 5 steps, 1 client"
    assert str(Reading(pause="loading torch, 3 s")) == "loading torch, 3 s"


@pytest.mark.parametrize("module", [reading, pace])
def test_the_examples_in_docstrings_are_true(module):
    tried = doctest.testmod(module)
    assert (tried.failed, tried.attempted > 0) == (0, True)
