"""Settings that are known to solve an env, as data (presets.toml)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

__all__ = ["Preset", "load_preset", "preset_names"]


@dataclass(frozen=True, slots=True)
class Preset:
    """One env's settings for one algorithm.

    Attributes:
        algorithm: Lower case, as ``"ppo"``.
        env_id: The registered id that it is for.
        num_envs: How many envs the client should step.
        total_timesteps: Env steps that are enough.
        hyperparameters: Arguments of the SB3 constructor; ``"lin_X"`` is a linear schedule.
    """

    algorithm: str
    env_id: str
    num_envs: int
    total_timesteps: int
    hyperparameters: Mapping[str, Any]


def load_preset(algorithm: str, env_id: str | None) -> Preset | None:
    """The preset of an algorithm for an env, or None where there is none.

    Example:
        >>> load_preset("ppo", "CartPole-v1").num_envs
        8
    """
    found = None if env_id is None else _table().get(algorithm, {}).get(env_id)
    return None if found is None or env_id is None else Preset(algorithm, env_id, **found)


def preset_names(algorithm: str) -> list[str]:
    """The env ids that have a preset for this algorithm."""
    return sorted(_table().get(algorithm, {}))


@cache
def _table() -> dict[str, dict[str, dict[str, Any]]]:
    text = (
        resources.files("plugrl_gym.agents.sb3.settings")
        .joinpath("presets.toml")
        .read_text(encoding="utf-8")
    )
    table: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(text)
    return table
