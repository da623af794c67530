"""Latency by stage, as a table for people and as columns for a log."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from plugrl_gym.server import STAGES, RunStatistics

__all__ = ["log_columns", "stage_table"]

_LOGGED = ("p50", "p95")


def stage_table(latency: Mapping[str, Mapping[str, float]]) -> str:
    """One line for each stage.

    Args:
        latency: As ``envs.stats.latency()`` gives it, in seconds.

    Example:
        >>> print(stage_table({"env": {"p50": 3.2e-05, "p95": 0.00045, "p99": 1.2, "count": 5000}}))
        latency, ms         p50        p95        p99      count
        env               0.032       0.45      1,200      5,000
    """
    lines = [f"{'latency, ms':<12}{'p50':>11}{'p95':>11}{'p99':>11}{'count':>11}"]
    for stage, values in latency.items():
        times = "".join(f"{_milliseconds(values[name]):>11}" for name in ("p50", "p95", "p99"))
        lines.append(f"{stage:<12}{times}{values['count']:>11,.0f}")
    return "\n".join(lines)


def _milliseconds(seconds: float) -> str:
    return f"{float(f'{seconds * 1e3:.3g}'):,.6g}"


def log_columns(statistics: RunStatistics) -> Callable[[], Mapping[str, float | None]]:
    """What a run's log tells of its server beside the learner's numbers.

    Returns:
        A function to call for each line: ``time/clients``, ``time/envs`` of now, and of each stage
        ``latency/STAGE_p50`` and ``_p95`` in seconds, of the time since the call before; None where
        nothing was measured in it.
    """
    before = statistics.latency.copy()

    def columns() -> dict[str, float | None]:
        nonlocal before
        run, now = statistics.snapshot(), statistics.latency.copy()
        late, before = now.since(before).snapshot(), now
        values: dict[str, float | None] = {"time/clients": run.clients, "time/envs": run.envs}
        for stage in STAGES:
            of = late.get(stage, {})
            values |= {f"latency/{stage}_{name}": of.get(name) for name in _LOGGED}
        return values

    return columns
