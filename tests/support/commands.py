"""The commands of the package as processes: stdout and stderr apart, a deadline on everything."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 60.0

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A script's `&` does that to what it starts, and to what that starts; here Ctrl-C is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def environment() -> dict[str, str]:
    """The children's: this checkout is what they import."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


@dataclass(frozen=True)
class Finished:
    """What is left of a command."""

    code: int
    stdout: str
    stderr: str

    @property
    def said(self) -> str:
        """What it said besides how long it waited, which a slow machine may make it say."""
        lines = self.stderr.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("waiting for "))

    @property
    def result(self) -> dict[str, Any]:
        """The JSON line, which must be all of stdout."""
        (line,) = self.stdout.splitlines()
        result: dict[str, Any] = json.loads(line)
        return result

    @property
    def complaint(self) -> str:
        """What it said about an error, which must be one line, and exit code 2."""
        assert self.code == 2, (self.code, self.stderr)
        assert "Traceback" not in self.stderr, self.stderr
        assert self.stdout == "", self.stdout
        (line,) = self.stderr.splitlines()
        return line


class Command:
    """A running ``python ARGUMENTS``."""

    def __init__(self, *arguments: object, cwd: Path = ROOT) -> None:
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self.process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env=environment(),
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("stdout", self.process.stdout), ("stderr", self.process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._texts[name].append(line)
                self._lines.put(line)

    def line(self, pattern: str, seconds: float = DEADLINE) -> re.Match[str]:
        """Wait for a line that has ``pattern`` in it."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                said = "".join(self._texts["stderr"])
                raise AssertionError(f"no line with {pattern!r} in {seconds} s:\n{said}") from None
            found = re.search(pattern, line)
            if found:
                return found

    def url(self) -> str:
        """The address that a server tells."""
        return self.line(r"ws://[\d.]+:\d+")[0]

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """What Ctrl-C does, to this process alone; Windows cannot do that from outside."""
        if sys.platform == "win32":
            pytest.skip("Windows has no signal to send to one process")
        self.process.send_signal(number)

    def finish(self, seconds: float = DEADLINE) -> Finished:
        """Wait for its end."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            said = "".join(self._texts["stderr"])
            raise AssertionError(f"still running after {seconds} s:\n{said}") from None
        for reader in self._readers:
            reader.join(seconds)
            assert not reader.is_alive(), "a child of the command has outlived it"
        return Finished(code, "".join(self._texts["stdout"]), "".join(self._texts["stderr"]))


@contextlib.contextmanager
def command(*arguments: object, cwd: Path = ROOT) -> Iterator[Command]:
    """Start ``python ARGUMENTS``; whatever is left of it at the end is killed."""
    running = Command(*arguments, cwd=cwd)
    try:
        yield running
    finally:
        running.process.kill()
        if hasattr(os, "killpg"):  # its session may hold children that outlived it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()


def serve(*arguments: object, cwd: Path = ROOT) -> contextlib.AbstractContextManager[Command]:
    """``python -m plugrl_gym.serve`` on a free port."""
    return command("-m", "plugrl_gym.serve", "--port", 0, *arguments, cwd=cwd)


def rollout(*arguments: object) -> contextlib.AbstractContextManager[Command]:
    """``python -m plugrl_gym.rollout``."""
    return command("-m", "plugrl_gym.rollout", *arguments)


def run(*arguments: object, cwd: Path = ROOT, seconds: float = DEADLINE) -> Finished:
    """Run ``python ARGUMENTS`` to its end."""
    with command(*arguments, cwd=cwd) as running:
        return running.finish(seconds)
