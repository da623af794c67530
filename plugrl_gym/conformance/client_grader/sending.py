"""What the grading server says: ordinary messages, and legal ones that few servers send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import numpy as np
import numpy.typing as npt

__all__ = [
    "GREETINGS",
    "PLAIN",
    "VARIATIONS",
    "Greeting",
    "RawArray",
    "Variation",
    "action_message",
    "pack",
]

Array = npt.NDArray[Any]
Message = dict[str, Any]

_PADDING: Final = 2 * 2**20
_KEYS: Final = (b"__ndarray__", b"data", b"dtype", b"shape")


@dataclass(frozen=True)
class RawArray:
    """An array given by its bytes, so that it may be one that numpy would not write."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def pack(message: Message, keys: tuple[bytes, ...] = _KEYS) -> bytes:
    """A message as a frame; ``keys`` gives the order of the keys of arrays."""

    def encode(value: object) -> Any:
        if isinstance(value, np.ndarray):
            value = RawArray(value.dtype.str, value.shape, value.tobytes())
        if isinstance(value, RawArray):
            whole = dict(zip(_KEYS, (True, value.data, value.dtype, value.shape), strict=True))
            return {key: whole[key] for key in keys}
        raise TypeError(f"a {type(value).__name__} in a message of the grader")

    frame: bytes = msgpack.packb(message, default=encode)
    return frame


# ---------------------------------------------------------------- metadata


@dataclass(frozen=True)
class Greeting:
    """A kind of metadata.

    Attributes:
        words: What is special about it.
        clauses: What a client keeps that goes on after it.
        build: (what there is to declare) -> the message.
    """

    words: str
    clauses: tuple[str, ...]
    build: Callable[[Message], Message]


def _metadata(data: Message) -> Message:
    return {"message_type": "metadata", "data": data}


def _padded(data: Message) -> Message:
    return _metadata({**data, "x_padding": "x" * _PADDING})


def _typed(data: Message) -> Message:
    numbers = ("protocol_version", "action_horizon", "action_dim")
    return _metadata({k: _typed_scalar(v, "<i8") if k in numbers else v for k, v in data.items()})


def _typed_scalar(value: object, typestr: str) -> dict[bytes, Any]:
    return {b"__npgeneric__": True, b"data": value, b"dtype": typestr}


def _unheard_of(data: Message) -> Message:
    return _metadata({**data, "features": [*data["features"], "x-unheard-of", ""]})


PLAIN: Final = Greeting("metadata", (), _metadata)

GREETINGS: Final[Mapping[str, Greeting]] = {
    "plain": PLAIN,
    "padded": Greeting("metadata with an unknown key of 2 MiB", ("6.1.3", "2.8"), _padded),
    "unversioned": Greeting(
        "metadata without protocol_version",
        ("12.2",),
        lambda data: _metadata({k: v for k, v in data.items() if k != "protocol_version"}),
    ),
    "empty": Greeting("metadata with no key in data", ("6.1.2",), lambda data: _metadata({})),
    "typed": Greeting("metadata with its numbers as typed scalars", ("4.34",), _typed),
    "unheard-of": Greeting("metadata with unknown names of features", ("9.1.4",), _unheard_of),
    "reordered": Greeting(
        "metadata with data before message_type",
        ("3.7",),
        lambda data: dict(reversed(_metadata(data).items())),
    ),
    "extended": Greeting(
        "metadata with an unknown top-level key",
        ("3.9",),
        lambda data: {**_metadata(data), "x_note": {"to": "nobody"}},
    ),
}


# ---------------------------------------------------------------- action


def action_message(envs: list[int], action: Array | RawArray) -> Message:
    """An ordinary answer."""
    ids = np.array(envs, dtype="<i8")
    return {"message_type": "action", "data": {"env_ids": ids, "action": action}}


