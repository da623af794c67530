"""Seconds of what ``make chaos`` does for minutes: kills, cuts, stops, a full disk."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.chaos.__main__ import run_ordeal
from tests.chaos.ordeal import Plan
from tests.chaos.report import Report

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="has neither kill -STOP nor kill -9"),
    pytest.mark.timeout(600),
]
TARGETS = {"kill server": 2, "kill client": 2, "cut": 6}


def plan(seed: int, **changes: int) -> Plan:
    return Plan(
        seed=seed,
        targets={**TARGETS, **changes},
        limit=300.0,
        clients=2,
        pace=0.3,
        calm=600,
        client_options=("--liveness-timeout", 8, "--connect-timeout", 120, "--quiet"),
    )


def survived(report: Report) -> None:
    assert report.faults == []
    handed = report.verdict.stored_steps.total()
    accounted = handed + report.dropped.total() + report.in_flight + report.lost_with_clients
    assert accounted == report.executed
    assert report.verdict.true_rows > 100
    assert report.balanced >= 1
    assert report.in_final_model <= handed


def test_run_survives_kills_and_cuts_and_every_transition_is_accounted_for(tmp_path: Path) -> None:
    report = run_ordeal(tmp_path, plan(seed=1), "table")
    survived(report)
    assert report.broken["cut"] >= TARGETS["cut"]
    text = report.markdown("An ordeal", 1.0)
    assert "| false transitions | 0 |" in text


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["table", "ppo", "dqn"])
@pytest.mark.parametrize("seed", [2, 3])
def test_run_of_any_learner_survives_more_of_it(tmp_path: Path, algorithm: str, seed: int) -> None:
    targets = {"kill server": 6, "kill client": 4, "cut": 30, "disk full": 1}
    report = run_ordeal(tmp_path, plan(seed, **targets), algorithm)  # type: ignore[arg-type]
    survived(report)
    if algorithm != "table":
        assert report.buffer_rows > 100
