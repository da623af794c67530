"""Spaces in the sentences of a refusal, which has 123 bytes (SPEC 8.17)."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

__all__ = ["brief", "differing"]


def brief(space: spaces.Space[Any]) -> str:
    """A space in a few words."""
    match space:
        case spaces.Box():
            text = f"Box{space.shape}".replace(" ", "")
        case spaces.Discrete():
            text = f"Discrete({space.n})"
        case spaces.MultiDiscrete():
            text = f"MultiDiscrete({space.nvec.tolist()})".replace(" ", "")
        case spaces.MultiBinary():
            text = f"MultiBinary({space.n})".replace(" ", "")
        case spaces.Dict():
            text = f"Dict({','.join(space.spaces)})"
        case _:
            text = type(space).__name__
    return text if len(text) <= 30 else f"{text[:26]}...)"


def differing(ours: spaces.Space[Any], theirs: spaces.Space[Any]) -> tuple[str, str]:
    """Two spaces that are not equal, both in a few words, so that they can be told apart."""
    said = brief(theirs)
    return brief(ours), f"{said} of other bounds or type" if said == brief(ours) else said
