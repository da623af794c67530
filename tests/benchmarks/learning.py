"""The same learning: SB3 in one process, one client in lockstep, three that join and leave."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.benchmarks.cases import CASES, Case, find_case
from tests.benchmarks.clients import Crowd
from tests.benchmarks.processes import Process, Server
from tests.benchmarks.shows import Record, Show, Task, main, setup_line, table

__all__ = ["KINDS", "Learning", "examine", "served", "spread", "task_of"]

KINDS: Final = ("local", "lockstep", "ragged")
_SECONDS: Final = 1800.0


def run_local(case: Case, seed: int, total_timesteps: int, folder: Path) -> dict[str, Any]:
    """SB3's own learning, in this process."""
    import torch

    from tests.benchmarks import sb3

    torch.set_num_threads(1)
    learned = sb3.learn(case, seed, total_timesteps)
    learned.model.save(folder / "model.zip")
    return {
        "env_steps": learned.env_steps,
        "episodes": learned.episodes,
        "mean_return": learned.mean_return,
        "wall_seconds": round(learned.wall_seconds, 2),
        **examine(folder / "model.zip", case),
    }


def run_lockstep(case: Case, seed: int, total_timesteps: int, folder: Path) -> dict[str, Any]:
    """``serve`` and ``rollout``, as two processes."""
    with Server(folder, case.server_options(seed, total_timesteps)) as server:
        options = ["--url", server.url, "--num-envs", case.num_envs, "--seed", seed]
        client = Process(
            "plugrl_gym.rollout", [case.env_id, *options, "--json"], folder / "client.log"
        )
        with client:
            client.finish(_SECONDS)
        result = server.result(60)
    return {**served(result), **examine(server.run_dir / "model.zip", case)}


def run_ragged(case: Case, seed: int, total_timesteps: int, folder: Path) -> dict[str, Any]:
    """``serve`` and three ``rollout`` that come and go."""
    with Server(folder, case.server_options(seed, total_timesteps)) as server:
        crowd = Crowd(server, case.env_id, case.clients, seed, folder)
        crowd.run(total_timesteps, _SECONDS)
        result = server.result(60)
    return {
        **served(result),
        **examine(server.run_dir / "model.zip", case),
        "joined": crowd.happened["join"],
        "left": crowd.happened["leave"],
        "cut": crowd.happened["cut"],
        "chunks_dropped": result["chunks_dropped"],
    }


def served(result: Mapping[str, Any]) -> dict[str, Any]:
    """What result.json says of a run that its server ended.

    Raises:
        RuntimeError: Something else ended it.
    """
    if not result["finished"]:
        raise RuntimeError(f"the run ended early: {result}")
    return {
        "env_steps": result["timesteps"],
        "episodes": result["episodes"],
        "mean_return": result["mean_return"],
        "wall_seconds": result["wall_seconds"],
    }


def examine(model: Path, case: Case) -> dict[str, Any]:
    """What plain SB3 finds in a model.zip: its numbers as a digest, and what it can do."""
    from tests.benchmarks import sb3

    returns = sb3.evaluate(model, case)
    return {"weights": sb3.digest(model), "evaluation": sum(returns) / len(returns)}


RUN: Final = {"local": run_local, "lockstep": run_lockstep, "ragged": run_ragged}


def task_of(case: Case, seed: int, kind: str, total_timesteps: int | None = None) -> Task:
    """One run of a case.

    Args:
        case: Which.
        seed: Of model and envs.
        kind: Of :data:`KINDS`.
        total_timesteps: None for the case's own.
    """
    total = total_timesteps or case.total_timesteps
    settings = {
        "total_timesteps": total,
        "num_envs": case.num_envs,
        "hyperparameters": dict(case.settings),
        "clients": list(case.clients) if kind == "ragged" else None,
    }
    run = RUN[kind]
    return Task(
        f"{case.name}/{seed}/{kind}", settings, lambda folder: run(case, seed, total, folder)
    )