@dataclass(frozen=True)
class Variation:
    """A legal answer that is out of the ordinary.

    Attributes:
        words: What is special about it.
        clauses: What a client keeps that can read it.
        typestr: The type in which the action is sent; empty for the usual one.
        change: What becomes of the message.
        keys: The order of the keys of arrays.
        needs: ``"discrete"``, or ``"integers"`` for any space of whole numbers: the declared
            action space for which alone this is legal.
    """

    words: str
    clauses: tuple[str, ...]
    typestr: str = ""
    change: Callable[[Message], Message] = lambda message: message
    keys: tuple[bytes, ...] = _KEYS
    needs: str = ""

    def frame(self, envs: list[int], action: Array) -> bytes:
        """The answer as a frame; ``action`` has the variation's dtype already."""
        return pack(self.change(action_message(envs, self._raw(action))), self.keys)

    def _raw(self, action: Array) -> Array | RawArray:
        if self.clauses == ("4.23",):
            return RawArray("|b1", action.shape, action.tobytes().replace(b"\1", b"\2"))
        if self.typestr[1:] in ("u1", "i1", "b1"):
            return RawArray(self.typestr, action.shape, action.tobytes())
        return action


def _with_data(**extra: object) -> Callable[[Message], Message]:
    return lambda message: {**message, "data": {**message["data"], **extra}}


def _without_ids(message: Message) -> Message:
    return {**message, "data": {"action": message["data"]["action"]}}


def _ids_as(typestr: str) -> Callable[[Message], Message]:
    def change(message: Message) -> Message:
        ids = message["data"]["env_ids"]
        other = ids.astype(typestr)  # where it can hold them
        fitting = other if np.array_equal(other, ids) else ids
        return {**message, "data": {**message["data"], "env_ids": fitting}}

    return change


def _reversed(message: Message) -> Message:
    data = dict(reversed(message["data"].items()))
    return dict(reversed({**message, "data": data}.items()))


def _extended(message: Message) -> Message:
    return {"x_first": [1, {"deep": None}], **message, "x_last": np.zeros(3, "<f4")}


_DTYPES: Final = (
    *(">f8", "<f4", ">f4", "<f2", "<i8", ">i8", "<i4", ">i4", ">i2", "<u8", ">u8", "<u4", "<u2"),
    *(">u2", "|i1", "|u1", "|b1"),
)

VARIATIONS: Final = (
    Variation("keys in another order", ("3.7",), change=_reversed),
    Variation("unknown top-level keys", ("3.9",), change=_extended),
    Variation("the keys of arrays in another order", ("4.4",), keys=_KEYS[::-1]),
    Variation("an unknown key in data", ("6.4.2",), change=_with_data(x_note="for nobody")),
    Variation(
        "an array of no dimensions under an unknown key",
        ("4.11",),
        change=_with_data(x_zero=np.array(3.0)),
    ),
    Variation(
        "an array of shape [0, 7] under an unknown key",
        ("4.12",),
        change=_with_data(x_none=np.zeros((0, 7), "<f4")),
    ),
    Variation(
        "an array of type <U0 under an unknown key",
        ("4.27",),
        change=_with_data(x_empty=RawArray("<U0", (2,), b"")),
    ),
    Variation("env_ids of type uint64", ("6.4.4",), change=_ids_as("<u8")),
    Variation("env_ids of type int32, big-endian", ("6.4.4",), change=_ids_as(">i4")),
    Variation("no env_ids", ("6.4.5",), change=_without_ids),
    *(Variation(f"an action of type {name}", ("4.17", "6.4.9"), name) for name in _DTYPES),
    Variation("an action of type <u1", ("4.16",), "<u1"),
    Variation("an action of type >i1", ("4.16",), ">i1"),
    Variation("an action of bools with the byte 2", ("4.23",), "|b1"),
    Variation("an action of whole floats", ("6.4.16",), "<f8", needs="integers"),
    Variation("an action of shape [H, n, 1]", ("6.4.13",), needs="discrete"),
)


def reshaped(variation: Variation, action: Array) -> Array:
    """The action in the shape that a variation is about."""
    if variation.clauses == ("6.4.13",):
        return action.reshape(*action.shape[:2], 1)
    return action
