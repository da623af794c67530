"""How several processes are shown, and how one of them ended."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

import pytest

from plugrl_gym.commands.fleet.member import Member
from plugrl_gym.commands.fleet.table import final_table, summed_reading
from plugrl_gym.display import Reading

PROG = "plugrl-gym rollout"


@dataclass
class Child:
    """A process, as far as a table needs it."""

    code: int | None = None
    reading: Reading | None = None
    result: dict[str, Any] | None = None
    said: str = ""

    def release(self):
        """Asked to end, it does."""
        self.code = 130


def member(number=1, **child):
    return Member(number, Child(**child), PROG)


@pytest.mark.parametrize(
    ("child", "end"),
    [
        ({"code": 0, "result": {"finished": True}}, "the server ended the run"),
        ({"code": 0, "result": {"finished": False}}, "done"),
        ({"code": 130}, "interrupted"),
        ({"code": 2, "said": f"{PROG}: no server"}, "died: no server (exit code 2)"),
        ({"code": 1, "said": "RuntimeError: crash"}, "died: RuntimeError: crash (exit code 1)"),
        ({"code": 3}, "died: ended with exit code 3"),
        ({"reading": Reading(3, pause="waiting")}, "waiting"),
    ],
)
def test_an_end_is_named_with_its_reason(child, end):
    assert member(**child).end() == end


@pytest.mark.skipif(os.name != "posix", reason="only POSIX has signals")
def test_a_signal_is_named():
    killed = member(code=-signal.SIGKILL)
    assert killed.end() == "died: killed by signal 9 (SIGKILL)"
    assert killed.died


def test_to_be_interrupted_or_to_run_is_no_death():
    assert not any(member(code=code).died for code in (None, 0, 130))


@pytest.mark.parametrize("reading", [None, Reading(0), Reading(7, pause="waiting for a server")])
def test_one_that_is_away_when_the_run_is_over_is_let_go(reading):
    late = member(reading=reading)
    late.let_go_if_away()
    assert late.end() == "was away when the run ended"
    assert not late.died
    assert late.counts()["finished"]


def test_one_that_is_let_go_tells_what_it_did():
    late = member(reading=Reading(7, pause="waiting for a server"))
    late.let_go_if_away()
    late.child.result = {"env_steps": 7, "finished": False}
    assert late.counts() == {"env_steps": 7, "finished": True}


def test_one_that_still_steps_when_the_run_is_over_is_not_let_go():
    busy = member(reading=Reading(7))
    busy.let_go_if_away()
    assert busy.running
    assert not busy.counts()["finished"]


def test_a_reading_sums_up_and_has_a_line_for_each():
    members = [
        member(1, reading=Reading(1000, rate=50.0, episodes=1, mean_return=10.0, latency=0.001)),
        member(2, reading=Reading(2000, rate=70.0, episodes=3, mean_return=20.0, latency=0.003)),
        member(3, code=-9, reading=Reading(10, rate=99.0)),
    ]
    reading = summed_reading(members, 9000, seconds=5.0)
    said = "3,010 of 9,000 steps, 120 steps/s, mean return 17.5, p50 3.0 ms, 2 of 3 processes"
    assert str(reading) == said
    header, first, second, third = reading.table
    assert header == "process    env steps   episodes   mean return    steps/s"
    assert first == "      1        1,000          1          10.0         50"
    assert second == "      2        2,000          3          20.0         70"
    assert third.startswith("      3           10          0                           died: ")


def test_before_the_first_step_it_says_what_is_waited_for():
    waiting = Reading(pause="waiting for a server, 3 s")
    members = [member(1, reading=waiting), member(2)]
    assert str(summed_reading(members, None, 4.2)) == "2 of 2 processes: starting, 4 s"
    members[1].child.reading = waiting
    assert str(summed_reading(members, None, 4.2)) == "2 of 2 processes: waiting for a server, 3 s"


def test_the_last_table_tells_every_end_and_the_sum():
    result = {"env_steps": 1200, "episodes": 4, "mean_return": 9.0, "steps_per_second": 80.0}
    members = [
        member(1, code=0, result={**result, "finished": True}),
        member(2, code=1, reading=Reading(7), said="RuntimeError: crash"),
    ]
    lines = final_table(members, {**result, "env_steps": 1207}).splitlines()
    assert lines == [
        "process    env steps   episodes   mean return    steps/s  end",
        "      1        1,200          4           9.0         80  the server ended the run",
        "      2            7          0                           "
        "died: RuntimeError: crash (exit code 1)",
        "    sum        1,207          4           9.0         80",
    ]
