"""Where a command's words go: people read stderr, programs the one line on stdout."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, TextIO

from tqdm import tqdm

__all__ = ["Above", "Output", "json_line"]

# The server logs its address, end and failure, which the command says in its own words.
_SAID: Final = ("listening on", "the run ends", "the agent failed")


class Above:
    """A text stream onto stderr that keeps clear of a live line."""

    def write(self, text: str) -> int:
        """Write whole lines above the live line."""
        with tqdm.external_write_mode(file=sys.stderr):
            return sys.stderr.write(text)

    def flush(self) -> None:
        """Pass on what is buffered."""
        sys.stderr.flush()


class Output:
    """A command's voice.

    Args:
        prog: The command's name.
        quiet: Only warnings and errors.
        json: Whether :meth:`result` prints.
        child: Whether this is one side of ``train``, whose other side says why it was refused.
    """

    def __init__(self, prog: str, quiet: bool, json: bool, child: bool = False) -> None:
        self.prog = prog
        self.quiet = quiet
        self.json = json
        self.above = Above()
        self._said_already = (*_SAID, "%s refused") if child else _SAID
        self._stdout: TextIO = sys.stdout

    def say(self, text: str) -> None:
        """A line for people."""
        if not self.quiet:
            self.above.write(f"{text}\n")

    def result(self, values: Mapping[str, Any]) -> None:
        """The line for programs, if they asked for it."""
        if self.json:
            print(json_line(values), file=self._stdout, flush=True)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Output]:
        """Log to stderr, and with ``--json`` keep stdout free for the result.

        An env or a library, also one in C, that prints to stdout prints to stderr meanwhile.
        """
        logger, handler = logging.getLogger("plugrl_gym"), self._handler()
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING if self.quiet else logging.INFO)
        try:
            with _reserved_stdout() if self.json else contextlib.nullcontext(sys.stdout) as stdout:
                self._stdout = stdout
                yield self
        finally:
            self._stdout = sys.stdout
            logger.removeHandler(handler)

    def _handler(self) -> logging.Handler:
        handler: logging.Handler = logging.StreamHandler(self.above)
        handler.setFormatter(_Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        handler.addFilter(lambda record: not record.msg.startswith(self._said_already))
        return handler


class _Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        if record.levelno > logging.INFO:
            record.message = f"{record.levelname.lower()}: {record.message}"
        return super().formatMessage(record)


def json_line(values: Mapping[str, Any]) -> str:
    """One line of standard JSON."""
    return json.dumps(dict(values), allow_nan=False)


@contextlib.contextmanager
def _reserved_stdout() -> Iterator[TextIO]:
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(kept), "w", encoding="utf-8") as stdout:
            yield stdout
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
