"""What a client says of its envs, once on each connection (SPEC 9.3)."""

from __future__ import annotations

from typing import Any, Final

from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from plugrl_gym.client.handed_out import env_id
from plugrl_gym.protocol import SpaceDeclaration
from plugrl_gym.spaces import describe_space

__all__ = ["declare"]

_MODES: Final = {
    AutoresetMode.NEXT_STEP: "next-step",
    AutoresetMode.SAME_STEP: "same-step",
    AutoresetMode.DISABLED: "disabled",
}


def declare(
    env: VectorEnv[Any, Any, Any],
    autoreset: AutoresetMode,
    observation: spaces.Space[Any],
    mode: str,
) -> SpaceDeclaration:
    """The declaration of a vector env.

    Args:
        env: As wrapped.
        autoreset: The mode in which it resets.
        observation: Of a single env, with its keys in the order of the wire.
        mode: ``"train"`` or ``"eval"``.

    Raises:
        UnsupportedSpace: A space has no description.
    """
    return SpaceDeclaration(
        env_id=env_id(env),
        num_envs=env.num_envs,
        autoreset=_MODES[autoreset],
        observation=describe_space(observation, "the observation space"),
        action=describe_space(env.single_action_space, "the action space"),
        mode=mode,
    )
