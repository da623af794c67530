"""How fast something goes, and for how long nothing has gone."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

__all__ = ["Pace", "Pause"]

_WINDOW: Final = 20.0
# A pause that is over sooner than that is not worth a word.
_NOTABLE: Final = 1.0


class Pace:
    """Steps per second over the last 20 seconds, so that it tells of now and does not flicker."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def rate(self, steps: int) -> float | None:
        """Take down that there are ``steps`` now; None at the first call."""
        now = time.monotonic()
        self._seen.append((now, steps))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _WINDOW:
            self._seen.popleft()
        since, before = self._seen[0]
        return (steps - before) / (now - since) if now > since else None


class Pause:
    """What something is busy with while it counts no steps.

    Example:
        >>> pause = Pause()
        >>> with pause("loading torch"):
        ...     pause.words(after=0.0)
        'loading torch, 0 s'
        >>> pause.words()
        ''
    """

    def __init__(self) -> None:
        self._doing: tuple[str, float] | None = None

    def begin(self, what: str) -> None:
        """From now on it is busy with ``what``."""
        self._doing = what, time.monotonic()

    def end(self) -> None:
        """It goes on."""
        self._doing = None

    @contextlib.contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """While the block runs it is busy with ``what``."""
        before = self._doing
        self.begin(what)
        try:
            yield
        finally:
            self._doing = before

    def words(self, after: float = _NOTABLE) -> str:
        """``loading torch, 12 s``; empty while nothing lasts longer than ``after`` seconds."""
        doing = self._doing
        if doing is None:
            return ""
        what, since = doing
        lasted = time.monotonic() - since
        return f"{what}, {lasted:.0f} s" if lasted >= after else ""
