"""Command-line options: their types, and the groups that several commands have."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

__all__ = [
    "ALGORITHMS",
    "AUTORESET",
    "VECTOR",
    "Assignment",
    "CommandParser",
    "add_env_options",
    "add_evaluation_options",
    "add_learner_options",
    "add_output_options",
    "add_update_options",
    "assignment",
    "collected",
    "count",
    "port",
    "seconds",
    "seconds_or_none",
    "share",
    "threads",
    "whole",
]

#: What ``--algo`` takes: "random" and the names in ``plugrl_gym.agents.sb3``, which needs torch.
ALGORITHMS: Final = (
    *("a2c", "crossq", "ddpg", "dqn", "ppo", "qrdqn", "sac", "td3", "tqc", "trpo"),
    "random",
)
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


def seconds_or_none(text: str) -> float | None:
    """A duration above 0, in seconds; None for ``none``."""
    if text.lower() == "none":
        return None
    value = seconds(text)
    if value == 0.0:
        raise argparse.ArgumentTypeError("expected seconds above 0, or none")
    return value


def share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return value


def threads(text: str) -> int | str:
    """A number of threads, or "auto"."""
    return text if text == "auto" else count(text)


class Assignment(NamedTuple):
    """What was typed as ``name=value``; its str is to be typed again."""

    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.name}={self.value!r}"


def assignment(text: str) -> Assignment:
    """``name=value``: the value is a Python literal, or else the text itself.

    Example:
        >>> assignment("n_steps=128").value, assignment("learning_rate=lin_0.001").value
        (128, 'lin_0.001')
    """
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise argparse.ArgumentTypeError(f"expected name=value, got {text!r}")
    if value.lower() in _WORDS:
        return Assignment(name, _WORDS[value.lower()])
    try:
        return Assignment(name, ast.literal_eval(value))
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return Assignment(name, value)


def collected(assignments: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Several ``name=value`` as a dict; of two with one name the later one counts."""
    return dict(assignments)


def add_learner_options(parser: argparse.ArgumentParser) -> None:
    """What the server's side of a run needs to know; ``train`` passes all of it on to ``serve``."""
    group = parser.add_argument_group("learning")
    group.add_argument(
        "--algo",
        choices=ALGORITHMS,
        metavar="NAME",
        help="a2c, ddpg, dqn, ppo, sac, td3 of Stable-Baselines3; crossq, qrdqn, tqc, trpo of "
        "sb3-contrib (extra contrib); random acts at random and learns nothing (default: "
        "that of --resume or --load, else ppo)",
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
        help="gets checkpoints, model.zip, progress.csv and result.json; must not hold another run "
        "(default: runs/ALGO-DATE-TIME)",
    )
    _add_durability(group)
    _add_hyperparameters(group)
    group.add_argument(
        "--torch-threads",
        type=threads,
        default="auto",
        metavar="N",
        help="how many threads torch calculates with; auto takes 1 where the policy sees no "
        "images, which leaves the other cores to the envs, else torch's own number; another number "
        "changes the last bits of the weights (default: auto)",
    )
    group.add_argument(
        "--table",
        action="store_true",
        help="print Stable-Baselines3's table of numbers after each update",
    )


def add_update_options(parser: argparse._ActionsContainer) -> None:
    """What ``serve`` needs to know of its clients to learn from them and to evaluate."""
    parser.add_argument(
        "--num-envs",
        type=count,
        metavar="N",
        help="an update comes every n_steps, or train_freq, times this number of steps, from "
        "however many clients (default: the first client's number of envs)",
    )
    parser.add_argument(
        "--eval-episodes",
        type=count,
        default=10,
        metavar="M",
        help="episodes of one evaluation, which a client that evaluates plays under one policy "
        "(default: 10)",
    )


