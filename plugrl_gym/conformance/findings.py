"""What is known of one clause after grading."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from plugrl_gym.conformance.checks import Check, Severity
from plugrl_gym.conformance.evidence import Evidence

__all__ = ["EVIDENCE_KEPT", "Finding"]

#: Failures of one clause that are kept in full; the rest are counted.
EVIDENCE_KEPT = 3


@dataclass
class Finding:
    """What is known of one clause.

    Attributes:
        check: The clause.
        passed, failed: How often it was found kept, and broken.
        scenarios: Where it was found broken, and how often.
        evidence: The first few failures, of as many scenarios as possible.
        reason: Why it was not exercised, where that is known.
    """

    check: Check
    passed: int = 0
    failed: int = 0
    scenarios: Counter[str] = field(default_factory=Counter)
    evidence: list[Evidence] = field(default_factory=list)
    reason: str = ""

    @property
    def result(self) -> str:
        """``passed``, ``violated``, ``noted`` or ``not exercised``."""
        if self.failed:
            return "violated" if self.check.severity is Severity.VIOLATION else "noted"
        return "passed" if self.passed else "not exercised"

    def add_failure(self, evidence: Evidence) -> None:
        """Count a failure; of the evidence, a few pieces are kept, of as many scenarios."""
        self.failed += 1
        self.scenarios[evidence.scenario] += 1
        if len(self.evidence) == EVIDENCE_KEPT and self.scenarios[evidence.scenario] == 1:
            kept = Counter(piece.scenario for piece in self.evidence)
            repeated = [n for n, e in enumerate(self.evidence) if kept[e.scenario] > 1]
            if repeated:
                del self.evidence[repeated[-1]]
        if len(self.evidence) < EVIDENCE_KEPT:
            self.evidence.append(evidence)

    def to_json(self) -> dict[str, Any]:
        """The finding as plain JSON values."""
        return {
            "clause": self.check.clause,
            "severity": str(self.check.severity),
            "rule": self.check.rule,
            "result": self.result,
            "passed": self.passed,
            "failed": self.failed,
            "scenarios": dict(self.scenarios),
            "evidence": [{"scenario": e.scenario, **dict(e.lines())} for e in self.evidence],
            "reason": self.reason if self.result == "not exercised" else "",
        }
