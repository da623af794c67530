"""The files of a run while it goes on: when they are written, and what happens if they cannot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from stable_baselines3.common.base_class import BaseAlgorithm

from plugrl_gym.agents.sb3.learners.learner import Learner
from plugrl_gym.agents.sb3.runs import disk
from plugrl_gym.agents.sb3.runs.checkpoints import CHECKPOINTS, Checkpoints, check_unused
from plugrl_gym.agents.sb3.runs.choices import Choices
from plugrl_gym.agents.sb3.runs.config import RunConfig
from plugrl_gym.agents.sb3.runs.counters import Counters
from plugrl_gym.agents.sb3.runs.loading import NORMALIZER
from plugrl_gym.agents.sb3.runs.lock import Lock
from plugrl_gym.agents.sb3.runs.resuming import StoredRun
from plugrl_gym.agents.sb3.runs.snapshot import MODEL, state_of, write_snapshot
from plugrl_gym.errors import RemoteProtocolError, RunFailed, UsageError

__all__ = ["RunKeeper"]

_log: Final = logging.getLogger(__name__)


class RunKeeper:
    """Writes config.json, checkpoints and, beside them, the newest model of one run.

    Nothing is written before :meth:`begin`. Saving may take seconds, for a replay buffer may be
    large; it is done where the agent learns.

    Args:
        choices: Complete; without a ``run_dir`` nothing is ever done.
        run: What is resumed; None for a run that begins.

    Attributes:
        note: Gives what somebody else wants to find in each checkpoint, as JSON.

    Raises:
        UsageError: A run that begins must not come over another one; no two processes may write
            one run.
    """

    def __init__(self, choices: Choices, run: StoredRun | None) -> None:
        assert choices.save_every is not None
        assert choices.keep is not None
        self.note: Callable[[], Mapping[str, Any]] = dict
        self._save_every, self._keep = choices.save_every, choices.keep
        run_dir = choices.run_dir
        self._lock: Lock | None = None
        self._failed = False
        self._run_dir = run_dir
        self._last = None if run is None else run.checkpoint
        self._next = 0
        if run_dir is None:
            return
        self._checkpoints = Checkpoints(run_dir / CHECKPOINTS)
        if run is not None:
            self._occupy(run_dir)
            self._plan_after(run.steps)
        else:
            check_unused(run_dir)

    def _occupy(self, run_dir: Path) -> None:
        """Become the only writer, and remove what writers that were killed have left."""
        if self._lock is None:
            run_dir.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(run_dir)
            disk.remove_leftovers(run_dir)
            disk.remove_leftovers(self._checkpoints.directory)

    def begin(self, config: RunConfig) -> None:
        """Learning begins, or goes on.

        Raises:
            RunFailed: Nothing can be written there, or another process writes there.
        """
        if self._run_dir is None:
            return
        try:
            self._occupy(self._run_dir)
            config.write(self._run_dir)
        except (OSError, UsageError) as error:
            raise RunFailed(f"the run cannot begin: {error}") from error

    def due(self, learner: Learner[Any, Any]) -> bool:
        """Whether a checkpoint should be written now, or as soon as no update is due."""
        if self._run_dir is None or self._save_every == 0 or learner.finished:
            return False
        if learner.due and not learner.asynchronous:
            return False
        return bool(learner.model.num_timesteps >= self._next)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """What the block raises is the end of the run, whose model is not to be saved any more.

        Only a :class:`RemoteProtocolError` is not: it ends its client, and comes before any change.
        """
        try:
            yield
        except RemoteProtocolError:
            raise
        except RunFailed as error:
            self._failed = True
            raise type(error)(f"{error}; {self._standing()}") from error
        except Exception:
            self._failed = True
            raise

    def save_or_warn(self, learner: Learner[Any, Any], counters: Counters) -> None:
        """Write a checkpoint; where the disk does not take it, say so and go on.

        Raises:
            RunFailed: The model holds a number that is not finite, or is none that can be saved.
        """
        before = self._last
        try:
            self._save(learner, counters)
        except OSError as error:
            _log.warning(
                "%s at env step %s: %s; learning goes on, and %s",
                "no checkpoint" if self._last == before else f"no new {MODEL}",
                f"{learner.model.num_timesteps:,}",
                error,
                self._standing(),
            )
        self._plan_after(learner.model.num_timesteps)

    def save(self, learner: Learner[Any, Any], counters: Counters) -> None:
        """Write a checkpoint and the newest model, unless the run has failed.

        Raises:
            RunFailed: The disk does not take it, and everything older is as it was; the model
                holds a number that is not finite, or is none that can be saved.
        """
        if self._run_dir is None or self._failed:
            return
        with self.failing():
            try:
                self._save(learner, counters)
            except OSError as error:
                raise RunFailed(
                    f"{self._run_dir}: saving at env step {learner.model.num_timesteps:,} "
                    f"failed: {error}"
                ) from error

    def save_model(self, model: BaseAlgorithm) -> None:
        """Write model.zip alone, of a model that has not begun to learn, unless that has failed.

        Raises:
            RunFailed: The disk does not take it.
        """
        if self._run_dir is None or self._failed:
            return
        try:
            disk.replace_file(self._run_dir / MODEL, model.save)
        except OSError as error:
            raise RunFailed(f"{self._run_dir}: saving the model failed: {error}") from error

    def _save(self, learner: Learner[Any, Any], counters: Counters) -> None:
        assert self._run_dir is not None
        learner.check_finite()
        model = learner.model
        state = state_of(learner, counters)
        note = {
            "finished": learner.finished,
            "counters": asdict(counters),
            "noted": dict(self.note()),
        }
        try:
            path = self._checkpoints.write(
                model.num_timesteps,
                note,
                lambda directory: write_snapshot(directory, model, state),
            )
        except OSError:
            raise
        except Exception as error:  # whatever pickle meets in what the user gave to the model
            raise RunFailed(f"the run cannot be saved: {type(error).__name__}: {error}") from error
        self._last = path
        self._checkpoints.keep(self._keep, path)  # which also makes room
        for name in (MODEL, NORMALIZER):
            if (path / name).exists():
                disk.copy_file(path / name, self._run_dir / name)

    def close(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _standing(self) -> str:
        """What is on disk, for the end of a sentence."""
        if self._last is None:
            return "no checkpoint was saved"
        return f"the last good checkpoint is {self._last}"

    def _plan_after(self, steps: int) -> None:
        if self._save_every > 0:
            self._next = (steps // self._save_every + 1) * self._save_every
