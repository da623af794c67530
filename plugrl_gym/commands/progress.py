"""The live line of a command."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tqdm import tqdm

from plugrl_gym.client import ClientStatistics
from plugrl_gym.commands.output import Output
from plugrl_gym.server import RunSnapshot

__all__ = ["ClientProgress", "Reading", "Reporter", "server_reading"]

_BAR: Final = (
    "{percentage:3.0f}%|{bar:20}| {n:,} of {total:,} steps [{elapsed}<{remaining}{postfix}]"
)
_COUNTER: Final = "{n:,} steps [{elapsed}{postfix}]"
_PERIOD: Final = 0.25
# A client tells once a second that it waits.
_STALE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Reading:
    """What to show at one moment.

    Attributes:
        steps: Env steps so far.
        total: Env steps in all; None where nobody knows.
        text: Everything else.
        paused: Nothing moves, and ``text`` says why.
    """

    steps: int
    total: int | None
    text: str
    paused: bool = False

    def __str__(self) -> str:
        of = "" if self.total is None else f" of {self.total:,}"
        return f"{self.steps:,}{of} steps, {self.text}"


class Reporter:
    """Shows readings while its block runs: one live line on a terminal, else a line now and then,
    and one at once where a pause begins.

    Args:
        read: Gives a reading, in a thread of its own; None for nothing new to show.
        output: The command's voice; a quiet one shows nothing.
        interval: Seconds between two lines where stderr is no terminal.
    """

    def __init__(
        self, read: Callable[[], Reading | None], output: Output, interval: float = 5.0
    ) -> None:
        self._read = read
        self._output = output
        self._live = sys.stderr.isatty()
        self._interval = interval
        self._bar: Any = None
        self._last: Reading | None = None
        self._due = time.monotonic() + interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="progress")

    def __enter__(self) -> Reporter:
        if not self._output.quiet:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._bar is not None:
            self._show()
            self._bar.close()

    def _run(self) -> None:
        while not self._stop.wait(_PERIOD):
            self._show()

    def _show(self) -> None:
        # Numbers are read while other threads count; a reading that trips over that is left out.
        with contextlib.suppress(RuntimeError):
            reading = self._read()
            if reading is None or reading == self._last:
                return
            if self._live:
                self._draw(reading)
            elif self._due_for(reading):
                self._output.say(f"{time.strftime('%H:%M:%S')} {reading}")
                self._due = time.monotonic() + self._interval
            else:
                return
            self._last = reading

    def _due_for(self, reading: Reading) -> bool:
        pause_begins = reading.paused and not (self._last is not None and self._last.paused)
        return pause_begins or time.monotonic() >= self._due

    def _draw(self, reading: Reading) -> None:
        if self._bar is None:
            self._bar = tqdm(file=sys.stderr, dynamic_ncols=True, bar_format=_COUNTER)
        self._bar.bar_format = _COUNTER if reading.total is None else _BAR
        self._bar.total, self._bar.n = reading.total, reading.steps
        self._bar.set_postfix_str(reading.text)


class ClientProgress:
    """A client's readings: its counts, or what it waits for.

    Args:
        stats: Whose counts.
        total: Env steps in all; None where only the server knows.
    """

    def __init__(self, stats: ClientStatistics, total: int | None) -> None:
        self._stats = stats
        self._total = total
        self._notice: tuple[float, float, str] | None = None
        self._first: tuple[float, int] | None = None

    def on_wait(self, seconds: float, what: str) -> None:
        """For ``PlugRLVectorEnv(on_wait=)``."""
        self._notice = (time.monotonic(), seconds, what)

    def read(self) -> Reading | None:
        """The reading of now; None while there is nothing to tell."""
        now, steps, pause = time.monotonic(), self._stats.env_steps, self._pause()
        if not (steps or pause):
            return None
        self._first = self._first or (now, steps)
        since, before = self._first
        rate = (steps - before) / max(now - since, 1e-3)
        text = pause or _pace(rate, self._stats.mean_return)
        return Reading(steps, self._total, text, paused=bool(pause))

    def _pause(self) -> str:
        """``waiting for the server, 12 s``; empty while nothing is waited for."""
        if self._notice is None or time.monotonic() - self._notice[0] > _STALE_SECONDS:
            return ""
        return f"waiting for {self._notice[2]}, {self._notice[1]:.0f} s"


def server_reading(
    run: RunSnapshot, total: int | None, learning: bool, evaluation: object = None
) -> Reading | None:
    """A server's reading; None while there is nothing to tell.

    Args:
        run: So far.
        total: Env steps in all; None where nobody knows.
        learning: Whether it learns just now.
        evaluation: The last one, whose str goes into the line; None before the first.
    """
    if not run.clients_seen:
        return None
    pace = _pace(run.steps_per_second, run.mean_return)
    if evaluation is not None:
        pace += f", evaluation {evaluation}"
    pause = "no client" if not run.clients else "learning" if learning else ""
    return Reading(run.env_steps, total, f"{pace}, {pause}" if pause else pace)


def _pace(steps_per_second: float, mean_return: float | None) -> str:
    pace = f"{steps_per_second:,.0f} steps/s"
    return pace if mean_return is None else f"{pace}, mean return {mean_return:.1f}"
