"""What evaluations said: evaluations.csv, lines in SB3's log, and which policy was the best."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from stable_baselines3.common.logger import KVWriter, Logger

from plugrl_gym.agents.sb3.runs import disk
from plugrl_gym.agents.sb3.runs.logs import RunLogger
from plugrl_gym.errors import UsageError

__all__ = ["Evaluation", "Evaluations"]

_log: Final = logging.getLogger(__name__)

# The returns of an evaluation are one field, and csv's own limit is that of 7,000 episodes.
_MOST_CHARACTERS: Final = 2**31 - 1
_COLUMNS: Final = (
    "timesteps",
    "mean_reward",
    "std_reward",
    "mean_ep_length",
    "episodes",
    "complete",
    "returns",
    "lengths",
)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one policy earned.

    Attributes:
        timesteps: Env steps that the run had learned from when the evaluation began.
        returns: Undiscounted, of each episode; at least one.
        lengths: In env steps.
        complete: False where the client left before it had played all episodes. Short episodes
            end first, so what it had by then may not be fair.
    """

    timesteps: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    complete: bool = True

    @property
    def mean_reward(self) -> float:
        """Mean of the returns."""
        return float(np.mean(self.returns))

    @property
    def std_reward(self) -> float:
        """Their standard deviation (of the population, as SB3 gives it)."""
        return float(np.std(self.returns))

    @property
    def mean_ep_length(self) -> float:
        """Mean of the lengths."""
        return float(np.mean(self.lengths))

    def beats(self, other: Evaluation | None) -> bool:
        """Whether it is the better one; a complete one always beats one that is not."""
        return other is None or (
            (self.complete, self.mean_reward) > (other.complete, other.mean_reward)
        )

    def __str__(self) -> str:
        return (
            f"{self.mean_reward:.1f} ± {self.std_reward:.1f} over {len(self.returns)} "
            f"episode{'s' * (len(self.returns) > 1)} at step {self.timesteps:,}"
        )


class Evaluations:
    """All evaluations of a run.

    Args:
        run_dir: Gets evaluations.csv; None for no file.
        known: The env steps after which a run goes on from what lies in ``run_dir``. Later
            evaluations have not happened, but for the best one: its model is still there. None
            for a run that begins; the first evaluation then overwrites the file of another run.

    Attributes:
        last, best: None before the first.
        number: How many there were.
    """

    def __init__(self, run_dir: Path | None, known: int | None = None) -> None:
        self.last: Evaluation | None = None
        self.best: Evaluation | None = None
        self.number = 0
        self._path = None if run_dir is None else run_dir / "evaluations.csv"
        self._all: list[Evaluation] = []
        if known is not None and self._path is not None and self._path.exists():
            self._all = _read(self._path, known)
            for evaluation in self._all:
                self._count(evaluation)

    def enter(self, evaluation: Evaluation, logger: Logger | None) -> bool:
        """Take the next one.

        Args:
            evaluation: Of this run.
            logger: SB3's, which gets a line of its own: what the learner has recorded for its
                next line stays where it is. None for none.

        Returns:
            Whether it is the best so far.

        Raises:
            OSError: It could not be written down yet; it counts all the same.
        """
        best = self._count(evaluation)
        _log.info("evaluation: %s%s", evaluation, ", the best so far" if best else "")
        if logger is not None:
            _log_line(logger, evaluation)
        if self._path is not None:
            self._all.append(evaluation)
            _write(self._path, self._all)
        return best

    def _count(self, evaluation: Evaluation) -> bool:
        self.number += 1
        self.last = evaluation
        best = evaluation.beats(self.best)
        if best:
            self.best = evaluation
        return best

    def summary(self) -> dict[str, Any]:
        """For result.json; empty where nothing was evaluated."""
        if self.last is None or self.best is None:
            return {}
        return {
            "evaluations": self.number,
            "last_mean_reward": self.last.mean_reward,
            "last_std_reward": self.last.std_reward,
            "last_timesteps": self.last.timesteps,
            "best_mean_reward": self.best.mean_reward,
            "best_std_reward": self.best.std_reward,
            "best_timesteps": self.best.timesteps,
        }


def _write(path: Path, evaluations: Sequence[Evaluation]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([_COLUMNS, *map(_row, evaluations)])

    def write(file: IO[bytes]) -> None:
        file.write(text.getvalue().encode())

    disk.replace_file(path, write)


def _row(evaluation: Evaluation) -> list[Any]:
    return [
        evaluation.timesteps,
        evaluation.mean_reward,
        evaluation.std_reward,
        evaluation.mean_ep_length,
        len(evaluation.returns),
        int(evaluation.complete),
        " ".join(map(str, evaluation.returns)),
        " ".join(map(str, evaluation.lengths)),
    ]


def _read(path: Path, known: int) -> list[Evaluation]:
    """The evaluations that count for a run which goes on."""
    text = path.read_text(encoding="utf-8", errors="replace")
    whole = text[: text.rfind("\n") + 1]  # a crash may leave half a line, the last
    csv.field_size_limit(_MOST_CHARACTERS)
    rows = csv.DictReader(whole.splitlines())
    found = []
    try:
        for row in rows:
            found.append(_evaluation(row))
    except (KeyError, ValueError, TypeError, AttributeError, csv.Error):
        raise UsageError(
            f"{path}, line {rows.line_num}: expected {', '.join(_COLUMNS)}, as they were written; "
            "mend the line, or move the file away to go on without the evaluations so far"
        ) from None
    best: Evaluation | None = None
    for evaluation in found:
        best = evaluation if evaluation.beats(best) else best
    return [one for one in found if one.timesteps <= known or one is best]


def _evaluation(row: dict[str, str]) -> Evaluation:
    returns = tuple(map(float, row["returns"].split()))
    lengths = tuple(map(int, row["lengths"].split()))
    if not len(returns) == len(lengths) > 0:
        raise ValueError
    return Evaluation(int(row["timesteps"]), returns, lengths, row["complete"] == "1")


def _log_line(logger: Logger, evaluation: Evaluation) -> None:
    values: dict[str, Any] = {
        "eval/mean_reward": evaluation.mean_reward,
        "eval/std_reward": evaluation.std_reward,
        "eval/mean_ep_length": evaluation.mean_ep_length,
        "eval/episodes": len(evaluation.returns),
        "time/total_timesteps": evaluation.timesteps,
    }
    excluded: dict[str, tuple[str, ...]] = dict.fromkeys(values, ("",))
    excluded["time/total_timesteps"] = ("tensorboard",)  # there it is the step of the line
    if isinstance(logger, RunLogger):
        logger.write(values, excluded, evaluation.timesteps)
        return
    for output in logger.output_formats:  # the user's own
        if isinstance(output, KVWriter):
            output.write(values, excluded, evaluation.timesteps)
