"""``plugrl-gym serve|rollout|train|plot``, also as ``python -m plugrl_gym``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from plugrl_gym import __version__
from plugrl_gym.commands.options import CommandParser
from plugrl_gym.commands.starting import quiet_interrupt

__all__ = ["main"]

_COMMANDS: Final = {
    "serve": "serve a policy and its learner, for clients anywhere",
    "rollout": "step envs here with the actions of a server elsewhere",
    "train": "do both on this machine, as two processes",
    "plot": "draw learning curves, latency and clients of runs",
}

_EXAMPLES: Final = """\
  plugrl-gym train CartPole-v1 --algo ppo      learn CartPole on this machine

  plugrl-gym serve --algo ppo                  the same in two terminals, or on two machines:
  plugrl-gym rollout CartPole-v1               the server learns, the client owns the envs

Each command has its own --help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if os.getcwd() not in map(os.path.abspath, sys.path):
        # `python -m` looks there for envs of the user's own, an installed script does not.
        sys.path.insert(0, os.getcwd())
    if given and given[0] in _COMMANDS:
        if arguments is None:
            quiet_interrupt(f"plugrl-gym {given[0]}")
        command = import_module(f"plugrl_gym.{given[0]}")
        code: int = command.main(given[1:])
        return code
    parser = CommandParser(
        "plugrl-gym",
        "Train any Gymnasium vector env against a server somewhere else.\n\ncommands:\n"
        + "\n".join(f"  {name:9} {what}" for name, what in _COMMANDS.items()),
        _EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"plugrl-gym {__version__}")
    parser.add_argument("command", choices=_COMMANDS, metavar="|".join(_COMMANDS))
    parser.parse_args(given or ["--help"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
