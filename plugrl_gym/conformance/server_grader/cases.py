"""What a phase is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from plugrl_gym.conformance.server_grader.grading import Grading

__all__ = ["Case", "Phase"]


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that is tried.

    Attributes:
        name: In a few words; a user can select it by this name.
        run: Does it and observes clauses; raises ``CaseOver`` where it cannot go on.
    """

    name: str
    run: Callable[[Grading], None]


@dataclass(frozen=True, slots=True)
class Phase:
    """Cases under one name.

    Attributes:
        name: As users know it.
        cases: In the order in which they run.
        absent: Why this server or these options give no occasion for it; empty if they do.
        clauses: What is left unexercised then.
    """

    name: str
    cases: tuple[Case, ...]
    absent: Callable[[Grading], str] = lambda grading: ""
    clauses: tuple[str, ...] = ()
