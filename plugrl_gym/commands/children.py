"""Commands as child processes: started, watched, and ended whatever happens."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final, Self

__all__ = ["Child", "describe_end", "wait_for_first"]

_TICK: Final = 0.05


class Child:
    """A command of ours in a process of its own.

    It is held by a leash, its stdin: when this end closes it, or dies, the child ends itself. It
    does not get this terminal's Ctrl-C, so that there is one place that decides what ends when.

    Args:
        module: As for ``python -m``.
        arguments: Of its command line.
        output: Gets its stdout and stderr; None to share this process's stderr for both.
        piped: Keep stdout apart, as the attribute.
        environment: Of the process; None for this one's.

    Attributes:
        pid: Its number.
        code: Its exit code, negative for the signal that killed it; None while it runs.
        stdout: What it prints there, to be read; None where it is not ``piped``.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        output: IO[bytes] | None = None,
        *,
        piped: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        apart: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            apart = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        stream = sys.stderr.fileno() if output is None else output
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if piped else stream,
            stderr=stream,
            env=environment,
            **apart,
        )
        self.pid = self._process.pid
        self.stdout = self._process.stdout

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def wait(self, seconds: float) -> bool:
        """Wait for its end; whether it came."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def release(self) -> None:
        """Ask it to end."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it is gone, or was asked before
            # To close is not enough: a fork of this process, as of AsyncVectorEnv, has stdin, too.
            stdin.write(b".")
            stdin.flush()
        with contextlib.suppress(OSError):
            stdin.close()

    def end(self, patience: float) -> None:
        """Ask it to end, and after ``patience`` seconds do not ask any longer."""
        self.release()
        if not self.wait(patience):
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end(0.0 if self.code is not None else 5.0)


def wait_for_first(children: Sequence[Child]) -> None:
    """Block until one of the children has ended."""
    while all(child.code is None for child in children):
        time.sleep(_TICK)


def describe_end(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "did not end"
    if code < 0 and os.name == "posix":
        return f"was killed by signal {-code}"
    return f"ended with exit code {code}"
