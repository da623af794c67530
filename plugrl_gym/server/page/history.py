"""The curve of a run in a bounded number of points (pure)."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

__all__ = ["History", "Moment"]

_RECENT: Final = 20


class Moment(NamedTuple):
    """A run at one moment.

    Attributes:
        seconds: Since the server began to listen.
        steps: Env steps so far.
        mean_return: Of the last 100 episodes; None before the first ends.
    """

    seconds: float
    steps: int
    mean_return: float | None


class History:
    """Keeps moments that are spread over the whole run, fewer of each part the longer it gets.

    Args:
        most: How many at most; even.

    Example:
        >>> history = History(most=4)
        >>> for second in range(9):
        ...     history.add(Moment(float(second), 10 * second, None))
        >>> [moment.seconds for moment in history.moments()]
        [0.0, 4.0, 8.0]
        >>> history.rate()
        10.0
    """

    def __init__(self, most: int = 400) -> None:
        self._most = most
        self._kept: list[Moment] = []
        self._left_out = 0
        self._between = 0
        self._recent: deque[Moment] = deque(maxlen=_RECENT + 1)

    def add(self, moment: Moment) -> None:
        """Take down a moment, the latest so far; they are to come at a steady pace."""
        self._recent.append(moment)
        kept = self._kept
        if len(kept) > 1 and kept[-2].steps == kept[-1].steps == moment.steps:
            kept[-1] = moment  # nothing moves: the two ends of a pause tell all of it
        elif kept and self._left_out < self._between:
            self._left_out += 1
        else:
            kept.append(moment)
            self._left_out = 0
            if len(kept) > self._most:
                del kept[1::2]
                self._between = 2 * self._between + 1

    def moments(self) -> list[Moment]:
        """Those that were kept, oldest first, and the latest."""
        latest = list(self._recent)[-1:]
        return self._kept if latest == self._kept[-1:] else self._kept + latest

    def rate(self) -> float:
        """Env steps per second over the last twenty moments; 0 before there are two."""
        if len(self._recent) < 2:
            return 0.0
        first, last = self._recent[0], self._recent[-1]
        return (last.steps - first.steps) / max(last.seconds - first.seconds, 1e-9)
