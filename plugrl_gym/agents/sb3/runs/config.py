"""``config.json``: what a run was started with, for people and for going on with it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.utils import LinearSchedule

from plugrl_gym.agents.sb3.model import ModelPlan
from plugrl_gym.agents.sb3.run_spaces import RunSpaces
from plugrl_gym.agents.sb3.runs import disk
from plugrl_gym.agents.sb3.runs.choices import Choices
from plugrl_gym.agents.sb3.runs.config_file import CONFIG, FORMAT, read_config
from plugrl_gym.agents.sb3.settings.algorithms import ALGORITHMS, AlgorithmClass, find_algorithm
from plugrl_gym.agents.sb3.settings.noise import NoisePlan
from plugrl_gym.errors import ProtocolError, UsageError
from plugrl_gym.protocol.features.gym_spaces import space_from_wire, space_to_wire
from plugrl_gym.spaces import build_space, describe_space

__all__ = ["RunConfig", "algorithm_name", "described", "space_as_json"]

# What stands in config.json, by the types that JSON has.
_FIELDS: Final[Mapping[str, tuple[type, ...]]] = {
    "algorithm": (str,),
    "policy": (str, type(None)),
    "hyperparameters": (dict,),
    "settings": (dict,),
    "seed": (int, type(None)),
    "num_envs": (int,),
    "total_timesteps": (int,),
    "env_id": (str, type(None)),
    "observation_space": (dict,),
    "action_space": (dict,),
}
_SETTINGS: Final[Mapping[str, tuple[type, ...]]] = {
    "horizon": (int,),
    "normalize": (bool, dict),
    "preset": (str,),
    "hyperparameter_file": (str, type(None)),
    "log_interval": (int,),
    "save_every": (int,),
    "keep": (int,),
    "max_policy_lag": (int,),
    "async_learn": (bool,),
    "demonstrations_share": (float, int),
}
_PACKAGES: Final = ("plugrl-gym", "stable-baselines3", "sb3-contrib", "torch", "gymnasium", "numpy")


@dataclass(frozen=True)
class RunConfig:
    """The settings of one run.

    Attributes:
        algorithm: As ``"ppo"``, or ``module:Class`` for a class of somebody else's.
        policy: The name that was given, or ``module:Class``; None where the spaces choose it.
        hyperparameters: All that were not left to SB3, as :func:`described` says them.
        settings: Other arguments of the agent by name, likewise.
        seed: None for no seed.
        num_envs: E.
        total_timesteps: Env steps after which the run ends.
        env_id: As the first client declared it.
        observation_space, action_space: Of a single env, as JSON.
        versions: Package -> version.
    """

    algorithm: str
    policy: str | None
    hyperparameters: Mapping[str, Any]
    settings: Mapping[str, Any]
    seed: int | None
    num_envs: int
    total_timesteps: int
    env_id: str | None
    observation_space: Mapping[str, Any]
    action_space: Mapping[str, Any]
    versions: Mapping[str, str] = field(default_factory=lambda: _versions())

    @classmethod
    def of(cls, plan: ModelPlan, own: RunSpaces, choices: Choices) -> RunConfig:
        """The settings of a run that begins, with all that was chosen for it.

        Args:
            plan: Of its model.
            own: Its spaces.
            choices: Complete.
        """
        policy = plan.policy_for(own.observations.space)
        assert choices.num_envs is not None
        assert choices.total_timesteps is not None
        normalize = plan.normalize if isinstance(plan.normalize, Mapping) else False
        settings = {
            "horizon": plan.horizon,
            "normalize": described(normalize),
            "preset": choices.preset,
            "hyperparameter_file": choices.hyperparameter_file,
            "log_interval": choices.log_interval,
            "save_every": choices.save_every,
            "keep": choices.keep,
            "max_policy_lag": choices.max_policy_lag,
            "async_learn": choices.async_learn,
            "demonstrations_share": choices.demonstrations_share,
        }
        return cls(
            algorithm_name(plan.algorithm),
            described(policy),
            described(plan.hyperparameters),
            settings,
            plan.seed,
            choices.num_envs,
            choices.total_timesteps,
            choices.env_id,
            space_as_json(own.observation),
            space_as_json(own.action),
        )

    def write(self, run_dir: Path) -> None:
        """Write config.json: whole, then under its name.

        Raises:
            OSError: It cannot be written.
        """
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=2, allow_nan=False)
        disk.replace_file(run_dir / CONFIG, lambda file: file.write(f"{text}\n".encode()))

    @classmethod
    def read(cls, run_dir: Path) -> RunConfig:
        """Read config.json.

        Raises:
            UsageError: There is none, or this version cannot read it.
        """
        content = read_config(run_dir)
        try:
            config = cls(**content)
            _check_types("", content, _FIELDS)
            _check_types("settings.", config.settings, _SETTINGS)
            return config
        except TypeError as error:
            raise UsageError(f"{run_dir / CONFIG} is none of a run ({error})") from None

    def spaces(self) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """Observation and action space of a single env.

        Raises:
            UsageError: What is written there is no space.
        """
        try:
            wires = (_from_json(space) for space in (self.observation_space, self.action_space))
            built = [build_space(space_from_wire(wire, "space")) for wire in wires]
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{CONFIG} tells of no spaces ({error})") from None
        return built[0], built[1]


def _check_types(
    where: str, content: Mapping[str, Any], expected: Mapping[str, tuple[type, ...]]
) -> None:
    for name, types in expected.items():
        if name not in content:
            raise TypeError(f"{where}{name} is missing")
        if type(content[name]) not in types:  # a bool is no int here
            names = " or ".join(kind.__name__ for kind in types).replace("NoneType", "null")
            raise TypeError(f"{where}{name}: expected {names}, got {content[name]!r}")


def algorithm_name(algorithm: AlgorithmClass) -> str:
    """As ``"ppo"``, or ``module:Class`` for a class of somebody else's."""
    name = algorithm.__name__.lower()
    if name in ALGORITHMS and find_algorithm(name) is algorithm:
        return name
    return f"{algorithm.__module__}:{algorithm.__qualname__}"


