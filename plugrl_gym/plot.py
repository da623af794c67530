"""``python -m plugrl_gym.plot``: pictures of runs."""

from __future__ import annotations

if __name__ == "__main__":
    from plugrl_gym.commands.starting import quiet_interrupt

    quiet_interrupt("plugrl-gym plot")

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from plugrl_gym.commands.entry import run_command
from plugrl_gym.commands.naming import check_folder
from plugrl_gym.commands.options import CommandParser, add_output_options
from plugrl_gym.commands.output import Output
from plugrl_gym.plotting import AGAINST, plot_runs

__all__ = ["main"]

PROG = "plugrl-gym plot"

_EXAMPLES = """\
  plugrl-gym plot runs/pendulum                      the pictures go into the run directory
  plugrl-gym plot runs/ppo-* runs/a2c-* --out plots  runs that differ in their seed are one curve
  plugrl-gym plot runs/ppo-* --x time --band quartiles

Runs of train and serve hold what is needed; also one that has not ended can be drawn."""

_BANDS: Final = {"range": (0.0, 1.0), "quartiles": (0.25, 0.75)}


def _parser() -> CommandParser:
    parser = CommandParser(
        PROG,
        "Draw learning curves, latency by stage and clients over time, as PNG and SVG.",
        _EXAMPLES,
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a run directory")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="gets the pictures; those of the same name are overwritten (default: the run "
        "directory of a single run, else ./plots)",
    )
    parser.add_argument(
        "--x",
        choices=AGAINST,
        default="steps",
        help="what runs along the x axis: env steps, or the time since the run began "
        "(default: steps)",
    )
    parser.add_argument(
        "--band",
        choices=tuple(_BANDS),
        default="range",
        help="what the band around the median of several runs holds: all of them, or the middle "
        "half (default: range)",
    )
    add_output_options(parser)
    return parser


def _run(options: argparse.Namespace, output: Output) -> int:
    out = options.out or (options.runs[0] if len(options.runs) == 1 else Path("plots"))
    if options.out is not None:
        check_folder("--out", out)
    pictures = plot_runs(options.runs, out, options.x, _BANDS[options.band])
    for sentence in pictures.missing:
        output.say(sentence)
    for path in pictures.files:
        output.say(f"  {path}")
    output.result({"files": [str(path) for path in pictures.files], "missing": pictures.missing})
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    prog = options.parent or PROG

    def body() -> int:
        with Output(prog, options.quiet, options.json).opened() as output:
            return _run(options, output)

    return run_command(prog, body)


if __name__ == "__main__":
    sys.exit(main())
