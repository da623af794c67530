"""Batched observations as vector envs hand them out: arrays in dicts and tuples (pure).

A Text's batch is a tuple of str; any other leaf's is an array [n, ...].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array

__all__ = ["copy", "empty", "join", "put", "take"]


def empty(space: spaces.Space[Any]) -> Any:
    """A batch of no row.

    Args:
        space: Of a single env, here and below.
    """
    return create_empty_array(space, 0)


def take(space: spaces.Space[Any], batch: Any, rows: Sequence[int]) -> Any:
    """The given rows, in this order, as a batch of their own (copies)."""
    if isinstance(space, spaces.Dict):
        return {key: take(part, batch[key], rows) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(take(part, batch[i], rows) for i, part in enumerate(space.spaces))
    if isinstance(space, spaces.Text):
        return tuple(batch[row] for row in rows)
    return batch[np.asarray(rows, np.intp)]


def copy(space: spaces.Space[Any], batch: Any) -> Any:
    """The same batch in memory of its own."""
    if isinstance(space, spaces.Dict):
        return {key: copy(part, batch[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(copy(part, batch[i]) for i, part in enumerate(space.spaces))
    return batch if isinstance(space, spaces.Text) else batch.copy()


def join(space: spaces.Space[Any], batches: Sequence[Any]) -> Any:
    """All rows of one batch after the other; the batch itself where it is the only one."""
    if len(batches) == 1:
        return batches[0]
    if isinstance(space, spaces.Dict):
        return {key: join(part, [b[key] for b in batches]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(join(part, [b[i] for b in batches]) for i, part in enumerate(space.spaces))
    if isinstance(space, spaces.Text):
        return tuple(line for batch in batches for line in batch)
    return np.concatenate(batches)


def put(space: spaces.Space[Any], batch: Any, rows: Sequence[int], others: Any) -> Any:
    """``batch`` with ``rows`` replaced by the rows of the batch ``others``, in order; a copy."""
    if isinstance(space, spaces.Dict):
        return {k: put(part, batch[k], rows, others[k]) for k, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        parts = enumerate(space.spaces)
        return tuple(put(part, batch[i], rows, others[i]) for i, part in parts)
    if isinstance(space, spaces.Text):
        lines = list(batch)
        for row, line in zip(rows, others, strict=True):
            lines[row] = line
        return tuple(lines)
    replaced = batch.copy()
    replaced[np.asarray(rows, np.intp)] = others
    return replaced
