"""Settings that are known to solve an env, as data (presets/ALGORITHM.toml)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Final

__all__ = ["Preset", "load_preset", "make_preset", "preset_names"]


@dataclass(frozen=True, slots=True)
class Preset:
    """One env's settings for one algorithm.

    Attributes:
        algorithm: Lower case, as ``"ppo"``.
        env_id: The registered id that it is for; None for any env.
        source: What it is and where it comes from, for people.
        num_envs: How many envs the client should step; None where it does not say.
        total_timesteps: Env steps that are enough; None where it does not say.
        policy: SB3's name of the policy; None to choose it by the spaces.
        normalize: As the agent's argument of this name; None where it does not say.
        hyperparameters: Arguments of the SB3 constructor; ``"lin_X"`` is a linear schedule,
            ``"normal:0.1"`` action noise.
    """

    algorithm: str
    env_id: str | None
    source: str
    num_envs: int | None = None
    total_timesteps: int | None = None
    policy: str | None = None
    normalize: bool | str | Mapping[str, Any] | None = None
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)


_OURS: Final = ("num_envs", "total_timesteps", "policy", "normalize")


def make_preset(
    algorithm: str, env_id: str | None, source: str, settings: Mapping[str, Any]
) -> Preset:
    """A preset from settings in which all but a preset's own attributes are hyperparameters."""
    ours = {name: value for name, value in settings.items() if name in _OURS}
    rest = {name: value for name, value in settings.items() if name not in _OURS}
    return Preset(algorithm, env_id, source, **ours, hyperparameters=rest)


def load_preset(algorithm: str, env_id: str | None) -> Preset | None:
    """The preset of an algorithm for an env, or None where there is none.

    Example:
        >>> load_preset("ppo", "CartPole-v1").num_envs
        8
    """
    table = _table(algorithm)
    if env_id not in preset_names(algorithm) or env_id is None:
        return None
    settings = dict(table[env_id])
    settings = {**table.get(settings.pop("like", None), {}), **settings}
    origin = settings.pop("source", table["source"])
    source = f"preset {env_id} for {algorithm} ({origin}; --preset none turns it off)"
    return make_preset(algorithm, env_id, source, settings)


def preset_names(algorithm: str) -> list[str]:
    """The env ids that have a preset for this algorithm."""
    return sorted(name for name, entry in _table(algorithm).items() if isinstance(entry, dict))


@cache
def _table(algorithm: str) -> dict[str, Any]:
    """One file: "source", and by env id the settings, with "like" for those of another env."""
    file = resources.files("plugrl_gym.agents.sb3.settings") / "presets" / f"{algorithm}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
