"""Command-line options: their types, and the groups that several commands have."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NoReturn

__all__ = [
    "ALGORITHMS",
    "AUTORESET",
    "DEFAULT_TIMESTEPS",
    "VECTOR",
    "CommandParser",
    "add_env_options",
    "add_learner_options",
    "add_output_options",
    "assignment",
    "collected",
    "count",
    "port",
    "seconds",
    "whole",
]

#: What ``--algo`` takes: "random" and the names in ``plugrl_gym.agents.sb3``, which needs torch.
ALGORITHMS: Final = ("ppo", "random")
#: Env steps of a run for which neither the user nor a preset says another number.
DEFAULT_TIMESTEPS: Final = 1_000_000
VECTOR: Final = ("sync", "async")
AUTORESET: Final = ("same-step", "next-step", "disabled")

_WORDS: Final = {"true": True, "false": False, "none": None}


class CommandParser(argparse.ArgumentParser):
    """Says in one line what is wrong with a command line, and exits with 2."""

    def __init__(self, prog: str, description: str, examples: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def whole(text: str) -> int:
    """An int from 0 up."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 up, got {text!r}")
    return int(text)


def count(text: str) -> int:
    """An int from 1 up; 100_000 is 100000."""
    digits = text.replace("_", "")
    if not (digits.isascii() and digits.isdigit() and int(digits) >= 1):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 up, got {text!r}")
    return int(digits)


def port(text: str) -> int:
    """A TCP port, 0 for any free one."""
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """A duration from 0 up, in seconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds from 0 up, got {text!r}")
    return value


def assignment(text: str) -> tuple[str, Any]:
    """``name=value``: the value is a Python literal, or else the text itself.

    Example:
        >>> assignment("n_steps=128"), assignment("learning_rate=lin_0.001")
        (('n_steps', 128), ('learning_rate', 'lin_0.001'))
    """
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise argparse.ArgumentTypeError(f"expected name=value, got {text!r}")
    if value.lower() in _WORDS:
        return name, _WORDS[value.lower()]
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return name, value


def collected(assignments: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Several ``name=value`` as a dict; of two with one name the later one counts."""
    return dict(assignments)


def add_learner_options(parser: argparse.ArgumentParser) -> None:
    """What the server's side of a run needs to know."""
    group = parser.add_argument_group("learning")
    group.add_argument(
        "--algo",
        choices=ALGORITHMS,
        default="ppo",
        help="ppo learns, by Stable-Baselines3; random acts at random and learns nothing "
        "(default: ppo)",
    )
    group.add_argument(
        "--total-timesteps",
        type=count,
        metavar="N",
        help="env steps, over all envs, after which the run ends; rounded up to whole updates "
        "(default: the preset's number; else 1,000,000; for `serve --algo random` no end)",
    )
    group.add_argument(
        "--seed", type=whole, metavar="N", help="makes a run repeatable (default: none)"
    )
    group.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="gets model.zip, progress.csv and result.json (default: runs/ALGO-DATE-TIME)",
    )
    _add_hyperparameters(group)
    group.add_argument(
        "--table",
        action="store_true",
        help="print Stable-Baselines3's table of numbers after each update",
    )


def _add_hyperparameters(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-P",
        dest="hyperparameters",
        type=assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any argument of the algorithm's constructor in Stable-Baselines3, as often as "
        "needed: -P n_steps=128 -P learning_rate=lin_0.001 (falls from 0.001 to 0) "
        "-P \"policy_kwargs={'net_arch': [64, 64]}\"",
    )
    group.add_argument(
        "--policy",
        metavar="NAME",
        help="MlpPolicy, CnnPolicy or MultiInputPolicy (default: chosen by the observations)",
    )
    group.add_argument(
        "--preset",
        default="auto",
        metavar="NAME",
        help="settings known to solve an env, under yours from -P: auto takes those of the "
        "client's env, if there are any, none takes none, an env id takes that env's "
        "(default: auto)",
    )
    group.add_argument(
        "--horizon",
        type=count,
        metavar="H",
        help="steps in each chunk of actions; only for random (default: 1)",
    )


def add_env_options(parser: argparse.ArgumentParser, num_envs: str) -> None:
    """What the client's side of a run needs to know; ``num_envs`` words the default number."""
    group = parser.add_argument_group("envs")
    group.add_argument(
        "--num-envs",
        type=count,
        metavar="N",
        help=f"envs to step side by side (default: {num_envs})",
    )
    group.add_argument(
        "--vector",
        choices=VECTOR,
        default="sync",
        help="sync steps the envs one after the other, async each in a process of its own "
        "(default: sync)",
    )
    group.add_argument(
        "--autoreset",
        choices=AUTORESET,
        default="same-step",
        help="when a finished env is reset: in the same step, or in the next one, which then "
        "does nothing else; disabled leaves it to us (default: same-step)",
    )
    group.add_argument(
        "--env-kwargs",
        type=assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument for the env, as often as needed: --env-kwargs render_mode=rgb_array",
    )


def add_output_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """How a command talks; returns the group, for more of that kind."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--json",
        action="store_true",
        help="print the result as one line of JSON on stdout; all else goes to stderr anyway",
    )
    group.add_argument(
        "--quiet", action="store_true", help="say nothing but warnings and errors on stderr"
    )
    # For `train`, which starts the other two: PROG names itself in their messages, and they end
    # when their stdin does.
    group.add_argument("--parent", metavar="PROG", help=argparse.SUPPRESS)
    return group
