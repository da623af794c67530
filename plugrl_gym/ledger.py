"""Accounts that must balance: what the books of clients and of servers share (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

__all__ = ["Account", "imbalance"]


@dataclass(slots=True)
class Account:
    """Counts since its beginning; a subclass adds fields, int or ``Counter`` by reason."""

    def add(self, other: Self) -> None:
        """Enter the sums of another account into this one."""
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            if isinstance(mine, Counter):
                mine.update(theirs)
            else:
                setattr(self, each.name, mine + theirs)

    def copy(self) -> Self:
        """The same account, on its own."""
        copied = type(self)()
        copied.add(self)
        return copied

    def flat(self) -> dict[str, int]:
        """Every count under a name of its own, as ``rows_discarded[stale]``."""
        counts: dict[str, int] = {}
        for name, value in self.to_dict().items():
            if isinstance(value, dict):
                counts |= {f"{name}[{reason}]": count for reason, count in value.items()}
            else:
                counts[name] = value
        return counts

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: dict(sorted(value.items())) if isinstance(value, Counter) else value
            for name, value in values.items()
        }

    def negative(self) -> list[str]:
        """A sentence for each count below zero."""
        return [f"{name} is {count}" for name, count in self.flat().items() if count < 0]


def imbalance(name: str, whole: int, parts: Mapping[str, int]) -> list[str]:
    """Hold a count against the sum of its parts.

    Returns:
        One sentence where they differ, else nothing.

    Example:
        >>> imbalance("chunks given", 5, {"answered": 3, "open": 1})
        ['chunks given 5 is not answered 3 + open 1']
    """
    if whole == sum(parts.values()):
        return []
    return [f"{name} {whole} is not {' + '.join(f'{key} {n}' for key, n in parts.items())}"]
