"""Goals to be reached: chunks of four actions, and four clients of one env."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from plugrl_gym.commands.result import first_reaching
from tests.benchmarks.cases import find_case
from tests.benchmarks.learning import examine, served, spread
from tests.benchmarks.processes import Process, Server
from tests.benchmarks.shows import Record, Show, Task, main, setup_line, table

__all__ = ["Goals"]

_SECONDS: Final = 1800.0
_HORIZON: Final = 4
_HORIZON_GOAL: Final = 400.0
#: A policy chooses, and learns from, a fourth as many chunks as there are env steps.
_HORIZON_STEPS: Final = 200_000
_CLIENTS: Final = 4
_CLIENTS_GOAL: Final = -200.0
_CLIENTS_STEPS: Final = 10_000


def run_chunks(seed: int, folder: Path) -> dict[str, Any]:
    """CartPole-v1 ppo, with chunks of four actions, by ``train`` and its preset."""
    options = ["CartPole-v1", "--algo", "ppo", "--horizon", _HORIZON, "--seed", seed]
    options += ["--total-timesteps", _HORIZON_STEPS]
    options += ["--run-dir", folder / "run", "--json"]
    with Process("plugrl_gym.train", options, folder / "train.log") as process:
        process.finish(_SECONDS)
    result = json.loads(process.output)
    steps = result["timesteps"]
    reached = first_reaching(folder / "run" / "progress.csv", result, _HORIZON_GOAL, steps)
    return {**served(result), "reached": reached}


def run_clients(seed: int, folder: Path) -> dict[str, Any]:
    """Pendulum-v1 sac, with four clients of one env each."""
    case = find_case("pendulum-sac")
    with (
        Server(folder, case.server_options(seed, _CLIENTS_STEPS)) as server,
        contextlib.ExitStack() as stack,
    ):
        clients = [
            stack.enter_context(
                Process(
                    "plugrl_gym.rollout",
                    [case.env_id, "--url", server.url, "--num-envs", 1, "--seed", 10 * seed + k],
                    folder / f"client-{k}.log",
                )
            )
            for k in range(_CLIENTS)
        ]
        for client in clients:
            client.finish(_SECONDS)
        result = server.result(60)
    return {**served(result), **examine(server.run_dir / "model.zip", case)}


class Goals(Show):
    """Both goals, for some seeds."""

    name = "goals"
    module = "tests.benchmarks.goals"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        names = ["chunks", "clients"]
        add = parser.add_argument
        add("--goal", nargs="+", choices=names, default=names, dest="goals", metavar="NAME")
        add("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], metavar="N")

    def tasks(self, options: argparse.Namespace) -> list[Task]:
        return [self._task(name, seed) for name in options.goals for seed in options.seeds]

    def _task(self, name: str, seed: int) -> Task:
        if name == "chunks":
            settings = {"horizon": _HORIZON, "total_timesteps": _HORIZON_STEPS}
            return Task(f"goals/chunks/{seed}", settings, lambda f: run_chunks(seed, f))
        settings = {"clients": _CLIENTS, "total_timesteps": _CLIENTS_STEPS}
        return Task(f"goals/clients/{seed}", settings, lambda f: run_clients(seed, f))

    def section(self, records: Mapping[str, Record]) -> str:
        chunks = [record for key, record in records.items() if "/chunks/" in key]
        clients = [record for key, record in records.items() if "/clients/" in key]
        rows = [
            (
                f"CartPole-v1 ppo, `--horizon {_HORIZON}`, {_HORIZON_STEPS:,} env steps",
                f"{_HORIZON_GOAL:g}, mean of the last 100 training episodes",
                f"{sum(record['reached'] is not None for record in chunks)} of {len(chunks)}",
                _steps([record["reached"] for record in chunks]),
                spread([record["mean_return"] for record in chunks]),
            ),
            (
                f"Pendulum-v1 sac, {_CLIENTS} clients of 1 env",
                f"{_CLIENTS_GOAL:g}, evaluation of the final model over 20 episodes",
                f"{sum(r['evaluation'] >= _CLIENTS_GOAL for r in clients)} of {len(clients)}",
                _steps([record["env_steps"] for record in clients]),
                spread([record["evaluation"] for record in clients]),
            ),
        ]
        head = ("run", "goal", "seeds that reached it", "after env steps", "final return")
        return f"{setup_line(records.values())}\n\n{table(head, rows)}"


def _steps(steps: list[int | None]) -> str:
    found = sorted(step for step in steps if step is not None)
    return f"{found[0]:,} to {found[-1]:,}" if found else ""


if __name__ == "__main__":
    sys.exit(main(Goals()))
