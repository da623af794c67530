"""The SB3 algorithms that can be served, and the arguments of their constructors."""

from __future__ import annotations

import inspect
import math
import numbers
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import LinearSchedule

from plugrl_gym.errors import UsageError

__all__ = ["ALGORITHMS", "check_hyperparameters", "find_algorithm"]

ALGORITHMS: Final[Mapping[str, type[OnPolicyAlgorithm]]] = {"ppo": PPO}

# Arguments of the constructor that the agent gives itself, and where the caller says them.
_OWN: Final[Mapping[str, str]] = {
    "policy": "it is the argument policy (--policy)",
    "env": "the envs are at the clients",
    "seed": "it is the argument seed (--seed)",
    "_init_setup_model": "the model is always set up",
}
_LINEAR: Final = re.compile(r"lin_([0-9.]+(?:[eE][-+]?[0-9]+)?)")


def find_algorithm(algorithm: str | type[BaseAlgorithm]) -> type[OnPolicyAlgorithm]:
    """The class of an algorithm.

    Args:
        algorithm: A name in :data:`ALGORITHMS`, in any case, or an on-policy SB3 class.

    Raises:
        UsageError: There is none of that name, or the class learns in another way.
    """
    if isinstance(algorithm, str):
        found = ALGORITHMS.get(algorithm.lower())
        if found is None:
            names = ", ".join(sorted(ALGORITHMS))
            raise UsageError(f"there is no algorithm {algorithm!r}; there is {names}")
        return found
    if not (isinstance(algorithm, type) and issubclass(algorithm, OnPolicyAlgorithm)):
        raise UsageError(f"expected an on-policy class of stable_baselines3, got {algorithm!r}")
    if algorithm.collect_rollouts is not OnPolicyAlgorithm.collect_rollouts:
        raise UsageError(
            f"{algorithm.__name__} collects rollouts in its own way, which cannot be served"
        )
    return algorithm


def check_hyperparameters(
    algorithm: type[BaseAlgorithm], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Compare arguments with the constructor's signature.

    Args:
        algorithm: Whose constructor.
        given: Name -> value; the str ``"lin_X"`` stands for a schedule from X to 0.

    Returns:
        A new dict, the schedules made.

    Raises:
        UsageError: An unknown name, or a value of another type; says what there is.
    """
    parameters = inspect.signature(algorithm).parameters
    known = [name for name in parameters if name not in _OWN]
    checked = {}
    for name, value in given.items():
        if name in _OWN:
            raise UsageError(f"{name} is no hyperparameter here: {_OWN[name]}")
        if name not in known:
            raise UsageError(
                f"{algorithm.__name__} has no hyperparameter {name!r}; it has {', '.join(known)}"
            )
        checked[name] = _checked(algorithm, name, value, parameters[name].annotation)
    return checked


def _checked(algorithm: type[BaseAlgorithm], name: str, value: Any, kind: Any) -> Any:
    linear = _LINEAR.fullmatch(value) if isinstance(value, str) else None
    if linear and _fits(abs, kind):
        return LinearSchedule(float(linear[1]), 0.0, 1.0)
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{name} of {algorithm.__name__}: {value} is not a finite number")
    if not _fits(value, kind):
        raise UsageError(
            f"{name} of {algorithm.__name__}: expected {_expected(kind)}, got {value!r}"
        )
    return value


def _fits(value: Any, kind: Any) -> bool:
    """Whether ``value`` is of the annotated type; a whole number is a float, a bool no number."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(kind))
    if origin is Callable:
        return callable(value)
    if origin is type:
        return isinstance(value, type)
    base = origin or kind
    if not isinstance(base, type) or base is inspect.Parameter.empty:
        return True  # not annotated, or in a way that cannot be checked here
    number = {int: numbers.Integral, float: numbers.Real}.get(base)
    if number is not None:
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, base)


def _expected(kind: Any) -> str:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_expected(part) for part in typing.get_args(kind))
    if origin is Callable:
        return "a schedule (a function, or as 'lin_0.001')"
    if origin is type:
        return "a class"
    name = getattr(origin or kind, "__name__", str(kind))
    return "None" if name == "NoneType" else name
