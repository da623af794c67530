"""Programs under test, as processes: started on a free port and ended by their own handle."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Program:
    """A process whose lines are collected while it runs."""

    def __init__(self, *command: str) -> None:
        self.lines: list[str] = []
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            self._news.put(self.lines[-1])

    @property
    def output(self) -> str:
        """All that the program has printed."""
        return "\n".join(self.lines)

    def wait_for_line(self, text: str, seconds: float = 20) -> str:
        """The next line that contains ``text``."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._news.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line with {text!r}; got:\n{self.output}") from None
            if text in line:
                return line

    def wait(self, seconds: float = 30) -> int:
        """The exit code, once all output has been read."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s; got:\n{self.output}") from None
        self._reader.join(seconds)
        return code

    def close(self) -> None:
        """End the process, if it still runs."""
        self.process.kill()
        self.process.wait()
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def program(*command: str) -> Iterator[Program]:
    """Run a command; ``*.py`` first means this Python."""
    interpreter = [sys.executable] if command[0].endswith(".py") else []
    running = Program(*interpreter, *command)
    try:
        yield running
    finally:
        running.close()


@contextlib.contextmanager
def reference_server(*options: str, port: int = 0) -> Iterator[tuple[Program, int]]:
    """servers/reference_server.py on a free port: the program and its port."""
    command = ("servers/reference_server.py", "--port", str(port), *options)
    with program(*command) as running:
        line = running.wait_for_line("reference server on ws://")
        yield running, int(line.rpartition(":")[2])
