"""The ways in which a message can be malformed, one entry each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgpack
import numpy as np

from plugrl_gym.protocol.arrays import array_to_wire, scalar_to_wire
from plugrl_gym.protocol.codec import encode

__all__ = ["MALFORMED", "Malformed", "drop", "put", "unread"]

Frame: TypeAlias = dict[str, Any] | bytes | str
Make: TypeAlias = Callable[[dict[str, Any]], Frame]


@dataclass(frozen=True, slots=True)
class Malformed:
    """One kind.

    Attributes:
        name: In a few words.
        instead_of: The valid message, for envs 0 and 1, in whose place it is sent.
        make: Makes it from that message.
        clauses: What obliges a receiver to see it, 8.4 apart.
        legal: Whether a receiver may also take it for valid.
    """

    name: str
    instead_of: Literal["infer", "feedback"]
    make: Make
    clauses: tuple[str, ...] = ()
    legal: bool = False


def put(path: str, value: Any) -> Make:
    """Replace what is at ``path``; ``value`` may be a function of the old value."""

    def make(message: dict[str, Any]) -> Frame:
        *parents, key = path.split(".")
        place = message
        for parent in parents:
            place = place[parent]
        place[key] = value(place.get(key)) if callable(value) else value
        return message

    return make


def drop(path: str) -> Make:
    """Remove the key at ``path``."""

    def make(message: dict[str, Any]) -> Frame:
        *parents, key = path.split(".")
        place = message
        for parent in parents:
            place = place[parent]
        del place[key]
        return message

    return make


def unread(value: Any) -> Make:
    """Add a state that no policy reads; even there an array must be one."""
    return put("data.states.unread", value)


def frame(make: Callable[[bytes], bytes | str]) -> Make:
    """Change the bytes of the valid message."""
    return lambda message: make(encode(message))


def constant(payload: bytes | str) -> Make:
    """Send this, whatever was due."""
    return lambda message: payload


_ROWS: Final = np.arange(6, dtype="<f4").reshape(2, 3)


def _array(**fields: Any) -> dict[bytes, Any]:
    """An array of two rows with some of its four fields replaced."""
    names = {"tag": b"__ndarray__"}
    changed = {names.get(key, key.encode()): value for key, value in fields.items()}
    return {**array_to_wire(_ROWS), **changed}


def _text_array(code: int) -> dict[bytes, Any]:
    """One character with this number."""
    return {**array_to_wire(np.array([code], dtype="<u4")), b"dtype": "<U1"}


def _scalar(value: Any) -> dict[bytes, Any]:
    return {**scalar_to_wire(np.uint8(0)), b"data": value}


def _as_infer(message: dict[str, Any]) -> Frame:
    """A valid infer for the envs of a feedback."""
    kept = {key: message[key] for key in ("env_indices", "step_ids")}
    return {"message_type": "infer", "data": message["data"]["obs"], **kept}


def _poisoned(value: float) -> Make:
    def make(message: dict[str, Any]) -> Frame:
        states = message["data"]["states"] or {"unread": _ROWS.copy()}
        for array in states.values():
            array[1, 0] = value
        message["data"]["states"] = states
        return message

    return make


def _resized(rows: int) -> Callable[[Any], Any]:
    """The first rows of an array, cyclically."""
    return lambda array: np.resize(array, (rows, *array.shape[1:]))


def _no_envs(message: dict[str, Any]) -> Frame:
    def emptied(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return np.asarray(value)[:0]
        return {k: emptied(v) for k, v in value.items()} if isinstance(value, dict) else value

    kept = {key: message[key] for key in ("spaces",) if key in message}
    return {**{key: emptied(value) for key, value in message.items()}, **kept}


def _nested(depth: int) -> Make:
    def make(message: dict[str, Any]) -> Frame:
        packed: bytes = encode({**message, "deep": None})
        return packed[:-1] + b"\x91" * depth + b"\xc0"

    return make


def _twice(message: dict[str, Any]) -> Frame:
    packed = encode(message)  # a fixmap: its header counts the pairs
    pair: bytes = msgpack.packb("step_ids") + encode({"": message["step_ids"]})[2:]
    return bytes([packed[0] + 1]) + packed[1:] + pair


_STR_KEYS: Final = {key.decode(): value for key, value in array_to_wire(_ROWS).items()}
_MSGPACK_NUMPY: Final = {
    b"nd": True,
    b"type": "<f4",
    b"kind": b"",
    b"shape": [2, 3],
    b"data": _ROWS.tobytes(),
}


def _info(**entries: Any) -> Make:
    return put("data.info", entries)


Entry: TypeAlias = tuple[str, Make, str]


def _table(instead_of: Literal["infer", "feedback"], *entries: Entry) -> tuple[Malformed, ...]:
    """(name, make, clauses separated by blanks) each."""
    return tuple(Malformed(n, instead_of, make, tuple(c.split())) for n, make, c in entries)


_FRAMES: Final = _table(
    "infer",
    ("a text frame", constant("hello"), ""),
    ("an empty frame", constant(b""), "3.15"),
    ("a frame that ends too early", frame(lambda packed: packed[:-1]), "3.15"),
    ("a byte after the message", frame(lambda packed: packed + b"\0"), "3.15"),
    ("a byte that is no msgpack", constant(b"\xc1"), "3.15"),
    ("a list that claims 4 billion elements", constant(b"\xdd\xff\xff\xff\xff"), "3.15"),
    ("a map that claims 4 billion keys", constant(b"\xdf\xff\xff\xff\xff\x01"), "3.15"),
    ("a bin that claims 4 GiB", constant(b"\xc6\xff\xff\xff\xffabc"), "3.15"),
    ("a str that is no UTF-8", frame(lambda p: p.replace(b"\xa4text", b"\xa4te\xfft")), "3.15"),
    ("a list instead of a map", constant(msgpack.packb([1, 2])), ""),
    ("nil instead of a map", constant(b"\xc0"), ""),
    ("a map without message_type", drop("message_type"), ""),
    ("an unknown message_type", put("message_type", "infr"), ""),
    ("a message_type that is no str", put("message_type", 7), ""),
    ("metadata from a client", constant(encode({"message_type": "metadata", "data": {}})), "5.2"),
    ("an action from a client", put("message_type", "action"), "5.2"),
    ("a feedback where an infer is due", put("message_type", "feedback"), "5.2"),
    ("a key of type bin", put("data.images", {b"camera": 1}), "3.5"),
    ("a key of type int", put("data.images", {1: 1}), "3.5"),
    ("a key that is nil", put("extra", {None: 1}), "3.5"),
    ("a timestamp", put("extra", msgpack.Timestamp(1)), "3.12"),
    ("an extension type", put("extra", [msgpack.ExtType(5, b"x")]), "3.12"),
    ("a key twice in one map", _twice, ""),
)
_ARRAYS: Final = _table(
    "infer",
    ("an array with str keys", unread(_STR_KEYS), "4.37"),
    ("a scalar with str keys", put("extra", {"__npgeneric__": True}), "4.37"),
    ("an array of msgpack-numpy", unread(_MSGPACK_NUMPY), "4.38"),
    ("dtype O", unread(_array(dtype="|O")), "4.20"),
    ("dtype c8", unread(_array(dtype="<c8", shape=[3])), "4.20"),
    ("dtype V4", unread(_array(dtype="|V4")), "4.20"),
    ("dtype S4", unread(_array(dtype="|S4")), "4.20"),
    ("dtype M8", unread(_array(dtype="<M8[s]", shape=[3])), "4.20"),
    ("dtype f16", unread(_array(dtype="<f16", data=bytes(96))), "4.20"),
    ("a dtype without byte order", unread(_array(dtype="f4")), "4.20"),
    ("a dtype that is no typestr", unread(_array(dtype="float32")), "4.20"),
    ("a dtype that is a bin", unread(_array(dtype=b"<f4")), "4.35"),
    ("too few bytes of data", unread(_array(data=bytes(23))), "4.35"),
    ("too many bytes of data", unread(_array(data=bytes(28))), "4.35"),
    ("data that is a str", unread(_array(data="a" * 24)), "4.35"),
    ("a negative dimension", unread(_array(shape=[-2, -3])), "4.35"),
    ("a dimension that is a float", unread(_array(shape=[2, 3.0])), "4.35"),
    ("a shape that is no list", unread(_array(shape=6)), "4.35"),
    ("a shape far larger than its data", unread(_array(shape=[2, 2**40])), "4.35"),
    ("an array without its shape", unread(dict(list(_array().items())[:3])), "4.35"),
    ("an array with a key too many", unread({**_array(), b"order": "C"}), "4.35"),
    ("an array whose tag is not true", unread(_array(tag=1)), "4.35"),
    ("a surrogate as a character", put("extra", _text_array(0xD800)), "4.29"),
    ("a character beyond U+10FFFF", put("extra", _text_array(0x110000)), "4.29"),
    ("a scalar beyond its type", put("extra", _scalar(300)), "4.35"),
    ("a scalar of another type", put("extra", _scalar("3")), "4.35"),
    ("a scalar without its dtype", put("extra", {b"__npgeneric__": True, b"data": 3}), "4.35"),
)
_INFERS: Final = _table(
    "infer",
    ("an infer without data", drop("data"), ""),
    ("an infer without env_indices", drop("env_indices"), ""),
    ("an infer without step_ids", drop("step_ids"), ""),
    ("an observation without images", drop("data.images"), ""),
    ("an observation without states", drop("data.states"), ""),
    ("an observation without text", drop("data.text"), ""),
    ("an observation with a key too many", put("data.depth", {}), ""),
    ("an observation that is no map", put("data", [1.0]), ""),
    ("images that are no map", put("data.images", []), ""),
    ("states that are nil", put("data.states", None), ""),
    ("env_indices that are a list", put("env_indices", [0, 1]), ""),
    ("env_indices that are float", put("env_indices", lambda a: a.astype("<f8")), ""),
    ("env_indices that are bool", put("env_indices", lambda a: a.astype("?")), ""),
    ("env_indices of two dimensions", put("env_indices", lambda a: a[:, None]), ""),
    ("step_ids that are a list", put("step_ids", [0, 0]), ""),
    ("step_ids that are float", put("step_ids", lambda a: a.astype("<f4")), ""),
    ("step_ids of another length", put("step_ids", _resized(3)), ""),
    ("an image that is float", put("data.images.unread", np.zeros((2, 2, 2, 3), "<f4")), ""),
    ("an image without channels", put("data.images.unread", np.zeros((2, 2, 2), "|u1")), ""),
    ("a stack of images", put("data.images.unread", np.zeros((2, 1, 2, 2, 3), "|u1")), ""),
    ("a state of one dimension", unread(np.zeros(2)), ""),
    ("a state of three dimensions", unread(np.zeros((2, 1, 1))), ""),
    ("a state of text", unread(np.array([["a"], ["b"]])), ""),
    ("a state that is a list", unread([[1.0], [2.0]]), ""),
    ("text of two dimensions", put("data.text", np.array([["a"], ["b"]])), ""),
    ("text that is a number", put("data.text", np.zeros(2)), ""),
    ("text with a nil in it", put("data.text", ["a", None]), ""),
    ("text that is one str", put("data.text", "ab"), ""),
    ("a state with a row too many", unread(np.zeros((3, 1))), ""),
    ("a state with a row too few", unread(np.zeros((1, 1))), ""),
    ("an image with a row too many", put("data.images.u", np.zeros((3, 1, 1, 1), "|u1")), ""),
    ("text with a row too few", put("data.text", [""]), ""),
    ("an infer for no env", _no_envs, ""),
    ("an env named twice", put("env_indices", np.array([1, 1])), ""),
    ("a negative index", put("env_indices", np.array([0, -1])), ""),
    ("an index of 64 bits", put("env_indices", np.array([0, 2**63], "<u8")), ""),
    ("NaN in an observation", _poisoned(np.nan), "6.3.8"),
    ("infinity in an observation", _poisoned(-np.inf), "6.3.8"),
)
_FEEDBACKS: Final = _table(
    "feedback",
    ("an infer where a feedback is due", put("message_type", "infer"), "5.2"),
    ("a second infer", _as_infer, "5.2"),
    ("a text frame instead of a feedback", constant("{}"), ""),
    ("bytes instead of a feedback", constant(b"\xc1\xc1"), "3.15"),
    ("a feedback without data", drop("data"), ""),
    ("a feedback without env_indices", drop("env_indices"), ""),
    ("a feedback without step_ids", drop("step_ids"), ""),
    ("a feedback without obs", drop("data.obs"), ""),
    ("a feedback without rewards", drop("data.rewards"), ""),
    ("a feedback without terminated", drop("data.terminated"), ""),
    ("a feedback without truncated", drop("data.truncated"), ""),
    ("a feedback without info", drop("data.info"), ""),
    ("feedback data with a key too many", put("data.done", np.zeros(2, "?")), ""),
    ("a feedback's observation without text", drop("data.obs.text"), ""),
    ("a feedback's observation with a row too many", put("data.obs.text", ["", "", ""]), ""),
    ("rewards that are int", put("data.rewards", np.array([1, 2])), ""),
    ("rewards that are a list", put("data.rewards", [1.0, 2.0]), ""),
    ("rewards of two dimensions", put("data.rewards", np.zeros((2, 1), "<f4")), ""),
    ("rewards with a row too many", put("data.rewards", np.zeros(3, "<f4")), ""),
    ("terminated that is uint8", put("data.terminated", np.zeros(2, "|u1")), ""),
    ("truncated that is one bool", put("data.truncated", False), ""),
    ("truncated with a row too few", put("data.truncated", np.zeros(1, "?")), ""),
    ("a feedback for no env", put("env_indices", np.zeros(0, "<i8")), ""),
    ("a feedback that names an env twice", put("env_indices", np.array([0, 0])), ""),
    ("a feedback with a negative index", put("env_indices", np.array([-1, 0])), ""),
    ("a feedback with more envs than rows", put("env_indices", np.array([0, 1, 2])), ""),
    ("an info that is nil", put("data.info", None), ""),
    ("an info that is a list", put("data.info", []), ""),
    ("an info without an array", _info(level=3), "6.5.19"),
    ("an info whose array has a row too many", _info(x=np.zeros(3)), "6.5.19"),
    ("an info whose first array has no rows", _info(x=np.array(1.0), y=np.zeros(2)), "6.5.19"),
    (
        "an info whose first array is one level down",
        _info(a={"x": np.ones(1)}, y=np.zeros(2)),
        "6.5.19",
    ),
    ("an info whose arrays lie too deep", _info(a={"b": {"c": np.zeros(2)}}), "6.5.19"),
)

MALFORMED: Final = (
    *_FRAMES,
    Malformed("a message nested 100000 deep", "infer", _nested(100_000), ("3.15",), legal=True),
    *_ARRAYS,
    *_INFERS,
    *_FEEDBACKS,
)
