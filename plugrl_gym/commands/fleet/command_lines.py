"""What each of several client processes is told."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping

from plugrl_gym.commands.environments import DEFAULT_NUM_ENVS
from plugrl_gym.commands.forwarding import said_again
from plugrl_gym.commands.keys import KEY_VARIABLE

__all__ = ["command_lines", "environment"]


def command_lines(
    add_options: Callable[[argparse.ArgumentParser], object], options: argparse.Namespace
) -> list[list[str]]:
    """The arguments of each process: those that were given, but for what has to differ.

    Process p of P, which counts from 0 here, gets the seed ``--seed + p * --num-envs``: a vector
    env seeds its envs with that number, the next, and so on, so that all P * num_envs envs have the
    seeds that one process with as many envs would give them, and no two the same. The first process
    evaluates for all, P times as often by its own count of steps, and is the one that is filmed.

    Args:
        add_options: Defines all options of ``rollout``.
        options: As parsed.
    """
    lines = []
    for number in range(options.procs):
        chosen = {**vars(options), **_own(options, number)}
        positional = [] if options.env_id is None else [options.env_id]
        lines.append(positional + said_again(add_options, argparse.Namespace(**chosen)))
    return lines


def _own(options: argparse.Namespace, number: int) -> dict[str, object]:
    num_envs = options.num_envs or DEFAULT_NUM_ENVS
    evaluates = options.eval_every is not None and number == 0
    return {
        "procs": 1,
        "seed": None if options.seed is None else options.seed + number * num_envs,
        "eval_every": max(options.eval_every // options.procs, 1) if evaluates else None,
        **({} if number == 0 else {"record_video": None, "video_every": None}),
        "api_key": None,  # goes by the environment
        "api_key_file": None,
        "quiet": not options.verbose,  # the table says the rest
        "parent": None,
        "json": False,
        "report": False,
    }


def environment(api_key: str | None) -> Mapping[str, str]:
    """The processes': as an option every user of this machine could read the key."""
    return {**os.environ, KEY_VARIABLE: api_key or ""}
