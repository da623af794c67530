"""What an algorithm cannot do is one sentence and exit code 2."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.processes import Process
from tests.benchmarks.shows import Record, Show, Task, main, setup_line, table

__all__ = ["Refusals"]

_BOUNDS: Final = "tests.benchmarks.bounds"
_PPO: Final = ("-P", "n_steps=64", "-P", "n_epochs=2")

#: Name -> the arguments of ``train``.
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "discrete": ("CartPole-v1", "--algo", "sac"),
    "infinite": (f"{_BOUNDS}:InfiniteBound-v0", "--algo", "sac"),
    "degenerate": (f"{_BOUNDS}:DegenerateBound-v0", "--algo", "sac"),
    "ppo-infinite": (f"{_BOUNDS}:InfiniteBound-v0", "--algo", "ppo", *_PPO),
}
_TIMESTEPS: Final = 2048


def train(arguments: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """Run ``train`` to its end."""
    options = [*arguments, "--num-envs", 2, "--total-timesteps", _TIMESTEPS, "--seed", 0]
    options += ["--quiet", "--json", "--run-dir", folder / "run"]
    with Process("plugrl_gym.train", options, folder / "train.log") as process:
        code = process.finish(300, codes=range(256))
        return {"code": code, "said": process.said.splitlines(), "stdout": process.output}


class Refusals(Show):
    """One row for each command."""

    name = "refusals"
    module = "tests.benchmarks.refusals"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """There is nothing to choose."""

    def tasks(self, options: argparse.Namespace) -> list[Task]:
        return [self._task(name) for name in COMMANDS]

    def _task(self, name: str) -> Task:
        command = COMMANDS[name]
        settings = {"command": list(command), "total_timesteps": _TIMESTEPS}
        return Task(f"refusals/{name}", settings, lambda folder: train(command, folder))

    def section(self, records: Mapping[str, Record]) -> str:
        rows = [
            (
                f"`train {' '.join(record['settings']['command'])}`",
                record["code"],
                " / ".join(record["said"]) or "nothing",
            )
            for record in records.values()
        ]
        return f"{setup_line(records.values())}\n\n{table(('command', 'exit code', 'said'), rows)}"


if __name__ == "__main__":
    sys.exit(main(Refusals()))
