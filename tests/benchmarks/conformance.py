"""Every algorithm's server under the conformance suite."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.processes import Process, Server
from tests.benchmarks.shows import Record, Show, Task, main, setup_line, table

__all__ = ["Conformance"]

_SECONDS: Final = 900.0
_FEEDBACK_TIMEOUT: Final = 1.5
_SMALL: Final = {"policy_kwargs": {"net_arch": [32, 32]}}
_REPLAY: Final = {"learning_starts": 100, "batch_size": 32, "train_freq": 4, **_SMALL}

#: Algorithm -> its settings; small, for nothing is to be learned here.
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ppo": {"n_steps": 64, "n_epochs": 2, **_SMALL},
    "a2c": _SMALL,
    "trpo": {"n_steps": 64, **_SMALL},
    "sac": _REPLAY,
    "td3": {**_REPLAY, "action_noise": "normal:0.1"},
    "ddpg": _REPLAY,
    "tqc": _REPLAY,
    "crossq": _REPLAY,
    "dqn": _REPLAY,
    "qrdqn": _REPLAY,
}
_DISCRETE: Final = frozenset({"dqn", "qrdqn"})


def grade(algo: str, folder: Path) -> dict[str, Any]:
    """Serve an algorithm and grade the server until its run ends."""
    discrete = algo in _DISCRETE
    options = ["--algo", algo, "--preset", "none", "--seed", 0, "--total-timesteps", 3000]
    options += ["--feedback-timeout", _FEEDBACK_TIMEOUT]
    options += ["--observation-space", "Box(-inf,inf,(3,))"]
    options += ["--action-space", "Discrete(3)" if discrete else "Box(-1,1,(3,))"]
    for name, value in SETTINGS[algo].items():
        options += ["-P", f"{name}={value}"]
    with Server(folder, options) as server:
        asked = ["server", "--url", server.url, "--state-dim", 3, "--until-stop", "--json"]
        asked += ["--action-dim", 1 if discrete else 3, "--feedback-timeout", _FEEDBACK_TIMEOUT]
        with Process("plugrl_gym.conformance", asked, folder / "grader.log") as grader:
            code = grader.finish(_SECONDS, codes=(0, 1))
            report = json.loads(grader.output)
        served = server.finish(60)
    verdicts = Counter(clause["result"] for clause in report["clauses"])
    return {
        "code": code,
        "server_code": served,
        "passed": verdicts["passed"],
        "observations": sum(clause["passed"] for clause in report["clauses"]),
        "violations": report["violations"],
        "notes": report["notes"],
        "not_exercised": report["not_exercised"],
        "problems": report["problems"],
    }


class Conformance(Show):
    """One row for each algorithm."""

    name = "conformance"
    module = "tests.benchmarks.conformance"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--algo",
            nargs="+",
            choices=SETTINGS,
            default=list(SETTINGS),
            dest="algos",
            metavar="NAME",
        )

    def tasks(self, options: argparse.Namespace) -> list[Task]:
        return [self._task(algo) for algo in options.algos]

    def _task(self, algo: str) -> Task:
        return Task(f"conformance/{algo}", SETTINGS[algo], lambda folder: grade(algo, folder))

    def section(self, records: Mapping[str, Record]) -> str:
        rows = [
            (
                key.rpartition("/")[2],
                record["passed"],
                f"{record['observations']:,}",
                ", ".join(record["violations"] + record["problems"]) or "none",
                ", ".join(record["notes"]) or "none",
                len(record["not_exercised"]),
            )
            for key, record in records.items()
        ]
        head = ("algorithm", "clauses kept", "observations", "violations", "notes", "no occasion")
        return f"{setup_line(records.values())}\n\n{table(head, rows)}"


if __name__ == "__main__":
    sys.exit(main(Conformance()))
