"""The smallest learner that a kill could harm: a table of values, saved and loaded."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plugrl_gym.protocol import Feedback, Infer, Metadata
from plugrl_gym.server import Agent, Client, Request
from tests.chaos.envs import CUES, read_cue
from tests.chaos.recorder import vectors

__all__ = ["TableAgent"]

_log = logging.getLogger(__name__)


class TableAgent(Agent):
    """Learns which action fits which cue of :class:`~tests.chaos.envs.Ledgered`.

    Args:
        file: Where the table is saved; it is loaded from there if it exists.
        total_timesteps: Env steps after which the run is over, those before a kill included.
        horizon: Steps in each chunk.
        save_every: Rows between two checkpoints.
    """

    env_id = "Ledgered-v0"

    def __init__(
        self, file: Path, total_timesteps: int, horizon: int = 3, save_every: int = 64
    ) -> None:
        self._file = file
        self._save_every = save_every
        self._horizon = horizon
        self._rng = np.random.default_rng(0)
        self.total_timesteps = total_timesteps
        self.sums, self.counts = np.zeros((CUES, CUES)), np.full((CUES, CUES), 1e-9)
        self.timesteps = 0
        self._unsaved = self._rows = 0
        if file.exists():
            with np.load(file) as table:
                self.sums, self.counts = table["sums"], table["counts"]
                self.timesteps = int(table["timesteps"])

    @property
    def rows_stored(self) -> int:
        return self._rows

    def metadata(self) -> Metadata:
        return Metadata(algorithm="table", action_horizon=self._horizon, action_dim=1)

    def prepare(self, client: Client, infer: Infer) -> Any:
        return [read_cue(row) for row in vectors(infer.observation)]

    def act(self, requests: Sequence[Request]) -> list[npt.NDArray[np.generic]]:
        best = (self.sums / self.counts).argmax(axis=1)
        answers: list[npt.NDArray[np.generic]] = []
        for request in requests:
            chosen = best[request.prepared]
            explore = self._rng.random(len(chosen)) < (0.02 if self.timesteps > 2000 else 0.5)
            chosen[explore] = self._rng.integers(CUES, size=int(explore.sum()))
            request.client.state = dict(request.client.state or {})
            for env, cue in zip(request.infer.env_indices.tolist(), request.prepared, strict=True):
                request.client.state[env] = cue
            answers.append(np.repeat(chosen[None], self._horizon, axis=0))
        return answers

    def feedback(self, client: Client, feedback: Feedback) -> Mapping[str, int]:
        assert feedback.chunk_steps is not None
        assert feedback.executed is not None
        for k, env in enumerate(feedback.env_indices.tolist()):
            cell = client.state[env], int(feedback.executed.actions[0, k])
            steps = int(feedback.chunk_steps.steps[k])
            self.sums[cell] += feedback.rewards[k]
            self.counts[cell] += steps
            self.timesteps += steps
        self._rows += len(feedback.env_indices)
        self._unsaved += len(feedback.env_indices)
        return {}

    @property
    def learning_due(self) -> bool:
        return self._unsaved >= self._save_every

    def learn(self) -> None:
        self._unsaved = 0
        try:
            self._save()
        except OSError as error:
            _log.warning("cannot save: %s", error)

    def _save(self) -> None:
        unfinished = self._file.with_suffix(".part")
        with unfinished.open("wb") as file:
            np.savez(file, sums=self.sums, counts=self.counts, timesteps=self.timesteps)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._file)

    @property
    def finished(self) -> bool:
        return self.timesteps >= self.total_timesteps

    def close(self) -> None:
        self._save()
