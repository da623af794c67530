"""Frames to plain values and back: msgpack with arrays (SPEC 3 and 4).

:func:`decode` turns any bytes into plain Python values and arrays or raises
:class:`~plugrl_gym.errors.RemoteProtocolError`; what it allocates is bounded by the frame's
own length. :func:`encode` raises before a byte is produced and names the place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgpack
import numpy as np

from plugrl_gym.errors import LocalProtocolError, RemoteProtocolError
from plugrl_gym.protocol.arrays import (
    ARRAY_TAG,
    RESERVED_KEYS,
    array_from_wire,
    array_to_wire,
    check_array,
    scalar_to_wire,
)

__all__ = ["MAX_DEPTH", "check_encodable", "decode", "encode"]

#: Maps and arrays within one another in one message, arrays' own two included (SPEC 3.13).
MAX_DEPTH: Final = 64

_SMALL: Final = 64
_INT_RANGE: Final = (-(2**63), 2**64 - 1)


def encode(message: Mapping[str, Any]) -> bytes:
    """Pack one message.

    Maps that a user filled go through :func:`check_encodable` first: msgpack packs more than
    a receiver may read.

    Raises:
        LocalProtocolError: A value cannot travel; the text names its place, as
            ``feedback.data.info.stamp``.
    """
    try:
        packed: bytes = msgpack.packb(message, default=_default)
        return packed
    except Exception as error:  # msgpack's own, and whatever a foreign object's methods raise
        check_encodable(message, str(message.get("message_type", "message")))
        raise LocalProtocolError(f"the message cannot be packed: {error}") from error


def _default(value: object) -> object:
    if isinstance(value, np.ndarray):
        return array_to_wire(value)
    if isinstance(value, np.generic):
        return scalar_to_wire(value)
    raise TypeError(f"{type(value).__name__} has no encoding")


def check_encodable(value: object, where: str, depth: int = 0) -> None:
    """Refuse what msgpack would reject, or would accept and the receiver could not read.

    Args:
        value: Any Python value.
        where: Its place, for the error, such as ``"info"``.
        depth: How many maps and lists it lies in.

    Raises:
        LocalProtocolError: With the path to the first value that cannot travel.
    """
    try:
        _check(value, depth)
    except LocalProtocolError as error:
        raise LocalProtocolError(f"{where}{error}") from None


def _check(value: object, depth: int) -> None:
    """As :func:`check_encodable`; the error's text begins with the path below ``value``."""
    if value is None or isinstance(value, bool | float | bytes):
        return
    if isinstance(value, int):
        if not _INT_RANGE[0] <= value <= _INT_RANGE[1]:
            raise LocalProtocolError(" is an int of more than 64 bits")
    elif isinstance(value, str):
        if not _is_encodable(value):
            raise LocalProtocolError(" holds a lone surrogate, which is no valid character")
    elif isinstance(value, np.ndarray | np.generic):
        _check_depth(depth + 2)
        try:
            check_array(value)
        except LocalProtocolError as error:
            raise LocalProtocolError(f": {error}") from None
    elif isinstance(value, dict):
        _check_depth(depth + 1)
        _check_items(value, depth)
    elif isinstance(value, list | tuple) and not isinstance(value, msgpack.ExtType):
        _check_depth(depth + 1)
        for number, item in enumerate(value):
            try:
                _check(item, depth + 1)
            except LocalProtocolError as error:
                raise LocalProtocolError(f"[{number}]{error}") from None
    else:
        raise LocalProtocolError(f" is a {type(value).__name__}, which has no encoding")


def _check_items(value: dict[Any, Any], depth: int) -> None:
    for key, item in value.items():
        if not isinstance(key, str):
            raise LocalProtocolError(f" has the key {key!r}; keys on the wire are str")
        if key in RESERVED_KEYS:
            raise LocalProtocolError(f" has the key {key!r}, which is reserved for arrays")
        if not _is_encodable(key):
            raise LocalProtocolError(f" has the key {key!r}, which holds a lone surrogate")
        try:
            _check(item, depth + 1)
        except LocalProtocolError as error:
            raise LocalProtocolError(f".{key}{error}") from None


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise LocalProtocolError(f" is nested more than {MAX_DEPTH} deep, or in itself")


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def decode(frame: bytes) -> Any:
    """Unpack one frame; arrays come back as read-only ndarrays.

    Raises:
        RemoteProtocolError: Not one whole msgpack value, or it holds an invalid array.
    """
    try:
        # A list's header makes msgpack allocate for all the elements that it announces. Real
        # messages keep within _SMALL; others are walked first, which allocates nothing.
        try:
            return _unpack(frame, _SMALL)
        except ValueError as error:
            if "max_array_len" not in str(error) and "max_map_len" not in str(error):
                raise
        _walk(frame)
        return _unpack(frame, len(frame))
    except RemoteProtocolError:
        raise
    except Exception as error:  # msgpack raises kin of ValueError, TypeError and RecursionError
        raise RemoteProtocolError(f"undecodable bytes: {_reason(error)}") from None


def _unpack(frame: bytes, limit: int) -> Any:
    return msgpack.unpackb(
        frame,
        object_pairs_hook=_map,
        ext_hook=_ext_hook,
        max_array_len=limit,
        max_map_len=limit,
        max_ext_len=0,  # timestamps would bypass the hook
    )


def _walk(frame: bytes) -> None:
    """Find that a frame ends before what its headers announce, without building a value."""
    unpacker = msgpack.Unpacker(None, max_buffer_size=max(len(frame), 1))
    unpacker.feed(frame)
    unpacker.skip()


def _reason(error: Exception) -> str:
    text = str(error)
    if "max_ext_len" in text:
        return "a msgpack extension type (SPEC 3.11)"
    return text.splitlines()[0][:120] if text else type(error).__name__


def _map(pairs: Iterable[tuple[Any, Any]]) -> Any:
    items = pairs if type(pairs) is list else list(pairs)  # msgpack in Python once had generators
    value = dict(items)
    if len(value) != len(items):
        raise RemoteProtocolError("a map names a key twice (SPEC 3.8)")
    if ARRAY_TAG in value:
        return array_from_wire(value)
    for key in value:
        if type(key) is not str:
            return array_from_wire(value)
    if not RESERVED_KEYS.isdisjoint(value):
        return array_from_wire(value)
    return value


def _ext_hook(code: int, data: bytes) -> object:
    raise RemoteProtocolError("undecodable bytes: a msgpack extension type (SPEC 3.11)")
