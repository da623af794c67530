"""The table of several processes, live and at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from plugrl_gym.commands.fleet.member import Member
from plugrl_gym.commands.fleet.sums import mean_return
from plugrl_gym.display import Reading

__all__ = ["final_table", "summed_reading"]

_HEADER: Final = ("process", "env steps", "episodes", "mean return", "steps/s", "")
_WIDTHS: Final = (7, 11, 9, 12, 9)


def summed_reading(members: Sequence[Member], total: int | None, seconds: float) -> Reading:
    """What all processes have done so far, with a line for each.

    Args:
        members: The processes.
        total: Env steps that all of them are to make; None where only the server knows.
        seconds: Since the first was started.
    """
    readings = [member.reading for member in members]
    running = [member for member in members if member.running]
    begun = any(reading.steps for reading in readings)
    table = (_line(_HEADER), *(_live(member) for member in members))
    latencies = sorted(r.latency for r in readings if r.latency is not None)
    of = f"{len(running)} of {len(members)} processes"
    pauses = [member.reading.pause for member in running]
    pause = pauses[0] if pauses and all(pauses) else ""
    if not begun:
        return Reading(pause=f"{of}: {pause or f'starting, {seconds:.0f} s'}", table=table)
    return Reading(
        sum(reading.steps or 0 for reading in readings),
        total,
        rate=sum(member.reading.rate or 0.0 for member in running) if running else None,
        episodes=sum(reading.episodes for reading in readings),
        mean_return=mean_return([(r.episodes, r.mean_return) for r in readings]),
        latency=latencies[len(latencies) // 2] if latencies else None,
        note=of,
        pause=pause,
        table=table,
    )


def final_table(members: Sequence[Member], total: dict[str, Any]) -> str:
    """What each process did and how it ended, and the sum."""
    rows = [_row(str(member.number), member.counts(), member.end()) for member in members]
    return "\n".join([_line((*_HEADER[:-1], "end")), *rows, _row("sum", total, "")])


def _live(member: Member) -> str:
    reading = member.reading
    counts = {
        "env_steps": reading.steps or 0,
        "episodes": reading.episodes,
        "mean_return": reading.mean_return,
        "steps_per_second": reading.rate if member.running else None,
    }
    return _row(str(member.number), counts, member.end())


def _row(name: str, counts: dict[str, Any], end: str) -> str:
    mean, rate = counts.get("mean_return"), counts.get("steps_per_second")
    return _line(
        (
            name,
            f"{counts['env_steps']:,}",
            f"{counts.get('episodes', 0):,}",
            "" if mean is None else f"{mean:.1f}",
            "" if rate is None else f"{rate:,.0f}",
            end,
        )
    )


def _line(cells: Sequence[str]) -> str:
    numbers = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=False))
    return f"{numbers}  {cells[-1]}".rstrip()
