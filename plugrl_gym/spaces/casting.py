"""Numbers from one dtype into another, without a silent loss."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plugrl_gym.errors import UsageError

__all__ = ["LARGEST", "as_array", "lost", "too_large"]

#: Beyond it a square, of a loss or of an optimizer, is infinite in float32.
LARGEST: Final = float(np.sqrt(np.finfo(np.float32).max))


def as_array(value: Any, name: str) -> npt.NDArray[Any]:
    """What a caller gave, as an array.

    Raises:
        UsageError: It has rows of different shapes.
    """
    try:
        return np.asarray(value)
    except ValueError as error:
        raise UsageError(f"{name}: expected one array: {error}") from None


def lost(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[np.bool_] | None:
    """Where ``array.astype(dtype)`` would give another number, by more than rounding.

    Args:
        array: Booleans, integers or floats.
        dtype: The same kinds. A float rounds, and cannot hold what becomes infinite; an integer
            or bool cannot hold fractions, NaN, or what lies outside its range.

    Returns:
        bool, of the shape of ``array``; None where nothing can be lost.
    """
    if np.can_cast(array.dtype, dtype):
        return None
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            overflows: npt.NDArray[np.bool_] = np.isinf(array.astype(dtype)) & np.isfinite(array)
        return overflows
    if dtype.kind == "b":
        least, beyond = 0, 2
    else:
        least, beyond = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max) + 1
    # Powers of two: exact in every float but float16, which has not the range. NaN fails both.
    values = array.astype(np.float32) if array.dtype.char == "e" else array
    fits = (values >= least) & (values < beyond)
    if array.dtype.kind == "f":
        fits &= array == np.trunc(array)
    return np.logical_not(fits)


def too_large(array: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where a number is finite, but nothing that a network could calculate with.

    Args:
        array: Booleans, integers or floats.

    Returns:
        bool, of the shape of ``array``.
    """
    if array.dtype.kind != "f" or array.dtype.char == "e":
        return np.zeros(array.shape, np.bool_)
    beyond: npt.NDArray[np.bool_] = np.abs(array) > LARGEST
    return beyond
