"""Durations that callers give, in seconds."""

from __future__ import annotations

import math
from numbers import Real

from plugrl_gym.errors import UsageError

__all__ = ["check_seconds"]


def check_seconds(*, positive: bool = False, none: bool = False, **durations: object) -> None:
    """Refuse what is no duration.

    Args:
        positive: Whether zero is none.
        none: Whether None, for no limit, is one.
        **durations: By the names of the arguments that the caller gave.

    Raises:
        UsageError: One is negative, a NaN, an infinity or no number.

    Example:
        >>> check_seconds(open_timeout=2.5, close_timeout=0)
        >>> check_seconds(stall_timeout=-1, none=True)
        Traceback (most recent call last):
        plugrl_gym.errors.UsageError: stall_timeout: expected seconds from 0 up or None, got -1
    """
    wanted = f"seconds {'above 0' if positive else 'from 0 up'}{' or None' if none else ''}"
    for name, value in durations.items():
        if none and value is None:
            continue
        number = isinstance(value, Real) and not isinstance(value, bool)
        seconds = float(value) if number else math.nan  # type: ignore[arg-type]
        if not (0 < seconds < math.inf or (seconds == 0 and not positive)):
            raise UsageError(f"{name}: expected {wanted}, got {value!r}")
