"""Where a command's words go: people read stderr, programs the one line on stdout."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final, TextIO

from tqdm import tqdm

from plugrl_gym.display import Bar, Lines, Reading, Surface, coloured, is_live

__all__ = ["Above", "Output", "json_line"]

# The server logs its address, end and failure, which the command says in its own words.
_SAID: Final = ("listening on", "the run ends", "the agent failed")
# The other side of `train` says why a client was refused, and the live line that a server is gone.
_SAID_BY_OTHERS: Final = ("%s refused", "%s; reconnecting")
# They tell of each frame that they send, which is more than --verbose asks for.
_LIBRARIES: Final = ("plugrl_gym.client.websocket", "plugrl_gym.server.websocket")
_COLOURS: Final = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m"}
_PLAIN: Final = "\x1b[0m"


class Above:
    """A text stream onto stderr that keeps clear of a live line."""

    def write(self, text: str) -> int:
        """Write whole lines above the live line."""
        with tqdm.external_write_mode(file=sys.stderr), contextlib.suppress(BrokenPipeError):
            return sys.stderr.write(text)
        return 0  # whoever listened is gone, and what is under way goes on

    def flush(self) -> None:
        """Pass on what is buffered."""
        sys.stderr.flush()


class Output:
    """A command's voice.

    Args:
        prog: The command's name.
        quiet: Only warnings and errors.
        json: Whether :meth:`result` prints.
        child: Whether another command has started this one, and shows what it says.
        verbose: Also what is of interest only where something goes wrong.
        report: Readings go to stdout, as lines of JSON, for the command that started this one.

    Attributes:
        told: Whether :meth:`result` was called, also where it printed nothing.
    """

    def __init__(
        self,
        prog: str,
        quiet: bool,
        json: bool,
        child: bool = False,
        *,
        verbose: bool = False,
        report: bool = False,
    ) -> None:
        self.prog = prog
        self.quiet = quiet
        self.json = json
        self.verbose = verbose
        self.above = Above()
        self.told = False
        self._report = report
        self._said_already = () if verbose else (*_SAID, *_SAID_BY_OTHERS) if child else _SAID
        self._stdout: TextIO = sys.stdout

    @classmethod
    def of(cls, prog: str, options: argparse.Namespace) -> Output:
        """What the options of :func:`~plugrl_gym.commands.options.add_output_options` ask for."""
        return cls(
            options.parent or prog,
            options.quiet,
            options.json,
            options.parent is not None,
            verbose=options.verbose,
            report=options.report,
        )

    def say(self, text: str) -> None:
        """A line for people."""
        if not self.quiet:
            self.above.write(f"{text}\n")

    def result(self, values: Mapping[str, Any]) -> None:
        """The line for programs, if they asked for it."""
        self.told = True
        if self.json:
            self._print(values)

    def surface(self) -> Surface | None:
        """Where to show how far the command is; None where nobody wants to know."""
        if self._report:
            return _Reports(self._print)
        if self.quiet:
            return None
        return Bar(sys.stderr) if is_live(sys.stderr) else Lines(self.say)

    def _print(self, values: Mapping[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):
            print(json_line(values), file=self._stdout, flush=True)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Output]:
        """Log to stderr, and with ``--json`` keep stdout free for the result.

        An env or a library, also one in C, that prints to stdout prints to stderr meanwhile.
        """
        logger, handler = logging.getLogger("plugrl_gym"), self._handler()
        reserved = self.json or self._report
        levels = {name: max(self._level, logging.INFO) for name in _LIBRARIES}
        logger.addHandler(handler)
        try:
            with (
                _levels({"plugrl_gym": self._level, **levels}),
                _reserved_stdout() if reserved else contextlib.nullcontext(sys.stdout) as stdout,
            ):
                self._stdout = stdout
                yield self
        finally:
            self._stdout = sys.stdout
            logger.removeHandler(handler)

    @property
    def _level(self) -> int:
        if self.quiet:
            return logging.WARNING
        return logging.DEBUG if self.verbose else logging.INFO

    def _handler(self) -> logging.Handler:
        handler: logging.Handler = logging.StreamHandler(self.above)
        handler.setFormatter(_Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        handler.addFilter(lambda record: not record.msg.startswith(self._said_already))
        return handler


class _Reports:
    """Readings for the command that started this one."""

    def __init__(self, print_line: Callable[[Mapping[str, Any]], None]) -> None:
        self._print = print_line

    def show(self, reading: Reading) -> None:
        with contextlib.suppress(ValueError):  # a mean return that is not finite
            self._print({"reading": asdict(reading)})

    def close(self) -> None:
        """The last line was the last reading."""


class _Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        if record.levelno > logging.INFO:
            level = f"{record.levelname.lower()}:"
            if coloured(sys.stderr):
                level = f"{_COLOURS[min(record.levelno, logging.ERROR)]}{level}{_PLAIN}"
            record.message = f"{level} {record.message}"
        return super().formatMessage(record)


def json_line(values: Mapping[str, Any]) -> str:
    """One line of standard JSON."""
    return json.dumps(dict(values), allow_nan=False)


@contextlib.contextmanager
def _levels(levels: Mapping[str, int]) -> Iterator[None]:
    """While the block runs loggers have these levels."""
    before = {name: logging.getLogger(name).level for name in levels}
    try:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextlib.contextmanager
def _reserved_stdout() -> Iterator[TextIO]:
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    stdout = os.fdopen(os.dup(kept), "w", encoding="utf-8")
    try:
        yield stdout
    finally:
        with contextlib.suppress(BrokenPipeError):  # what nobody wanted to read is still in it
            stdout.close()
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
