"""Groups of options as data: said again to another command, or looked through."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["given_options", "said_again"]

#: A function such as ``add_learner_options``, which defines a group of options.
AddOptions = Callable[[argparse.ArgumentParser], object]


def said_again(add: AddOptions, options: argparse.Namespace) -> list[str]:
    """The command line that gives another command the same values of one group of options.

    ``str(value)`` must be what the option's type reads as that value. Options without a value, and
    those that hold their default, are left out.

    Args:
        add: Defines the group.
        options: Parsed, or chosen in place of what was parsed.

    Example:
        >>> def add(parser):
        ...     parser.add_argument("--seed", type=int)
        ...     parser.add_argument("--table", action="store_true")
        >>> said_again(add, argparse.Namespace(seed=3, table=True))
        ['--seed=3', '--table']
    """
    said: list[str] = []
    for action, value in _differing(add, options):
        flag = action.option_strings[0]
        if isinstance(action, argparse.BooleanOptionalAction):
            said.append(action.option_strings[0 if value else -1])
        elif action.nargs == 0:
            said.append(flag)
        else:
            for one in value if isinstance(action.default, list) else [value]:
                # A long option in one word, for its value may begin with a dash.
                said += [f"{flag}={one}"] if flag.startswith("--") else [flag, str(one)]
    return said


def given_options(add: AddOptions, options: argparse.Namespace) -> dict[str, str]:
    """The options of a group that hold something else than their default.

    Returns:
        Their name in ``options`` -> how a user writes them.
    """
    return {action.dest: action.option_strings[0] for action, _ in _differing(add, options)}


def _differing(
    add: AddOptions, options: argparse.Namespace
) -> Iterator[tuple[argparse.Action, Any]]:
    parser = argparse.ArgumentParser(add_help=False)
    add(parser)
    for action in parser._actions:
        value = getattr(options, action.dest)
        if value != action.default:
            yield action, value
