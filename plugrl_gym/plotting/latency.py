"""Latency by stage: of a whole run, and how it went on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from plugrl_gym.plotting.abscissa import Abscissa
from plugrl_gym.plotting.groups import Group, Line, spread
from plugrl_gym.plotting.runs import QUANTILES, STEPS, Run
from plugrl_gym.plotting.style import Picture, legend_beside, milliseconds_axis, stroke, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["latency_picture"]

_PREFIX: Final = "latency/"
_MARKERS: Final = dict(zip(QUANTILES, "os^", strict=True))
_MILLI: Final = 1e3


def latency_picture(groups: Sequence[Group], x: Abscissa) -> Picture | None:
    """A row for each group: the quantiles of each stage, and beside them how they went on.

    Args:
        groups: The medians of a group's runs are drawn.
        x: What runs along the x axis of how it went on.

    Returns:
        None where no run tells of any latency.
    """
    told = [group for group in groups if _measured(group) or _logged(group)]
    measured, logged = any(map(_measured, told)), any(map(_logged, told))
    if not told:
        return None
    columns = measured + 2 * logged

    def draw(figure: Figure) -> None:
        rows = figure.subplots(len(told), columns, squeeze=False)
        for row, group in zip(rows, told, strict=True):
            if measured:
                _draw_quantiles(row[0], group)
            if logged:
                _draw_course(row[-2:], group, x)
            row[0].set_title(wrapped(group.told_with_env), loc="left")

    return Picture((4.3 * columns + 1.4 * logged, 3.5 * len(told)), draw)


def _measured(group: Group) -> dict[str, dict[str, float]]:
    """Stage -> the quantiles of whole runs in seconds, their median over the runs that tell."""
    runs = [run.latency for run in group.runs if run.latency]
    stages = dict.fromkeys(stage for latency in runs for stage in latency)
    return {
        stage: {
            name: float(np.median([latency[stage][name] for latency in runs if stage in latency]))
            for name in QUANTILES
        }
        for stage in stages
    }


def _draw_quantiles(axes: Axes, group: Group) -> None:
    measured = _measured(group)
    names = list(measured)
    for place, quantiles in enumerate(measured.values()):
        ends = [_MILLI * value for value in quantiles.values()]
        axes.plot([min(ends), max(ends)], [place, place], color="#555555", linewidth=1.2, zorder=1)
    for index, (name, marker) in enumerate(_MARKERS.items()):
        values = [_MILLI * quantiles[name] for quantiles in measured.values()]
        color = stroke(index).color
        face = color if name == "p50" else "white"
        places = range(len(values))
        axes.scatter(
            values, places, s=42, c=face, marker=marker, edgecolors=color, label=name, zorder=3
        )
    axes.set_xscale("log")
    milliseconds_axis(axes.xaxis)
    axes.set_xlabel("latency in the whole run (ms)")
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.set_ylabel("stage")
    axes.margins(y=0.15)
    axes.invert_yaxis()
    if names:
        axes.legend(loc="best", handlelength=1.0)


def _logged(group: Group) -> list[str]:
    """The stages that the logs of a group have lines of, in the order of :func:`_measured`."""
    found = {
        name.removeprefix(_PREFIX).rpartition("_")[0]
        for run in group.runs
        for name, column in run.log.items()
        if name.startswith(_PREFIX) and np.isfinite(column).any()
    }
    # A log's columns have no order.
    known = [stage for stage in _measured(group) if stage in found]
    return known + sorted(found.difference(known))


def _draw_course(pair: Sequence[Axes], group: Group, x: Abscissa) -> None:
    left, right = pair
    right.sharey(left)
    for axes, quantile in ((left, "p50"), (right, "p95")):
        for index, stage in enumerate(_logged(group)):
            lines = [_line(run, f"{_PREFIX}{stage}_{quantile}", x) for run in group.runs]
            known = [line for line in lines if line is not None]
            curve = spread(known, (0.0, 1.0)) if known else None
            if curve is not None:
                how = stroke(index).line(len(curve.x), index)
                axes.plot(curve.x, curve.middle, **how, label=stage.replace("_", " "))
        axes.set_yscale("log")
        milliseconds_axis(axes.yaxis)
        axes.set_ylabel(f"{quantile} of latency (ms)")
        axes.set_xlim(left=0)
        x.label(axes)
    drawn = {str(line.get_label()): line for axes in pair for line in axes.lines}
    if drawn:
        legend_beside(right, list(drawn.values()), "stage")


def _line(run: Run, name: str, x: Abscissa) -> Line | None:
    column = run.log.get(name)
    return None if column is None else x.line(run, run.log[STEPS], _MILLI * column)
