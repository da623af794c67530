"""Who takes over at a client, from what a user types."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from plugrl_gym.client import Sometimes, Takeover
from plugrl_gym.commands.entry import one_line
from plugrl_gym.commands.naming import imported
from plugrl_gym.commands.options import count, share
from plugrl_gym.errors import UsageError

__all__ = ["add_takeover_options", "find_takeover"]


def add_takeover_options(parser: argparse.ArgumentParser) -> None:
    """What ``rollout`` needs to know to let somebody take over."""
    group = parser.add_argument_group("taking over")
    group.add_argument(
        "--takeover",
        metavar="MODULE:NAME",
        help="a function that may execute other actions than the server's: called before each step "
        "with the observations and the server's actions, it returns actions, or actions and a mask "
        "of the envs that it takes over, or None; plugrl_gym.client.Keyboard makes one",
    )
    group.add_argument(
        "--takeover-share",
        type=share,
        metavar="SHARE",
        help="let it take over for this share of the steps, at random; a demonstrator has all "
        "(default: 1)",
    )
    group.add_argument(
        "--takeover-length",
        type=count,
        metavar="N",
        help="with a share: how many steps it then stays (default: 1)",
    )


def find_takeover(options: argparse.Namespace) -> Takeover | None:
    """Who takes over; None for nobody.

    Args:
        options: With those of :func:`add_takeover_options` and ``seed``.

    Raises:
        UsageError: There is nobody of that name, or a share without anybody.
    """
    given: float | None = options.takeover_share
    length: int | None = options.takeover_length
    if options.takeover is None:
        if given is not None or length is not None:
            raise UsageError("--takeover-share and --takeover-length need --takeover")
        return None
    if given is None and length is not None:
        raise UsageError("--takeover-length needs --takeover-share")
    found = _import(options.takeover)
    return found if given is None else Sometimes(found, given, length or 1, options.seed)


def _import(where: str) -> Callable[..., Any]:
    module, _, name = where.partition(":")
    if not (module and name):
        raise UsageError(f"--takeover: expected MODULE:NAME, as my_expert:act, got {where!r}")
    try:
        found = getattr(imported(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--takeover {where}: {one_line(error)}") from error
    if not callable(found):
        raise UsageError(f"--takeover {where}: {type(found).__name__} cannot be called")
    called: Callable[..., Any] = found
    return called
