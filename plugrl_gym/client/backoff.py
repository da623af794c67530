"""How long to wait before the next attempt to connect (pure)."""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["Backoff"]


class Backoff:
    """Exponential backoff with full jitter, so that clients of one server do not return as one.

    Args:
        first: Seconds; the first delay is drawn from 0 to this, each next one from 0 to twice as
            much.
        longest: No delay is longer, in seconds.
        draw: A number from 0 up to 1.

    Example:
        >>> backoff = Backoff(0.2, 1.0, draw=lambda: 1.0)
        >>> [backoff.next() for _ in range(5)]
        [0.2, 0.4, 0.8, 1.0, 1.0]
    """

    def __init__(
        self, first: float, longest: float, draw: Callable[[], float] = random.random
    ) -> None:
        self._first = first
        self._longest = longest
        self._draw = draw
        self._attempts = 0

    def next(self) -> float:
        """Seconds to wait before the next attempt."""
        # The exponent is bounded so that a week of attempts cannot overflow a float.
        bound = min(self._first * 2.0 ** min(self._attempts, 32), self._longest)
        self._attempts += 1
        return bound * self._draw()

    def reset(self) -> None:
        """An attempt was of use: begin anew."""
        self._attempts = 0
