"""``python -m tests.soak``: does a server, or a client, grow while clients join and leave?"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.commands import ROOT, environment
from tests.support.measuring import open_files, resident_bytes

__all__ = ["Samples", "main"]

_PROCESSES = 4
_MB = 2**20
_FEWEST = 8  # samples that say anything


@dataclass
class Samples:
    """Resident memory and open files of one process over time.

    Attributes:
        name: Of the process.
        memory: Bytes.
        files: Open files and sockets.
    """

    name: str
    memory: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def take(self, pid: int) -> None:
        """Another sample."""
        self.memory.append(resident_bytes(pid))
        self.files.append(open_files(pid))

    def quarters(self, values: Sequence[int]) -> tuple[float, float]:
        """Median of the second quarter, when all is warm, and of the last."""
        n = len(values) // 4
        return statistics.median(values[n : 2 * n]), statistics.median(values[3 * n :])

    def faults(self) -> list[str]:
        """A sentence for what has grown; empty where all is flat."""
        if len(self.memory) < _FEWEST:
            return [f"{self.name}: only {len(self.memory)} samples"]
        warm, late = self.quarters(self.memory)
        found = []
        if late > 1.05 * warm + 5 * _MB:
            found.append(f"{self.name}: memory grew from {warm / _MB:.0f} to {late / _MB:.0f} MB")
        warm, late = self.quarters(self.files)
        if late > warm + 10:
            found.append(f"{self.name}: open files grew from {warm:.0f} to {late:.0f}")
        return found

    def row(self) -> str:
        """A line of a table."""
        if len(self.memory) < _FEWEST:
            return f"| {self.name} | {len(self.memory)} samples | | | | | |"
        (memory, late_memory), (files, late_files) = map(self.quarters, (self.memory, self.files))
        return (
            f"| {self.name} | {memory / _MB:.1f} | {late_memory / _MB:.1f} | "
            f"{max(self.memory) / _MB:.1f} | {files:.0f} | {late_files:.0f} | {max(self.files)} |"
        )


@contextlib.contextmanager
def _child(*arguments: Any, **options: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        text=True,
        cwd=ROOT,
        env={**environment(), "OMP_NUM_THREADS": "1"},
        **options,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_for_url(file: Path, server: subprocess.Popen[str]) -> str:
    deadline = time.monotonic() + 120.0
    while time.monotonic() < deadline and server.poll() is None:
        if file.exists():
            return file.read_text().strip()
        time.sleep(0.1)
    raise SystemExit("the server did not start")


def soak(seconds: float, clients: int, algorithm: str, seed: int) -> tuple[str, list[str]]:
    """Run for some time; a section for RESULTS.md, and what was wrong."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context((directory / "server.log").open("w+"))
        server = stack.enter_context(
            _child(
                *("-m", "plugrl_gym.serve", "--algo", algorithm, "--port", 0, "--json"),
                *("--total-timesteps", 10**9, "--no-run-dir", "--num-envs", 8, "--quiet"),
                *("--url-file", directory / "url"),
                stdout=subprocess.PIPE,
                stderr=log,
            )
        )
        url = _wait_for_url(directory / "url", server)
        share = -(-clients // _PROCESSES)
        visitors = [
            stack.enter_context(
                _child(
                    *("-m", "tests.soak.clients", url, share, seed + 1000 * k),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            for k in range(_PROCESSES)
        ]
        samples = [Samples("server"), *(Samples(f"clients {k + 1}") for k in range(_PROCESSES))]
        _sample(samples, [server, *visitors], seconds)
        told = [_told(visitor) for visitor in visitors]
        server.send_signal(signal.SIGTERM)
        result = json.loads(server.communicate(timeout=120)[0])
        log.seek(0)
        said = log.read()
    faults = [fault for each in samples for fault in each.faults()]
    faults += [error for each in told for error in each["errors"]]
    faults += [f"server: {error}" for error in result["books"]["errors"]]
    if "Traceback" in said:
        faults.append(f"the server logged a traceback: {said[-2000:]}")
    return _markdown(seconds, clients, algorithm, samples, told, faults), faults


def _told(visitor: subprocess.Popen[str]) -> dict[str, Any]:
    """What the clients of a process did, or that it died."""
    said = visitor.communicate("", timeout=120)[0]
    if visitor.returncode or not said:
        return {"counts": {}, "errors": [f"clients died with exit code {visitor.returncode}"]}
    told: dict[str, Any] = json.loads(said)
    return told


def _sample(samples: list[Samples], processes: list[subprocess.Popen[str]], seconds: float) -> None:
    period = max(seconds / 400.0, 0.5)
    end = time.monotonic() + seconds
    while time.monotonic() < end and all(process.poll() is None for process in processes):
        time.sleep(period)
        for each, process in zip(samples, processes, strict=True):
            each.take(process.pid)


def _markdown(
    seconds: float,
    clients: int,
    algorithm: str,
    samples: list[Samples],
    told: list[dict[str, Any]],
    faults: list[str],
) -> str:
    counts: Counter[str] = Counter()
    for each in told:
        counts.update(each["counts"])
    return "\n".join(
        [
            f"### Soak, {algorithm}, {seconds / 60:g} minutes, {clients} clients at a time",
            "",
            f"{counts['clients']:,} clients came, {counts['closed']:,} closed and "
            f"{counts['vanished']:,} vanished; {counts['env steps']:,} env steps.",
            "",
            "| process | MB, 2nd quarter | in the last | at most | open files | last | most |",
            "|---|---|---|---|---|---|---|",
            *(each.row() for each in samples),
            "",
            f"Verdict: {'flat' if not faults else 'NOT FLAT'}.",
            *(f"- FAULT: {fault}" for fault in faults[:20]),
        ]
    )


def main(arguments: list[str]) -> int:
    """Run the program; returns 0 where nothing has grown."""
    parser = argparse.ArgumentParser("python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="default: 30")
    parser.add_argument("--clients", type=int, default=32, help="at a time (default: 32)")
    parser.add_argument("--algo", default="ppo", help="default: ppo")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    text, faults = soak(60.0 * options.minutes, options.clients, options.algo, options.seed)
    print(text)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
