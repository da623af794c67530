"""The client under test as a process (and all that it starts), with an end in any case."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["CannotStart", "ClientProcess"]

_POSIX: Final = os.name == "posix"
_GRACE: Final = 2.0
_TAIL_LINES: Final = 4
_MOST: Final = 1 << 20


class CannotStart(Exception):
    """The command cannot be run; the text says why."""


class ClientProcess:
    """One start of the client's command.

    Args:
        command: A command line, or its arguments; ``{host}``, ``{port}`` and ``{url}`` in it are
            replaced.
        host, port: Where the grading server listens.

    Raises:
        CannotStart: There is no such program, or it cannot be run.
    """

    def __init__(self, command: str | Sequence[str], host: str, port: int) -> None:
        arguments = _arguments(command, {"{host}": host, "{port}": str(port)})
        # Files, because a pipe that nobody reads would stop the client, and the reader of a pipe
        # would wait for every process that inherited it.
        self._folder = tempfile.TemporaryDirectory(prefix="plugrl-", ignore_cleanup_errors=True)
        self._out, self._err = (Path(self._folder.name) / name for name in ("stdout", "stderr"))
        try:
            with self._out.open("wb") as out, self._err.open("wb") as err:
                self._process = subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=_environment(),
                    start_new_session=_POSIX,
                    creationflags=0 if _POSIX else _new_group_flag(),
                )
        except (OSError, ValueError) as error:
            self._folder.cleanup()
            raise CannotStart(f"the command cannot be run: {error}") from None

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """All that it wrote to stdout and stderr, in one line (the last MiB of each)."""
        return " ".join(f"{_read(self._out)} {_read(self._err)}".split())

    def last_words(self) -> str:
        """The end of what it wrote, to follow a sentence that tells what it did."""
        for stream, name in ((self._err, "stderr"), (self._out, "stdout")):
            lines = [line.strip() for line in _read(stream).splitlines() if line.strip()]
            if lines:
                return f"; the end of its {name}: {' | '.join(lines[-_TAIL_LINES:])}"
        return "; it printed nothing"

    def end(self) -> None:
        """Stop it and everything in its process group; does nothing to what has ended."""
        try:
            if self._process.poll() is None:
                self._signal(polite=True)
                deadline = time.monotonic() + _GRACE
                while self._process.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.01)
            self._signal(polite=False)
            self._process.wait(timeout=5 * _GRACE)
        finally:
            self._folder.cleanup()

    def _signal(self, polite: bool) -> None:
        """Reach the whole group: a client may be a launcher with workers below it."""
        if not _POSIX:  # pragma: no cover - Windows has no process groups to signal
            if not polite and self._process.poll() is None:
                kill = ["taskkill", "/F", "/T", "/PID", str(self._process.pid)]
                subprocess.run(kill, capture_output=True, check=False)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # The group outlives its leader as long as a member runs; its id is the leader's pid.
            os.killpg(self._process.pid, signal.SIGTERM if polite else signal.SIGKILL)


def _environment() -> dict[str, str]:
    """A copy: another thread may change the process's own, as pytest does, while a child starts."""
    while True:
        try:
            return dict(os.environ)
        except RuntimeError:
            continue  # it changed just now


def _new_group_flag() -> int:  # pragma: no cover - Windows
    return int(getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0))


def _arguments(command: str | Sequence[str], places: dict[str, str]) -> str | list[str]:
    places = {**places, "{url}": f"ws://{places['{host}']}:{places['{port}']}"}

    def fill(text: str) -> str:
        for name, value in places.items():
            text = text.replace(name, value)
        return text

    if not isinstance(command, str):
        return [fill(part) for part in command]
    if not _POSIX:  # pragma: no cover - Windows splits a command line itself
        return fill(command)
    try:
        parts = shlex.split(fill(command))
    except ValueError as error:
        raise CannotStart(f"the command cannot be read: {error}") from None
    if not parts:
        raise CannotStart("the command is empty")
    return parts


def _read(path: Path) -> str:
    """The last MiB of a file; empty once the folder is gone."""
    with contextlib.suppress(OSError), path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _MOST))
        return stream.read().decode(errors="replace")
    return ""
