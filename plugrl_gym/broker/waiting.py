"""Waits that end, and that say what for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from plugrl_gym.notices import FIRST_NOTICE

__all__ = ["Wait"]

_SLICE: Final = 1.0


class Wait:
    """One wait, in slices of a second.

    Args:
        on_wait: Told after each slice from 5 s on, with the seconds so far and what for.
        timeout: Seconds; None for no limit.
    """

    def __init__(self, on_wait: Callable[[float, str], None], timeout: float | None) -> None:
        self._on_wait = on_wait
        self._timeout = timeout
        self._began = time.monotonic()

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self._timeout is not None and time.monotonic() - self._began >= self._timeout

    def slice(self) -> float:
        """Seconds to wait now."""
        if self._timeout is None:
            return _SLICE
        return min(max(self._began + self._timeout - time.monotonic(), 0.0), _SLICE)

    def notice(self, what: str) -> None:
        """A slice has passed in vain."""
        waited = time.monotonic() - self._began
        if waited >= FIRST_NOTICE:
            self._on_wait(waited, what)
