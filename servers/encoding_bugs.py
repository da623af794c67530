"""Deliberate mistakes of reference_server.py in how it writes and reads msgpack (SPEC 3 and 4)."""

from __future__ import annotations

from typing import Any, Final

import msgpack
import numpy as np
from reference_server import Bug, pack


def with_field(key: bytes, value: Any) -> Any:
    """An array's map with another value under one key."""
    return lambda pairs: {**dict(pairs), key: value}


def array(typestr: str, data: bytes) -> dict[bytes, Any]:
    """The map of an array of one element, right or wrong."""
    return {b"__ndarray__": True, b"data": data, b"dtype": typestr, b"shape": [1]}


def scalar(typestr: str, data: Any, **more: Any) -> dict[Any, Any]:
    """The map of a scalar, right or wrong."""
    return {b"__npgeneric__": True, b"data": data, b"dtype": typestr, **more}


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    value: Any = None
    for _ in range(depth):
        value = [value]
    return value


def backwards(message: dict[str, Any]) -> dict[str, Any]:
    """The same message with its keys in reverse."""
    return dict(reversed(message.items()))


WRITING: Final = {
    "no-message-type": Bug(
        what="sends actions under another key than message_type",
        answer=lambda message, frame: [pack({"type": "action", "data": message["data"]})],
    ),
    "two-messages-in-one": Bug(
        what="sends each action twice in one frame",
        answer=lambda message, frame: [frame + frame],
    ),
    "key-order": Bug(
        what="sends the keys of actions in another order than customary",
        answer=lambda message, frame: [pack(backwards(message))],
    ),
    "key-twice": Bug(
        what="names message_type twice in every action",
        answer=lambda message, frame: [
            b"\x83" + frame[1:] + msgpack.packb("message_type") + msgpack.packb("action")
        ],
    ),
    "deep-metadata": Bug(what="nests its metadata too deep", metadata={"deep": nested(70)}),
    "array-key-order": Bug(
        what="packs arrays with their keys in another order than customary",
        array=lambda pairs: dict(reversed(list(pairs))),
    ),
    "array-tag": Bug(what="tags arrays with 1", array=with_field(b"__ndarray__", 1)),
    "array-list-data": Bug(
        what="packs the data of arrays as a list",
        array=lambda pairs: {k: list(v) if k == b"data" else v for k, v in pairs},
    ),
    "array-bin-dtype": Bug(
        what="packs the dtype of arrays as a bin",
        array=lambda pairs: {k: v.encode() if k == b"dtype" else v for k, v in pairs},
    ),
    "array-float-shape": Bug(
        what="packs the shape of arrays as floats",
        array=lambda pairs: {k: [*map(float, v)] if k == b"shape" else v for k, v in pairs},
    ),
    "big-endian": Bug(
        what="sends big-endian actions",
        action=lambda ids, chunk: {"action": chunk.astype(">f4")},
    ),
    "bool-2": Bug(what="sends a bool that is 2", metadata={"on": array("|b1", b"\2")}),
    "surrogate": Bug(
        what="sends a unicode array with a surrogate",
        metadata={"motto": array("<U1", b"\0\xd8\0\0")},
    ),
    "scalar-extra-key": Bug(
        what="sends a typed scalar with a key too many",
        metadata={"load": scalar("<i4", 1, unit="%")},
    ),
    "scalar-range": Bug(
        what="sends a typed scalar beyond its type",
        metadata={"load": scalar("|u1", 300)},
    ),
    "scalar-float64": Bug(
        what="sends a float64 as a typed scalar",
        metadata={"load": scalar("<f8", 0.5)},
    ),
    "no-envs": Bug(
        what="answers with actions for no env",
        action=lambda ids, chunk: {"env_ids": ids[:0], "action": chunk[:, :0]},
    ),
}

READING: Final = {
    "needs-bool-bytes": Bug(
        what="refuses bools that are neither 0 nor 1",
        refuses_array=lambda value, array: (
            array.dtype.kind == "b" and bool(set(value[b"data"]) - {0, 1})
        ),
    ),
    "needs-plain-scalars": Bug(what="refuses numbers in typed form", refuses_scalars=True),
    "refuses-unread-images": Bug(
        what="refuses images that were not declared",
        refuses_infer=lambda c, m, envs: (
            not m["data"]["images"].keys() <= {leaf[1] for leaf in c.declared}
        ),
    ),
    "needs-few-channels": Bug(
        what="refuses images of more than 4 channels",
        refuses_infer=lambda c, m, envs: any(
            image.shape[3] > 4 for image in m["data"]["images"].values()
        ),
    ),
    "requires-mask": Bug(
        what="refuses statistics of episodes without their mask",
        refuses_feedback=lambda c, m, envs: "mask" not in m["data"]["info"].get("episode", "mask"),
    ),
}

DISCRETE: Final = Bug(
    what="serves Discrete actions without their start",
    metadata={"action_dim": 1},
    misfit=lambda sentence: None if sentence.endswith(" Discrete") else (1008, sentence),
    action=lambda ids, chunk: {"action": np.zeros(chunk.shape[:2], dtype=np.int64)},
)

BUGS: Final = {**WRITING, **READING, "ignores-start": DISCRETE}
