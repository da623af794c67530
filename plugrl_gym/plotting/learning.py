"""Learning curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from plugrl_gym.plotting.abscissa import Abscissa
from plugrl_gym.plotting.groups import Curve, Group, Line, spread
from plugrl_gym.plotting.runs import STEPS, Run
from plugrl_gym.plotting.style import Picture, legend_beside, stroke, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["learning_picture"]

_RETURN: Final = "rollout/ep_rew_mean"
_MOST_COLUMNS: Final = 3
# Of lines that a legend over the axes may name.
_MOST_INSIDE: Final = 5

_Read: TypeAlias = Callable[[Run, Abscissa], Line | None]


class _Panel(NamedTuple):
    """One pair of axes.

    Attributes:
        env_id: None where the runs do not say it.
        what: Goes along the y axis.
        read: Gives the line of a run, or None.
    """

    env_id: str | None
    what: str
    read: _Read


def learning_picture(
    groups: Sequence[Group], x: Abscissa, band: tuple[float, float]
) -> Picture | None:
    """The learning curves of all groups: training of each env, and below it evaluation.

    Args:
        groups: In the order in which they get their strokes.
        x: What runs along the x axes.
        band: The quantiles between which a group's band lies.

    Returns:
        None where no run tells of a return.
    """
    panels = _panels(groups)
    if not panels:
        return None
    columns = min(len({panel.env_id for panel in panels}), _MOST_COLUMNS)
    rows = -(-len(panels) // columns)
    beside = len(groups) > _MOST_INSIDE
    width = 6.4 if columns == 1 else 5.0
    size = (columns * (width + 2.4 * beside), rows * max(3.6, 0.3 * len(groups)) + 0.4)

    def draw(figure: Figure) -> None:
        axes = iter(figure.subplots(rows, columns, squeeze=False).flat)
        for panel in panels:
            _draw_panel(next(axes), panel, groups, x, band)
        for unused in axes:
            unused.set_axis_off()

    return Picture(size, draw)


def _panels(groups: Sequence[Group]) -> list[_Panel]:
    """Those that have something to show."""
    envs = dict.fromkeys(group.env_id for group in groups)
    kinds: tuple[tuple[str, _Read], ...] = (
        ("mean return\n(training, last 100 episodes)", _training),
        ("mean return\n(evaluation)", _evaluation),
    )
    return [
        _Panel(env_id, what, read)
        for what, read in kinds
        for env_id in envs
        if any(
            read(run, Abscissa(None)) is not None
            for group in groups
            if group.env_id == env_id
            for run in group.runs
        )
    ]


def _training(run: Run, x: Abscissa) -> Line | None:
    return x.line(run, run.log[STEPS], run.log[_RETURN]) if _RETURN in run.log else None


def _evaluation(run: Run, x: Abscissa) -> Line | None:
    if not {"timesteps", "mean_reward"} <= run.evaluations.keys():
        return None
    return x.line(run, run.evaluations["timesteps"], run.evaluations["mean_reward"])


def _draw_panel(
    axes: Axes, panel: _Panel, groups: Sequence[Group], x: Abscissa, band: tuple[float, float]
) -> None:
    several = False
    for group in groups:
        if group.env_id != panel.env_id:
            continue
        lines = [line for run in group.runs if (line := panel.read(run, x)) is not None]
        if lines:
            _draw_group(axes, group, lines, band)
            several |= len(lines) > 1
    axes.set_title("" if panel.env_id is None else panel.env_id)
    axes.set_ylabel(panel.what)
    x.label(axes)
    axes.set_xlim(left=0)
    title = f"line: median; band: {_words(band)}" if several else None
    named, _ = axes.get_legend_handles_labels()
    if len(named) > _MOST_INSIDE:
        legend_beside(axes, named, title)
    else:
        axes.legend(loc="best", title=title, alignment="left")


def _draw_group(axes: Axes, group: Group, lines: Sequence[Line], band: tuple[float, float]) -> None:
    curve, how, label = spread(lines, band), stroke(group.number), wrapped(group.told)
    if len(lines) > 1:
        for line in lines:
            for x, y in _outside(line, curve):
                axes.plot(x, y, color=how.color, linestyle=how.linestyle, linewidth=0.7, alpha=0.7)
    if curve is None:  # the runs have no x in common: each is drawn by itself
        axes.plot([], [], **how.line(1), label=label)
        return
    axes.plot(curve.x, curve.middle, **how.line(len(curve.x), group.number), label=label)
    if len(lines) > 1:
        axes.fill_between(curve.x, curve.low, curve.high, color=how.color, alpha=0.18, linewidth=0)
        for edge in (curve.low, curve.high):
            axes.plot(curve.x, edge, color=how.color, linestyle=how.linestyle, linewidth=0.5)


def _outside(line: Line, curve: Curve | None) -> list[Line]:
    """The parts of a line where another run of its group is not known."""
    x, y = line
    if curve is None:
        return [line]
    before = slice(0, int(np.searchsorted(x, curve.x[0])) + 1)
    after = slice(max(int(np.searchsorted(x, curve.x[-1], "right")) - 1, 0), None)
    return [(x[part], y[part]) for part in (before, after) if len(x[part]) > 1]


def _words(band: tuple[float, float]) -> str:
    if band == (0.0, 1.0):
        return "min to max"
    return f"{100 * band[0]:.0f}th to {100 * band[1]:.0f}th percentile"
