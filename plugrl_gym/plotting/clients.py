"""Clients and envs over a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from plugrl_gym.plotting.abscissa import Abscissa
from plugrl_gym.plotting.groups import Group
from plugrl_gym.plotting.runs import STEPS, Run
from plugrl_gym.plotting.style import Picture, legend_beside, stroke, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["clients_picture"]

_COLUMNS: Final = {"time/clients": "clients connected", "time/envs": "envs connected"}


def clients_picture(groups: Sequence[Group], x: Abscissa) -> Picture | None:
    """How many clients and envs each run had, one pair of axes above the other.

    Args:
        groups: In the order in which they get their strokes; runs that tell nothing are left out.
        x: What runs along the x axis.

    Returns:
        None where no run tells of them.
    """
    if not any(_tells(run) for group in groups for run in group.runs):
        return None

    def draw(figure: Figure) -> None:
        both = figure.subplots(len(_COLUMNS), 1, sharex=True)
        for axes, (column, what) in zip(both, _COLUMNS.items(), strict=True):
            for index, group in enumerate(groups):
                _draw_group(axes, group, column, index, x)
            _finish(axes, what)
        lines, _ = both[0].get_legend_handles_labels()
        if len(groups) > 1:
            legend_beside(both[0], lines, None)
        else:
            both[0].legend(loc="best")
        x.label(both[-1])

    several = len(groups) > 1
    return Picture((6.4 + 2.4 * several, max(4.6, 0.6 * len(groups))), draw)


def _tells(run: Run) -> bool:
    return _COLUMNS.keys() <= run.log.keys()


def _draw_group(axes: Axes, group: Group, column: str, index: int, x: Abscissa) -> None:
    label: str | None = wrapped(group.told_with_env)
    for run in filter(_tells, group.runs):
        line = x.line(run, run.log[STEPS], run.log[column])
        if line is not None:
            how = stroke(index).line(len(line[0]), index)
            axes.plot(*line, drawstyle="steps-post", label=label, **how)
            label = None


def _finish(axes: Axes, what: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_ylabel(what)
    axes.margins(y=0.1)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
