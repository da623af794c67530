"""What a check is: one clause of SPEC.md, whom it binds, and how much it matters.

``client_checks.CLIENT_CHECKS`` and ``server_checks.SERVER_CHECKS`` are the two tables; the
checklist in SPEC.md section 11 is generated from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

__all__ = ["Check", "Severity", "Subject", "by_clause", "clause_order"]

Subject: TypeAlias = Literal["client", "server"]


class Severity(StrEnum):
    """What a failed check means."""

    VIOLATION = "violation"  # a MUST or MUST NOT is broken: the subject does not conform
    NOTE = "note"  # legal, but departs from a SHOULD or from custom: fails nobody


@dataclass(frozen=True)
class Check:
    """One clause as the graders look at it.

    Attributes:
        clause: Its number in SPEC.md, such as ``"8.4"`` or ``"9.2.7"``.
        subject: Whom it binds here; a clause that binds both is two checks.
        severity: What breaking it means.
        rule: The clause in one line.
    """

    clause: str
    subject: Subject
    severity: Severity
    rule: str


def by_clause(checks: Iterable[Check]) -> Mapping[tuple[Subject, str], Check]:
    """The checks under (subject, clause), in the order of SPEC.md.

    Raises:
        ValueError: Two checks share subject and clause.
    """
    table: dict[tuple[Subject, str], Check] = {}
    for check in sorted(checks, key=lambda check: (clause_order(check.clause), check.subject)):
        key = (check.subject, check.clause)
        if key in table:
            raise ValueError(f"two checks of the {check.subject} for clause {check.clause}")
        table[key] = check
    return table


def clause_order(clause: str) -> tuple[int, ...]:
    """Sorts clause numbers as numbers: 4.9 comes before 4.10."""
    return tuple(int(part) for part in clause.split("."))
