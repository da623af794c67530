"""What runs along the x axis: env steps, or the time that they took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from plugrl_gym.plotting.groups import Line
from plugrl_gym.plotting.runs import STEPS, Run
from plugrl_gym.plotting.style import TimeUnit, steps_axis, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["AGAINST", "Abscissa", "Against"]

Against: TypeAlias = Literal["steps", "time"]
AGAINST: Final[tuple[Against, ...]] = ("steps", "time")

_Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Abscissa:
    """One x axis for several runs.

    Attributes:
        unit: Of wall time; None for env steps.
    """

    unit: TimeUnit | None

    @classmethod
    def of(cls, runs: Sequence[Run], against: Against) -> Abscissa:
        """The axis that suits some runs.

        Args:
            runs: At least one.
            against: ``"steps"`` or ``"time"``.
        """
        if against == "steps":
            return cls(None)
        ends = [run.seconds_at(run.log[STEPS])[-1:] for run in runs]
        known = [float(end[0]) for end in ends if len(end) and np.isfinite(end[0])]
        return cls(time_unit(max(known, default=0.0)))

    def line(self, run: Run, steps: _Floats, values: _Floats) -> Line | None:
        """(x, y) of the places where both are known, in the order of x; None where nowhere.

        Args:
            run: Tells the time.
            steps, values: float64 [points].
        """
        x = steps if self.unit is None else run.seconds_at(steps) / self.unit.seconds
        known = np.isfinite(x) & np.isfinite(values)
        if not known.any():
            return None
        order = np.argsort(x[known], kind="stable")
        return x[known][order], values[known][order]

    def label(self, axes: Axes) -> None:
        """Say what the x axis is."""
        if self.unit is None:
            axes.set_xlabel("env steps")
            steps_axis(axes.xaxis)
        else:
            axes.set_xlabel(f"wall time ({self.unit.name})")
