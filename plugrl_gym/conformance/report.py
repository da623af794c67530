"""The outcome of grading one client or server.

Example:
    >>> from plugrl_gym.conformance.checks import Check, Severity
    >>> check = Check("2.5", "server", Severity.VIOLATION, "no text frame")
    >>> report = Report("server", [check])
    >>> report.observe("2.5", False, expected="a binary frame", got="a text frame")
    False
    >>> report.exit_code, [found.check.clause for found in report.violations]
    (1, ['2.5'])
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from plugrl_gym.conformance.checks import Check, Subject, by_clause
from plugrl_gym.conformance.evidence import Evidence, abbreviate
from plugrl_gym.conformance.findings import Finding
from plugrl_gym.conformance.formats import to_junit, to_text

__all__ = ["Report"]


class Report:
    """Counts what a grader observes, clause by clause, and says it to people and machines.

    Safe to use from several threads. A clause may be observed any number of times.

    Args:
        subject: ``"client"`` or ``"server"``.
        checks: The table of what may be observed; checks of the other subject are left out.
        target: The command or URL that is graded, for the texts.

    Attributes:
        problems: Why grading could not be done, or not be finished.
    """

    def __init__(self, subject: Subject, checks: Iterable[Check], target: str = "") -> None:
        self.subject: Subject = subject
        self.target = target
        self.problems: list[str] = []
        table = by_clause(check for check in checks if check.subject == subject)
        self._findings = {check.clause: Finding(check) for check in table.values()}
        self._lock = threading.Lock()

    def observe(
        self,
        clause: str,
        ok: bool,
        *,
        sent: object = None,
        came: object = None,
        expected: object = None,
        got: object = None,
        scenario: str = "",
    ) -> bool:
        """Record that a clause was seen kept or broken.

        Args:
            clause: Its number.
            ok: Whether it was kept.
            sent: What the grader had sent; a str is taken as a sentence about it.
            came: What the subject sent.
            expected: What the clause asks for.
            got: What there was instead.
            scenario: What the grader was doing.

        Returns:
            ``ok``, so that a caller can act on it.

        Raises:
            ValueError: The table has no such clause.
        """
        finding = self._finding(clause)
        with self._lock:
            if ok:
                finding.passed += 1
            else:
                parts = [abbreviate(part) for part in (sent, came, expected, got)]
                finding.add_failure(Evidence(scenario, *parts))
        return ok

    def problem(self, text: str) -> None:
        """Record that the subject could not be graded, in a sentence; this is a failure."""
        with self._lock:
            line = abbreviate(text)
            if line not in self.problems:
                self.problems.append(line)

    def skip(self, reason: str, *clauses: str) -> None:
        """Tell why clauses get no occasion; of no effect on those that had one."""
        for clause in clauses:
            self._finding(clause).reason = reason

    def _finding(self, clause: str) -> Finding:
        finding = self._findings.get(clause)
        if finding is None:
            raise ValueError(f"no check of the {self.subject} for clause {clause}")
        return finding

    @property
    def findings(self) -> list[Finding]:
        """All clauses in the order of SPEC.md."""
        return list(self._findings.values())

    def _with_result(self, result: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.result == result]

    @property
    def violations(self) -> list[Finding]:
        """The clauses that were found broken."""
        return self._with_result("violated")

    @property
    def notes(self) -> list[Finding]:
        """What is legal but departs from a SHOULD or from custom."""
        return self._with_result("noted")

    @property
    def not_exercised(self) -> list[Finding]:
        """The clauses that this run gave no occasion to look at."""
        return self._with_result("not exercised")

    @property
    def exit_code(self) -> int:
        """0, or 1 after a violation or where grading could not be done."""
        return 1 if self.violations or self.problems else 0

    def to_text(self) -> str:
        """The report for people."""
        return to_text(self.subject, self.target, self.problems, self.findings)

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {
            "subject": self.subject,
            "target": self.target,
            "conforms": self.exit_code == 0,
            "problems": list(self.problems),
            "violations": [finding.check.clause for finding in self.violations],
            "notes": [finding.check.clause for finding in self.notes],
            "not_exercised": [finding.check.clause for finding in self.not_exercised],
            "clauses": [finding.to_json() for finding in self.findings],
        }

    def to_junit(self) -> str:
        """The report as JUnit XML: one testcase for each clause."""
        return to_junit(self.subject, self.target, self.problems, self.findings)
