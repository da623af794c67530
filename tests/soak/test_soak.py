"""The soak's verdict: what has grown, and what is only warm."""

from __future__ import annotations

import sys

import pytest

from tests.soak.__main__ import Samples, _child, _told, soak

MB = 2**20


def samples(memory: list[float], files: list[int]) -> Samples:
    return Samples("server", [int(mb * MB) for mb in memory], files)


FLAT = [11] * 16
WARMING = [50.0, 80.0, 90.0, 95.0, *[100.0] * 12]


def test_process_that_only_warms_up_is_flat() -> None:
    assert samples(WARMING, FLAT).faults() == []


def test_memory_that_keeps_growing_is_a_fault() -> None:
    (fault,) = samples([100.0 + 2 * k for k in range(16)], FLAT).faults()
    assert fault == "server: memory grew from 111 to 127 MB"


def test_files_that_stay_open_are_a_fault() -> None:
    (fault,) = samples([100.0] * 16, list(range(10, 42, 2))).faults()
    assert fault == "server: open files grew from 21 to 37"


def test_too_few_samples_are_no_verdict() -> None:
    few = samples([100.0] * 7, [11] * 7)
    assert few.faults() == ["server: only 7 samples"]
    assert "7 samples" in few.row()


def test_clients_that_die_are_a_fault() -> None:
    with _child("-c", "raise SystemExit(3)", stdout=-1, stdin=-1) as visitor:
        assert _told(visitor)["errors"] == ["clients died with exit code 3"]


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_half_a_minute_of_it_is_flat() -> None:
    text, faults = soak(30.0, clients=8, algorithm="random", seed=0)
    assert faults == []
    assert "Verdict: flat." in text
