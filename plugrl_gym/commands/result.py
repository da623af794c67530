"""What is left of a run: result.json, and a sentence about it."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from plugrl_gym.commands.output import json_line
from plugrl_gym.server import RunSnapshot

__all__ = ["first_reaching", "imbalance", "make_result", "sentence", "write_result"]


def make_result(
    algo: str,
    env_id: str | None,
    seed: int | None,
    run: RunSnapshot,
    counters: Any,
    finished: bool,
    evaluations: Any = None,
) -> dict[str, Any]:
    """The numbers of a run, in the order of result.json.

    Args:
        algo: As typed.
        env_id: As the first client declared it.
        seed: As typed.
        run: Taken when the run was over.
        counters: The learner's ``transitions_stored``, ``chunks_dropped``, ``stale`` and
            ``overridden_steps``; None for one that stores nothing.
        finished: Whether the agent ended the run, rather than its operator.
        evaluations: The agent's; None for one that keeps none.

    Returns:
        ``timesteps`` are env steps; ``stale_transitions`` were chosen by an older policy than the
        learner's when they came; in ``overridden_steps``, ``overridden_share`` of all, somebody at
        a client took over (an on-policy algorithm leaves their chunks out of its loss, which
        ``books`` count); ``mean_return`` is of the last 100 episodes, None before the
        first ends; ``steps_per_second`` and ``wall_seconds`` count from the first action on;
        ``eval`` is about evaluating clients, which nothing else counts, and None where there were
        none; ``latency`` is that of :class:`~plugrl_gym.server.RunSnapshot`, of this process;
        ``books`` is the ledger (:mod:`plugrl_gym.server.books`) and what does not balance
        in it.
    """
    rate = run.steps_per_second
    overridden = 0 if counters is None else counters.overridden_steps
    return {
        "env_id": env_id,
        "algo": algo,
        "seed": seed,
        "timesteps": run.env_steps,
        "episodes": run.episodes,
        "mean_return": run.mean_return,
        "steps_per_second": round(rate, 3),
        "wall_seconds": round(run.env_steps / rate, 3) if rate else 0.0,
        "transitions_stored": 0 if counters is None else counters.transitions_stored,
        "chunks_dropped": run.abandoned + run.dropped
        if counters is None
        else counters.chunks_dropped,
        "stale_transitions": 0 if counters is None else counters.stale,
        "overridden_steps": overridden,
        "overridden_share": overridden / run.env_steps if run.env_steps else 0.0,
        "finished": finished,
        "learning_seconds": round(run.learning_seconds, 3),
        "eval": _evaluation(run, evaluations),
        "latency": dict(run.latency),
        "books": run.books.to_dict() | {"errors": list(run.book_errors)},
    }


def _evaluation(run: RunSnapshot, evaluations: Any) -> dict[str, Any] | None:
    """Of the last 100 episodes of evaluating clients, and what the agent says of all of them."""
    found: dict[str, Any] = {} if evaluations is None else evaluations.summary()
    if not (run.evaluation_episodes or found):
        return None
    mean = fmean(run.evaluation_returns) if run.evaluation_returns else None
    return {"episodes": run.evaluation_episodes, "mean_return": mean, **found}


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write result.json: whole, then under its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.part")
    unfinished.write_text(f"{json_line(result)}\n", encoding="utf-8")
    os.replace(unfinished, path)


def sentence(result: Mapping[str, Any]) -> str:
    """A result in words."""
    mean = result["mean_return"]
    returns = "no episode ended"
    if mean is not None:
        last = min(result["episodes"], 100)
        returns = f"{result['episodes']:,} episodes, mean return {mean:.1f} over the last {last}"
    return (
        f"{result['timesteps']:,} env steps in {result['wall_seconds']:,.0f} s "
        f"({result['steps_per_second']:,.0f} steps/s); {returns}{_judged(result['eval'])}"
        f"{_taken_over(result)}{imbalance(result['books'])}"
    )


def _taken_over(result: Mapping[str, Any]) -> str:
    """The part of a sentence about overridden steps; empty where there were none."""
    if not result["overridden_steps"]:
        return ""
    left_out = result["books"]["rows_discarded"].get("overridden", 0)
    unlearned = f", {left_out:,} chunks not learned from" if left_out else ""
    return f"; {result['overridden_share']:.1%} of the steps overridden{unlearned}"


def _judged(evaluation: Mapping[str, Any] | None) -> str:
    """The part of a sentence about evaluations; empty where there were none."""
    if evaluation is None:
        return ""
    if "best_mean_reward" in evaluation:
        best, last = (
            f"{evaluation[f'{which}_mean_reward']:.1f} ± {evaluation[f'{which}_std_reward']:.1f} "
            f"at step {evaluation[f'{which}_timesteps']:,}"
            for which in ("best", "last")
        )
        return f"; best evaluation {best}, last {last}"
    mean = evaluation["mean_return"]
    returns = "" if mean is None else f", mean return {mean:.1f}"
    return f"; {evaluation['episodes']:,} evaluation episodes{returns}"


def imbalance(books: Mapping[str, Any]) -> str:
    """The end of a sentence about a run whose books do not balance; empty where they do."""
    errors = books["errors"]
    return f"; THE BOOKS DO NOT BALANCE: {'; '.join(errors)}" if errors else ""


def first_reaching(
    progress: Path, result: Mapping[str, Any], goal: float, within: int
) -> int | None:
    """The env step after which the mean return of the last 100 episodes had reached ``goal``.

    Args:
        progress: Stable-Baselines3's progress.csv; without it only the end is known.
        result: Of the whole run.
        goal: The return.
        within: The last env step that counts.
    """
    if not progress.exists():
        means = [(result["timesteps"], result["mean_return"])]
    else:
        with progress.open(newline="", encoding="utf-8") as file:
            means = [
                (int(line["time/total_timesteps"]), line.get("rollout/ep_rew_mean"))
                for line in csv.DictReader(file)
            ]
    reached = (s for s, mean in means if mean not in (None, "") and float(mean) >= goal)
    return next((step for step in reached if step <= within), None)
