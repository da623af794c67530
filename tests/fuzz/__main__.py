"""``python -m tests.fuzz``: read frames in memory and over sockets; see who notices."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.mutation import Mutator
from tests.fuzz.reading import good_frames, read_everywhere
from tests.fuzz.wire import Hang, Visitor
from tests.support.commands import ROOT, environment
from tests.support.measuring import open_files, resident_bytes

__all__ = ["Findings", "fuzz_memory", "fuzz_server", "main"]

_SLOW = 2.0  # seconds that no frame of a few kB may take
_MB = 2**20
_GROWTH = 30 * _MB


@dataclass
class Findings:
    """What came of some frames.

    Attributes:
        frames: As many were read.
        seconds: It took.
        faults: A sentence for each that was not answered as it must be, with the frame's bytes.
        slowest: Seconds that the slowest took.
        memory: Resident bytes of the reader, after the first tenth and at the end.
        files: Open files of the reader, likewise.
    """

    frames: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    slowest: float = 0.0
    memory: tuple[int, int] = (0, 0)
    files: tuple[int, int] = (0, 0)
    neighbour: dict[str, Any] = field(default_factory=dict)

    def check_growth(self) -> None:
        """A reader that keeps something of each frame grows."""
        if self.memory[1] - self.memory[0] > _GROWTH:
            self.faults.append(f"memory grew from {self.memory[0]:,} to {self.memory[1]:,} bytes")
        if self.files[1] - self.files[0] > 10:
            self.faults.append(f"open files grew from {self.files[0]} to {self.files[1]}")


def fuzz_memory(frames: int, seed: int) -> Findings:
    """Read ``frames`` in this process, in every state of both ends."""
    found = Findings(frames)
    mutator = Mutator(good_frames(), seed)
    began = time.monotonic()
    for number in range(frames):
        if number == frames // 10:
            found.memory = (resident_bytes(), 0)
        frame = mutator.frame()
        at = time.perf_counter()
        try:
            read_everywhere(frame)
        except Exception:
            last = traceback.format_exc().strip().splitlines()[-1]
            found.faults.append(f"{last}: {frame.hex()}")
        took = time.perf_counter() - at
        found.slowest = max(found.slowest, took)
        if took > _SLOW:
            found.faults.append(f"took {took:.1f} s: {frame[:200].hex()}")
    found.seconds = time.monotonic() - began
    found.memory = (found.memory[0], resident_bytes())
    found.check_growth()
    return found


@contextlib.contextmanager
def _child(*arguments: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def fuzz_server(frames: int, seed: int) -> Findings:
    """Send ``frames`` to a live server, each on a connection of its own, beside a good client."""
    found = Findings(frames)
    with _child("-m", "tests.fuzz.server") as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        with _child("-m", "tests.fuzz.neighbour", f"ws://127.0.0.1:{port}") as neighbour:
            _visit(found, port, server.pid, Mutator(good_frames(), seed))
            told, _ = neighbour.communicate("", timeout=60)
            found.neighbour = json.loads(told)
        if server.poll() is not None:
            found.faults.append(f"the server ended with {server.returncode}")
        server.send_signal(signal.SIGTERM)
        said, _ = server.communicate(timeout=60)
        if server.returncode != 0:
            found.faults.append(f"the server ended with {server.returncode}: {said}")
    _judge_neighbour(found)
    found.check_growth()
    return found


def _visit(found: Findings, port: int, pid: int, mutator: Mutator) -> None:
    visitor = Visitor(port, random.Random(mutator.random.random()))
    began = time.monotonic()
    for number in range(found.frames):
        if number == found.frames // 10:
            found.memory, found.files = (resident_bytes(pid), 0), (open_files(pid), 0)
        frame = mutator.frame()
        at = time.perf_counter()
        try:
            visitor.visit(frame)
        except (Hang, OSError, AssertionError) as error:
            found.faults.append(f"{type(error).__name__}: {error}: {frame[:2000].hex()}")
            if len(found.faults) > 100:
                break
        found.slowest = max(found.slowest, time.perf_counter() - at)
    found.seconds = time.monotonic() - began
    found.memory = (found.memory[0], resident_bytes(pid))
    found.files = (found.files[0], open_files(pid))


def _judge_neighbour(found: Findings) -> None:
    told = found.neighbour
    undisturbed = told["connections"] == 1 and not told["errors"]
    if not undisturbed or set(told["dropped"]) - {"closed"}:
        found.faults.append(f"the client beside it was disturbed: {told}")


def _markdown(memory: Findings, wire: Findings, seed: int) -> str:
    def row(name: str, found: Findings) -> str:
        grown = (found.memory[1] - found.memory[0]) / _MB
        files = f"{found.files[1] - found.files[0]:+d}" if found.files[0] else "-"
        return (
            f"| {name} | {found.frames:,} | {found.frames / max(found.seconds, 1e-9):,.0f} | "
            f"{found.slowest * 1000:.0f} ms | {grown:+.1f} MB | {files} | {len(found.faults)} |"
        )

    told = wire.neighbour
    return "\n".join(
        [
            f"### Fuzz, {memory.frames + wire.frames:,} frames, seed {seed}",
            "",
            "| | frames | per second | slowest | memory | open files | faults |",
            "|---|---|---|---|---|---|---|",
            row("in memory, every state of both ends", memory),
            row("to a live server, each on its own connection", wire),
            "",
            f"The client beside it: {told['env_steps']:,} env steps on {told['connections']} "
            f"connection, longest step {told['longest_step_seconds'] * 1000:.0f} ms, dropped "
            f"{told['dropped'] or 'nothing'}.",
            *(f"- FAULT: {fault[:1000]}" for fault in (*memory.faults, *wire.faults)),
        ]
    )


def main(arguments: list[str]) -> int:
    """Run the program; returns 0 where nothing was found."""
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="default: 1,000,000")
    parser.add_argument("--live", type=float, default=0.1, help="share that goes over sockets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=Path, default=Path("fuzz-faults.txt"), metavar="FILE")
    options = parser.parse_args(arguments)
    live = int(options.frames * options.live)
    memory = fuzz_memory(options.frames - live, options.seed)
    wire = fuzz_server(live, options.seed + 1)
    print(_markdown(memory, wire, options.seed))
    faults = [*memory.faults, *wire.faults]
    if faults:
        options.faults.write_text("\n".join(faults) + "\n", encoding="utf-8")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
