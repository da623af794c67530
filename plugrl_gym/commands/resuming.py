"""``--resume`` and ``--load``: what they say where the user said nothing."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from plugrl_gym.agents.sb3.runs.checkpoints import check_unused
from plugrl_gym.agents.sb3.runs.config_file import read_config
from plugrl_gym.commands.naming import check_folder
from plugrl_gym.errors import UsageError
from plugrl_gym.server import RunSnapshot

__all__ = ["check_run_dir", "continued", "settled", "totals"]

#: As for the statistics of a run.
_WINDOW: Final = 100


def settled(options: argparse.Namespace) -> argparse.Namespace:
    """The options with the algorithm, and of a run that goes on its directory and seed.

    Raises:
        UsageError: There is no such run or model, or the options contradict each other.
    """
    if options.resume is not None and options.load is not None:
        raise UsageError("--resume goes on with a run, --load begins one: give one of them")
    chosen: dict[str, Any] = {"algo": options.algo or "ppo"}
    if options.resume is not None:
        chosen = _of_run(options)
    elif options.load is not None:
        _check_file(options.load)
        chosen = {"algo": options.algo or _algorithm_of(options.load)}
    return argparse.Namespace(**{**vars(options), **chosen})


def _of_run(options: argparse.Namespace) -> dict[str, Any]:
    config = read_config(options.resume)
    if getattr(options, "no_run_dir", False):
        raise UsageError("--resume goes on in its directory; leave out --no-run-dir")
    if options.algo == "random":
        raise UsageError("--algo random learns nothing, so there is no run to go on with")
    return {
        "algo": options.algo or str(config.get("algorithm")),
        "run_dir": options.run_dir or options.resume,
        "seed": config.get("seed") if options.seed is None else options.seed,
    }


def check_run_dir(options: argparse.Namespace, run_dir: Path) -> None:
    """Find out before anything is loaded whether the run can be in its directory.

    Args:
        options: As :func:`settled` returns them.
        run_dir: Which.

    Raises:
        UsageError: Nothing can be written there, or a run that begins would come over another one.
    """
    check_folder("--run-dir", run_dir)
    if options.resume is None and options.algo != "random":
        check_unused(run_dir)


def _check_file(model: Path) -> None:
    """As loading it will, which takes time."""
    if not any(path.is_file() for path in (model, model.with_name(f"{model.name}.zip"))):
        raise UsageError(f"there is no file {model}")


def _algorithm_of(model: Path) -> str:
    try:
        from plugrl_gym.agents.sb3.runs.loading import StoredModel
    except ModuleNotFoundError as error:
        raise UsageError(
            f'--load needs {error.name}, which is not installed: pip install "plugrl-gym[sb3]"'
        ) from error
    return StoredModel(model).algorithm


def totals(run: RunSnapshot) -> dict[str, Any]:
    """What is noted in a checkpoint of all processes of a run so far, as JSON."""
    rate = run.steps_per_second
    return {
        "env_steps": run.env_steps,
        "episodes": run.episodes,
        "returns": list(run.returns),
        "lengths": list(run.lengths),
        "evaluation_episodes": run.evaluation_episodes,
        "learning_seconds": run.learning_seconds,
        "acting_seconds": run.env_steps / rate if rate else 0.0,
    }


def continued(run: RunSnapshot, earlier: Mapping[str, Any]) -> RunSnapshot:
    """The run as if this process had run all of it.

    Args:
        run: What this process did.
        earlier: The :func:`totals` of those before it; empty for none. What they did after the
            checkpoint that this one went on from is not part of the run.
    """
    if not earlier:
        return run
    own = totals(run)
    steps = earlier["env_steps"] + run.env_steps
    seconds = earlier["acting_seconds"] + own["acting_seconds"]
    return replace(
        run,
        env_steps=steps,
        episodes=earlier["episodes"] + run.episodes,
        returns=(*earlier["returns"], *run.returns)[-_WINDOW:],
        lengths=(*earlier["lengths"], *run.lengths)[-_WINDOW:],
        evaluation_episodes=earlier["evaluation_episodes"] + run.evaluation_episodes,
        learning_seconds=earlier["learning_seconds"] + run.learning_seconds,
        steps_per_second=steps / seconds if seconds > 0 else 0.0,
    )
