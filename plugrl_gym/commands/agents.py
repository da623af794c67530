"""The agent that the options of a command describe."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from gymnasium import spaces

from plugrl_gym.agents.random_agent import RandomAgent
from plugrl_gym.commands.environments import spaces_of
from plugrl_gym.commands.forwarding import given_options
from plugrl_gym.commands.options import add_learner_options, add_update_options, collected
from plugrl_gym.commands.output import Output
from plugrl_gym.commands.space_text import parse_space
from plugrl_gym.commands.trained import make_trained_agent
from plugrl_gym.errors import UsageError
from plugrl_gym.server import Client

if TYPE_CHECKING:
    from plugrl_gym.agents.sb3 import SB3Agent
    from plugrl_gym.agents.sb3.policy_agent import SB3PolicyAgent

__all__ = ["NamingRandomAgent", "default_run_dir", "make_agent"]


# Of the options of learners, those that a random agent understands.
_FOR_RANDOM: Final = frozenset({"algo", "total_timesteps", "seed", "run_dir", "horizon"})


class NamingRandomAgent(RandomAgent):
    """A random agent that remembers which env its first client declared.

    Attributes:
        env_id: Its registered id; None while unknown.
    """

    env_id: str | None = None

    def join(self, client: Client) -> None:
        super().join(client)
        if client.declaration is not None and self.env_id is None:
            self.env_id = client.declaration.env_id


def make_agent(
    options: argparse.Namespace, run_dir: Path | None, output: Output
) -> NamingRandomAgent | SB3Agent | SB3PolicyAgent:
    """Build the agent of ``serve``.

    Args:
        options: Of the command line.
        run_dir: For the files of the run; None for none.
        output: Gets the learner's table, if that was asked for.

    Raises:
        UsageError: Options that cannot be, or an extra that is not installed.
    """
    observation, action = _given_spaces(options)
    if options.algo == "random":
        return _random(options, observation, action)
    try:
        from plugrl_gym.agents.sb3 import SB3Agent
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--algo {options.algo} needs {error.name}, which is not installed: "
            'pip install "plugrl-gym[sb3]"'
        ) from error
    if options.no_learn:
        return make_trained_agent(options, observation, action)
    return SB3Agent(
        None if ":" in options.algo else options.algo,  # a class that only the run names
        total_timesteps=options.total_timesteps,
        policy=options.policy,
        seed=options.seed,
        num_envs=options.num_envs,
        hyperparameters=collected(options.hyperparameters),
        hyperparameter_file=options.hyperparams,
        preset=options.preset,
        run_dir=run_dir,
        observation_space=observation,
        action_space=action,
        env_id=options.env_id or options.for_env,
        torch_threads=options.torch_threads,
        console=cast(TextIO, output.above) if options.table else None,
        horizon=options.horizon,
        normalize=options.normalize,
        async_learn=options.async_learn or None,
        demonstrations_share=options.demonstrations_share,
        eval_episodes=options.eval_episodes,
        final_evaluation=options.final_evaluation,
        resume=options.resume,
        load=options.load,
        save_every=options.save_every,
        keep=options.keep,
    )


def _random(
    options: argparse.Namespace,
    observation: spaces.Space[Any] | None,
    action: spaces.Space[Any] | None,
) -> NamingRandomAgent:
    given = given_options(add_learner_options, options) | given_options(add_update_options, options)
    for name, flag in given.items():
        if name not in _FOR_RANDOM and (name, options.preset) != ("preset", "none"):
            raise UsageError(f"{flag} is for an algorithm that learns, and random does not")
    agent = NamingRandomAgent(
        action_space=action,
        observation_space=observation,
        horizon=options.horizon or 1,
        seed=options.seed,
        total_timesteps=options.total_timesteps,
    )
    agent.env_id = options.env_id
    return agent


def _given_spaces(
    options: argparse.Namespace,
) -> tuple[spaces.Space[Any] | None, spaces.Space[Any] | None]:
    texts = options.observation_space, options.action_space
    if options.env_id is not None:
        if texts != (None, None):
            raise UsageError("give --env-id or the two spaces, not both")
        return spaces_of(options.env_id)
    if options.algo != "random" and None in texts and texts != (None, None):
        raise UsageError("give both --observation-space and --action-space, or neither")
    return tuple(None if text is None else parse_space(text) for text in texts)  # type: ignore[return-value]


def default_run_dir(algo: str) -> Path:
    """``runs/ALGO-DATE-TIME``, a name that no run has yet; nothing is made."""
    base = Path("runs") / f"{algo}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = [base, *(base.with_name(f"{base.name}-{n}") for n in range(2, 100))]
    return next((name for name in names if not name.exists()), base)
