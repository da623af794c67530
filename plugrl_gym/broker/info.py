"""Info of many envs, as one map and as one for each (pure).

The one map has Gymnasium's form: under each key an array with a row for each env, and under
``_key`` which rows have one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["join_info", "split_info"]


def split_info(info: Mapping[str, Any], rows: int) -> list[dict[str, Any]]:
    """One map for each row; what cannot be split into ``rows`` is left out.

    A key that begins with ``_`` is a mask, or nothing: beside the key of another client it would
    be taken for that one's mask.
    """
    split: list[dict[str, Any]] = [{} for _ in range(rows)]
    for key, value in info.items():
        if key.startswith("_"):
            continue
        has = _mask(info.get(f"_{key}"), rows)
        if isinstance(value, Mapping):
            parts: Sequence[Any] = split_info(value, rows)
            has &= np.array([bool(part) for part in parts], np.bool_)
        elif isinstance(value, list | tuple) and len(value) == rows:
            parts = value
        elif isinstance(value, np.ndarray) and value.shape[:1] == (rows,):
            parts = value  # type: ignore[assignment]
        else:
            continue
        for row in np.flatnonzero(has).tolist():
            split[row][key] = parts[row]
    return split


def _mask(mask: Any, rows: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    if isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (rows,):
        return mask.copy()
    return np.ones(rows, np.bool_)


def join_info(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One map in Gymnasium's form; zeros, or None, where a row has no value."""
    joined: dict[str, Any] = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        has = np.array([key in row for row in rows], np.bool_)
        joined[key] = _column([row.get(key) for row in rows], has, key)
        joined[f"_{key}"] = has
    return joined


def _column(values: list[Any], has: Any, key: str) -> Any:
    given = [values[row] for row in np.flatnonzero(has).tolist()]
    if all(isinstance(value, Mapping) for value in given) and key != "final_obs":
        return join_info([value or {} for value in values])
    column: Any = np.full(len(values), None, object)
    if key != "final_obs" and all(_is_number(value) for value in given):
        arrays = [np.asarray(value) for value in given]
        if len({array.shape for array in arrays}) == 1:
            column = np.zeros((len(values), *arrays[0].shape), np.result_type(*arrays))
    for row in np.flatnonzero(has).tolist():
        column[row] = values[row]
    return column


def _is_number(value: Any) -> bool:
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biuf"
    return isinstance(value, bool | int | float)
