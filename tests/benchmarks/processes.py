"""The project's commands as processes with a log file each, and what can be learned of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.request import urlopen

__all__ = ["ROOT", "Process", "Server", "environment", "read_result", "wait_for"]

ROOT: Final = Path(__file__).resolve().parents[2]

#: Importing torch from a cold disk takes its time.
_START_SECONDS: Final = 180.0
_TICK: Final = 0.05

T = TypeVar("T")


def environment(threads: int | None) -> dict[str, str]:
    """The environment of a process that imports this checkout.

    Args:
        threads: For torch and the libraries under it; None for their defaults.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    limits = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    return {**os.environ, "PYTHONPATH": path, **limits}


def wait_for(look: Callable[[], T | None], seconds: float, what: str) -> T:
    """Look again and again until there is something.

    Raises:
        TimeoutError: There was nothing for so many seconds.
    """
    deadline = time.monotonic() + seconds
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: nothing in {seconds:g} s")
        time.sleep(_TICK)
    return found


class Process:
    """A running ``python -m MODULE ARGUMENTS``; killed where its block ends, if not over before.

    Args:
        module: As for ``python -m``.
        arguments: Of its command line.
        log: The file that its stderr is appended to.
        threads: As for :func:`environment`.
    """

    def __init__(
        self, module: str, arguments: Sequence[object], log: Path, threads: int | None = 1
    ) -> None:
        self.log = log
        self._output = log.with_suffix(".out")
        with log.open("ab") as errors, self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=ROOT,
                env=environment(threads),
            )

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    @property
    def output(self) -> str:
        """Its stdout so far."""
        return self._output.read_text(encoding="utf-8")

    @property
    def said(self) -> str:
        """The log so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def finish(self, seconds: float, codes: Sequence[int] = (0,)) -> int:
        """Wait for its end.

        Args:
            seconds: How long.
            codes: The exit codes that are in order.

        Raises:
            TimeoutError: It still runs.
            RuntimeError: Another exit code.
        """
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.log.stem}: still running after {seconds:g} s") from None
        if code not in codes:
            last = "\n".join(self.said.splitlines()[-15:])
            raise RuntimeError(f"{self.log.stem} ended with exit code {code}:\n{last}")
        return code

    def leave(self) -> None:
        """Ask it to end, as Ctrl-C does."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End it here and now: it saves nothing and says no goodbye."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()


class Server(Process):
    """``python -m plugrl_gym.serve`` on this machine.

    Args:
        folder: Gets the run directory ``run``, the log and the file with the URL.
        options: Of the command, without ``--port``, ``--url-file`` and ``--run-dir``.
        port: 0 for any free one.
        threads: As for :func:`environment`.

    Attributes:
        url: Where clients connect; known once they can.
        run_dir: Its files.
    """

    def __init__(
        self, folder: Path, options: Sequence[object], port: int = 0, threads: int | None = 1
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.run_dir = folder / "run"
        url_file = folder / "url"
        url_file.unlink(missing_ok=True)
        where = ["--port", port, "--url-file", url_file, "--run-dir", self.run_dir]
        super().__init__("plugrl_gym.serve", [*where, *options], folder / "server.log", threads)
        try:
            self.url = wait_for(lambda: self._announced(url_file), _START_SECONDS, "the server")
        except BaseException:
            self.kill()
            raise

    def _announced(self, url_file: Path) -> str | None:
        if self.code is not None:
            self.finish(0)
            raise RuntimeError(f"the server ended at once:\n{self.said}")
        return url_file.read_text(encoding="utf-8").strip() if url_file.exists() else None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.url.rpartition(":")[2])

    def result(self, seconds: float) -> dict[str, Any]:
        """Wait for its end and read result.json."""
        self.finish(seconds)
        return read_result(self.run_dir)

    def metric(self, name: str) -> int:
        """A counter of ``/metrics`` by its name there; 0 while the server does not answer."""
        with (
            contextlib.suppress(OSError),
            urlopen(f"http{self.url.removeprefix('ws')}/metrics", timeout=10) as reply,
        ):
            for line in reply.read().decode().splitlines():
                words = line.split()
                if words[0] == name:
                    return int(float(words[1]))
        return 0

    @property
    def env_steps(self) -> int:
        """Env steps that learning clients have run since it started."""
        return self.metric('plugrl_env_steps_total{mode="train"}')

    @property
    def connections(self) -> int:
        """Connections that were ever opened."""
        return self.metric("plugrl_connections_opened_total")


def read_result(run_dir: Path) -> dict[str, Any]:
    """result.json of a run."""
    result: dict[str, Any] = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
    return result
