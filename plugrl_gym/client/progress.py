"""How far a client is."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tqdm import TqdmWarning

from plugrl_gym.display import Bar, Pace, Pause, Reading, Reporter, user_surface

if TYPE_CHECKING:
    from plugrl_gym.client.vector_env import PlugRLVectorEnv

__all__ = ["ClientProgress", "shown"]

_NOTABLE: Final = 1.0


class ClientProgress:
    """A client's readings: its counts, and what it waits for.

    Args:
        envs: Whose counts.
        total: Env steps that are to be made from now on; None where only the server knows.

    Attributes:
        pause: To tell what else the caller is busy with.
    """

    def __init__(self, envs: PlugRLVectorEnv, total: int | None) -> None:
        self.pause = Pause()
        self._envs = envs
        self._before = envs.stats.env_steps
        self._total = total
        self._pace = Pace()
        self._since = time.monotonic()
        self._apart_since: float | None = None

    def read(self) -> Reading | None:
        """The reading of now; None while there is nothing to tell."""
        stats = self._envs.stats
        steps = stats.env_steps - self._before
        pause = self.pause.words(after=0.0) or self._wait()
        if not steps:
            return self._beginning(pause)
        return Reading(
            steps,
            self._total,
            rate=self._pace.rate(steps),
            episodes=stats.episodes,
            mean_return=stats.mean_return,
            latency=stats.latency().get("exchange", {}).get("p50"),
            pause=pause,
        )

    def _beginning(self, pause: str) -> Reading | None:
        lasted = time.monotonic() - self._since
        if pause or lasted >= _NOTABLE:
            return Reading(pause=pause or f"before the first step, {lasted:.0f} s")
        return None

    def _wait(self) -> str:
        """``waiting for the server, 12 s``; empty while nothing is waited for."""
        session = self._envs._session
        if session.connected or session.finished:
            self._apart_since = None
            return self._envs._waiting.words()
        now = time.monotonic()
        self._apart_since = self._apart_since or now
        lasted = now - self._apart_since
        return (
            f"waiting for a server at {session.url}, {lasted:.0f} s" if lasted >= _NOTABLE else ""
        )


@contextlib.contextmanager
def shown(envs: PlugRLVectorEnv, total: int | None) -> Iterator[None]:
    """While the block runs a live line shows how far ``envs`` are, and logging keeps clear of it.

    Args:
        envs: Whose steps; their ``on_wait`` is not called meanwhile, for the line shows waits.
        total: As for :class:`ClientProgress`.
    """
    surface = user_surface()
    envs._waiting.silent = True
    try:
        with (
            Reporter(ClientProgress(envs, total).read, surface),
            _log_lines_above_bars() if isinstance(surface, Bar) else contextlib.nullcontext(),
        ):
            yield
    finally:
        envs._waiting.silent = False


def _log_lines_above_bars() -> contextlib.AbstractContextManager[None]:
    with warnings.catch_warnings():
        # Loading it warns in a notebook without ipywidgets, where the bar is text.
        warnings.simplefilter("ignore", TqdmWarning)
        from tqdm.contrib.logging import logging_redirect_tqdm
    above: contextlib.AbstractContextManager[None] = logging_redirect_tqdm()
    return above
