"""Ready-made loops over a :class:`~plugrl_gym.client.vector_env.PlugRLVectorEnv`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from plugrl_gym.client.progress import shown
from plugrl_gym.client.takeover import Takeover, replaced
from plugrl_gym.errors import RunFinished

if TYPE_CHECKING:
    from plugrl_gym.client.vector_env import PlugRLVectorEnv

__all__ = ["RunSummary", "rollout", "run", "summed_up"]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """How a run went; times in seconds, steps are env steps over all envs.

    Attributes:
        overridden_steps: Env steps that ran another action than the server's.
        mean_return, mean_length: Over the last 100 episodes; None if none finished.
        finished: Whether the server ended the run (else a limit did).
        latency: See :meth:`ClientStatistics.latency`.
        books: The ledger (:mod:`plugrl_gym.client.books`), and under ``errors`` what does not
            balance in it.
    """

    env_steps: int
    overridden_steps: int
    episodes: int
    mean_return: float | None
    mean_length: float | None
    steps_per_second: float
    wall_seconds: float
    chunks_received: int
    chunks_dropped: int
    connections: int
    finished: bool
    latency: dict[str, dict[str, float]]
    books: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)


def rollout(
    envs: PlugRLVectorEnv,
    seed: int | list[int | None] | None,
    max_steps: int | None,
    max_episodes: int | None,
    progress: bool,
    between_steps: Callable[[], None] | None = None,
    takeover: Takeover | None = None,
) -> Iterator[Any]:
    """See :meth:`PlugRLVectorEnv.rollout`."""
    stats = envs.stats
    first_step, first_episode = stats.env_steps, stats.episodes

    def limit_reached() -> bool:
        steps, episodes = stats.env_steps - first_step, stats.episodes - first_episode
        return (max_steps is not None and steps >= max_steps) or (
            max_episodes is not None and episodes >= max_episodes
        )

    with shown(envs, max_steps) if progress else nullcontext():
        observation, _ = envs.reset(seed=seed)
        over = False
        while not (over or limit_reached()):
            try:
                planned = None if takeover is None else envs.infer()
                step = envs.step(replaced(takeover, observation, planned))
            except RunFinished:
                return
            observation = step[0]
            if between_steps is not None:
                between_steps()
            if not limit_reached():
                # Asked for before the caller sees this step, so that a run's end is known by
                # then: nothing is stepped that the server would not hear of.
                over = _ends(envs)
            yield step


def _ends(envs: PlugRLVectorEnv) -> bool:
    try:
        envs.infer()
    except RunFinished:
        return True
    return False


def run(
    envs: PlugRLVectorEnv,
    *,
    seed: int | list[int | None] | None = None,
    max_steps: int | None = None,
    max_episodes: int | None = None,
    progress: bool = False,
    between_steps: Callable[[], None] | None = None,
    takeover: Takeover | None = None,
) -> RunSummary:
    """See :meth:`PlugRLVectorEnv.run`."""
    started = time.monotonic()
    steps = envs.stats.env_steps
    for _ in rollout(envs, seed, max_steps, max_episodes, progress, between_steps, takeover):
        pass
    return summed_up(envs, started, steps)


def summed_up(envs: PlugRLVectorEnv, started: float, steps: int = 0) -> RunSummary:
    """What envs have done until now.

    Args:
        envs: Which.
        started: When they began, by ``time.monotonic()``.
        steps: How many env steps they had made then.
    """
    wall = time.monotonic() - started
    stats = envs.stats
    return RunSummary(
        env_steps=stats.env_steps,
        overridden_steps=stats.overridden_steps,
        episodes=stats.episodes,
        mean_return=stats.mean_return,
        mean_length=stats.mean_length,
        steps_per_second=(stats.env_steps - steps) / wall if wall > 0 else 0.0,
        wall_seconds=wall,
        chunks_received=stats.chunks_received,
        chunks_dropped=stats.chunks_dropped,
        connections=stats.connections,
        finished=envs.finished,
        latency=stats.latency(),
        books=stats.books.to_dict() | {"errors": list(stats.book_errors)},
    )
