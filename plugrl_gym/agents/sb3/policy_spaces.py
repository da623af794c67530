"""What an SB3 policy sees, against what travels.

SB3 takes one array, or a flat Dict of arrays, images as [n, c, h, w]; it counts Discrete values
from 0. The declared space knows better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from torch import nn

from plugrl_gym.errors import RemoteProtocolError, UnsupportedSpace
from plugrl_gym.protocol import Observation
from plugrl_gym.spaces import ObservationLayout
from plugrl_gym.spaces.casting import LARGEST, too_large
from plugrl_gym.spaces.naming import brief
from plugrl_gym.spaces.observations import Leaf

__all__ = [
    "SMALLEST_CNN_IMAGE",
    "PolicyArray",
    "PolicyObservation",
    "PolicyObservations",
]

PolicyArray: TypeAlias = npt.NDArray[Any]
PolicyObservation: TypeAlias = PolicyArray | dict[str, PolicyArray]

#: Height and width below which the three convolutions of SB3's NatureCNN have nothing left.
SMALLEST_CNN_IMAGE: Final = 36


@dataclass(frozen=True, slots=True)
class _Part:
    """One leaf of the observation, under its name in the policy's space."""

    leaf: Leaf
    name: str
    space: spaces.Space[Any]
    convert: Callable[[PolicyArray], PolicyArray]


class PolicyObservations:
    """The mapping between received observations and a policy's input.

    Args:
        space: The observation space of a single env.
        flatten_small_images: Give images of a Dict that are too small for SB3's CNN as numbers
            in [0, 1], which SB3 flattens; False where the policy brings its own network.

    Attributes:
        space: What the policy sees. Text is left out; names that torch refuses are changed.

    Raises:
        UnsupportedSpace: Nothing in it can be seen by a policy.
    """

    def __init__(self, space: spaces.Space[Any], *, flatten_small_images: bool = True) -> None:
        self._layout = ObservationLayout(space)
        self._parts: list[_Part] = []
        alone = self._layout.leaves[0].keys == ()
        for leaf in self._layout.leaves:
            if leaf.kind in ("text", "codes"):
                continue
            name = leaf.path if alone else _module_name(leaf.path, {p.name for p in self._parts})
            small = flatten_small_images and not alone and is_small_image(leaf.policy_space)
            seen, convert = _adapt(leaf, small)
            self._parts.append(_Part(leaf, name, seen, convert))
        if not self._parts:
            raise UnsupportedSpace(
                f"the policy reads no text, and the env has {brief(space)} observations alone"
            )
        self._alone = alone
        self.space: spaces.Space[Any] = (
            self._parts[0].space
            if alone
            else spaces.Dict([(part.name, part.space) for part in self._parts])  # keeps the order
        )

    def decode(self, observation: Observation, where: str) -> PolicyObservation:
        """A received observation of n rows as the policy's input (copies).

        Raises:
            RemoteProtocolError: It does not fit the declared space.
        """
        decoded = self._layout.decode(observation, where)
        if self._alone:
            return self._convert(self._parts[0], decoded, where)
        return {
            part.name: self._convert(part, decoded[part.leaf.path], where) for part in self._parts
        }

    @staticmethod
    def _convert(part: _Part, array: PolicyArray, where: str) -> PolicyArray:
        converted = part.convert(array)
        beyond = too_large(converted)
        if beyond.any():
            raise RemoteProtocolError(
                f"{where}.states.{part.leaf.path}: a network cannot calculate with "
                f"{converted[beyond][0]} (at most {LARGEST:.3g})"
            )
        return converted


def is_small_image(space: spaces.Space[Any]) -> bool:
    """Whether it is an image (h, w, c) that SB3's CNN cannot take."""
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == 3
        and min(space.shape[:2]) < SMALLEST_CNN_IMAGE
    )


def _adapt(
    leaf: Leaf, small: bool
) -> tuple[spaces.Space[Any], Callable[[PolicyArray], PolicyArray]]:
    """The policy's space of a leaf, and how to bring [n, ...] of it there."""
    space = leaf.policy_space if leaf.kind == "image" else leaf.space
    match space:
        case spaces.Box() if leaf.kind == "image":
            shape = (space.shape[2], *space.shape[:2])
            if small:
                return spaces.Box(0.0, 1.0, shape, np.float32), _small_image
            turn = _turn_back if leaf.space.shape == shape else _turn
            return spaces.Box(0, 255, shape, np.uint8), turn
        case spaces.Box():
            return _adapt_box(space)
        case spaces.Discrete():
            start = int(space.start)
            return spaces.Discrete(int(space.n)), lambda a: a.astype(np.int64) - start
        case spaces.MultiDiscrete():
            first = np.asarray(space.start, np.int64)
            flat = spaces.MultiDiscrete(space.nvec.reshape(-1).astype(np.int64))
            return flat, lambda a: (a.astype(np.int64) - first).reshape(len(a), -1)
    return space, lambda a: a


# The order in memory decides which convolution torch takes, and so the last bits. These two leave
# it as SB3 does: an image (h, w, c) is turned by a view, one that was (c, h, w) stays contiguous.
def _turn(images: PolicyArray) -> PolicyArray:
    return np.transpose(images, (0, 3, 1, 2))


def _turn_back(images: PolicyArray) -> PolicyArray:
    return np.ascontiguousarray(_turn(images))


def _small_image(images: PolicyArray) -> PolicyArray:
    scaled: PolicyArray = _turn(images).astype(np.float32) / np.float32(255)
    return scaled


def _adapt_box(space: spaces.Box) -> tuple[spaces.Box, Callable[[PolicyArray], PolicyArray]]:
    shape = space.shape or (1,)
    # torch calculates with no other width of unsigned integer, nor the networks with half floats.
    plain = space.dtype in (np.float32, np.float64, np.uint8) or space.dtype.kind == "i"
    if plain and shape == space.shape:
        return space, lambda a: a
    dtype: Any = space.dtype.type if plain else np.float32
    low, high = (bound.astype(dtype).reshape(shape) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=dtype), lambda a: a.astype(dtype).reshape(len(a), *shape)


def _module_name(path: str, taken: set[str]) -> str:
    """``path``, changed only where torch takes no module of that name."""
    name = path.replace(".", "_") or "_"
    while name in taken or hasattr(nn.ModuleDict(), name):
        name += "_"
    return name
