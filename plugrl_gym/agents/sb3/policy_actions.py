"""What an SB3 policy says, against what travels.

SB3 chooses one flat action for all steps of a chunk; it counts Discrete values from 0 and draws
actions that may lie outside a Box. The declared space knows better.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy

from plugrl_gym.agents.sb3.policy_spaces import PolicyArray
from plugrl_gym.errors import RemoteProtocolError, UnsupportedSpace
from plugrl_gym.spaces import ActionLayout
from plugrl_gym.spaces.casting import lost

__all__ = ["PolicyActions"]


class PolicyActions:
    """The mapping between a policy's raw actions and the chunks on the wire.

    Args:
        space: The action space of a single env, da its shape.
        horizon: H, env steps that the policy chooses at once.

    Attributes:
        space: What the policy chooses from: infinite bounds cut to the greatest finite numbers,
            integer Boxes as float32, Discrete values from 0. Where H > 1 it is flat, the first
            step's numbers first: a Box of H * prod(da) numbers, a MultiDiscrete or a MultiBinary
            of as many.
        dim: Numbers in one env's action for one step.
        horizon: As given.

    Raises:
        UnsupportedSpace: SB3's policies cannot choose from it.

    Example:
        >>> PolicyActions(spaces.Discrete(2), horizon=4).space
        MultiDiscrete([2 2 2 2])
    """

    def __init__(self, space: spaces.Space[Any], horizon: int = 1) -> None:
        layout = ActionLayout(space)
        self.dim = layout.dim
        self.horizon = horizon
        self._shape = layout.shape
        if len(space.shape or ()) > 1 and not isinstance(space, spaces.Box):
            raise UnsupportedSpace(f"SB3 takes {type(space).__name__} of one dimension only")
        self._declared = space
        single = space
        if isinstance(space, spaces.Box):
            single = _policy_box(space)
        elif isinstance(space, spaces.MultiBinary):
            single = spaces.MultiBinary(self.dim)  # SB3 takes no shape, not even (n,)
        elif isinstance(space, spaces.Discrete):
            single = spaces.Discrete(int(space.n))
        elif isinstance(space, spaces.MultiDiscrete):
            single = spaces.MultiDiscrete(space.nvec)
        self.space: spaces.Space[Any] = single if horizon == 1 else _stacked(single, horizon)

    def to_wire(self, raw: PolicyArray, policy: BasePolicy) -> PolicyArray:
        """Raw actions of n envs as a chunk [H, n, *da], inside the declared space.

        Args:
            raw: [n, ...], as the policy gives them.
            policy: Whose; a policy that squashes its output scales it too.
        """
        space = self._declared
        if not isinstance(space, spaces.Box):
            values = self._split(raw)
            if isinstance(space, spaces.MultiBinary):
                return values.astype(np.int8)
            return values.astype(np.int64) + _start(space)
        assert isinstance(self.space, spaces.Box)
        if policy.squash_output:
            chosen = self._split(policy.unscale_action(raw))
        else:
            chosen = self._split(np.clip(raw, self.space.low, self.space.high))
        if space.dtype.kind != "f":
            chosen = np.clip(np.rint(chosen), space.low, space.high).astype(space.dtype)
        return chosen

    def _split(self, flat: PolicyArray) -> PolicyArray:
        """[n, ...] with all steps of an env in one row, as [H, n, *da]."""
        steps = flat.reshape(len(flat), self.horizon, *self._shape)
        return np.ascontiguousarray(np.swapaxes(steps, 0, 1))

    def from_wire(self, chunk: PolicyArray) -> PolicyArray:
        """What envs executed, as the policy would have said it: the reverse of :meth:`to_wire`.

        Args:
            chunk: [H, n, *da] in any numeric dtype, every row run to its end.

        Returns:
            [n, ...] in the shape and dtype of ``space``, a Box's numbers inside its bounds (not
            scaled, whatever the policy does).

        Raises:
            RemoteProtocolError: A number that the declared space does not have.
        """
        n = chunk.shape[1]
        steps = np.swapaxes(chunk.reshape(self.horizon, n, *self._shape), 0, 1)
        if isinstance(self.space, spaces.Box):
            flat = steps.reshape(n, *self.space.shape)
            inside: PolicyArray = np.clip(flat, self.space.low, self.space.high)
            return inside.astype(self.space.dtype)
        fraction = lost(steps, np.dtype(np.int64))
        bad = np.zeros(steps.shape, bool) if fraction is None else fraction
        counted = np.where(bad, 0, steps).astype(np.int64) - _start(self._declared)
        bad |= (counted < 0) | (counted >= _values(self._declared))
        if bad.any():
            raise RemoteProtocolError(
                f"feedback.actions: {steps[bad][0]} lies outside {self._declared}"
            )
        return counted.astype(self.space.dtype).reshape(n, *(self.space.shape or ()))


def _policy_box(space: spaces.Box) -> spaces.Box:
    dtype: Any = space.dtype.type if space.dtype in (np.float32, np.float64) else np.float32
    if dtype == space.dtype and np.isfinite(space.low).all() and np.isfinite(space.high).all():
        return space
    largest = np.finfo(dtype).max
    low, high = (np.clip(b.astype(dtype), -largest, largest) for b in (space.low, space.high))
    return spaces.Box(low, high, dtype=dtype)


def _stacked(single: spaces.Space[Any], horizon: int) -> spaces.Space[Any]:
    """The space of ``horizon`` steps of ``single``, flat."""
    match single:
        case spaces.Box():
            low, high = (np.tile(bound.reshape(-1), horizon) for bound in (single.low, single.high))
            return spaces.Box(low, high, dtype=single.dtype.type)
        case spaces.Discrete():
            return spaces.MultiDiscrete([int(single.n)] * horizon)
        case spaces.MultiDiscrete():
            return spaces.MultiDiscrete(np.tile(single.nvec, horizon))
    assert isinstance(single, spaces.MultiBinary)  # ActionLayout takes no other
    return spaces.MultiBinary(math.prod(single.shape) * horizon)


def _start(space: spaces.Space[Any]) -> npt.NDArray[np.int64]:
    """The least value, where SB3 has 0."""
    return np.asarray(getattr(space, "start", 0), np.int64)


def _values(space: spaces.Space[Any]) -> npt.NDArray[np.int64]:
    """How many values a number may take."""
    if isinstance(space, spaces.MultiDiscrete):
        return np.asarray(space.nvec, np.int64)
    return np.asarray(space.n if isinstance(space, spaces.Discrete) else 2, np.int64)
