"""A replay buffer as a file: the part that is filled, array by array."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.buffers import ReplayBuffer

__all__ = ["buffer_state", "read_buffer", "write_buffer"]

#: Between an attribute that is a dict and the key of an array in it.
_SEPARATOR: Final = "/"
#: What belongs to this machine, or to the model.
_NOT_OURS: Final = ("device", "observation_space", "action_space")


def write_buffer(buffer: ReplayBuffer, file: IO[bytes]) -> None:
    """Write the filled rows of a buffer's arrays as an uncompressed npz."""
    # One more, where SB3's frugal variant keeps what followed the newest.
    rows = min(buffer.size() + buffer.optimize_memory_usage, buffer.buffer_size)
    arrays: dict[str, Any] = {name: array[:rows] for name, array in _arrays(buffer)}
    np.savez(file, **arrays)


def buffer_state(buffer: ReplayBuffer) -> dict[str, Any]:
    """Everything else about a buffer, as its class and position; picklable."""
    arrays = {name.partition(_SEPARATOR)[0] for name, _ in _arrays(buffer)}
    left_out = arrays.union(_NOT_OURS)
    return {
        "class": type(buffer),
        "attributes": {name: v for name, v in vars(buffer).items() if name not in left_out},
    }


def read_buffer(fresh: ReplayBuffer, state: Mapping[str, Any], file: IO[bytes]) -> ReplayBuffer:
    """A buffer as it was written.

    Args:
        fresh: An empty one for the same spaces, whose memory is used where it fits.
        state: The written one's :func:`buffer_state`.
        file: Written by :func:`write_buffer`.
    """
    buffer: ReplayBuffer = state["class"].__new__(state["class"])
    vars(buffer).update({**vars(fresh), **state["attributes"]})
    memory = dict(_arrays(fresh))
    with np.load(file) as stored:
        for name in stored.files:
            rows = stored[name]
            shape = (buffer.buffer_size, *rows.shape[1:])
            array = memory.get(name)
            if array is None or array.shape != shape or array.dtype != rows.dtype:
                array = np.zeros(shape, rows.dtype)
            array[: len(rows)] = rows
            _put(buffer, name, array)
    return buffer


def _put(buffer: ReplayBuffer, name: str, array: npt.NDArray[Any]) -> None:
    attribute, separator, key = name.partition(_SEPARATOR)
    if separator:
        vars(buffer).setdefault(attribute, {})[key] = array
    else:
        vars(buffer)[attribute] = array


def _arrays(buffer: ReplayBuffer) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """The arrays that have a row for each step, by name; those of a dict as ``name/key``."""
    for name, value in vars(buffer).items():
        if isinstance(value, dict):
            for key, array in value.items():
                if _has_rows(array, buffer):
                    yield f"{name}{_SEPARATOR}{key}", array
        elif _has_rows(value, buffer):
            yield name, value


def _has_rows(value: object, buffer: ReplayBuffer) -> bool:
    return isinstance(value, np.ndarray) and value.shape[:1] == (buffer.buffer_size,)
