"""Spaces from the command line: ``Box(-1, 1, (3,))``, ``Discrete(2)``; read, never evaluated."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from gymnasium import spaces

from plugrl_gym.errors import UsageError

__all__ = ["parse_space"]

_EXAMPLES: Final = "such as 'Box(-1, 1, (3,))', 'Discrete(2)' or 'Dict(a=Discrete(2))'"
_NUMBERS: Final = {"inf": math.inf, "nan": math.nan}
_DTYPES: Final = frozenset(
    f"{kind}{bits}"
    for kind, sizes in (
        ("float", (16, 32, 64)),
        ("int", (8, 16, 32, 64)),
        ("uint", (8, 16, 32, 64)),
    )
    for bits in sizes
)


def parse_space(text: str) -> spaces.Space[Any]:
    """Build the space that ``text`` describes in Gymnasium's own notation.

    Args:
        text: Calls of Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict and Tuple with
            numbers, tuples, lists, ``inf`` and names of dtypes.

    Raises:
        UsageError: It describes none; names the part that is not understood.

    Example:
        >>> parse_space("Box(0, 255, (3,), uint8)").shape
        (3,)
        >>> parse_space("Dict(speed=Box(0, inf, (1,)), gear=Discrete(5))")["gear"]
        Discrete(5)
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(f"{text!r} is no space; expected one {_EXAMPLES}") from None
    space = _value(tree, text)
    if not isinstance(space, spaces.Space):
        raise UsageError(f"{text!r} is no space; expected one {_EXAMPLES}")
    return space


def _value(node: ast.expr, text: str) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand, text)
        case ast.Name(id=name) if name in _NUMBERS:
            return _NUMBERS[name]
        case ast.Name(id=name) if name in _DTYPES:
            return name
        case ast.Tuple(elts=parts):
            return tuple(_value(part, text) for part in parts)
        case ast.List(elts=parts):
            return [_value(part, text) for part in parts]
        case ast.Dict(keys=keys, values=values):
            return {
                _value(key, text): _value(value, text)
                for key, value in zip(keys, values, strict=True)
                if key is not None
            }
        case ast.Call(func=ast.Name(id=name)) if name in _BUILDERS:
            return _call(node, name, text)
    raise UsageError(
        f"{ast.unparse(node)!r} in {text!r} is not understood; expected a space {_EXAMPLES}"
    )


def _number(node: ast.expr, text: str) -> float:
    value = _value(node, text)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{ast.unparse(node)!r} in {text!r} is no number")
    return value


def _call(node: ast.Call, name: str, text: str) -> spaces.Space[Any]:
    positional = [_value(part, text) for part in node.args]
    named = {word.arg: _value(word.value, text) for word in node.keywords if word.arg is not None}
    try:
        return _BUILDERS[name](*positional, **named)
    # Gymnasium checks with whatever comes to hand, assert above all.
    except (AssertionError, ValueError, TypeError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{ast.unparse(node)} is no space: {reason}") from error


def _box(
    low: Any, high: Any, shape: tuple[int, ...] | None = None, dtype: str = "float32"
) -> spaces.Box[Any]:
    kind = np.dtype(dtype)
    low, high = (np.asarray(b, kind) if isinstance(b, list) else b for b in (low, high))
    return spaces.Box(low, high, shape, dtype=kind.type)


_BUILDERS: Final[dict[str, Callable[..., spaces.Space[Any]]]] = {
    "Box": _box,
    "Discrete": spaces.Discrete,
    "MultiDiscrete": spaces.MultiDiscrete,
    "MultiBinary": spaces.MultiBinary,
    "Text": spaces.Text,
    "Dict": spaces.Dict,
    "Tuple": lambda *parts: spaces.Tuple(parts),
}
