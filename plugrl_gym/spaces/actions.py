"""Actions between the wire and an action space (SPEC 6.4)."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from plugrl_gym.errors import LocalProtocolError, RemoteProtocolError, UnsupportedSpace, UsageError
from plugrl_gym.protocol.arrays import wire_dtype
from plugrl_gym.spaces.casting import lost

__all__ = ["OUT_OF_BOUNDS", "ActionLayout"]

OUT_OF_BOUNDS: Final = ("clip", "error")


class ActionLayout:
    """The mapping between one action space and action chunks.

    Args:
        space: The action space of a single env: Box, Discrete, MultiDiscrete or MultiBinary.
        out_of_bounds: ``"clip"`` brings a number outside a Box to its nearest bound;
            ``"error"`` treats it as the server's protocol error.

    Attributes:
        shape: One env's action for one step, da.
        dim: Numbers in it, at least 1 (SPEC 6.1, ``action_dim``).
        dtype: The space's dtype.

    Raises:
        UnsupportedSpace: Dict, Tuple and other actions have no encoding.

    Example:
        >>> from gymnasium import spaces
        >>> layout = ActionLayout(spaces.Box(-2, 2, (1,)))
        >>> layout.decode(np.array([[[0.5], [7.0]]])).tolist()
        [[[0.5], [2.0]]]
    """

    def __init__(self, space: spaces.Space[Any], out_of_bounds: str = "clip") -> None:
        if out_of_bounds not in OUT_OF_BOUNDS:
            raise UsageError(
                f"out_of_bounds: expected one of {', '.join(OUT_OF_BOUNDS)}, got {out_of_bounds!r}"
            )
        self.space = space
        self.out_of_bounds = out_of_bounds
        self._low, self._high = _bounds(space)
        if (self._low > self._high).any():  # more values than the dtype has numbers
            raise UnsupportedSpace(f"the action space {self._name()} does not fit its dtype")
        self.shape: tuple[int, ...] = self._low.shape
        self.dim = math.prod(self.shape)
        self.dtype = self._low.dtype
        try:
            wire_dtype(self.dtype)
        except LocalProtocolError as error:
            raise UnsupportedSpace(f"the action space: {error}") from None
        if self.dim == 0:
            raise UnsupportedSpace(f"an action of shape {list(self.shape)} holds no number at all")

    @property
    def clipping(self) -> bool:
        """Whether a number outside goes to its bound; an index has no direction to clip towards."""
        return self.out_of_bounds == "clip" and isinstance(self.space, spaces.Box)

    @property
    def bounds(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Least and greatest action, both of the space's shape and dtype."""
        return self._low, self._high

    def decode(self, action: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Turn a received chunk into what ``env.step`` accepts.

        Args:
            action: [H, n, *da] of any numeric dtype; a Discrete action may also be [H, n, 1].

        Returns:
            A new C-contiguous [H, n, *da] array of the space's dtype, inside its bounds.

        Raises:
            RemoteProtocolError: A wrong width, or a number that the space cannot hold.
        """
        chunk = action
        if self.shape == () and action.ndim == 3 and action.shape[2] == 1:
            chunk = action[..., 0]
        if chunk.ndim < 2 or chunk.shape[2:] != self.shape:
            expected = ", ".join(["H", "n", *map(str, self.shape)])
            raise RemoteProtocolError(
                f"action.data.action: the action space {self._name()} takes [{expected}], "
                f"got shape {list(action.shape)}"
            )
        # Compared in the received dtype: a cast first could wrap an integer around.
        below, above = chunk < self._low, chunk > self._high
        outside = below | above
        if not outside.any():
            return self._cast(chunk)
        if not self.clipping:
            raise RemoteProtocolError(
                f"action.data.action: {chunk[outside][0]} lies outside {self._name()}"
            )
        inside = self._cast(np.where(outside, np.zeros((), chunk.dtype), chunk))
        clipped = np.where(below, self._low, np.where(above, self._high, inside))
        return np.ascontiguousarray(clipped)

    def no_index(self, actions: npt.NDArray[Any]) -> npt.NDArray[np.bool_] | None:
        """Where ``actions`` [..., *da] have an index that is none; None for a Box, which has none.

        Nobody can choose what becomes of such a one.
        """
        if isinstance(self.space, spaces.Box):
            return None
        outside: npt.NDArray[np.bool_] = (actions < self._low) | (actions > self._high)
        return outside

    def clips(self, action: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """bool [H, n]: the steps of a chunk [H, n, *da] of which :meth:`decode` moves a number."""
        outside = (action < self._low) | (action > self._high)
        moved: npt.NDArray[np.bool_] = np.any(outside.reshape(*action.shape[:2], -1), axis=2)
        return moved

    def _cast(self, chunk: npt.NDArray[Any]) -> npt.NDArray[Any]:
        bad = lost(chunk, self.dtype)
        if bad is not None and bad.any():
            raise RemoteProtocolError(
                f"action.data.action: {self._name()} cannot hold {chunk[bad][0]}; its dtype is "
                f"{self.dtype}"
            )
        return np.array(chunk, dtype=self.dtype, order="C")

    def _name(self) -> str:
        name = " ".join(str(self.space).split())
        return name if len(name) <= 80 else f"{type(self.space).__name__}{list(self.shape)}"

    def placeholder(self, n: int) -> npt.NDArray[Any]:
        """[n, *da]: an action inside the space for envs that ignore theirs."""
        nearest = np.minimum(np.maximum(np.zeros_like(self._low), self._low), self._high)
        return np.repeat(nearest[None], n, axis=0)


def _bounds(space: spaces.Space[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Least and greatest action, both arrays of shape da and the space's dtype."""
    match space:
        case spaces.Box():
            return space.low, space.high
        case spaces.Discrete():
            dtype = np.dtype(space.dtype)
            start = np.asarray(space.start, dtype)
            return start, np.asarray(start + dtype.type(int(space.n) - 1))
        case spaces.MultiDiscrete():
            dtype = np.dtype(space.dtype)
            start = np.asarray(space.start, dtype)
            return start, start + (np.asarray(space.nvec) - 1).astype(dtype)
        case spaces.MultiBinary():
            least, greatest = np.zeros((), np.int8), np.ones((), np.int8)
            return np.broadcast_to(least, space.shape), np.broadcast_to(greatest, space.shape)
    raise UnsupportedSpace(
        f"actions of a {type(space).__name__} space have no encoding on the wire; flatten them "
        "to a Box, Discrete, MultiDiscrete or MultiBinary below the wrapper"
    )
