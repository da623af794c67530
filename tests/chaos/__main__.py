"""``python -m tests.chaos``: break a training run for some minutes, and see what is left of it."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.chaos.ordeal import Ordeal, Plan
from tests.chaos.processes import ServerProcess
from tests.chaos.report import Report

__all__ = ["main", "run_ordeal"]

Serve = Callable[[int, int, int, int | None], ServerProcess]

# Settings with which each algorithm learns the env in some thousand steps.
_SETTINGS = {
    "ppo": ("n_steps=64", "batch_size=64", "n_epochs=4", "learning_rate=0.003", "gamma=0.5"),
    "a2c": ("n_steps=16", "learning_rate=0.003", "gamma=0.5"),
    "dqn": ("learning_starts=500", "exploration_fraction=0.02", "gamma=0.5", "buffer_size=50000"),
}


def table_server(directory: Path) -> Serve:
    """Servers of the smallest learner."""

    def serve(number: int, port: int, total: int, file_size: int | None) -> ServerProcess:
        arguments = ["--algo", "random", "--port", port, "--feedback-timeout", 2]
        arguments += ["--total-timesteps", total]
        table = directory / "table.npz"
        return ServerProcess(directory, number, table, arguments, file_size and 300)

    return serve


def sb3_server(directory: Path, algorithm: str) -> Serve:
    """Servers of one run of Stable-Baselines3, resumed as soon as there is a checkpoint."""
    run_dir = directory / "run"

    def serve(number: int, port: int, total: int, file_size: int | None) -> ServerProcess:
        arguments = ["--port", port, "--feedback-timeout", 2, "--save-every", 500]
        if any((run_dir / "checkpoints").glob("*")):
            arguments += ["--resume", run_dir]
        else:
            arguments += ["--algo", algorithm, "--run-dir", run_dir, "--seed", 0]
            arguments += [part for each in _SETTINGS[algorithm] for part in ("-P", each)]
        arguments += ["--total-timesteps", total]
        return ServerProcess(directory, number, None, arguments, file_size)

    return serve


def run_ordeal(
    directory: Path, plan: Plan, algorithm: str, say: Callable[[str], None] = lambda line: None
) -> Report:
    """Run a plan to its end.

    Args:
        directory: For all files.
        plan: What to do.
        algorithm: ``table``, or a name of Stable-Baselines3's.
        say: Gets a line now and then.
    """
    directory.mkdir(parents=True, exist_ok=True)
    serve = table_server(directory) if algorithm == "table" else sb3_server(directory, algorithm)
    ordeal = Ordeal(directory, plan, serve, say)
    ordeal.run()
    return Report.of(ordeal)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Run the program; returns 0 where nothing false was found and the books balance."""
    parser = argparse.ArgumentParser("python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="default: 10")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--algo", choices=("table", *_SETTINGS), default="ppo", help="default: ppo")
    parser.add_argument("--calm", type=int, default=8_000, help="env steps at the end, undisturbed")
    parser.add_argument("--directory", type=Path, help="for all files (default: a new one)")
    options = parser.parse_args(arguments)
    directory = options.directory or Path(tempfile.mkdtemp(prefix="plugrl-chaos-"))
    scale = options.minutes / 10.0
    targets = {"kill server": 50, "kill client": 50, "cut": 500}
    targets = {name: int(n * scale) for name, n in targets.items()}
    client_options = (
        *("--liveness-timeout", 8, "--connect-timeout", 120, "--reconnect-timeout", 120),
        "--quiet",
    )
    plan = Plan(
        seed=options.seed,
        seconds=60.0 * options.minutes,
        targets=targets,
        limit=120.0 * options.minutes + 60.0,
        calm=options.calm,
        client_options=client_options,
    )
    _say(f"files: {directory}")
    calm = Plan(calm=options.calm, client_options=client_options)
    report = run_ordeal(directory / "chaos", plan, options.algo, _say)
    undisturbed = run_ordeal(directory / "calm", calm, options.algo, _say)
    title = f"Chaos, {options.algo}, {options.minutes:g} minutes, seed {options.seed}"
    report.errors += [f"undisturbed: {fault}" for fault in undisturbed.faults]
    print(report.markdown(title, undisturbed.final_return))
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
