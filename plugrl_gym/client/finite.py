"""A NaN or infinity is stopped where it is born, with the step at which it was (pure)."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import numpy.typing as npt

from plugrl_gym.errors import LocalProtocolError
from plugrl_gym.protocol import Feedback, Infer

__all__ = ["check_message", "check_rewards"]


def check_message(message: Infer | Feedback, env_steps: int) -> None:
    """Look at the observation of a message that is about to be sent.

    Args:
        message: Ours.
        env_steps: That the vector env has run so far.

    Raises:
        LocalProtocolError: A number in it is not finite.
    """
    bad = message.observation.first_non_finite()
    if bad is None:
        return
    envs = message.env_indices
    if isinstance(message, Infer) and message.reuse is not None:
        envs = envs[~message.reuse]
    _refuse(f"the observation states.{bad[0]}", int(envs[bad[1]]), env_steps)


def check_rewards(
    rewards: npt.NDArray[np.float64], active: npt.NDArray[np.bool_], env_steps: int
) -> None:
    """Look at the rewards [n] of a step.

    Args:
        rewards: As the vector env gave them.
        active: bool [n]: rows that were a real step.
        env_steps: That the vector env has run before it.

    Raises:
        LocalProtocolError: One of an active row is not finite.
    """
    bad = np.flatnonzero(active & ~np.isfinite(rewards)).tolist()
    if bad:
        _refuse(f"the reward {rewards[bad[0]]}", bad[0], env_steps)


def _refuse(what: str, env: int, env_steps: int) -> NoReturn:
    raise LocalProtocolError(
        f"{what} of env {env} is NaN or infinite at env step {env_steps}; it was not sent: mend "
        "the env, or clip the value below the wrapper"
    )
