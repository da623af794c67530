"""The checks and SPEC.md say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plugrl_gym.conformance.checklist import BEGIN, END, checklist, update
from plugrl_gym.conformance.checks import Check, Severity, by_clause
from plugrl_gym.conformance.cli import main
from plugrl_gym.conformance.client_checks import CLIENT_CHECKS
from plugrl_gym.conformance.server_checks import SERVER_CHECKS
from plugrl_gym.errors import UsageError
from tests.support.programs import ROOT

SPEC = (ROOT / "SPEC.md").read_text(encoding="utf-8")
_CLAUSE = re.compile(
    r"^\*\*(\d+(?:\.\d+)+)\*\* \((client|server|both)\) (.*?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL
)
CLAUSES = {number: (who, text) for number, who, text in _CLAUSE.findall(SPEC)}
PERMISSIONS = {"6.4.22", "9.2.1"}  # MAY, within limits that bind
CHECKS = (*CLIENT_CHECKS, *SERVER_CHECKS)


def test_spec_has_the_present_checklist() -> None:
    assert update(SPEC) == SPEC, "run: python -m plugrl_gym.conformance checklist --write SPEC.md"


def test_clauses_of_the_spec_are_found() -> None:
    assert len(CLAUSES) > 300
    assert CLAUSES["8.7"][0] == "server"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.subject}-{check.clause}")
def test_check_cites_a_clause_that_binds_its_subject(check: Check) -> None:
    who, text = CLAUSES[check.clause]
    assert who in (check.subject, "both")
    if check.severity is Severity.VIOLATION:
        assert "MUST" in text or check.clause in PERMISSIONS
    else:
        assert "MUST" not in text


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.subject}-{check.clause}")
def test_rule_is_one_short_line(check: Check) -> None:
    assert "\n" not in check.rule
    assert 10 < len(check.rule) <= 90
    assert not check.rule.endswith(".") or check.clause == "8.12"


def test_no_clause_is_checked_twice_for_one_subject() -> None:
    assert len(by_clause(CHECKS)) == len(CHECKS)


def test_clause_that_binds_both_in_one_way_is_one_row() -> None:
    rows = checklist().splitlines()
    assert "| 3.1 | both | violation | a frame is exactly one complete msgpack value |" in rows
    assert rows[0] == "| clause | who | severity | rule |"


def test_bar_in_a_rule_does_not_end_a_cell() -> None:
    cells = re.compile(r"(?<!\\)\|")
    assert {len(cells.findall(row)) for row in checklist().splitlines()} == {5}


def test_command_prints_the_checklist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checklist"]) == 0
    assert capsys.readouterr().out == checklist()


def test_command_writes_the_checklist(tmp_path: Path) -> None:
    path = tmp_path / "SPEC.md"
    path.write_text(f"before\n{BEGIN}\nstale\n{END}\nafter\n")
    assert main(["checklist", "--write", str(path)]) == 0
    assert path.read_text() == f"before\n{BEGIN}\n{checklist()}{END}\nafter\n"
    assert main(["checklist", "--write", str(path)]) == 0


def test_text_without_place_for_the_checklist_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="no lines"):
        update("nothing here")
    path = tmp_path / "SPEC.md"
    path.write_text("nothing here")
    assert main(["checklist", "--write", str(path)]) == 2
    assert main(["checklist", "--write", str(tmp_path / "absent.md")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
