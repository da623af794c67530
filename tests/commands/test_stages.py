"""Latency by stage as a table and as columns."""

from __future__ import annotations

import pytest

from plugrl_gym.commands.stages import log_columns, stage_table
from plugrl_gym.server import STAGES, RunStatistics


def test_a_table_has_milliseconds_with_three_digits():
    values = {"p50": 3.16e-05, "p95": 0.0123, "p99": 1.23, "count": 1_234_567}
    header, line = stage_table({"exchange": values}).splitlines()
    assert header.split() == ["latency,", "ms", "p50", "p95", "p99", "count"]
    assert line.split() == ["exchange", "0.0316", "12.3", "1,230", "1,234,567"]
    assert len(header) == len(line)


def test_columns_are_always_the_same_and_tell_of_the_time_since_the_last_ones():
    statistics = RunStatistics()
    statistics.latency["forward"].observe(5.0)
    columns = log_columns(statistics)
    for _ in range(3):
        statistics.latency["forward"].observe(0.001)
    first, second = columns(), columns()
    names = [f"latency/{stage}_{name}" for stage in STAGES for name in ("p50", "p95")]
    assert list(first) == list(second) == ["time/clients", "time/envs", *names]
    assert first["latency/forward_p95"] == pytest.approx(0.001, rel=0.1)
    assert first["latency/learn_p50"] is None
    assert second["latency/forward_p50"] is None


def test_columns_count_clients_and_envs_of_now():
    statistics = RunStatistics()
    columns = log_columns(statistics)
    book = statistics.enter(learning=True)
    assert columns()["time/clients"] == 1
    book.leave(0)
    assert (columns()["time/clients"], columns()["time/envs"]) == (0, 0)
