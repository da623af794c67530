"""Histograms of times: what is counted, and how far a quantile may be off."""

from __future__ import annotations

import itertools
import json
import math
import threading
from typing import Any

import numpy as np
import pytest

from plugrl_gym.latency import QUANTILES, SECONDS, Histogram, Latency

#: Half a bucket, by factors, and the rounding to three digits.
OFF = 2 ** (1 / 8) * 1.005


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0, 1.5, 2.0, 99.0])
def test_histogram_counts_a_value_at_its_bound_below_it(value):
    histogram: Any = Histogram((1.0, 2.0))
    histogram.observe(value)
    expected = [value <= 1, 1 < value <= 2, value > 2]
    assert histogram.counts == expected
    assert histogram.total == value


def test_bounds_of_times_grow_from_a_microsecond_to_18_minutes_by_less_than_a_fifth():
    factors = [later / earlier for earlier, later in itertools.pairwise(SECONDS)]
    assert SECONDS[0] == 1e-6
    assert SECONDS[-1] == pytest.approx(2**30 * 1e-6)
    assert factors == pytest.approx([2 ** (1 / 4)] * 120)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [0.01, 0.5, 3.0])
def test_quantiles_are_at_most_a_tenth_from_those_of_all_values(seed, spread):
    rng = np.random.default_rng(seed)
    values = np.exp(rng.normal(math.log(1e-3), spread, 2000)).clip(1.1e-6, 1000.0)
    histogram = Histogram()
    for value in values.tolist():
        histogram.observe(value)
    found, count = histogram.quantiles(QUANTILES.values())
    exact = np.quantile(values, list(QUANTILES.values()), method="inverted_cdf")
    assert count == 2000
    assert histogram.total == pytest.approx(values.sum())
    assert (np.maximum(found / exact, exact / found) <= OFF).all()
    assert OFF < 1.1


@pytest.mark.parametrize(("value", "told"), [(0.0, 1e-6), (1e-7, 1e-6), (1e6, 1070.0)])
def test_values_beyond_all_bounds_are_told_as_the_bound(value, told):
    histogram = Histogram()
    histogram.observe(value)
    assert histogram.quantiles([0.0, 0.5, 1.0]) == ([1e-6, told, told], 1)


def test_a_held_part_is_counted_once_with_the_next_value():
    histogram = Histogram((1.0, 2.0))
    histogram.hold(0.5)
    histogram.hold(0.25)
    assert histogram.counts == [0, 0, 0]
    histogram.observe(0.75)
    histogram.observe(0.75)
    assert (histogram.counts, histogram.total) == ([1, 1, 0], 2.25)


def test_a_snapshot_has_the_stages_that_were_measured_in_their_order_and_is_json():
    latency = Latency(["first", "never", "last"])
    latency["last"].observe(0.5)
    latency["first"].observe(0.25)
    snapshot = latency.snapshot()
    assert list(snapshot) == ["first", "last"]
    assert list(snapshot["first"]) == ["p50", "p95", "p99", "count"]
    assert json.loads(json.dumps(snapshot, allow_nan=False)) == snapshot
    assert snapshot["last"]["count"] == 1


def test_what_came_since_a_copy_is_told_apart():
    latency = Latency(["stage"])
    for _ in range(100):
        latency["stage"].observe(1.0)
    before = latency.copy()
    latency["stage"].observe(0.001)
    late = latency.since(before).snapshot()
    assert late["stage"]["count"] == 1
    assert late["stage"]["p99"] == pytest.approx(0.001, rel=0.1)
    assert before.snapshot()["stage"]["count"] == 100
    assert latency.snapshot()["stage"]["count"] == 101


def test_snapshots_taken_by_another_thread_agree_with_themselves():
    latency, stop = Latency(["stage"]), threading.Event()

    def measure() -> None:
        while not stop.is_set():
            latency["stage"].observe(0.001)

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        for _ in range(200):
            for stage in latency.snapshot().values():
                assert stage["p50"] == stage["p99"] == pytest.approx(0.001, rel=0.1)
    finally:
        stop.set()
        thread.join()


def test_memory_does_not_grow():
    histogram = Histogram()
    size = len(histogram.counts)
    for k in range(10_000):
        histogram.observe(k * 1e-5)
    assert len(histogram.counts) == size == 122
