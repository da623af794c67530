"""The thread that shows readings."""

from __future__ import annotations

import threading

from plugrl_gym.display import Reading, Reporter


class Kept:
    """Remembers what it was to show."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []
        self.closed = False
        self.seen = threading.Event()

    def show(self, reading: Reading) -> None:
        self.readings.append(reading)
        self.seen.set()

    def close(self) -> None:
        self.closed = True


def test_only_news_is_shown():
    surface = Kept()
    reporter = Reporter(lambda: Reading(5), surface)
    reporter.show()
    reporter.show()
    assert surface.readings == [Reading(5)]


def test_it_shows_from_a_thread_and_once_more_at_the_end():
    surface, steps = Kept(), [1]
    with Reporter(lambda: Reading(steps[0]), surface, period=0.01):
        assert surface.seen.wait(20)
        steps[0] = 2
    assert (surface.readings[0], surface.readings[-1]) == (Reading(1), Reading(2))
    assert surface.closed


def test_a_reading_that_trips_over_other_threads_is_left_out():
    surface, readings = Kept(), iter([Reading(7)])

    def read() -> Reading:
        for reading in readings:
            return reading
        raise RuntimeError("deque mutated during iteration")

    reporter = Reporter(read, surface)
    reporter.show()
    reporter.show()
    assert surface.readings == [Reading(7)]


def test_without_a_surface_nothing_is_read():
    def read() -> Reading:
        raise AssertionError("nobody looks")

    with Reporter(read, None, period=0.001):
        pass
