"""How the pictures look: told apart by line and marker before colour, so that grey will do."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from plugrl_gym.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = [
    "Picture",
    "Stroke",
    "TimeUnit",
    "legend_beside",
    "milliseconds_axis",
    "render",
    "steps_axis",
    "stroke",
    "time_unit",
    "wrapped",
]


class Picture(NamedTuple):
    """Something to draw.

    Attributes:
        size: Width and height in inches.
        draw: Gets an empty figure.
    """

    size: tuple[float, float]
    draw: Callable[[Figure], None]


class Stroke(NamedTuple):
    """How one line is drawn."""

    color: str
    linestyle: Any
    marker: str

    def line(self, points: int, offset: int = 0) -> dict[str, Any]:
        """Arguments for ``Axes.plot`` of a line with so many points.

        Args:
            points: At most eight of them get a marker.
            offset: Moves the markers along, so that those of two equal lines are both seen.
        """
        every = max(1, -(-points // 8))
        return {
            **self._asdict(),
            "markevery": (offset % every, every),
            "markersize": 5,
            "markerfacecolor": "white",
        }


#: In letters.
_LABEL_WIDTH: Final = 48

# The colours of Okabe and Ito, which all people can tell apart.
_COLORS: Final = ("#0072B2", "#D55E00", "#000000", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_LINES: Final = ("-", "--", ":", "-.", (0, (7, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", "*")

_RC: Final[Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.title_fontsize": 8.5,
    "legend.handlelength": 3.2,
    "legend.framealpha": 0.85,
    "lines.linewidth": 1.6,
    # Two pictures of the same numbers are the same bytes.
    "svg.hashsalt": "plugrl-gym",
}


def stroke(index: int) -> Stroke:
    """The n-th way to draw a line; 63 of them differ without colour."""
    return Stroke(
        _COLORS[index % len(_COLORS)], _LINES[index % len(_LINES)], _MARKERS[index % len(_MARKERS)]
    )


def render(picture: Picture, stem: Path, formats: Sequence[str]) -> list[Path]:
    """Draw a picture and write it; touches no window and none of matplotlib's global state.

    Args:
        picture: What to draw.
        stem: The files' path without its ending; the directory is made.
        formats: ``"png"``, ``"svg"``.

    Returns:
        The files.

    Raises:
        UsageError: matplotlib is not installed, or a file cannot be written.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            'plots need matplotlib, which is not installed: pip install "plugrl-gym[plot]"'
        ) from error
    with rc_context(_RC):
        figure = Figure(figsize=picture.size, layout="constrained")
        FigureCanvasAgg(figure)
        picture.draw(figure)
        return [_save(figure, stem.with_name(f"{stem.name}.{ending}")) for ending in formats]


def _save(figure: Figure, path: Path) -> Path:
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, metadata=metadata)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror or error})") from error
    return path


def steps_axis(axis: Axis) -> None:
    """Say 20k for 20,000 along an axis."""
    from matplotlib.ticker import EngFormatter

    axis.set_major_formatter(EngFormatter(sep=""))


def wrapped(label: str) -> str:
    """A long label in several lines."""
    return "\n".join(textwrap.wrap(label, _LABEL_WIDTH, break_on_hyphens=False)) or label


def legend_beside(axes: Axes, lines: Sequence[Artist], title: str | None) -> None:
    """A legend to the right of the axes, not over them."""
    axes.legend(
        lines,
        [str(line.get_label()) for line in lines],
        loc="center left",
        bbox_to_anchor=(1.02, 0.5),
        title=title,
        alignment="left",
    )


def milliseconds_axis(axis: Axis) -> None:
    """Plain numbers along a logarithmic axis: 0.01, 1, 1,000."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:,.15g}"))
    axis.set_minor_formatter(NullFormatter())


class TimeUnit(NamedTuple):
    """A unit of wall time, and its length in seconds."""

    name: str
    seconds: float


def time_unit(longest: float) -> TimeUnit:
    """The unit in which so many seconds are best told."""
    if longest >= 3 * 3600:
        return TimeUnit("h", 3600.0)
    return TimeUnit("min", 60.0) if longest >= 180 else TimeUnit("s", 1.0)
