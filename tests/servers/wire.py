"""A strict reader and a permissive writer of PlugRL frames, for tests that speak raw."""

from __future__ import annotations

import math
import re
from typing import Any

import msgpack
import numpy as np

KEYS = (b"__ndarray__", b"data", b"dtype", b"shape")
TYPESTR = re.compile(r"[<>|][biu]1|[<>]([iu][248]|f[248]|U\d+)")


def array_map(value: Any, dtype: str | None = None) -> dict[bytes, Any]:
    """The map of an array, which a test may then spoil."""
    array = np.asarray(value, dtype)
    values = (True, array.tobytes(), array.dtype.str, list(array.shape))
    return dict(zip(KEYS, values, strict=True))


def encode(message: Any) -> bytes:
    """A frame; arrays in ``message`` become maps, everything else goes as it is."""
    frame: bytes = msgpack.packb(message, default=array_map)
    return frame


def decode(frame: Any) -> Any:
    """A frame's content; AssertionError on anything that SPEC 3 or 4 forbids to send."""
    assert isinstance(frame, bytes), "a text frame"
    try:
        value = msgpack.unpackb(frame, object_pairs_hook=_read_map, strict_map_key=False)
    except (ValueError, TypeError) as error:
        raise AssertionError(f"undecodable: {error}") from None
    assert not _extended(value), "an extension type"
    assert isinstance(value, dict), "no map"
    return value


def _extended(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_extended, value.values()))
    return isinstance(value, msgpack.Timestamp | msgpack.ExtType)


def _read_map(pairs: list[tuple[Any, Any]]) -> Any:
    value = dict(pairs)
    assert len(value) == len(pairs), "a repeated key"
    if b"__ndarray__" not in value:
        assert all(isinstance(key, str) for key in value), f"keys {list(value)}"
        assert "__ndarray__" not in value, "str keys"
        return value
    assert tuple(value) == KEYS
    assert value[b"__ndarray__"] is True
    typestr, data, shape = value[b"dtype"], value[b"data"], value[b"shape"]
    assert TYPESTR.fullmatch(typestr), f"dtype {typestr}"
    dtype = np.dtype(typestr)
    assert len(data) == math.prod(shape) * dtype.itemsize, "wrong number of bytes"
    return np.frombuffer(data, dtype).reshape(shape)
