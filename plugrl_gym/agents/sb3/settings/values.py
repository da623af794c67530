"""From literals and text to values of an annotated type."""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
import re
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from stable_baselines3.common import torch_layers
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from plugrl_gym.agents.sb3.settings.expressions import read_expression
from plugrl_gym.agents.sb3.settings.noise import NoisePlan, read_noise

__all__ = ["Mismatch", "closest", "expected", "read_value", "there_is"]

_LINEAR: Final = re.compile(r"lin_((?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)", re.ASCII)
# So many names are told in full.
_FEW: Final = 5

# A base class -> where subclasses of it may be named by a str, and an example of a name.
_NAMED: Final[dict[type, tuple[str, dict[str, Any], str]]] = {
    nn.Module: ("torch.nn", vars(nn), "ReLU"),
    torch.optim.Optimizer: (
        "torch.optim",
        {**vars(torch.optim), "RMSpropTFLike": RMSpropTFLike},
        "AdamW",
    ),
    torch_layers.BaseFeaturesExtractor: (
        "stable_baselines3.common.torch_layers",
        vars(torch_layers),
        "NatureCNN",
    ),
}


class Mismatch(ValueError):
    """A value is not of the annotated type; the text, if there is one, says more than that."""


def read_value(value: Any, kind: Any) -> Any:
    """The value as an argument of this type.

    Text stands for a schedule (``"lin_0.001"``), for action noise (``"normal:0.1"``), for a dict
    (``"dict(a=1)"``) and for a class by its name (``"ReLU"``, ``"nn.ReLU"``); a list for a tuple;
    a whole float for an int. A whole number is a float; a bool is no number.

    Args:
        value: What was given.
        kind: The annotation; one that cannot be checked takes everything.

    Raises:
        Mismatch: It cannot be one.

    Example:
        >>> read_value([1, "episode"], int | tuple[int, str]), read_value(1e6, int)
        ((1, 'episode'), 1000000)
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _one_of(value, parts)
    if origin is Callable or kind is Callable:
        return _schedule(value)
    if origin is type:
        return _class(value, parts[0])
    if origin is tuple:
        return _tuple(value, parts)
    base = origin or kind
    if not isinstance(base, type) or base in (Any, inspect.Parameter.empty):
        return value
    value = _plain(value, base)
    if origin is list:
        return [read_value(part, parts[0]) for part in value]
    if origin is dict:
        return {key: read_value(part, parts[1]) for key, part in value.items()}
    return value


def _one_of(value: Any, kinds: Iterable[Any]) -> Any:
    kinds, detail = tuple(kinds), ""
    if isinstance(value, str) and float in kinds and not _is_finite_if_a_number(value):
        raise Mismatch(f"{value} is not a finite number")
    for kind in kinds:
        try:
            return read_value(value, kind)
        except Mismatch as mismatch:
            detail = detail or str(mismatch)
    raise Mismatch(detail)


def _is_finite_if_a_number(text: str) -> bool:
    """False for "nan", "inf" and their like: SB3 makes numbers of some texts, as "0.1"."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return True


def _schedule(value: Any) -> Any:
    linear = _LINEAR.fullmatch(value) if isinstance(value, str) else None
    if linear is not None and math.isfinite(start := float(linear[1])):
        return LinearSchedule(start, 0.0, 1.0)
    if callable(value):
        return value
    raise Mismatch


def _tuple(value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or len(value) != len(kinds):
        raise Mismatch
    return tuple(read_value(part, kind) for part, kind in zip(value, kinds, strict=True))


def _class(value: Any, base: Any) -> type:
    if isinstance(value, str) and base in _NAMED:
        module, members, _ = _NAMED[base]
        classes = {
            name: member
            for name, member in members.items()
            if isinstance(member, type) and issubclass(member, base) and member is not base
        }
        name = value.rpartition(".")[2]
        if name not in classes:
            close = closest(name, classes)
            meant = f"; did you mean {close!r}?" if close else ""
            raise Mismatch(f"{module} has no {base.__name__} named {name!r}{meant}")
        return classes[name]
    if not isinstance(value, type) or (isinstance(base, type) and not issubclass(value, base)):
        raise Mismatch
    return value


def _plain(value: Any, base: type) -> Any:
    if base in (int, float):
        return _number(value, base)
    if issubclass(base, ActionNoise) and isinstance(value, str | NoisePlan):
        value = read_noise(value) if isinstance(value, str) else value
        if value is None:
            raise Mismatch
        return value
    if base is dict and isinstance(value, str):
        try:
            value = read_expression(value)
        except ValueError as error:
            raise Mismatch(str(error)) from error
    if base is list and isinstance(value, tuple):
        return list(value)
    if not isinstance(value, base):
        raise Mismatch
    return value


def _number(value: Any, base: type) -> Any:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise Mismatch
    if not math.isfinite(value):
        raise Mismatch(f"{value} is not a finite number")
    if base is int and not isinstance(value, numbers.Integral):
        if not float(value).is_integer():
            raise Mismatch
        return int(float(value))
    return value


def expected(kind: Any) -> str:
    """The annotation in words, with what text may stand for it."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(expected(part) for part in parts)
    if origin is Callable or kind is Callable:
        return "a schedule (a function, or as 'lin_0.001')"
    if origin is type:
        named = f" or its name, as {_NAMED[parts[0]][2]!r}" if parts[0] in _NAMED else ""
        return f"a class{named}"
    if origin is tuple:
        return f"({', '.join(expected(part) for part in parts)})"
    base = origin or kind
    if isinstance(base, type) and issubclass(base, ActionNoise):
        return "action noise (as 'normal:0.1' or 'ornstein-uhlenbeck:0.5')"
    name = getattr(base, "__name__", str(kind))
    return "None" if name == "NoneType" else name


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that an unknown one is most like, in any case of letters; None for none."""
    names = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), names, 1)
    return names[found[0]] if found else None


def there_is(name: str, known: Iterable[str]) -> str:
    """What an unknown name may have been meant as, or else all that there is."""
    known = list(known)
    close = closest(name, known) if len(known) > _FEW else None
    return f"did you mean {close!r}?" if close else f"it has {', '.join(known)}"
