"""The thread that shows readings."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

from plugrl_gym.display.reading import Reading
from plugrl_gym.display.surfaces import Surface

__all__ = ["Reporter"]

_PERIOD: Final = 0.25


class Reporter:
    """Shows readings on a surface while its block runs.

    Args:
        read: Gives a reading, in a thread of its own; None for nothing to show yet.
        surface: Where; None shows nothing.
        period: Seconds between two readings.
    """

    def __init__(
        self,
        read: Callable[[], Reading | None],
        surface: Surface | None,
        period: float = _PERIOD,
    ) -> None:
        self._read = read
        self._surface = surface
        self._period = period
        self._last: Reading | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="plugrl-progress")

    def __enter__(self) -> Reporter:
        if self._surface is not None:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        if self._surface is not None:
            self._thread.join()
            self.show()
            self._surface.close()

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            self.show()

    def show(self) -> None:
        """Show the reading of now, if it is news."""
        # Numbers are read while other threads count; a reading that trips over that is left out.
        with contextlib.suppress(RuntimeError):
            reading = self._read()
            if reading is None or reading == self._last or self._surface is None:
                return
            self._surface.show(reading)
            self._last = reading
