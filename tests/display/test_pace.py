"""How fast something goes, and for how long nothing has gone."""

from __future__ import annotations

import pytest

from plugrl_gym.display import Pace, Pause


@pytest.fixture
def now(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    return clock


def test_a_rate_counts_from_the_first_reading(now):
    pace = Pace()
    assert pace.rate(5000) is None  # a run that goes on did not make these just now
    now[0] += 2.0
    assert pace.rate(5100) == 50.0


def test_a_rate_is_that_of_the_last_twenty_seconds(now):
    pace = Pace()
    pace.rate(0)
    for second in range(1, 61):
        now[0] = 100.0 + second
        rate = pace.rate(1000 + second if second > 30 else 100 * second)
    assert rate == 1.0


def test_a_pause_has_words_once_it_is_worth_one(now):
    pause = Pause()
    with pause("saving"):
        now[0] += 0.9
        assert pause.words() == ""
        now[0] += 2.1
        assert pause.words() == "saving, 3 s"
    assert pause.words() == ""


def test_a_pause_within_a_pause_leaves_the_outer_one(now):
    pause = Pause()
    pause.begin("waiting")
    with pause("saving"):
        assert pause.words(after=0.0) == "saving, 0 s"
    now[0] += 4.0
    assert pause.words() == "waiting, 4 s"
    pause.end()
    assert pause.words() == ""
