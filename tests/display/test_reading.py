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
    assert of_server.text() == f"346 steps/s, return 1.5, {rest}"


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (62, "346 steps/s, return 1.5, p50 1.2 ms, 2 clients, note, learning"),
        (61, "346 steps/s, return 1.5, 2 clients, note, learning"),
        (49, "346 steps/s, return 1.5, note, learning"),
        (38, "346 steps/s, return 1.5, learning"),
        (32, "return 1.5, learning"),
        (19, "learning"),
        (1, "learning"),
        (-9, "learning"),
    ],
)
def test_where_room_is_short_what_is_of_least_interest_is_left_out(room, expected):
    of_server = Reading(1200, None, 345.6, 3, 1.5, 0.0012, 2, note="note", activity="learning")
    assert of_server.text(room) == expected


def test_why_nothing_moves_is_left_out_last():
    waiting = Reading(7, rate=0.0, mean_return=9.0, pause="waiting for the server, 12 s")
    assert waiting.text(room=10) == "waiting for the server, 12 s"


def test_what_nobody_knows_is_left_out():
    assert str(Reading(7)) == "7 steps"
    assert str(Reading(0, 5, clients=1)) == "0 of 5 steps, 1 client"
    assert str(Reading(pause="loading torch, 3 s")) == "loading torch, 3 s"


@pytest.mark.parametrize("module", [reading, pace])
def test_the_examples_in_docstrings_are_true(module):
    tried = doctest.testmod(module)
    assert (tried.failed, tried.attempted > 0) == (0, True)
