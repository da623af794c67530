"""Where readings are shown: as a bar that moves, or as a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TextIO

from tqdm import tqdm

from plugrl_gym.display.reading import Reading
from plugrl_gym.display.terminal import coloured, in_notebook, is_live

__all__ = ["Bar", "Lines", "Surface", "user_surface"]

_BAR: Final = "{percentage:3.0f}%|{bar}| {n:,}/{total:,} [{elapsed}<{remaining}{postfix}]"
# A bar without width: tqdm cuts only lines with a bar to the width of the terminal.
_COUNTER: Final = "{n:,} steps [{elapsed}{postfix}]{bar:0}"
_WORDS: Final = "{desc}{bar:0}"
# What is left of a bar where words need the room.
_SHORT: Final = 4
_INTERVAL: Final = 3.0
# The first line comes sooner: it is the sign that all is well.
_FIRST: Final = 1.0


class Surface(Protocol):
    """Shows readings."""

    def show(self, reading: Reading) -> None:
        """Show the state of now; it differs from the last one shown."""

    def close(self) -> None:
        """The last reading stays."""


class Bar:
    """One line that is drawn again and again: on a terminal, or as a widget of a notebook.

    A reading's table goes below it, while the bar is open.

    Args:
        stream: The terminal.
        widget: A notebook's, as ``tqdm.notebook.tqdm``; None for text on ``stream``.
    """

    def __init__(self, stream: TextIO, widget: Callable[..., Any] | None = None) -> None:
        self._stream = stream
        self._make: Callable[..., Any] = tqdm if widget is None else widget
        self._widget = widget is not None
        self._colour = "green" if widget is None and coloured(stream) else None
        self._bar: Any = None
        self._last = Reading()
        self._table: list[Any] = []
        self._began = False

    def show(self, reading: Reading) -> None:
        if self._bar is None:
            self._bar = self._line()
        self._show_table(reading.table)
        if reading.steps is None:
            self._bar.bar_format = _WORDS
            self._bar.set_description_str(str(reading))
            return
        if not self._began:
            self._begin(reading)
        self._last = reading
        bar = self._bar
        bar.bar_format = _COUNTER if reading.total is None else _BAR
        # A run ends with a whole update; tqdm forgets a total that is exceeded.
        bar.total = None if reading.total is None else max(reading.total, reading.steps)
        bar.n = reading.steps
        room = self._room()
        if room is not None and len(reading.pause) > max(room, 0):
            bar.bar_format = _WORDS  # why nothing moves is of more interest than how far it is
            bar.set_description_str(reading.pause)
        else:
            bar.set_postfix_str(reading.text(room))

    def _room(self) -> int | None:
        """How many characters are left beside a short bar and the steps; None for no end."""
        shown = self._bar.format_dict
        if self._widget or not shown["ncols"]:
            return None
        about_steps = self._bar.bar_format.replace("{bar}", " " * _SHORT).replace("{bar:0}", "")
        line = tqdm.format_meter(
            **{**shown, "bar_format": about_steps, "postfix": "", "colour": None}
        )
        return int(shown["ncols"]) - len(line) - len(", ")

    def _line(self, position: int = 0) -> Any:
        return self._make(
            file=self._stream,
            dynamic_ncols=True,
            bar_format=_WORDS,
            position=position,
            leave=False,
        )

    def _show_table(self, table: Sequence[str]) -> None:
        for number, text in enumerate(table):
            if number == len(self._table):
                self._table.append(self._line(number + 1))
            self._table[number].set_description_str(text)

    def _begin(self, reading: Reading) -> None:
        """The first steps: time counts from here, and a run that goes on does not begin at 0."""
        self._began = True
        self._bar.initial = reading.steps
        self._bar.colour = self._colour
        self._bar.set_description_str("", refresh=False)
        self._bar.reset(reading.total)

    def close(self) -> None:
        for line in reversed(self._table):
            line.close()
        if self._began:
            # What stays is how far it came: nothing goes on any more.
            self.show(replace(self._last, activity="", pause="", table=()))
        if self._bar is not None:
            self._bar.leave = self._began
            self._bar.close()


class Lines:
    """A line now and then, and one at once where a pause begins: for a pipe, or a log of CI.

    Args:
        write: Writes one line.
        interval: Seconds between two of them.
    """

    def __init__(self, write: Callable[[str], None], interval: float = _INTERVAL) -> None:
        self._write = write
        self._interval = interval
        self._due = time.monotonic() + min(interval, _FIRST)
        self._paused = False

    def show(self, reading: Reading) -> None:
        now = time.monotonic()
        begins = bool(reading.pause) and not self._paused
        if now < self._due and not begins:
            return
        self._write(f"{time.strftime('%H:%M:%S')} {reading}")
        self._due = now + self._interval
        self._paused = bool(reading.pause)

    def close(self) -> None:
        """There is nothing to take back."""


def user_surface() -> Surface:
    """Where a program of the user's own shows how far it is: a notebook, a terminal or a log."""
    if in_notebook():
        return Bar(sys.stderr, _widget())  # a notebook takes carriage returns, too
    if is_live(sys.stderr):
        return Bar(sys.stderr)
    return Lines(lambda line: print(line, file=sys.stderr, flush=True))


def _widget() -> Callable[..., Any] | None:
    from tqdm import notebook

    # None without ipywidgets.
    return None if notebook.IProgress is None else notebook.tqdm
