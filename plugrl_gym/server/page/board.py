"""What the page shows, as JSON: read when somebody asks, except for the points of the curve."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from plugrl_gym.server.agent import Client
from plugrl_gym.server.closing import SHUTDOWN, STOP, Closing
from plugrl_gym.server.page.camera import Camera
from plugrl_gym.server.page.history import History, Moment
from plugrl_gym.server.runner import SERVER_NAME, AgentRunner, server_version
from plugrl_gym.server.statistics import ClientSnapshot, RunSnapshot, RunStatistics

__all__ = ["Board"]

_PACE_SECONDS: Final = 0.25
_MOST_CLIENTS: Final = 100
# A page that has asked within the first of these is told of the end within the second.
_OPEN_SECONDS: Final = 5.0
_FAREWELL_SECONDS: Final = 3.0


class Board:
    """One server's run, for people who look on.

    Args:
        statistics: What the run has done.
        runner: Whose agent, and whether it learns.
        clients: The connections of now that have asked for actions.
        ending: How the run ends; None while it does not.

    Attributes:
        title: The run's name; None where it has none.
        continued: Makes of what this process did what the whole run did, where it was resumed.
        camera: Shows the newest image.
    """

    def __init__(
        self,
        statistics: RunStatistics,
        runner: AgentRunner,
        clients: Callable[[], Iterable[Client]],
        ending: Callable[[], Closing | None],
    ) -> None:
        self.title: str | None = None
        self.continued: Callable[[RunSnapshot], RunSnapshot] = lambda run: run
        self.camera = Camera()
        self._statistics = statistics
        self._runner = runner
        self._clients = clients
        self._ending = ending
        self._history = History()
        self._asked = -math.inf
        self._told = asyncio.Event()

    @property
    def ending(self) -> bool:
        """Whether the run is over, and what it keeps is being saved."""
        return self._ending() is not None

    async def record(self) -> None:
        """Take down points of the curve until cancelled."""
        while True:
            self._note(self.continued(self._statistics.glance()))
            await asyncio.sleep(_PACE_SECONDS)

    def expect_more(self) -> None:
        """A page is open, and will ask again and again."""
        self._asked = time.monotonic()

    async def farewell(self) -> None:
        """The server is about to end: wait until a page that is open has heard of it."""
        if time.monotonic() - self._asked < _OPEN_SECONDS:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), _FAREWELL_SECONDS)

    def status(self) -> dict[str, Any]:
        """Everything of now, as plain values without a NaN or an infinity."""
        run = self.continued(self._statistics.snapshot())
        self._note(run)
        if self.ending:
            self._told.set()
        moments = self._history.moments()
        shown, others = self._shown_clients()
        status = {
            "server": f"{SERVER_NAME} {server_version()}",
            "run": self._about(run),
            "evaluation": _evaluation(run),
            "clients": shown,
            "other_clients": others,
            "curve": {
                "seconds": [round(moment.seconds, 2) for moment in moments],
                "steps": [moment.steps for moment in moments],
                "returns": [moment.mean_return for moment in moments],
            },
            "latency": run.latency,
            "books": run.books.flat(),
            "book_errors": list(run.book_errors),
            "camera": self._sight(),
        }
        return {name: _finite(value) for name, value in status.items()}

    def _note(self, run: RunSnapshot) -> None:
        self._history.add(Moment(run.seconds, run.env_steps, run.mean_return))

    def _about(self, run: RunSnapshot) -> dict[str, Any]:
        ending = self._ending()
        return {
            "title": self.title,
            "algorithm": self._runner.metadata.algorithm,
            "state": self._state(run, ending),
            "started": run.started,
            "seconds": run.seconds,
            "steps": run.env_steps,
            "total_steps": getattr(self._runner.agent, "total_timesteps", None),
            "episodes": run.episodes,
            "mean_return": run.mean_return,
            "mean_length": run.mean_length,
            "steps_per_second": self._history.rate(),
            "mean_steps_per_second": run.steps_per_second,
            "learning_seconds": run.learning_seconds,
        }

    def _state(self, run: RunSnapshot, ending: Closing | None) -> str:
        if ending is not None:
            return {STOP: "finished", SHUTDOWN: "stopped"}.get(ending, "failed")
        if not run.clients:
            return "alone" if run.clients_seen else "new"
        return "learning" if self._runner.agent.learning_due else "running"

    def _shown_clients(self) -> tuple[list[dict[str, Any]], int]:
        """The first of the clients, and how many more there are."""
        accounts = self._statistics.clients()
        present = sorted(
            (client for client in self._clients() if client.number in accounts),
            key=lambda client: client.number,
        )
        shown = [_client(client, accounts[client.number]) for client in present[:_MOST_CLIENTS]]
        return shown, len(present) - len(shown)

    def _sight(self) -> dict[str, Any] | None:
        sight = self.camera.newest
        if sight is None:
            return None
        return {
            "number": sight.number,
            "client": sight.client,
            "env": sight.env,
            "key": sight.key,
            "shape": list(sight.image.shape),
        }


def _client(client: Client, account: ClientSnapshot) -> dict[str, Any]:
    declared = client.declaration
    return {
        "number": client.number,
        "address": client.address,
        "env_id": None if declared is None else declared.env_id,
        "envs": account.envs if declared is None else declared.num_envs,
        "mode": "train" if client.learning else "eval",
        "steps": account.env_steps,
        "episodes": account.episodes,
        "mean_return": account.mean_return,
        "idle_seconds": account.idle_seconds,
    }


def _evaluation(run: RunSnapshot) -> dict[str, Any] | None:
    if not run.evaluation_episodes:
        return None
    returns = run.evaluation_returns
    return {
        "episodes": run.evaluation_episodes,
        "mean_return": sum(returns) / len(returns) if returns else None,
    }


def _finite(value: Any) -> Any:
    """The same with None for each number that JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list) else value
