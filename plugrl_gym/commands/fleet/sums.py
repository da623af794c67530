"""The results of several client processes as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from plugrl_gym.client import EvaluationSummary

__all__ = ["mean_return", "summed", "summed_books"]

#: As for the statistics of one client: a mean is that of so many episodes.
_WINDOW: Final = 100
_COUNTS: Final = (
    "env_steps",
    "overridden_steps",
    "episodes",
    "chunks_received",
    "chunks_dropped",
    "connections",
)


def mean_return(means: Iterable[tuple[int, float | None]]) -> float | None:
    """The mean of means, each with the number of its episodes; None without an episode.

    Example:
        >>> mean_return([(1, 10.0), (3, 20.0), (0, None)])
        17.5
    """
    known = [(min(n, _WINDOW), mean) for n, mean in means if n and mean is not None]
    weight = sum(n for n, _ in known)
    return sum(n * mean for n, mean in known) / weight if weight else None


def summed(results: Sequence[Mapping[str, Any]], wall_seconds: float) -> dict[str, Any]:
    """One result of those of all processes.

    Args:
        results: Of ``rollout --json``; of a process that died only the counts that it told.
        wall_seconds: From the start of the first process to the end of the last.
    """
    if any("returns" in result for result in results):
        return _judged(results)
    total: dict[str, Any] = {
        name: sum(result.get(name, 0) for result in results) for name in _COUNTS
    }
    for name in ("mean_return", "mean_length"):
        total[name] = mean_return((r.get("episodes", 0), r.get(name)) for r in results)
    steps = total["env_steps"]
    return total | {
        "steps_per_second": steps / wall_seconds if wall_seconds > 0 else 0.0,
        "wall_seconds": wall_seconds,
        "finished": _all_finished(results),
        "books": summed_books([result.get("books") for result in results]),
    }


def _judged(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of evaluations: all episodes that were counted."""
    return EvaluationSummary(
        tuple(total for result in results for total in result.get("returns", ())),
        tuple(length for result in results for length in result.get("lengths", ())),
        sum(result.get("env_steps", 0) for result in results),
        _all_finished(results),
    ).to_dict()


def _all_finished(results: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the server ended the run for each; of none, nothing is finished."""
    return bool(results) and all(result.get("finished", False) for result in results)


def summed_books(books: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """The ledgers of several clients as one; None for that of a process that took it along."""
    total: dict[str, Any] = {}
    errors: list[str] = []
    for number, one in enumerate(books, 1):
        if one is not None:
            errors += [f"process {number}: {error}" for error in one["errors"]]
            _add(total, {name: value for name, value in one.items() if name != "errors"})
    return {**total, "errors": errors}


def _add(total: dict[str, Any], one: Mapping[str, Any]) -> None:
    for name, value in one.items():
        if isinstance(value, Mapping):
            _add(total.setdefault(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value
