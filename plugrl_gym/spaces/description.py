"""Gymnasium spaces as plain descriptions and back (SPEC 9.3)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from gymnasium import spaces

from plugrl_gym.errors import LocalProtocolError, RemoteProtocolError, UnsupportedSpace
from plugrl_gym.protocol import check_encodable
from plugrl_gym.protocol.features.gym_spaces import (
    BoxSpec,
    DictSpec,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpaceSpec,
    TextSpec,
    TupleSpec,
    space_from_wire,
    space_to_wire,
)

__all__ = ["MOST_LEAVES", "build_space", "describe_space"]

#: Beyond these a space is refused: a few bytes could otherwise claim any amount of memory.
MOST_LEAVES: Final = 1024
_MOST_BITS: Final = 2**20


def describe_space(space: spaces.Space[Any], where: str = "the space") -> SpaceSpec:
    """Describe the space of a single env.

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary, Text, or Dict and Tuple of these.
        where: Its place, for the error.

    Raises:
        UnsupportedSpace: A Sequence, Graph, OneOf or foreign space, or one that no server could
            build from its description.
    """
    spec = _describe(space, where)
    wire = space_to_wire(spec)
    try:
        check_encodable(wire, where)
        space_from_wire(wire, where)
    except (LocalProtocolError, RemoteProtocolError) as error:
        raise UnsupportedSpace(f"{error}; change the space below the wrapper") from None
    return spec


def _describe(space: spaces.Space[Any], where: str) -> SpaceSpec:
    match space:
        case spaces.Box():
            return BoxSpec(space.low, space.high)
        case spaces.Discrete():
            return DiscreteSpec(int(space.n), int(space.start), _typestr(space))
        case spaces.MultiDiscrete():
            nvec, start = (np.asarray(a, dtype=np.int64) for a in (space.nvec, space.start))
            return MultiDiscreteSpec(nvec, start, _typestr(space))
        case spaces.MultiBinary():
            return MultiBinarySpec(tuple(space.shape))
        case spaces.Text():
            return TextSpec(space.min_length, space.max_length, space.characters)
        case spaces.Dict():
            for key in space.spaces:
                if not isinstance(key, str):
                    raise UnsupportedSpace(f"{where}: the key {key!r} is no str; rename it")
            return DictSpec({k: _describe(s, f"{where}.{k}") for k, s in space.spaces.items()})
        case spaces.Tuple():
            parts = enumerate(space.spaces)
            return TupleSpec(tuple(_describe(s, f"{where}[{i}]") for i, s in parts))
    raise UnsupportedSpace(
        f"{where} is a {type(space).__name__}, which has no encoding on the wire; flatten or pad "
        "it to a Box below the wrapper, e.g. with gymnasium.wrappers.TransformObservation"
    )


def _typestr(space: spaces.Space[Any]) -> str:
    return np.dtype(space.dtype if space.dtype is not None else np.int64).str


def build_space(spec: SpaceSpec) -> spaces.Space[Any]:
    """The Gymnasium space of a description; the inverse of :func:`describe_space`.

    Numbers come back in this machine's byte order.

    Raises:
        UnsupportedSpace: It is larger than any real env's, or Gymnasium refuses to build it.
    """
    if sum(1 for _ in _leaves(spec)) > MOST_LEAVES:
        raise UnsupportedSpace(f"a space of more than {MOST_LEAVES} parts is not supported")
    try:
        return _build(spec)
    except (AssertionError, ArithmeticError, TypeError, ValueError) as error:
        if isinstance(error, UnsupportedSpace):
            raise
        text = " ".join(str(error).split())[:120]
        raise UnsupportedSpace(f"Gymnasium cannot build the described space: {text}") from None


def _leaves(spec: SpaceSpec) -> Iterator[SpaceSpec]:
    if isinstance(spec, DictSpec):
        for part in spec.spaces.values():
            yield from _leaves(part)
    elif isinstance(spec, TupleSpec):
        for part in spec.spaces:
            yield from _leaves(part)
    yield spec


def _build(spec: SpaceSpec) -> spaces.Space[Any]:
    match spec:
        case BoxSpec(low, high):
            dtype = low.dtype.newbyteorder("=").type
            return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)
        case DiscreteSpec(n, start, typestr):
            chosen = _integer_type(typestr)
            if chosen is np.int64:  # the only one that Gymnasium before 1.3 has
                return spaces.Discrete(n, start=start)
            return spaces.Discrete(n, start=start, dtype=chosen)
        case MultiDiscreteSpec(nvec, first, typestr):
            integer = _integer_type(typestr)
            return spaces.MultiDiscrete(
                nvec.astype(integer), dtype=integer, start=first.astype(integer)
            )
        case MultiBinarySpec(shape):
            if math.prod(shape) > _MOST_BITS:
                raise UnsupportedSpace(f"a MultiBinary of {math.prod(shape)} bits is not supported")
            return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
        case TextSpec(shortest, longest, charset):
            return spaces.Text(longest, min_length=shortest, charset=charset)
        case DictSpec(named):
            # Pairs, because a dict would be sorted, and the order of the parts has a meaning.
            return spaces.Dict([(name, _build(part)) for name, part in named.items()])
        case TupleSpec(parts):
            return spaces.Tuple([_build(part) for part in parts])


def _integer_type(typestr: str) -> type[np.integer[Any]]:
    scalar_type: type[np.integer[Any]] = np.dtype(typestr).newbyteorder("=").type
    return scalar_type
