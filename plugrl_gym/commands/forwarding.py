"""Groups of options as data: said again to another command, or looked through."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from plugrl_gym.commands.options import Assignment, assignment
from plugrl_gym.errors import UsageError

__all__ = ["given_options", "said_again", "said_by_name"]

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


def said_by_name(add: AddOptions, values: Mapping[str, Any]) -> list[str]:
    """The command line for options that are given as keyword arguments.

    Args:
        add: Defines the options.
        values: Name, as ``total_timesteps`` -> value; None for the default. What may be typed more
            than once takes a list, ``name=value`` a mapping.

    Raises:
        UsageError: An unknown name, or a value that cannot be typed.

    Example:
        >>> def add(parser):
        ...     parser.add_argument("--total-timesteps", type=int)
        ...     parser.add_argument("-P", dest="hyperparameters", action="append", default=[])
        >>> said_by_name(add, {"total_timesteps": 5, "hyperparameters": {"gamma": 0.9}})
        ['--total-timesteps=5', '-P', 'gamma=0.9']
    """
    parser = argparse.ArgumentParser(add_help=False)
    add(parser)
    defaults = {action.dest: action.default for action in parser._actions}
    public = [action.dest for action in parser._actions if action.help is not argparse.SUPPRESS]
    for name in values:
        if name not in public:
            near = get_close_matches(name, public, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"there is no option {name}{hint}")
    given = {name: value for name, value in values.items() if value is not None}
    several = {
        name: _several(name, value)
        for name, value in given.items()
        if isinstance(defaults[name], list)
    }
    return said_again(add, argparse.Namespace(**{**defaults, **given, **several}))


def _several(name: str, value: Any) -> list[Any]:
    """The values of an option that may be typed more than once."""
    if isinstance(value, Mapping):
        return [_assigned(name, key, one) for key, one in value.items()]
    return [value] if isinstance(value, str) else list(value)


def _assigned(name: str, key: str, value: Any) -> Assignment:
    said = Assignment(key, value)
    try:
        read = repr(assignment(str(said)).value)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{name}: {error}") from None
    if read != repr(value):
        raise UsageError(
            f"{name}: {key}={value!r} cannot be told to another process; expected numbers, texts, "
            "and lists and dicts of them"
        )
    return said


def _differing(
    add: AddOptions, options: argparse.Namespace
) -> Iterator[tuple[argparse.Action, Any]]:
    parser = argparse.ArgumentParser(add_help=False)
    add(parser)
    for action in parser._actions:
        value = getattr(options, action.dest)
        if value != action.default:
            yield action, value
