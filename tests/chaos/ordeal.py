"""An ordeal: a training run of real processes, and someone who breaks them at random moments."""

from __future__ import annotations

import heapq
import itertools
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.checker import read_life
from tests.chaos.processes import ClientProcess, ServerProcess
from tests.support.proxy import Cut, Proxy, proxy

__all__ = ["Ordeal", "Plan", "free_port"]

_WEATHER = (
    (0.0, 0.0, None),
    (0.0, 0.0, None),
    (0.002, 0.005, None),
    (0.0, 0.002, 300_000.0),
)  # (latency, jitter, rate): a network that is fine half of the time


@dataclass(frozen=True)
class Plan:
    """How bad it gets.

    Attributes:
        seed: Of everything that is left to chance; the operating system adds its own.
        seconds: How long things break, at least.
        targets: What is broken, as often as this at least: ``kill server``, ``kill client``,
            ``cut``.
        limit: Seconds after which it ends, targets reached or not.
        clients: As many at a time.
        num_envs: Of each.
        pace: Times that all waits between two breaks are longer.
        total: Env steps of the run; it is made longer where it ends too early.
        calm: Env steps to learn from at the end, with nothing broken any more.
        client_options: More arguments for ``rollout``.
    """

    seed: int = 0
    seconds: float = 0.0
    targets: dict[str, int] = field(default_factory=dict)
    limit: float = 60.0
    clients: int = 3
    num_envs: int = 3
    pace: float = 1.0
    total: int = 20_000
    calm: int = 2_000
    client_options: tuple[Any, ...] = ()


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Ordeal:
    """Runs a plan.

    Args:
        directory: For all files.
        plan: What to do.
        serve: (number of the life, port, env steps after which the run ends, largest file in
            bytes or None) -> a server that goes on where the last one was killed.
        say: Gets a line now and then.

    Attributes:
        broken: What was broken, and how often.
        lives: All server processes, in order.
        clients: All client processes, in order.
        complaints: What ended and should not have.
    """

    def __init__(
        self,
        directory: Path,
        plan: Plan,
        serve: Callable[[int, int, int, int | None], ServerProcess],
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.broken: Counter[str] = Counter()
        self.lives: list[ServerProcess] = []
        self.clients: list[ClientProcess] = []
        self.complaints: list[str] = []
        self._directory, self._plan, self._serve, self._say = directory, plan, serve, say
        self._random = random.Random(plan.seed)
        self._port = free_port()
        self._running: list[ClientProcess] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._doomed: ServerProcess | None = None
        self._leaving: set[int] = set()
        self._total = plan.total
        self._network: Proxy

    # -- the run --------------------------------------------------------------------------

    def run(self) -> None:
        """Break things, then let the run come to its end."""
        with proxy(self._port, self._plan.seed) as self._network:
            try:
                self._begin()
                self._break()
                self._calm_down()
            finally:
                for process in (*self.lives, *self.clients):
                    process.kill()

    def _begin(self) -> None:
        self._start_server()
        for _ in range(self._plan.clients):
            self._start_client()
        for action, shortest, longest in (
            (self._cut, 0.1, 0.9),
            (self._kill_client, 2.0, 10.0),
            (self._stop_client, 10.0, 40.0),
            (self._stop_server, 15.0, 50.0),
            (self._stall, 20.0, 60.0),
            (self._change_the_weather, 5.0, 15.0),
            (self._look_around, 0.1, 0.1),
        ):
            self._repeat(action, shortest, longest)
        self._every(20.0, lambda: self._say(f"{dict(self.broken)}"))

    def _break(self) -> None:
        began = time.monotonic()
        while not self._broken_enough(time.monotonic() - began):
            if time.monotonic() - began >= self._plan.limit:
                self.complaints.append(f"the targets were not reached in {self._plan.limit:.0f} s")
                return
            due, _, action = heapq.heappop(self._events)
            time.sleep(max(due - time.monotonic(), 0.0))
            action()

    def _broken_enough(self, seconds: float) -> bool:
        plan = self._plan
        return seconds >= plan.seconds and all(self.broken[k] >= n for k, n in plan.targets.items())

    def _calm_down(self) -> None:
        """Stop in good order, go on once more with nothing broken, and wait for the end."""
        self._events.clear()
        self._network.stall(False)
        self._network.latency = self._network.jitter = 0.0
        self._network.rate = None
        for process in (*self._running, self.lives[-1]):
            process.send(signal.SIGCONT)
        self._wait_for_server()
        self.lives[-1].send(signal.SIGTERM)
        self._expect(self.lives[-1], 0, "a server that was told to stop")
        self._start_server(last=True)
        self._expect(self.lives[-1], 0, "the last server")
        for client in self._running:
            if not client.killed:  # by the last thing that was broken, and not replaced since
                self._part_from(client)

    def _part_from(self, client: ClientProcess) -> None:
        """The run is over, and a client knows it unless it was away when that was told."""
        if client.wait(10.0, or_kill=False) is None:
            client.killed = True
            client.send(signal.SIGTERM)
            self.broken["client away at the end"] += 1
            client.wait(60.0)
        else:
            self._expect(client, 0, f"client {client.number}")

    def _wait_for_server(self) -> None:
        """Until there is one that listens and can save."""
        if self.lives[-1].disk_full and self.lives[-1].running:
            self.lives[-1].kill()
            self.broken["kill server"] += 1
        deadline = time.monotonic() + 60.0
        while not self.lives[-1].listening and time.monotonic() < deadline:
            if not self.lives[-1].running:
                self._start_server()
            time.sleep(0.05)

    def _expect(self, process: Any, code: int, name: str) -> None:
        found = process.wait(180.0)
        if found != code:
            last = process.log.read_text(errors="replace").strip().splitlines()[-1:]
            self.complaints.append(f"{name} ended with {found}: {last}")

    # -- processes ------------------------------------------------------------------------

    def _start_server(self, last: bool = False) -> None:
        if last:
            self._total = max(self.known_steps() + self._plan.calm, self._total)
        full = not last and len(self.lives) % 8 == 5
        self.broken["disk full"] += full
        self.lives.append(
            self._serve(len(self.lives), self._port, self._total, 40_000 if full else None)
        )
        self._doomed = None

    def known_steps(self) -> int:
        """Env steps that the last server knew of when it ended."""
        life = read_life(self.lives[-1].lines())
        return (life.resumed_at or 0) + life.steps

    def _start_client(self) -> None:
        client = ClientProcess(
            self._directory,
            len(self.clients),
            self._network.url,
            self._plan.num_envs,
            list(self._plan.client_options),
        )
        self.clients.append(client)
        self._running.append(client)

    def _look_around(self) -> None:
        """Replace what has ended; doom a server once it serves."""
        server = self.lives[-1]
        if not server.running:
            if not server.killed and server.number not in self._leaving:
                self._take_leave(server)
            self._start_server()
        elif server.listening and self._doomed is not server:
            self._doomed = server
            self._later(self._pause(1.0, 9.0), lambda: self._end_server(server))
        for client in [each for each in self._running if not each.running]:
            self._running.remove(client)
            if not client.killed:
                self._expect(client, 0, f"client {client.number}, on its own,")
            self._start_client()

    def _take_leave(self, server: ServerProcess) -> None:
        """A server ends by itself when the run is over, or when it cannot write to the disk."""
        said = server.log.read_text(errors="replace").strip().splitlines()[-1:]
        # One that was killed, or found no space, after its last step, has left a run that is over.
        if server.process.returncode == 0 or any("has done all" in line for line in said):
            self.broken["run over"] += 1
            self._total += self._plan.total
            return
        self.broken["server gave up"] += 1
        if not any("large" in line or "disk" in line or "space" in line for line in said):
            self.complaints.append(f"server {server.number} ended by itself: {said}")

    # -- what breaks ----------------------------------------------------------------------

    def _end_server(self, server: ServerProcess) -> None:
        if not server.running:
            return
        if len(self.lives) % 6 == 4:
            self._leaving.add(server.number)
            server.send(signal.SIGCONT)
            server.send(signal.SIGTERM)
            self.broken["stop server in good order"] += 1
        else:
            server.kill()
            self.broken["kill server"] += 1

    def _kill_client(self) -> None:
        if self._running:
            self._random.choice(self._running).kill()
            self.broken["kill client"] += 1

    def _stop_client(self) -> None:
        if self._running:
            self._suspend(self._random.choice(self._running), "stop client", 3.0)

    def _stop_server(self) -> None:
        self._suspend(self.lives[-1], "stop server", 2.0)

    def _suspend(self, process: Any, name: str, longest: float) -> None:
        if process.running:
            process.send(signal.SIGSTOP)
            self.broken[name] += 1
            self._later(self._pause(0.2, longest), lambda: process.send(signal.SIGCONT))

    def _cut(self) -> None:
        self._network.cut(self._random.choice(list(Cut)))
        self.broken["cut"] = self._network.cuts.total()

    def _stall(self) -> None:
        self._network.stall(True)
        self.broken["stall"] += 1
        self._later(self._pause(0.2, 3.0), lambda: self._network.stall(False))

    def _change_the_weather(self) -> None:
        chosen = self._random.choice(_WEATHER)
        self._network.latency, self._network.jitter, self._network.rate = chosen

    # -- time -----------------------------------------------------------------------------

    def _pause(self, shortest: float, longest: float) -> float:
        return self._plan.pace * self._random.uniform(shortest, longest)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        entry = (time.monotonic() + seconds, next(self._order), action)
        heapq.heappush(self._events, entry)

    def _repeat(self, action: Callable[[], None], shortest: float, longest: float) -> None:
        def again() -> None:
            action()
            self._later(self._pause(shortest, longest), again)

        self._later(self._pause(shortest, longest), again)

    def _every(self, seconds: float, action: Callable[[], None]) -> None:
        def again() -> None:
            action()
            self._later(seconds, again)

        self._later(seconds, again)
