"""Three clients that join and leave a run, at moments that a seed decides."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tests.benchmarks.processes import Process, Server

__all__ = ["Crowd", "Event", "plan"]

_TICK: Final = 0.1
#: Shares of the run: how long a client stays, and how long it is away.
_STAY: Final = (0.08, 0.25)
_AWAY: Final = (0.02, 0.08)
_LAST_JOIN: Final = 0.95


@dataclass(frozen=True, order=True)
class Event:
    """One client joins, leaves (by Ctrl-C) or is cut off (it is killed).

    Attributes:
        step: The server's env steps at which it happens.
        client: Which, from 0.
        what: ``"join"``, ``"leave"`` or ``"cut"``.
    """

    step: int
    client: int
    what: str


def plan(seed: int, clients: int, total_timesteps: int) -> list[Event]:
    """Comings and goings within a run; at any moment at least one client is there.

    Args:
        seed: Decides all of it.
        clients: How many; the first one is there from the start, the others come soon after.
        total_timesteps: Of the run.
    """
    rng = np.random.default_rng(seed)
    wanted: list[Event] = []
    for client in range(clients):
        share = 0.0 if client == 0 else float(rng.uniform(*_AWAY))
        while share < _LAST_JOIN:
            wanted.append(Event(int(share * total_timesteps), client, "join"))
            share += rng.uniform(*_STAY)
            how = "cut" if rng.random() < 0.5 else "leave"
            wanted.append(Event(int(share * total_timesteps), client, how))
            share += rng.uniform(*_AWAY)
    return _never_empty(sorted(wanted), total_timesteps)


def _never_empty(wanted: list[Event], total_timesteps: int) -> list[Event]:
    present: set[int] = set()
    events: list[Event] = []
    for event in wanted:
        if event.step >= total_timesteps:
            break
        if event.what == "join":
            if event.client in present:
                continue  # it was not let go
            present.add(event.client)
        elif len(present) == 1:
            continue
        else:
            present.remove(event.client)
        events.append(event)
    return events


class Crowd:
    """The clients of one run as processes.

    Args:
        server: Whose steps are the clock.
        env_id: What they run.
        envs: How many envs each of them has.
        seed: Decides the plan and the seeds of all envs.
        folder: Gets a log of each visit.

    Attributes:
        happened: How often somebody joined, left or was cut off.
    """

    def __init__(
        self, server: Server, env_id: str, envs: tuple[int, ...], seed: int, folder: Path
    ) -> None:
        self._server = server
        self._env_id = env_id
        self._envs = envs
        self._seed = seed
        self._folder = folder
        self._running: dict[int, Process] = {}
        self.happened: Counter[str] = Counter()

    def run(self, total_timesteps: int, seconds: float) -> None:
        """Follow the plan until the server ends.

        Raises:
            TimeoutError: It did not, for so many seconds.
        """
        events = plan(self._seed, len(self._envs), total_timesteps)
        deadline = time.monotonic() + seconds
        try:
            while self._server.code is None:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the run has not ended within {seconds:g} s")
                for process in self._running.values():
                    if process.code is not None:
                        process.finish(0)  # raises if it failed
                steps = self._server.env_steps
                while events and events[0].step <= steps and self._may(events[0]):
                    self._do(events.pop(0))
                time.sleep(_TICK)
            for process in self._running.values():
                _end(process)
        finally:
            for process in self._running.values():
                process.kill()

    def _may(self, event: Event) -> bool:
        """Nobody goes before all who came have been let in: else nobody might be left."""
        return event.what == "join" or self._server.connections >= self.happened["join"]

    def _do(self, event: Event) -> None:
        self.happened[event.what] += 1
        if event.what == "join":
            self._running[event.client] = self._start(event.client)
            return
        process = self._running.pop(event.client)
        if event.what == "cut":
            process.kill()
        else:
            process.leave()
            process.finish(60, codes=(0, 130))

    def _start(self, client: int) -> Process:
        visit = self.happened["join"]
        options = ["--num-envs", self._envs[client], "--seed", 1000 * self._seed + 10 * visit]
        return Process(
            "plugrl_gym.rollout",
            [self._env_id, "--url", self._server.url, *options, "--json"],
            self._folder / f"client-{client}-visit-{visit}.log",
        )


def _end(client: Process) -> None:
    """Wait for a client whose server has ended; one may have come too late to be let in."""
    if client.finish(120, codes=(0, 2)) == 2 and "could be reached" not in client.said:
        client.finish(0)  # raises
