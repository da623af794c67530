"""How far a server is."""

from __future__ import annotations

import time

from plugrl_gym.display import Pace, Reading
from plugrl_gym.server import RunSnapshot

__all__ = ["ServerProgress"]


class ServerProgress:
    """Makes readings of a server's run.

    Args:
        total: Env steps in all; None where nobody knows.
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._pace = Pace()
        self._evaluated = 0
        self._alone_since: float | None = None

    def read(self, run: RunSnapshot, activity: str, evaluation: object = None) -> Reading | None:
        """The reading of now; None before the first client came.

        Args:
            run: So far.
            activity: What the server does besides serving, as "learning"; empty for nothing.
            evaluation: The last one, whose str goes into the line; None before the first.
        """
        if not run.clients_seen:
            return None
        now = time.monotonic()
        self._alone_since = None if run.clients else self._alone_since or now
        pause = ""
        if self._alone_since is not None and activity != "saving":
            pause = f"no client, {now - self._alone_since:.0f} s"
        evaluates = run.evaluation_steps > self._evaluated
        self._evaluated = run.evaluation_steps
        return Reading(
            run.env_steps,
            self._total,
            rate=self._pace.rate(run.env_steps),
            episodes=run.episodes,
            mean_return=run.mean_return,
            latency=run.latency.get("answer", {}).get("p50"),
            clients=run.clients or None,
            note="" if evaluation is None else f"evaluation {evaluation}",
            pause=pause,
            activity=activity or ("evaluating" if evaluates else ""),
        )
