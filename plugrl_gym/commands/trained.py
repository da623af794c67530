"""``serve --no-learn``: a trained model that only acts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gymnasium import spaces

from plugrl_gym.commands.forwarding import given_options
from plugrl_gym.commands.options import add_learner_options, add_update_options
from plugrl_gym.errors import UsageError

if TYPE_CHECKING:
    from plugrl_gym.agents.sb3.policy_agent import SB3PolicyAgent

__all__ = ["add_trained_options", "check_trained_options", "make_trained_agent"]

# Of the options of learners, those that mean something without learning.
_KNOWN: Final = frozenset(
    {"algo", "total_timesteps", "seed", "run_dir", "horizon", "load", "torch_threads"}
)


def add_trained_options(parser: argparse.ArgumentParser) -> None:
    """How to serve a model that learns no more."""
    group = parser.add_argument_group("a trained model")
    group.add_argument(
        "--no-learn",
        action="store_true",
        help="only act, with the model of --load FILE as it is: any that Stable-Baselines3 or "
        "sb3-contrib saved. Nothing is stored, and only --total-timesteps ends it. Clients must "
        "have the spaces that it was trained in",
    )
    group.add_argument(
        "--stochastic",
        action="store_true",
        help="with --no-learn: draw actions, as in training; clients that only evaluate get the "
        "most likely ones all the same (default: the most likely ones for all)",
    )
    group.add_argument(
        "--load-normalizer",
        type=Path,
        metavar="FILE",
        help="with --no-learn: VecNormalize's file for a model that was trained with one "
        "(default: vecnormalize.pkl beside the model, if it is there)",
    )


def check_trained_options(options: argparse.Namespace) -> None:
    """Find options that do not go together.

    Raises:
        UsageError: There are some.
    """
    if not options.no_learn:
        for given, flag in (
            (options.stochastic, "--stochastic"),
            (options.load_normalizer is not None, "--load-normalizer"),
        ):
            if given:
                raise UsageError(f"{flag} is for --no-learn")
        return
    if options.load is None:
        raise UsageError("--no-learn needs a model: --load FILE")
    given = given_options(add_learner_options, options) | given_options(add_update_options, options)
    for name, flag in given.items():
        if name not in _KNOWN:
            raise UsageError(f"{flag} is for learning, and with --no-learn nothing learns")


def make_trained_agent(
    options: argparse.Namespace,
    observation: spaces.Space[Any] | None,
    action: spaces.Space[Any] | None,
) -> SB3PolicyAgent:
    """Build the agent of ``serve --no-learn``; its packages are installed.

    Args:
        options: Checked.
        observation, action: Of clients that do not declare theirs; None for the model's own.

    Raises:
        UsageError: The model or its normaliser cannot be served.
    """
    from plugrl_gym.agents.sb3.policy_agent import SB3PolicyAgent

    return SB3PolicyAgent(
        options.load,
        algorithm=options.algo,
        normalizer=options.load_normalizer,
        horizon=options.horizon or 1,
        stochastic=options.stochastic,
        seed=options.seed,
        total_timesteps=options.total_timesteps,
        observation_space=observation,
        action_space=action,
        env_id=options.env_id,
        torch_threads=options.torch_threads,
    )
