"""The table of checked clauses that stands in section 11 of SPEC.md."""

from __future__ import annotations

from typing import Final

from plugrl_gym.conformance.checks import Check, by_clause, clause_order
from plugrl_gym.conformance.client_checks import CLIENT_CHECKS
from plugrl_gym.conformance.server_checks import SERVER_CHECKS
from plugrl_gym.errors import UsageError

__all__ = ["BEGIN", "END", "checklist", "update"]

BEGIN: Final = "<!-- checklist:begin -->"
END: Final = "<!-- checklist:end -->"


def checklist() -> str:
    """All checks as a Markdown table, in the order of the clauses."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    checks = by_clause((*CLIENT_CHECKS, *SERVER_CHECKS)).values()
    for check in sorted(checks, key=_order):
        key = (check.clause, str(check.severity), check.rule)
        rows.setdefault(key, []).append(check.subject)
    lines = ["| clause | who | severity | rule |", "|---|---|---|---|"]
    for (clause, severity, rule), subjects in rows.items():
        who = "both" if len(subjects) > 1 else subjects[0]
        lines.append(f"| {clause} | {who} | {severity} | {_escaped(rule)} |")
    return "\n".join(lines) + "\n"


def _order(check: Check) -> tuple[tuple[int, ...], str]:
    return clause_order(check.clause), check.subject


def _escaped(rule: str) -> str:
    for mark in ("|", "*", "<", "__"):
        rule = rule.replace(mark, "".join(f"\\{character}" for character in mark))
    return rule


def update(spec: str) -> str:
    """The text of SPEC.md with its checklist replaced by the present one.

    Raises:
        UsageError: It has no place for one.
    """
    before, begin, rest = spec.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"the text has no lines {BEGIN} and {END}")
    return f"{before}{begin}{checklist()}{end}{after}"
