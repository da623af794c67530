"""A trainer's actions, checked before any of them leaves (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from plugrl_gym.errors import UsageError
from plugrl_gym.protocol.fields import first_non_finite
from plugrl_gym.spaces import ActionLayout
from plugrl_gym.spaces.casting import as_array, lost

__all__ = ["read_actions", "read_slots"]


def read_slots(slots: Any) -> list[int]:
    """``slots`` as a list of distinct numbers.

    Raises:
        UsageError: They are something else.
    """
    array = np.atleast_1d(as_array(slots, "slots"))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise UsageError(
            f"slots: expected integers [m], got {array.dtype.name} {list(array.shape)}"
        )
    numbers: list[int] = array.tolist()
    if len(set(numbers)) < len(numbers):
        raise UsageError(f"slots: a slot is named twice: {numbers[:16]}")
    return numbers


def read_actions(
    actions: Any, slots: Sequence[int], horizon: int, layout: ActionLayout
) -> npt.NDArray[Any]:
    """``actions`` as [H, m, *da] of the action space's dtype.

    A number outside a Box is let through: what becomes of it is its client's choice, and the
    client tells. An index that is none is nobody's choice.

    Args:
        actions: [H, m, *da], or [m, *da] with a horizon of 1.
        slots: m of them.
        horizon: H.
        layout: Of the action space.

    Raises:
        UsageError: Another shape, or a number that the action space cannot hold.
    """
    given = as_array(actions, "actions")
    row, shape = (len(slots), *layout.shape), list(given.shape)
    if horizon == 1 and given.shape == row:
        given = given[None]
    if given.shape != (horizon, *row) or given.dtype.kind not in "buif":
        alone = f"{list(row)} or " if horizon == 1 else ""
        raise UsageError(
            f"actions: expected numbers {alone}{[horizon, *row]} for {len(slots)} slots, got "
            f"{given.dtype.name} {shape}"
        )
    bad = first_non_finite(given)
    if bad is None:
        mislaid = lost(given, layout.dtype)
        outside = layout.no_index(given)
        if outside is not None:
            mislaid = outside if mislaid is None else mislaid | outside
        if mislaid is None or not mislaid.any():
            return np.ascontiguousarray(given, dtype=layout.dtype)
        bad = tuple(int(index[0]) for index in np.nonzero(mislaid))
    name = " ".join(str(layout.space).split())[:80]
    raise UsageError(
        f"actions: slot {slots[bad[1]]} would get {given[bad]}, which is not in {name}"
    )
