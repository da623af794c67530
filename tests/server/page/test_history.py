"""The curve stays small, and is of the whole run."""

from __future__ import annotations

from itertools import pairwise

import pytest

from plugrl_gym.server.page.history import History, Moment


def of_a_run(moments: int, most: int = 40) -> History:
    """A history of a run with 7 env steps in each half of a second."""
    history = History(most)
    for number in range(moments):
        history.add(Moment(number / 2, 7 * number, float(number)))
    return history


def test_new_history_has_nothing_to_tell() -> None:
    assert (History().moments(), History().rate()) == ([], 0.0)


@pytest.mark.parametrize("moments", [1, 2, 39, 40, 41, 42, 79, 80, 81, 1000, 12_345])
def test_history_reaches_from_the_first_moment_to_the_last_in_few_points(moments: int) -> None:
    kept = of_a_run(moments).moments()
    assert kept[0].steps == 0
    assert kept[-1].steps == 7 * (moments - 1)
    assert min(moments, 20) <= len(kept) <= 41
    assert kept == sorted(set(kept))


def test_points_are_spread_evenly() -> None:
    kept = of_a_run(10_000).moments()
    apart = {later.steps - earlier.steps for earlier, later in pairwise(kept[:-1])}
    assert len(apart) == 1


def test_pause_takes_two_points_however_long_it_is() -> None:
    history = of_a_run(10)
    before = len(history.moments())
    for second in range(5, 5000):
        history.add(Moment(float(second), 63, 9.0))
    assert len(history.moments()) == before + 1
    assert history.moments()[-1].seconds == 4999.0
    assert history.rate() == 0.0


def test_rate_is_that_of_the_last_moments() -> None:
    history = of_a_run(100)
    assert history.rate() == pytest.approx(14.0)
    for number in range(1, 21):
        history.add(Moment(49.5 + number, 693 + 100 * number, None))
    assert history.rate() == pytest.approx(100.0)


def test_clock_that_stands_still_divides_by_nothing() -> None:
    history = History()
    history.add(Moment(1.0, 0, None))
    history.add(Moment(1.0, 0, None))
    assert history.rate() == 0.0
