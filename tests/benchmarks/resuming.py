"""Servers killed in mid training and started again with --resume, beside uninterrupted runs."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.benchmarks.cases import Case, find_case
from tests.benchmarks.learning import examine, served, spread, task_of
from tests.benchmarks.processes import Process, Server, wait_for
from tests.benchmarks.shows import Record, Show, Task, main, setup_line, table

__all__ = ["Resuming"]

_SECONDS: Final = 1800.0
_CASES: Final = ("cartpole-ppo", "pendulum-sac")
#: Shares of the run between which it is killed, for each time.
_KILLS: Final = ((0.25, 0.45), (0.55, 0.8))
#: Checkpoints in a run.
_SAVES: Final = 20


def run_killed(case: Case, seed: int, total_timesteps: int, folder: Path) -> dict[str, Any]:
    """``serve``, killed at moments that the seed decides, and one ``rollout`` that goes on."""
    rng = np.random.default_rng(seed)
    moments = [int(rng.uniform(*share) * total_timesteps) for share in _KILLS]
    often = ["--save-every", total_timesteps // _SAVES]
    server = Server(folder, [*case.server_options(seed, total_timesteps), *often])
    options = ["--url", server.url, "--num-envs", case.num_envs, "--seed", seed]
    try:
        with Process(
            "plugrl_gym.rollout", [case.env_id, *options, "--json"], folder / "client.log"
        ) as client:
            for moment in moments:
                _await_step(server, moment)
                server.kill()
                server = Server(folder, ["--resume", server.run_dir, *often], port=server.port)
            client.finish(_SECONDS)
            ran = json.loads(client.output)["env_steps"]
        result = server.result(60)
    finally:
        server.kill()
    return {
        **served(result),
        **examine(server.run_dir / "model.zip", case),
        "killed_at": moments,
        "steps_done_again": ran - result["timesteps"],
    }


def _await_step(server: Server, moment: int) -> None:
    """Wait for an env step of the run, which may have begun before this server."""
    resumed = re.findall(r"going on at env step ([\d,]+)", server.said)
    before = int(resumed[-1].replace(",", "")) if resumed else 0

    def look() -> bool | None:
        if server.code is not None:
            raise RuntimeError(f"the server has ended too early:\n{server.said}")
        return True if before + server.env_steps >= moment else None

    wait_for(look, _SECONDS, f"env step {moment:,}")


class Resuming(Show):
    """Killed runs beside SB3's own of the same seeds."""

    name = "resuming"
    module = "tests.benchmarks.resuming"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--case", nargs="+", choices=_CASES, default=list(_CASES), dest="cases", metavar="NAME")
        add("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], metavar="N")
        add("--timesteps", type=int, metavar="N", help="in place of each case's own number")

    def tasks(self, options: argparse.Namespace) -> list[Task]:
        return [
            task
            for name in options.cases
            for seed in options.seeds
            for task in self._pair(find_case(name), seed, options.timesteps)
        ]

    def _pair(self, case: Case, seed: int, timesteps: int | None) -> list[Task]:
        local = task_of(case, seed, "local", timesteps)
        total = timesteps or case.total_timesteps
        settings = {**local.settings, "kills": list(_KILLS), "saves": _SAVES}
        killed = Task(
            f"{case.name}/{seed}/killed",
            settings,
            lambda folder: run_killed(case, seed, total, folder),
        )
        return [local, killed]

    def section(self, records: Mapping[str, Record]) -> str:
        rows = []
        for name in _CASES:
            case = find_case(name)
            local, killed = (
                [r for key, r in records.items() if key.startswith(name) and key.endswith(kind)]
                for kind in ("/local", "/killed")
            )
            for title, field in (("evaluation", "evaluation"), ("training", "mean_return")):
                rows.append(
                    (
                        f"{case.env_id} {case.algo}",
                        title,
                        spread([record[field] for record in local]),
                        spread([record[field] for record in killed]),
                        len(killed),
                        sum(len(record["killed_at"]) for record in killed),
                        sum(record["steps_done_again"] for record in killed),
                    )
                )
        return f"{setup_line(records.values())}\n\n{table(_HEAD, rows)}\n\n{_LEGEND}"


_HEAD: Final = (
    "case",
    "return",
    "SB3, uninterrupted",
    "killed and resumed",
    "runs",
    "kills",
    "env steps run again",
)
_LEGEND: Final = """\
Returns as above: median (min to max) over the seeds. *Env steps run again*: those that the clients
ran and the checkpoints did not have, in all runs together."""


if __name__ == "__main__":
    sys.exit(main(Resuming()))
