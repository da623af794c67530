"""Run directories with handwritten numbers in them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STEPS, SECONDS, RETURN = "time/total_timesteps", "time/time_elapsed", "rollout/ep_rew_mean"


def write_table(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """A CSV file as Stable-Baselines3 writes it."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])


def write_run(
    path: Path,
    log: Mapping[str, Sequence[Any]] | None = None,
    *,
    algorithm: str = "ppo",
    env_id: str = "CartPole-v1",
    seed: int = 0,
    result: Mapping[str, Any] | None = None,
    evaluations: Mapping[str, Sequence[Any]] | None = None,
    **settings: Any,
) -> Path:
    """A run directory; two lines of a log by default."""
    path.mkdir(parents=True)
    if log is None:
        log = {STEPS: [100, 200], SECONDS: [1, 3], RETURN: [10.0, 30.0]}
    write_table(path / "progress.csv", log)
    config = {"format": 1, "algorithm": algorithm, "env_id": env_id, "seed": seed}
    config |= {"num_envs": 4, "settings": {"horizon": 1, "keep": seed, **settings}}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if result is not None:
        (path / "result.json").write_text(json.dumps(result), encoding="utf-8")
    if evaluations is not None:
        write_table(path / "evaluations.csv", evaluations)
    return path
