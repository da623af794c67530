"""Each bug of the reference server is named by exactly the clauses that it breaks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from plugrl_gym.conformance import Report
from plugrl_gym.conformance.server_checks import SERVER_CHECKS
from tests.conformance.server_mutations import NAMED, WITHOUT_CLAUSE, grade_bug
from tests.support.programs import ROOT

Grade = Callable[[str], Report]


def bugs() -> dict[str, str]:
    """The bugs that the reference server has."""
    sys.path.insert(0, str(ROOT / "servers"))
    try:
        from reference_bugs import BUGS
    finally:
        sys.path.remove(str(ROOT / "servers"))
    return dict(BUGS)


def named(report: Report) -> set[str]:
    return {found.check.clause for found in (*report.violations, *report.notes)}


@pytest.fixture(scope="module")
def quick(request: pytest.FixtureRequest) -> Iterator[Grade]:
    """Grades each selected bug in the cases that find it, two of them at a time."""
    wanted = [
        item.callspec.params["bug"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.originalname == TEST
        and item.path == request.path
    ]
    with ThreadPoolExecutor(2) as pool:
        futures: dict[str, Future[Report]] = {
            bug: pool.submit(grade_bug, bug, NAMED[bug][1].split("; ")) for bug in wanted
        }
        yield lambda bug: futures[bug].result()
        for future in futures.values():
            future.cancel()


TEST = "test_bug_is_named_by_exactly_the_clauses_that_it_breaks"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", NAMED)
def test_bug_is_named_by_exactly_the_clauses_that_it_breaks(bug: str, quick: Grade) -> None:
    report = quick(bug)
    assert named(report) == set(NAMED[bug][0].split()), report.to_text()


@pytest.mark.full
@pytest.mark.parametrize("bug", NAMED)
def test_bug_is_named_by_the_same_clauses_in_all_phases(bug: str) -> None:
    report = grade_bug(bug)
    assert named(report) == set(NAMED[bug][0].split()), report.to_text()


def test_every_bug_is_in_the_table() -> None:
    assert NAMED.keys() == bugs().keys()


def test_every_check_is_failed_by_some_bug() -> None:
    failed = {clause for clauses, _ in NAMED.values() for clause in clauses.split()}
    assert failed == {check.clause for check in SERVER_CHECKS}


def test_bug_without_a_clause_is_accounted_for() -> None:
    assert {bug for bug, (clauses, _) in NAMED.items() if not clauses} == WITHOUT_CLAUSE.keys()


def test_server_that_never_stops_is_a_problem() -> None:
    (problem,) = grade_bug("never-stops", "stop").problems
    assert "did not end the run" in problem
