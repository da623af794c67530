"""A sparse mountain car with SAC, alone and with an expert that takes over in a fifth of the steps.

Nothing but the goal pays, and SAC's exploration does not find it. The expert is
``sparse_mountain_car.push_along``, given to ``rollout --takeover`` at random moments. What it did
is in the replay buffer like everything else; nothing else differs between the arms. The final model
is evaluated by itself, without any expert.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.cases import Case
from tests.benchmarks.learning import examine, served, spread
from tests.benchmarks.processes import Process, Server, read_result
from tests.benchmarks.shows import Record, Show, Task, main, setup_line, table

__all__ = ["Takeover", "run"]

_MODULE: Final = "tests.benchmarks.sparse_mountain_car"
_SECONDS: Final = 3600.0
_SHARE: Final = 0.2
_SOLVED: Final = 95.0
_ARMS: Final = ("alone", "expert")
_NAMES: Final = {"alone": "alone", "expert": f"with an expert in {_SHARE:.0%} of the steps"}
_CASE: Final = Case(
    "sparse-mountain-car-sac",
    f"{_MODULE}:SparseMountainCarContinuous-v0",
    "sac",
    num_envs=1,
    total_timesteps=8_000,
    settings={
        "learning_rate": 1e-3,
        "batch_size": 256,
        "train_freq": 8,
        "gradient_steps": 4,
        "gamma": 0.995,
        "tau": 0.01,
        "learning_starts": 1000,
        "policy_kwargs": {"net_arch": [64, 64]},
    },
    clients=(1, 0, 0),
    source="chosen by hand for both arms",
)


def run(arm: str, seed: int, total_timesteps: int, folder: Path) -> dict[str, Any]:
    """One run by ``serve`` and ``rollout``, and an evaluation of what it left."""
    client = [_CASE.env_id, "--num-envs", 1, "--seed", seed]
    if arm == "expert":
        client += ["--takeover", f"{_MODULE}:push_along", "--takeover-share", _SHARE]
    with (
        Server(folder, _CASE.server_options(seed, total_timesteps)) as server,
        Process(
            "plugrl_gym.rollout", [*client, "--url", server.url], folder / "client.log"
        ) as process,
    ):
        process.finish(_SECONDS)
        server.finish(60)
    result = read_result(server.run_dir)
    return {
        **served(result),
        "overridden_share": result["overridden_share"],
        **examine(server.run_dir / "model.zip", _CASE),
    }


class Takeover(Show):
    """Both arms, for some seeds."""

    name = "takeover"
    module = "tests.benchmarks.takeover"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--arm", nargs="+", choices=_ARMS, default=list(_ARMS), dest="arms", metavar="NAME")
        add("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], metavar="N")
        add(
            "--timesteps",
            type=int,
            default=_CASE.total_timesteps,
            metavar="N",
            help="env steps of a run (%(default)s)",
        )

    def tasks(self, options: argparse.Namespace) -> list[Task]:
        total = options.timesteps
        return [self._task(arm, seed, total) for seed in options.seeds for arm in options.arms]

    def _task(self, arm: str, seed: int, total: int) -> Task:
        settings = {
            "total_timesteps": total,
            "hyperparameters": dict(_CASE.settings),
            "share": _SHARE if arm == "expert" else 0.0,
        }
        return Task(f"takeover/{arm}/{seed}", settings, lambda f: run(arm, seed, total, f))

    def section(self, records: Mapping[str, Record]) -> str:
        rows = []
        for arm in _ARMS:
            found = [record for key, record in records.items() if f"/{arm}/" in key]
            if found:
                rows.append((_NAMES[arm], *_row(found)))
        head = (
            "SAC",
            "seeds",
            f"final models with a mean return of at least {_SOLVED:g}",
            "evaluation: median (min to max)",
            "training: median (min to max)",
            "env steps",
            "overridden",
        )
        return f"{setup_line(records.values())}\n\n{table(head, rows)}"


def _row(records: list[Record]) -> tuple[object, ...]:
    solved = sum(record["evaluation"] >= _SOLVED for record in records)
    shares = [record["overridden_share"] for record in records]
    return (
        len(records),
        f"{solved} of {len(records)}",
        spread([record["evaluation"] for record in records]),
        spread([record["mean_return"] for record in records]),
        f"{max(record['env_steps'] for record in records):,}",
        f"{sum(shares) / len(shares):.1%}",
    )


if __name__ == "__main__":
    sys.exit(main(Takeover()))
