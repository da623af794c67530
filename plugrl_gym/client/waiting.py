"""What a client waits for just now."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from plugrl_gym.notices import FIRST_NOTICE, log_wait

__all__ = ["Waiting"]

# While a wait goes on it is told once a second.
_STALE_SECONDS: Final = 2.0


class Waiting:
    """Remembers the wait of now, and tells of a long one.

    Args:
        on_wait: Called once a second, from the fifth second on, with the seconds waited and what
            for.

    Attributes:
        silent: Leave ``on_wait`` out, for a live line shows the wait.
    """

    def __init__(self, on_wait: Callable[[float, str], None] = log_wait) -> None:
        self.silent = False
        self._on_wait = on_wait
        self._notice: tuple[float, float, str] | None = None

    def __call__(self, seconds: float, what: str) -> None:
        """The client waits for ``what``, ``seconds`` so far; called once a second."""
        self._notice = (time.monotonic(), seconds, what)
        if seconds >= FIRST_NOTICE and not self.silent:
            self._on_wait(seconds, what)

    def over(self) -> None:
        """What was waited for, if anything, has come."""
        self._notice = None

    def words(self) -> str:
        """``waiting for the server, 12 s``; empty while nothing is waited for."""
        notice = self._notice
        if notice is None or time.monotonic() - notice[0] > _STALE_SECONDS:
            return ""
        return f"waiting for {notice[2]}, {notice[1]:.0f} s"