def _add_durability(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--save-every",
        type=whole,
        metavar="N",
        help="write a checkpoint every N env steps; 0 for one at the end only (default: 10,000)",
    )
    group.add_argument(
        "--keep", type=count, metavar="K", help="keep the last K checkpoints (default: 3)"
    )
    group.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        help="go on with the run in DIR, with its own settings, as if nothing had happened; a "
        "larger --total-timesteps makes it longer",
    )
    group.add_argument(
        "--load",
        type=Path,
        metavar="FILE",
        help="begin with a model that Stable-Baselines3 saved: its weights, optimizers and, where "
        "there is no -P, its settings; env steps count from 0",
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
        "-P \"policy_kwargs={'net_arch': [64, 64], 'activation_fn': 'ReLU'}\" "
        "-P action_noise=normal:0.1",
    )
    group.add_argument(
        "--hyperparams",
        type=Path,
        metavar="FILE",
        help="a YAML file of such arguments, as rl-baselines3-zoo has them, for one env or by env "
        "id; -P wins over it, and it wins over a preset",
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
        help="env steps that the policy chooses at once; they run without asking it, up to the "
        "end of the episode. Timesteps and the discount stay those of env steps (default: 1)",
    )
    group.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="keep running statistics of observations and rewards, normalize both by them, and "
        "save them as vecnormalize.pkl beside the model (default: as the preset says; else no)",
    )
    group.add_argument(
        "--async-learn",
        action="store_true",
        help="go on acting while the model learns, off-policy algorithms only; as many gradient "
        "steps for each env step, but no run is then like another (default: act and learn in turn)",
    )
    group.add_argument(
        "--demonstrations-share",
        type=share,
        metavar="SHARE",
        help="this share of each batch is drawn from the steps in which somebody at a client took "
        "over, as 0.5, off-policy algorithms only (default: 0, which draws from all alike)",
    )


def add_env_options(parser: argparse.ArgumentParser, num_envs: str) -> None:
    """What the client's side of a run needs to know; ``train`` passes all of it on to ``rollout``.

    Args:
        parser: Gets them.
        num_envs: Words the default number of envs.
    """
    group = parser.add_argument_group("envs")
    group.add_argument(
        "--num-envs",
        type=count,
        metavar="N",
        help=f"envs to step side by side, in each process (default: {num_envs})",
    )
    group.add_argument(
        "--procs",
        type=count,
        default=1,
        metavar="P",
        help="run P client processes, each with --num-envs envs, a connection and a seed of its "
        "own: process p of P counts its envs' seeds from --seed + (p - 1) * --num-envs. "
        "--max-steps and --max-episodes are for each. One that dies is named while the others go "
        "on, and the exit code is then 1 (default: 1)",
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


def add_evaluation_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """When a training client evaluates; ``train`` passes it on. Returns the group, for more."""
    group = parser.add_argument_group("evaluation")
    group.add_argument(
        "--eval-every",
        type=count,
        metavar="N",
        help="evaluate the policy after every N env steps, in envs of their own and without "
        "exploration; the best one is kept as best_model.zip (default: never)",
    )
    group.add_argument(
        "--eval-episodes",
        type=count,
        default=10,
        metavar="M",
        help="episodes of one evaluation (default: 10)",
    )
    return group


def add_output_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """How a command talks; returns the group, for more of that kind."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--json",
        action="store_true",
        help="print the result as one line of JSON on stdout; all else goes to stderr anyway",
    )
    how_much = group.add_mutually_exclusive_group()
    how_much.add_argument(
        "--quiet",
        "-q",
        action="store_true",
        help="say nothing but warnings and errors on stderr",
    )
    how_much.add_argument(
        "--verbose",
        "-v",
        action="store_true",
        help="say more on stderr: what is of interest where something goes wrong",
    )
    # For commands that start others: PROG names itself in their messages, they end when their stdin
    # does, and they tell on stdout how far they are.
    group.add_argument("--parent", metavar="PROG", help=argparse.SUPPRESS)
    group.add_argument("--report", action="store_true", help=argparse.SUPPRESS)
    return group
