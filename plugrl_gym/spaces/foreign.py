"""Spaces that packages define for themselves, as the standard ones that they stand for."""

from __future__ import annotations

import string
from typing import Any, Final

from gymnasium import spaces

__all__ = ["standard_space"]

_STANDARD: Final = (
    spaces.Box
    | spaces.Discrete
    | spaces.MultiDiscrete
    | spaces.MultiBinary
    | spaces.Text
    | spaces.Sequence
    | spaces.Graph
    | spaces.OneOf
)
_LONGEST: Final = 4096


def standard_space(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """``space`` with every foreign space of strings, such as MiniGrid's missions, as a Text.

    A foreign space says nothing of its strings' length: up to 4096 characters are declared.
    What is no string stays as it is; where it has no encoding, describing it says so.
    """
    if isinstance(space, spaces.Dict):
        # Pairs, because a dict would be sorted, and the order of the parts has a meaning.
        return spaces.Dict([(key, standard_space(part)) for key, part in space.spaces.items()])
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([standard_space(part) for part in space.spaces])
    if isinstance(space, _STANDARD) or space.dtype is None or space.dtype.kind != "U":
        return space
    return spaces.Text(_LONGEST, min_length=0, charset=string.printable)
