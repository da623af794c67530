"""A terminal that is none: what a command draws on it, and what a person then sees."""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TextIO

import pytest

from tests.support.commands import DEADLINE, ROOT, environment

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(
    *arguments: object,
    columns: int = 100,
    seconds: float = DEADLINE,
    variables: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Run ``python ARGUMENTS`` on a pseudo terminal; its exit code and all that it wrote there."""
    with pseudo_terminal(columns) as (ours, its):
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            stdin=its,
            stdout=its,
            stderr=its,
            cwd=ROOT,
            env={**environment(), "TERM": "xterm", **(variables or {})},
            start_new_session=True,
        )
        its.close()
        try:
            drawn = read_all(ours, seconds)
            return process.wait(seconds), drawn
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def pseudo_terminal(columns: int) -> Iterator[tuple[int, TextIO]]:
    """Our end, to read what is drawn, and its end, to draw on; 30 lines high."""
    pty = pytest.importorskip("pty", reason="Windows has no pseudo terminals")
    import fcntl
    import struct
    import termios

    ours, its = pty.openpty()
    try:
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        with os.fdopen(its, "w", encoding="utf-8") as stream:
            yield ours, stream
    finally:
        os.close(ours)


def read_all(terminal: int, seconds: float = DEADLINE) -> str:
    """What is drawn on a terminal until nobody has it open any more."""
    drawn, deadline = b"", time.monotonic() + seconds
    while select.select([terminal], [], [], max(deadline - time.monotonic(), 0.0))[0]:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux says so at the end
            piece = b""
        if not piece:
            return drawn.decode("utf-8", "replace")
        drawn += piece
    raise AssertionError(f"not over after {seconds} s:\n{drawn.decode('utf-8', 'replace')}")


def widest(drawn: str) -> int:
    """The width of the widest line that was drawn at any time, without colours."""
    return max(len(line.rstrip()) for line in re.split(r"[\r\n]", _COLOUR.sub("", drawn)))


def screen(drawn: str) -> list[str]:
    """The lines that a person sees in the end, without colours; those drawn over are gone."""
    lines, row, column = [""], 0, 0
    for piece in re.split(r"(\r|\n|\x1b\[A)", _COLOUR.sub("", drawn)):
        if piece == "\r":
            column = 0
        elif piece == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif piece == "\x1b[A":
            row -= 1
        else:
            lines[row] = f"{lines[row][:column]:{column}}{piece}{lines[row][column + len(piece) :]}"
            column += len(piece)
    return [line.rstrip() for line in lines]
