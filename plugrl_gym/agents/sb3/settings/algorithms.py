"""The SB3 algorithms that can be served."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from plugrl_gym.errors import UsageError

__all__ = ["ALGORITHMS", "AlgorithmClass", "default_log_interval", "find_algorithm", "is_a"]

#: A class whose learning loop is one of the two that all of SB3's algorithms share.
AlgorithmClass: TypeAlias = type[OnPolicyAlgorithm] | type[OffPolicyAlgorithm]

_SB3: Final[Mapping[str, AlgorithmClass]] = {
    "a2c": A2C,
    "ddpg": DDPG,
    "dqn": DQN,
    "ppo": PPO,
    "sac": SAC,
    "td3": TD3,
}
#: Those of sb3-contrib, which is loaded for them only.
_CONTRIB: Final[Mapping[str, str]] = {
    "crossq": "CrossQ",
    "qrdqn": "QRDQN",
    "tqc": "TQC",
    "trpo": "TRPO",
}

#: What users type.
ALGORITHMS: Final = tuple(sorted((*_SB3, *_CONTRIB)))


def find_algorithm(algorithm: str | type[BaseAlgorithm]) -> AlgorithmClass:
    """The class of an algorithm.

    Args:
        algorithm: A name in :data:`ALGORITHMS`, in any case, or a class that shares SB3's
            on-policy or off-policy loop.

    Raises:
        UsageError: There is none of that name, its package is not installed, or the class learns
            in another way.
    """
    if isinstance(algorithm, str):
        return _named(algorithm.lower())
    for base in (OnPolicyAlgorithm, OffPolicyAlgorithm):
        if isinstance(algorithm, type) and issubclass(algorithm, base):
            if algorithm.collect_rollouts is not base.collect_rollouts:
                raise UsageError(
                    f"{algorithm.__name__} collects rollouts in its own way, which cannot be served"
                )
            return algorithm
    raise UsageError(
        "expected an on-policy or off-policy class of stable_baselines3 or sb3_contrib, "
        f"got {algorithm!r}"
    )


def _named(name: str) -> AlgorithmClass:
    if name in _SB3:
        return _SB3[name]
    if name not in _CONTRIB:
        raise UsageError(f"there is no algorithm {name!r}; there is {', '.join(ALGORITHMS)}")
    try:
        contrib = importlib.import_module("sb3_contrib")
    except ModuleNotFoundError as error:
        raise UsageError(
            f'{name} needs {error.name}, which is not installed: pip install "plugrl-gym[contrib]"'
        ) from error
    found: AlgorithmClass = getattr(contrib, _CONTRIB[name])
    return found


def is_a(algorithm: type[BaseAlgorithm], *names: str) -> bool:
    """Whether a class is, or inherits from, one of these of SB3 or sb3-contrib.

    Example:
        >>> is_a(DDPG, "TD3", "SAC")
        True
    """
    return any(ancestor.__name__ in names for ancestor in algorithm.__mro__)


def default_log_interval(algorithm: type[BaseAlgorithm]) -> int:
    """SB3's own: updates, or episodes of an off-policy algorithm, between two lines of the log."""
    default: Any = inspect.signature(algorithm.learn).parameters["log_interval"].default
    return int(default)
