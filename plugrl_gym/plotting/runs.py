"""What a run directory tells about its run, as arrays."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from plugrl_gym.errors import UsageError

__all__ = ["QUANTILES", "STEPS", "Run", "Table", "read_run"]

#: The columns of progress.csv that place a line: env steps, and seconds since the run began.
STEPS: Final = "time/total_timesteps"
_SECONDS: Final = "time/time_elapsed"

#: Of latency.
QUANTILES: Final = ("p50", "p95", "p99")

#: Settings that do not change what a run learns.
_HOUSEKEEPING: Final = frozenset({"log_interval", "save_every", "keep"})

Table: TypeAlias = Mapping[str, npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        path: Its directory.
        algorithm: As typed, for example ``"ppo"``; the directory's name where nothing says it.
        env_id: As the client declared it; None where nothing says it.
        seed: None for a run that had none.
        settings: What tells it from other runs of this algorithm on this env, but for the seed.
        log: progress.csv, each column float64 [lines]; NaN where a line is silent.
        evaluations: evaluations.csv likewise, complete ones only; empty where there were none.
        latency: Stage -> :data:`QUANTILES` in seconds, from result.json; empty where it tells none.
    """

    path: Path
    algorithm: str
    env_id: str | None
    seed: int | None
    settings: Mapping[str, Any]
    log: Table
    evaluations: Table
    latency: Mapping[str, Mapping[str, float]]

    def seconds_at(self, steps: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Seconds after the run's start at which it had made so many env steps, float64 [...].

        Interpolated between the lines of the log; NaN where the log tells no time.
        """
        seconds = self.log.get(_SECONDS)
        if seconds is None:
            return np.full(np.shape(steps), np.nan)
        known = np.isfinite(self.log[STEPS]) & np.isfinite(seconds)
        if not known.any():
            return np.full(np.shape(steps), np.nan)
        return np.interp(steps, self.log[STEPS][known], seconds[known])


def read_run(path: Path) -> Run:
    """Read a run directory, also one whose run goes on or was killed.

    Raises:
        UsageError: There is none, or nothing to draw in it.
    """
    if not path.is_dir():
        raise UsageError(f"there is no run directory {path}")
    log = _read_table(path / "progress.csv")
    if log is None:
        raise UsageError(f"{path} has no progress.csv, so there is nothing to draw in it")
    if STEPS not in log or not np.isfinite(log[STEPS]).any():
        raise UsageError(f"{path / 'progress.csv'} tells of no env step yet: nothing to draw")
    config, result = _read_json(path / "config.json"), _read_json(path / "result.json")
    return Run(
        path=path,
        algorithm=str(config.get("algorithm") or result.get("algo") or path.name),
        env_id=config.get("env_id") or result.get("env_id"),
        seed=config.get("seed", result.get("seed")),
        settings=_settings(config),
        log=log,
        evaluations=_complete(_read_table(path / "evaluations.csv") or {}),
        latency=_latency(result.get("latency")),
    )


def _latency(told: object) -> dict[str, dict[str, float]]:
    """The stages of which all quantiles are told."""
    stages = told.items() if isinstance(told, dict) else ()
    return {
        stage: {name: float(quantiles[name]) for name in QUANTILES}
        for stage, quantiles in stages
        if isinstance(quantiles, dict)
        and all(isinstance(quantiles.get(name), int | float) for name in QUANTILES)
    }


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: config[name] for name in ("policy", "num_envs") if name in config}
    for group in ("settings", "hyperparameters"):
        settings.update(config.get(group) or {})
    return {name: value for name, value in settings.items() if name not in _HOUSEKEEPING}


def _complete(evaluations: Table) -> Table:
    if "complete" not in evaluations:
        return evaluations
    whole = evaluations["complete"] != 0.0
    return {name: column[whole] for name, column in evaluations.items()}


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is no file.

    Raises:
        UsageError: Something else is in it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} cannot be read (expected a JSON object)")
    return content


def _read_table(path: Path) -> Table | None:
    """The columns of a CSV file; None where there is no file.

    A last line without its end is still being written, or never was: it is left out.

    Raises:
        UsageError: It is no CSV file.
    """
    csv.field_size_limit(2**31 - 1)  # all returns of one evaluation are a field
    try:
        with path.open(newline="", encoding="utf-8") as file:
            whole = [line for line in file if line.endswith("\n")]
        header, *lines = list(csv.reader(whole)) or [[]]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read ({error})") from None
    columns = {
        name: np.array([_number(line[place]) if place < len(line) else np.nan for line in lines])
        for place, name in enumerate(header)
    }
    return {name: column.astype(np.float64) for name, column in columns.items()}


def _number(text: str) -> float:
    if text in ("True", "False"):
        return float(text == "True")
    try:
        return float(text)
    except ValueError:
        return float("nan")
