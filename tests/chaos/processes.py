"""The processes of an ordeal: real servers and clients that may die at any moment."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.commands import ROOT, environment

__all__ = ["ClientProcess", "ServerProcess"]


def _limited(size: int | None) -> Callable[[], None] | None:
    """For the child: files may not grow beyond ``size`` bytes, as on a full disk."""
    if size is None:
        return None

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


class _Process:
    """A child whose output goes into files."""

    def __init__(
        self,
        arguments: list[Any],
        log: Path,
        pass_fds: tuple[int, ...] = (),
        preexec: Callable[[], None] | None = None,
    ) -> None:
        self.output = log.with_suffix(".out")
        with log.open("wb") as errors, self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=ROOT,
                env={**environment(), "OMP_NUM_THREADS": "1"},
                pass_fds=pass_fds,
                preexec_fn=preexec,
            )
        self.log = log
        self.killed = False

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def send(self, number: int) -> None:
        """Send a signal, if the process is there."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def kill(self) -> None:
        """``kill -9``."""
        self.killed = self.running
        self.process.kill()
        self.process.wait()

    def wait(self, seconds: float, or_kill: bool = True) -> int | None:
        """Its exit code; if it still runs after ``seconds``, -9, or None where it may live."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            if not or_kill:
                return None
            self.send(signal.SIGCONT)
            self.kill()
            return -9

    def result(self) -> dict[str, Any] | None:
        """The line of JSON that it printed; None where it came to no result."""
        lines = self.output.read_text().splitlines()
        found: dict[str, Any] | None = json.loads(lines[-1]) if lines else None
        return found


class ServerProcess(_Process):
    """One life of the server; what it writes down is copied into a file while it lives.

    Args:
        directory: For its files.
        number: Of this life.
        table: See :mod:`tests.chaos.serve`.
        arguments: Of ``plugrl_gym.serve``.
        file_size: See :func:`_limited`.

    Attributes:
        disk_full: Whether it may find no room for what it saves.
    """

    def __init__(
        self,
        directory: Path,
        number: int,
        table: Path | None,
        arguments: list[Any],
        file_size: int | None = None,
    ) -> None:
        self.number = number
        self.disk_full = file_size is not None
        self.journal = directory / f"server-{number}.journal"
        self._url_file = directory / f"server-{number}.url"
        reading, writing = os.pipe()
        self._copier = threading.Thread(target=self._copy, args=(reading,), daemon=True)
        self._copier.start()
        try:
            super().__init__(
                [
                    *("-m", "tests.chaos.serve", writing, "-" if table is None else table),
                    *("--json", "--url-file", self._url_file, *arguments),
                ],
                directory / f"server-{number}.log",
                (writing,),
                _limited(file_size),
            )
        finally:
            os.close(writing)

    def _copy(self, reading: int) -> None:
        with os.fdopen(reading, "rb", buffering=0) as pipe, self.journal.open("wb") as file:
            while data := pipe.read(65536):
                file.write(data)

    @property
    def listening(self) -> bool:
        return self.running and self._url_file.exists()

    def lines(self) -> bytes:
        """All that it wrote down, once it has ended."""
        self._copier.join(30)
        return self.journal.read_bytes()


class ClientProcess(_Process):
    """``plugrl_gym.rollout`` over :class:`~tests.chaos.envs.Ledgered`.

    Args:
        directory: For its files.
        number: The client's, which its envs show in their observations.
        url: Of the proxy.
        num_envs: As many envs.
        options: More arguments.
    """

    def __init__(
        self, directory: Path, number: int, url: str, num_envs: int, options: list[Any]
    ) -> None:
        self.number = number
        self.truth = directory / f"client-{number}.truth"
        super().__init__(
            [
                *("-m", "plugrl_gym.rollout", "tests.chaos.envs:Ledgered-v0", "--json"),
                *("--num-envs", num_envs, "--url", url, "--seed", number),
                *("--env-kwargs", f"client={number}", "--env-kwargs", f"log={self.truth}"),
                *options,
            ],
            directory / f"client-{number}.log",
        )