def space_as_json(space: spaces.Space[Any]) -> dict[str, Any]:
    """A space of a single env as it is declared on the wire, its arrays as lists."""
    shown: dict[str, Any] = _to_json(space_to_wire(describe_space(space)))
    return shown


def _to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_json(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_to_json(part) for part in value]
    if isinstance(value, np.ndarray):
        flat = value.reshape(-1)
        if flat.size and (flat == flat[0]).all():
            flat = flat[:1]
        # JSON has no infinity.
        numbers = [n if np.isfinite(n) else str(n) for n in flat.tolist()]
        return {"array": value.dtype.str, "shape": list(value.shape), "numbers": numbers}
    return value


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(part) for part in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("array"), str):  # else it is a Dict's part of that name
        dtype, shape = np.dtype(value["array"]), tuple(value["shape"])
        numbers = [float(n) if isinstance(n, str) else n for n in value["numbers"]]
        flat = np.array(numbers, dtype)
        return np.full(shape, flat[0], dtype) if flat.size == 1 else flat.reshape(shape)
    return {key: _from_json(part) for key, part in value.items()}


def described(value: Any) -> Any:
    """A setting as JSON: itself where that is possible, else the words that a user would type.

    Example:
        >>> described({"net_arch": (64, 64), "activation_fn": torch.nn.ReLU})
        {'net_arch': [64, 64], 'activation_fn': 'torch.nn.modules.activation:ReLU'}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    if isinstance(value, np.generic):
        return described(value.item())
    if isinstance(value, Mapping):
        return {str(key): described(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [described(part) for part in value]
    if isinstance(value, LinearSchedule) and (value.end, value.end_fraction) == (0.0, 1.0):
        return f"lin_{value.start}"
    if isinstance(value, NoisePlan):
        return str(value)
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
