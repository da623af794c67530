"""What one message, or the end of a connection, shows: clause by clause, told once."""

from __future__ import annotations

from plugrl_gym.conformance.checks import Severity, by_clause
from plugrl_gym.conformance.client_checks import CLIENT_CHECKS
from plugrl_gym.conformance.report import Report

__all__ = ["Witness"]

_NOTES = {
    clause for (_, clause), check in by_clause(CLIENT_CHECKS).items()
    if check.severity is Severity.NOTE
}  # fmt: skip


class Witness:
    """Gathers what is seen; however many rows a message has, a clause is reported once for it.

    Args:
        report: Where it goes.
        scenario: What the grader is doing.
        sent: What the grader sent last, in words.
        came: What the client sent, a sentence or the message itself.
    """

    def __init__(
        self, report: Report, scenario: str, sent: object = None, came: object = None
    ) -> None:
        self._report = report
        self._scenario = scenario
        self._sent = sent
        self._came = came
        self._found: dict[str, tuple[object, object] | None] = {}

    def see(self, clause: str, ok: bool, expected: object = None, got: object = None) -> bool:
        """Note whether a clause is kept; the first breach is what is reported of it."""
        if ok:
            self._found.setdefault(clause, None)
        elif self._found.get(clause) is None:
            self._found[clause] = (expected, got)
        return ok

    @property
    def clean(self) -> bool:
        """Whether no violation has been seen; notes do not count."""
        return all(found is None or clause in _NOTES for clause, found in self._found.items())

    def broken(self, *clauses: str) -> bool:
        """Whether one of these was seen broken."""
        return any(self._found.get(clause) is not None for clause in clauses)

    def tell(self) -> None:
        """Hand everything to the report."""
        for clause, found in self._found.items():
            expected, got = found or (None, None)
            self._report.observe(
                clause,
                found is None,
                sent=self._sent,
                came=self._came,
                expected=expected,
                got=got,
                scenario=self._scenario,
            )
        self._found.clear()
