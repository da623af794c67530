"""The end of a run: what lies where, and what to do with it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["summary"]

_FILES: Final = (
    "model.zip",
    "vecnormalize.pkl",
    "best_model.zip",
    "progress.csv",
    "evaluations.csv",
    "learning_curve.png",
    "learning_curve.svg",
    "result.json",
)


def summary(run_dir: Path, env_id: str | None, finished: bool, going_on: str) -> str:
    """Lines about the files of a run, and commands that go on from them.

    Args:
        run_dir: Of the run.
        env_id: What to evaluate it on; None where nobody said.
        finished: Whether it ran to its end.
        going_on: The command that resumes it, as "plugrl_gym.train".

    Returns:
        Lines to follow the sentence about the run, beginning with a line break; empty where there
        are no files.
    """
    found = [run_dir / name for name in _FILES if (run_dir / name).exists()]
    lines = [f"  {path}" for path in found]
    models = (run_dir / "best_model.zip", run_dir / "model.zip")
    model = next((path for path in models if path in found), None)
    if model is not None:
        lines += ["Next:", *_next(run_dir, model, env_id or "ENV_ID", finished, going_on)]
    return "".join(f"\n{line}" for line in lines)


def _next(run_dir: Path, model: Path, env_id: str, finished: bool, going_on: str) -> list[str]:
    more = " --total-timesteps N" if finished else ""
    commands = {
        f"python -m plugrl_gym.serve --load {model} --no-learn": "serves it",
        f"python -m plugrl_gym.rollout {env_id} --eval --max-episodes 20": "evaluates it",
        f"python -m {going_on} --resume {run_dir}{more}": "goes on training",
        f"python -m plugrl_gym plot {run_dir}": "draws its learning curve",
    }
    width = max(map(len, commands))
    return [f"  {command:{width}}  {what}" for command, what in commands.items()]
