"""The pictures of some runs: which there are, and where they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from plugrl_gym.plotting.abscissa import Abscissa, Against
from plugrl_gym.plotting.clients import clients_picture
from plugrl_gym.plotting.groups import group_runs
from plugrl_gym.plotting.latency import latency_picture
from plugrl_gym.plotting.learning import learning_picture
from plugrl_gym.plotting.runs import read_run
from plugrl_gym.plotting.style import render

__all__ = ["ALL", "Pictures", "learning_curve", "plot_runs"]

_FORMATS: Final = ("png", "svg")
#: The band from the least run to the greatest.
ALL: Final = (0.0, 1.0)


@dataclass
class Pictures:
    """What :func:`plot_runs` made of some runs.

    Attributes:
        files: Written, in order.
        missing: A sentence for each picture that the runs have no numbers for.
    """

    files: list[Path] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def plot_runs(
    run_dirs: Sequence[Path],
    out: Path,
    against: Against = "steps",
    band: tuple[float, float] = ALL,
) -> Pictures:
    """Draw some runs: learning curves, latency by stage, clients over time; PNG and SVG of each.

    Runs that differ in their seed alone are one curve, with a band.

    Args:
        run_dirs: At least one; one that is named twice counts once.
        out: Gets the files; those of the same name are overwritten.
        against: ``"steps"`` or ``"time"``.
        band: The quantiles between which a band lies, from 0 to 1.

    Raises:
        UsageError: A run cannot be read, a file cannot be written, or matplotlib is missing.
    """
    runs = [read_run(path) for path in {path.resolve(): path for path in run_dirs}.values()]
    groups, x = group_runs(runs), Abscissa.of(runs, against)
    pictures = Pictures()
    for name, picture, why_not in (
        ("learning_curve", learning_picture(groups, x, band), "no episode has ended"),
        ("latency", latency_picture(groups, x), "neither progress.csv nor result.json tells it"),
        ("clients", clients_picture(groups, x), "progress.csv does not tell of them"),
    ):
        if picture is None:
            pictures.missing.append(f"No {name.replace('_', ' ')}: {why_not}.")
        else:
            pictures.files += render(picture, out / name, _FORMATS)
    return pictures


def learning_curve(run_dir: Path) -> Path | None:
    """Draw learning_curve.png into a run directory.

    Returns:
        The file; None where matplotlib is not installed or there is no episode to draw.

    Raises:
        UsageError: What is in the directory cannot be read, or the file not be written.
    """
    if find_spec("matplotlib") is None or not (run_dir / "progress.csv").exists():
        return None
    run = read_run(run_dir)
    picture = learning_picture(group_runs([run]), Abscissa.of([run], "steps"), ALL)
    return None if picture is None else render(picture, run_dir / "learning_curve", ["png"])[0]