class Learning(Show):
    """The comparison for all cases."""

    name = "learning"
    module = "tests.benchmarks.learning"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        names = [case.name for case in CASES]
        add = parser.add_argument
        add("--case", nargs="+", choices=names, default=names, dest="cases", metavar="NAME")
        add("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], metavar="N")
        add("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
        add(
            "--timesteps",
            type=int,
            metavar="N",
            help="in place of each case's own number, to try the program out",
        )

    def tasks(self, options: argparse.Namespace) -> list[Task]:
        return [
            task_of(find_case(name), seed, kind, options.timesteps)
            for name in options.cases
            for seed in options.seeds
            for kind in options.kinds
        ]

    def section(self, records: Mapping[str, Record]) -> str:
        rows = [_Row(case, records) for case in CASES]
        present = [row for row in rows if row.local]
        return "\n\n".join(
            [
                f"{setup_line(records.values())} {_duration(records.values())}",
                table(_HEAD, (row.summary() for row in present)),
                _LEGEND,
                table(_RETURNS_HEAD, (line for row in present for line in row.returns())),
                _RETURNS_LEGEND,
                table(("case", "settings from"), ((row.title, row.case.source) for row in present)),
            ]
        )


_HEAD: Final = (
    "case",
    "env steps",
    "seeds",
    "lockstep: same weights",
    "lockstep: same returns",
    "wall time SB3",
    "lockstep / SB3",
    "three clients / SB3",
    "joined, left, killed",
)
_LEGEND: Final = """\
*Same weights*: seeds for which every parameter and every number of the optimizers' state in
model.zip has the bytes of SB3's own. *Same returns*: seeds with as many episodes and the same mean
return of the last 100. Wall time: median seconds of learning, from the first action on, with one
torch thread everywhere; ratios are medians over the seeds. The last column: how often in a run a
client joined, left by Ctrl-C, or was killed (medians)."""
_RETURNS_HEAD: Final = (
    "case",
    "return",
    "SB3: median (min to max)",
    "lockstep",
    "three clients",
    "within SB3's seeds",
)
_RETURNS_LEGEND: Final = """\
*Evaluation*: mean return of the final model, deterministic, over 20 episodes in plain SB3.
*Training*: mean return of the last 100 episodes. *Within SB3's seeds*: whether the median of the
runs with three clients lies between the smallest and the largest of SB3's own; if both had the same
distribution it would in five of six comparisons, for five seeds each."""


def _duration(records: Iterable[Record]) -> str:
    seconds = [record["task_seconds"] for record in records]
    return f"The {len(seconds)} runs took {sum(seconds) / 60:.0f} minutes, added up."


class _Row:
    """One case's records, by kind and seed."""

    def __init__(self, case: Case, records: Mapping[str, Record]) -> None:
        self.case = case
        self.title = f"{case.env_id} {case.algo}"
        by_kind = {
            kind: {
                int(key.split("/")[1]): record
                for key, record in records.items()
                if key.startswith(f"{case.name}/") and key.endswith(f"/{kind}")
            }
            for kind in KINDS
        }
        self.local, self._lockstep, self._ragged = (by_kind[kind] for kind in KINDS)

    def summary(self) -> Sequence[object]:
        """The line of the first table."""
        pairs = [
            (self.local[seed], self._lockstep[seed])
            for seed in sorted(self.local.keys() & self._lockstep.keys())
        ]
        weights = sum(a["weights"] == b["weights"] for a, b in pairs)
        returns = sum(_same_returns(a, b) for a, b in pairs)
        steps = {record["env_steps"] for record in self.local.values()}
        return (
            self.title,
            " or ".join(f"{n:,}" for n in sorted(steps)),
            len(self.local),
            f"{weights} of {len(pairs)}",
            f"{returns} of {len(pairs)}",
            f"{_median(self.local, 'wall_seconds'):.0f} s",
            self._ratio(self._lockstep),
            self._ratio(self._ragged),
            ", ".join(f"{_median(self._ragged, what):.0f}" for what in ("joined", "left", "cut"))
            if self._ragged
            else "",
        )

    def _ratio(self, records: Mapping[int, Record]) -> str:
        ratios = [
            record["wall_seconds"] / self.local[seed]["wall_seconds"]
            for seed, record in records.items()
            if seed in self.local
        ]
        return f"{median(ratios):.2f}" if ratios else ""

    def returns(self) -> list[Sequence[object]]:
        """The lines of the second table."""
        return [
            self._returns("evaluation", "evaluation"),
            self._returns("training", "mean_return"),
        ]

    def _returns(self, title: str, field: str) -> Sequence[object]:
        local, lockstep, ragged = (
            [record[field] for record in records.values() if record[field] is not None]
            for records in (self.local, self._lockstep, self._ragged)
        )
        return (
            self.title,
            title,
            spread(local),
            f"{median(lockstep):.1f}" if lockstep else "",
            spread(ragged),
            _place(median(ragged), local) if ragged and local else "",
        )


def _same_returns(a: Record, b: Record) -> bool:
    """SB3's monitor rounds returns to 6 digits, and they travel as float32."""
    means = a["mean_return"], b["mean_return"]
    if None in means:
        return means == (None, None)
    close = math.isclose(*means, rel_tol=1e-5, abs_tol=1e-5)
    return close and bool(a["episodes"] == b["episodes"])


def _median(records: Mapping[int, Record], field: str) -> float:
    return float(median(record[field] for record in records.values()))


def spread(values: Sequence[float]) -> str:
    """Median, smallest and largest; empty where there are none."""
    if not values:
        return ""
    return f"{median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def _place(value: float, among: Sequence[float]) -> str:
    if value < min(among):
        return "no, below"
    return "no, above" if value > max(among) else "yes"


if __name__ == "__main__":
    sys.exit(main(Learning()))
