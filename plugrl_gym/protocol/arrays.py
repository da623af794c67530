"""Arrays and numpy scalars as msgpack maps (SPEC 4).

The encoding is openpi's ``msgpack_numpy``, byte for byte: a map with bin keys, a numpy
typestr and the elements in C order. Only fixed-size booleans, integers, floats and unicode
travel; nothing is ever pickled or unpickled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plugrl_gym.errors import LocalProtocolError, RemoteProtocolError

__all__ = [
    "ARRAY_TAG",
    "RESERVED_KEYS",
    "SCALAR_TAG",
    "array_from_wire",
    "array_to_wire",
    "check_array",
    "scalar_to_wire",
    "wire_dtype",
]

ARRAY_TAG: Final = b"__ndarray__"
SCALAR_TAG: Final = b"__npgeneric__"
#: Str keys that no map may have: a receiver takes them for a mistaken array (SPEC 4.36).
RESERVED_KEYS: Final = frozenset({"__ndarray__", "__npgeneric__"})

_ARRAY_KEYS: Final = frozenset({ARRAY_TAG, b"data", b"dtype", b"shape"})
_SCALAR_KEYS: Final = frozenset({SCALAR_TAG, b"data", b"dtype"})
_TYPESTR: Final = re.compile(r"[<>|][bui]1|[<>](?:[ui][248]|f[248]|U(?:0|[1-9][0-9]{0,9}))")
_MAX_DIMENSIONS: Final = 32
_WIDEST_TEXT: Final = (2**31 - 1) // 4  # beyond it numpy 1 wraps around in silence
_BIG: Final = 1 << 16


@lru_cache(maxsize=256)
def wire_dtype(dtype: np.dtype[Any]) -> str:
    """The typestr under which ``dtype`` travels.

    Raises:
        LocalProtocolError: It is not one of the dtypes that may (SPEC 4.14).
    """
    # dtype.str of a structured dtype is '|V12' and of a StringDType '|T16': neither matches the
    # grammar, so nothing is lost in silence.
    typestr = dtype.str
    if _TYPESTR.fullmatch(typestr) is None:
        raise LocalProtocolError(
            f"dtype {dtype} cannot travel; booleans, integers of 1 to 8 bytes, floats of 2 to 8 "
            "bytes and unicode strings can"
        )
    return typestr


def check_array(array: npt.NDArray[Any] | np.generic) -> None:
    """Refuse an array or scalar whose dtype, or whose text, a receiver would not take.

    Raises:
        LocalProtocolError: See :func:`wire_dtype`; or lone surrogates (SPEC 4.28).
    """
    wire_dtype(array.dtype)
    if array.dtype.kind == "U" and not _is_text(array.tobytes(), array.dtype.str):
        raise LocalProtocolError("text with a lone surrogate, which is no valid character")


def array_to_wire(array: npt.NDArray[Any]) -> dict[bytes, Any]:
    """The map for one array of any shape and memory layout."""
    if array.dtype.kind == "U":
        check_array(array)
    data: bytes | memoryview = b""
    if array.nbytes > _BIG and array.flags.c_contiguous:
        data = array.reshape(-1).view(np.uint8).data  # saves a copy of a large array
    else:
        data = array.tobytes()
    return {
        ARRAY_TAG: True,
        b"data": data,
        b"dtype": wire_dtype(array.dtype),
        b"shape": array.shape,
    }


def scalar_to_wire(scalar: np.generic) -> dict[bytes, Any]:
    """The map for one numpy scalar; ``np.float64`` and ``np.str_`` travel as plain values."""
    return {SCALAR_TAG: True, b"data": scalar.item(), b"dtype": wire_dtype(scalar.dtype)}


def array_from_wire(value: Mapping[Any, Any]) -> npt.NDArray[Any] | np.generic:
    """Build the array or scalar that a map with bin keys describes.

    Arrays are read-only views of the received bytes: nothing is allocated beyond them.

    Raises:
        RemoteProtocolError: Wrong keys, a dtype that may not travel, or a size that does not
            fit shape and dtype.
    """
    if value.get(ARRAY_TAG) is True and value.keys() == _ARRAY_KEYS:
        return _array(value[b"data"], value[b"dtype"], value[b"shape"])
    if value.get(SCALAR_TAG) is True and value.keys() == _SCALAR_KEYS:
        return _scalar(value[b"data"], value[b"dtype"])
    raise RemoteProtocolError(_wrong_keys(value))


def _wrong_keys(value: Mapping[Any, Any]) -> str:
    if b"nd" in value or b"kind" in value:
        return (
            "an array in the encoding of the PyPI package msgpack-numpy (keys nd, type, kind); "
            "PlugRL uses openpi's: bin keys __ndarray__, data, dtype, shape (SPEC 4.38)"
        )
    if not RESERVED_KEYS.isdisjoint(value):
        return "an array with str keys; the keys of an array must be msgpack bin (SPEC 4.2)"
    if ARRAY_TAG not in value and SCALAR_TAG not in value:
        key = next(key for key in value if type(key) is not str)
        name = repr(key[:40]) if type(key) is bytes else str(key)[:40]
        return f"a map has the {type(key).__name__} key {name}; keys are str (SPEC 3.4)"
    got = ", ".join(repr(key[:20]) for key, _ in zip(value, range(8), strict=False))
    return (
        "a map tagged as an array must have exactly the bin keys __ndarray__ (true), data, dtype, "
        f"shape (a numpy scalar: __npgeneric__ (true), data, dtype); got {got}"
    )


@lru_cache(maxsize=256)
def _parse_typestr(typestr: str) -> np.dtype[Any]:
    if _TYPESTR.fullmatch(typestr) is None:
        raise RemoteProtocolError(
            f"array dtype {typestr[:40]!r} may not travel; expected a numpy typestr of kind b, u, "
            "i, f or U such as '<f4' (SPEC 4.14)"
        )
    if typestr[1] == "U" and int(typestr[2:]) > _WIDEST_TEXT:
        raise RemoteProtocolError(
            f"array dtype {typestr!r} is wider than numpy's limit of {_WIDEST_TEXT} characters"
        )
    return np.dtype(typestr)


def _dtype(typestr: object) -> np.dtype[Any]:
    if type(typestr) is not str:
        raise RemoteProtocolError(f"array dtype must be a str, got {type(typestr).__name__}")
    return _parse_typestr(typestr)


def _array(data: object, typestr: object, shape: object) -> npt.NDArray[Any]:
    dtype = _dtype(typestr)
    if type(data) is not bytes:
        raise RemoteProtocolError(f"array data must be a msgpack bin, got {type(data).__name__}")
    dimensions = _shape(shape)
    needed = dtype.itemsize
    for size in dimensions:
        needed *= size
    if needed != len(data):
        raise RemoteProtocolError(
            f"an array of dtype {typestr!r} and shape {list(dimensions)} takes {needed} bytes, "
            f"got {len(data)}"
        )
    try:
        if dtype.itemsize == 0:
            # '<U0' has no bytes that would justify an allocation: one empty string, repeated.
            return np.broadcast_to(np.array("", dtype="<U1"), dimensions)
        array: npt.NDArray[Any] = np.ndarray(dimensions, dtype, data)
    except (ValueError, OverflowError, MemoryError) as error:
        raise RemoteProtocolError(f"array shape {list(dimensions)}: {error}") from None
    if dtype.kind == "b" and data.translate(None, b"\0\1"):
        truth: npt.NDArray[np.bool_] = array.view(np.uint8) != 0
        return truth
    if dtype.kind == "U" and not _is_text(data, dtype.str):
        raise RemoteProtocolError("a unicode array holds numbers that are no code points")
    return array


def _shape(shape: object) -> tuple[int, ...]:
    if type(shape) is not list:
        raise RemoteProtocolError(f"array shape must be a list, got {type(shape).__name__}")
    if len(shape) > _MAX_DIMENSIONS:
        raise RemoteProtocolError(
            f"an array of {len(shape)} dimensions; at most {_MAX_DIMENSIONS} are possible"
        )
    for size in shape:
        if type(size) is not int or size < 0:
            got = size if type(size) is int else type(size).__name__
            raise RemoteProtocolError(f"array shape must hold non-negative ints, got {got}")
    return tuple(shape)


def _is_text(data: bytes, typestr: str) -> bool:
    """Whether every number is a code point: Python's own codec refuses exactly the others."""
    try:
        data.decode("utf-32-be" if typestr[0] == ">" else "utf-32-le")
    except UnicodeDecodeError:
        return False
    return True


_SCALAR_DATA: Final[Mapping[str, tuple[type, ...]]] = {
    "b": (bool,),
    "u": (int,),
    "i": (int,),
    "f": (float, int),
    "U": (str,),
}


def _scalar(data: object, typestr: object) -> np.generic:
    dtype = _dtype(typestr)
    if type(data) not in _SCALAR_DATA[dtype.kind]:
        raise RemoteProtocolError(
            f"a numpy scalar of dtype {typestr!r} holds a {type(data).__name__}"
        )
    if not _fits(data, dtype):
        raise RemoteProtocolError(
            f"a numpy scalar of dtype {typestr!r} cannot hold {str(data)[:40]!r}"
        )
    scalar: np.generic = dtype.type(data)
    return scalar


def _fits(data: Any, dtype: np.dtype[Any]) -> bool:
    if dtype.kind in "iu":
        return bool(np.iinfo(dtype).min <= data <= np.iinfo(dtype).max)
    if dtype.kind == "f":
        return not math.isfinite(data) or abs(data) <= float(np.finfo(dtype).max)
    return dtype.kind == "b" or 4 * len(data) <= dtype.itemsize
