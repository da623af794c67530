"""Wall time of ``train`` beside SB3's own ``learn()``, in turns, with everybody's own defaults.

Nothing else should run meanwhile, so ``--jobs`` stays 1. Each round is a task: SB3, SB3 with one
torch thread, ``train``; every other round goes the other way round.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.benchmarks.cases import CASES, Case, find_case
from tests.benchmarks.processes import Process
from tests.benchmarks.shows import Record, Show, Task, main, setup_line, table

__all__ = ["WallTime", "alone"]

_SECONDS: Final = 1800.0
#: Env steps in place of the case's own: enough for some updates.
_TIMESTEPS: Final = {
    "cartpole-ppo": 50_000,
    "cartpole-dqn": 25_000,
    "pendulum-sac": 2_500,
    "pendulum-td3": 12_000,
    "halfcheetah-ppo": 50_000,
}


def run_round(case: Case, number: int, total_timesteps: int, folder: Path) -> dict[str, Any]:
    """All sides, one after the other."""
    sides = [("sb3", _alone), ("sb3_1", _alone), ("train", _train)]
    found: dict[str, Any] = {}
    for name, side in sides if number % 2 == 0 else reversed(sides):
        began = time.monotonic()
        threads = 1 if name == "sb3_1" else None
        learning, steps = side(case, number, total_timesteps, folder, threads)
        found[name] = {
            "learning_seconds": round(learning, 2),
            "process_seconds": round(time.monotonic() - began, 2),
            "env_steps": steps,
        }
    return found


def _alone(
    case: Case, seed: int, total_timesteps: int, folder: Path, threads: int | None
) -> tuple[float, int]:
    given = ["--sb3", case.name, seed, total_timesteps]
    with Process(WallTime.module, given, folder / "sb3.log", threads) as process:
        process.finish(_SECONDS)
    found = json.loads(process.output)
    return found["seconds"], found["env_steps"]


def alone(case: Case, seed: int, total_timesteps: int) -> None:
    """SB3's learning in this process; prints how long it took."""
    from tests.benchmarks import sb3

    learned = sb3.learn(case, seed, total_timesteps)
    print(json.dumps({"seconds": learned.wall_seconds, "env_steps": learned.env_steps}))


def _train(
    case: Case, seed: int, total_timesteps: int, folder: Path, threads: int | None
) -> tuple[float, int]:
    options = [case.env_id, *case.server_options(seed, total_timesteps)]
    options += ["--run-dir", folder / "run", "--json", "--quiet"]
    with Process("plugrl_gym.train", options, folder / "train.log", threads) as process:
        process.finish(_SECONDS)
    result = json.loads(process.output)
    return result["wall_seconds"], result["timesteps"]


class WallTime(Show):
    """Ratios for each case."""

    name = "wall-time"
    module = "tests.benchmarks.wall_time"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        names = [case.name for case in CASES]
        add = parser.add_argument
        add("--case", nargs="+", choices=names, default=names, dest="cases", metavar="NAME")
        add("--rounds", type=int, default=3, metavar="N", help="for each case (%(default)s)")
        add("--timesteps", type=int, metavar="N", help="in place of each case's own number")

    def tasks(self, options: argparse.Namespace) -> list[Task]:
        if options.jobs != 1:
            raise SystemExit("--jobs: two runs at a time would measure each other")
        return [
            self._task(find_case(name), number, options.timesteps or _TIMESTEPS[name])
            for number in range(options.rounds)
            for name in options.cases
        ]

    def _task(self, case: Case, number: int, total_timesteps: int) -> Task:
        settings = {"total_timesteps": total_timesteps, "hyperparameters": dict(case.settings)}
        return Task(
            f"wall-time/{case.name}/{number}",
            settings,
            lambda folder: run_round(case, number, total_timesteps, folder),
        )

    def section(self, records: Mapping[str, Record]) -> str:
        rows = []
        for case in CASES:
            rounds = [r for key, r in records.items() if key.split("/")[1] == case.name]
            if not rounds:
                continue
            ratios = sorted(_ratio(found, "sb3", "learning_seconds") for found in rounds)
            ratios_1 = sorted(_ratio(found, "sb3_1", "learning_seconds") for found in rounds)
            whole = sorted(_ratio(found, "sb3_1", "process_seconds") for found in rounds)
            seconds = {
                side: median(found[side]["learning_seconds"] for found in rounds)
                for side in ("sb3", "sb3_1", "train")
            }
            steps = rounds[0]["sb3"]["env_steps"]
            rows.append(
                (
                    f"{case.env_id} {case.algo} x {case.num_envs}",
                    f"{steps:,}",
                    *(f"{seconds[side]:.1f} s" for side in ("sb3", "sb3_1", "train")),
                    *(f"{median(r):.2f} ({r[0]:.2f} to {r[-1]:.2f})" for r in (ratios, ratios_1)),
                    f"{median(whole):.2f}",
                    f"{1e3 * (seconds['train'] - seconds['sb3_1']) * case.num_envs / steps:.2f} ms",
                )
            )
        return f"{setup_line(records.values())}\n\n{table(_HEAD, rows)}\n\n{_LEGEND}"


_HEAD: Final = (
    "case",
    "env steps",
    "SB3 `learn()`",
    "SB3, one torch thread",
    "`train`",
    "train / SB3",
    "train / SB3, one thread",
    "whole commands",
    "more per vector step",
)
_LEGEND: Final = """\
Medians over the rounds; in brackets the smallest and the largest ratio. Seconds of learning, from
the first action on. *Whole commands*: the ratio to SB3 with one thread from the start of the
process to its end, imports and saving included. *More per vector step*: than SB3 with one thread,
for each step of all envs, learning included."""


def _ratio(found: Mapping[str, Any], yardstick: str, field: str) -> float:
    return float(found["train"][field] / found[yardstick][field])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--sb3"]:
        alone(find_case(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
        sys.exit()
    sys.exit(main(WallTime()))
