"""Runs that differ in their seed alone, and one curve with its spread for all of them (pure)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from plugrl_gym.plotting.runs import Run

__all__ = ["Curve", "Group", "Line", "group_runs", "spread"]

_MOST_POINTS: Final = 400
_MOST_SAID: Final = 3

_Floats: TypeAlias = npt.NDArray[np.float64]
#: x and y, float64 [points] each.
Line: TypeAlias = tuple[_Floats, _Floats]


@dataclass(frozen=True)
class Group:
    """Runs of one algorithm on one env with the same settings.

    Attributes:
        label: Tells it from the other groups of this env.
        number: Of the label, from 0: groups of two envs with one label look the same.
        env_id: None where the runs do not say it.
        runs: At least one.
    """

    label: str
    number: int
    env_id: str | None
    runs: tuple[Run, ...]

    @property
    def told(self) -> str:
        """The label, and how many runs there are."""
        return self.label if len(self.runs) == 1 else f"{self.label} ({len(self.runs)} runs)"

    @property
    def told_with_env(self) -> str:
        """The env before it."""
        return self.told if self.env_id is None else f"{self.env_id}, {self.told}"


@dataclass(frozen=True)
class Curve:
    """One curve for several lines; all float64 [points].

    Attributes:
        x: Increasing.
        middle: The median.
        low, high: The ends of the band.
    """

    x: _Floats
    middle: _Floats
    low: _Floats
    high: _Floats


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Put runs together that differ in their seed alone, in the order in which they come."""
    found: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        key = (str(run.env_id), run.algorithm, *sorted(map(_said, run.settings.items())))
        found.setdefault(key, []).append(run)
    kinds = list(found.values())
    labels = [_label(kind[0], kinds) for kind in kinds]
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return [
        Group(label, numbers[label], kind[0].env_id, tuple(kind))
        for label, kind in zip(labels, kinds, strict=True)
    ]


def _label(run: Run, kinds: Sequence[Sequence[Run]]) -> str:
    """The algorithm, and the settings in which it differs from others of its name on this env.

    Where these are many, the run stands for them.
    """
    others = [
        kind[0]
        for kind in kinds
        if (kind[0].env_id, kind[0].algorithm) == (run.env_id, run.algorithm)
    ]
    names = dict.fromkeys(name for other in others for name in other.settings)
    differing = [
        name for name in names if len({_said((name, o.settings.get(name))) for o in others}) > 1
    ]
    said = [f"{name}={run.settings[name]}" for name in differing if name in run.settings]
    if len(differing) > _MOST_SAID:
        said = [f"settings of {run.path}"]
    return ", ".join([run.algorithm, *said])


def _said(item: tuple[str, Any]) -> str:
    return json.dumps(item, sort_keys=True, default=str)


def spread(lines: Sequence[Line], quantiles: tuple[float, float]) -> Curve | None:
    """The median of several lines and a band around it, where all of them are known.

    Args:
        lines: (x, y) of each, float64 [points]; at least one point, x not falling. Between two
            points a line is straight.
        quantiles: The ends of the band, from 0 to 1.

    Returns:
        None where no x lies within all lines.
    """
    first, last = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    if first > last:
        return None
    x = np.unique(np.concatenate([x for x, _ in lines]))
    x = x[(x >= first) & (x <= last)]
    if len(x) > _MOST_POINTS:
        x = np.linspace(first, last, _MOST_POINTS)
    values = np.stack([np.interp(x, known, y) for known, y in lines])
    low, high = np.quantile(values, quantiles, axis=0)
    return Curve(x, np.median(values, axis=0), low, high)
