"""Pictures of runs, from what lies in their directories.

Example:
    >>> from pathlib import Path
    >>> from plugrl_gym.plotting import plot_runs
    >>> plot_runs([Path("runs/ppo-0"), Path("runs/ppo-1")], Path("plots")).files  # doctest: +SKIP
    [PosixPath('plots/learning_curve.png'), PosixPath('plots/learning_curve.svg'), ...]
"""

from __future__ import annotations

from plugrl_gym.plotting.abscissa import AGAINST, Against
from plugrl_gym.plotting.pictures import Pictures, learning_curve, plot_runs

__all__ = ["AGAINST", "Against", "Pictures", "learning_curve", "plot_runs"]
