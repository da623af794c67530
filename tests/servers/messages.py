"""Well-formed messages, and one of every kind of malformed ones."""

from __future__ import annotations

import copy
from typing import Any

import msgpack
import numpy as np

from tests.servers.wire import array_map, encode

H, DA = 2, 3

# fmt: off


def observation(n: int) -> dict[str, Any]:
    return {"images": {}, "states": {"s": np.zeros((n, 2))}, "text": np.zeros(n, "<U1")}


def infer(envs: Any = (0,), **changes: Any) -> dict[str, Any]:
    ids = np.array(envs, np.int64)
    message = {
        "message_type": "infer",
        "data": observation(len(ids)),
        "env_indices": ids,
        "step_ids": np.zeros(len(ids), np.int64),
    }
    return {key: value for key, value in (message | changes).items() if value is not None}


def feedback(envs: Any = (0,), ended: bool = False, **changes: Any) -> dict[str, Any]:
    """``changes`` with the name of a key of ``data`` go there."""
    m = len(envs)
    data = {
        "obs": observation(m),
        "rewards": np.ones(m, np.float32),
        "terminated": np.full(m, ended),
        "truncated": np.zeros(m, bool),
        "info": {},
    }
    inner = {key: changes.pop(key) for key in list(changes) if key in data}
    message = infer(envs, message_type="feedback", data=data | inner)
    message = {key: message[key] for key in ("message_type", "env_indices", "step_ids", "data")}
    return message | changes


BOX = {
    "type": "Box",
    "shape": [DA],
    "dtype": "<f4",
    "low": np.full(DA, -1, np.float32),
    "high": np.full(DA, 1, np.float32),
}
STATE = {
    "type": "Box",
    "shape": [2],
    "dtype": "<f8",
    "low": np.full(2, -np.inf),
    "high": np.full(2, np.inf),
}


def spaces(**changes: Any) -> dict[str, Any]:
    declaration = {
        "env_id": None,
        "num_envs": 1,
        "autoreset": "same-step",
        "observation": {"type": "Dict", "spaces": {"s": STATE}},
        "action": BOX,
    }
    return {k: v for k, v in (declaration | changes).items() if v is not ...}


TWO = feedback((0, 1))
REUSE_ALL = observation(0) | {"states": {"s": np.zeros((0, 2))}}
STEPS = {"steps": np.array([2, 1]), "step_rewards": np.array([[1, 1], [1, 0]], np.float32)}
ACTIONS = {"actions": np.zeros((2, 2, DA)), "overridden": np.array([True, False])}
MIXED = {
    "type": "Dict",
    "spaces": {
        "camera": {
            "type": "Box", "shape": [4, 6, 8], "dtype": "|u1",
            "low": np.zeros((4, 6, 8), np.uint8), "high": np.full((4, 6, 8), 255, np.uint8),
        },
        "a/b~": {"type": "Tuple", "spaces": [
            {"type": "Discrete", "n": 3, "start": 0, "dtype": "<i8"},
            {"type": "MultiBinary", "shape": [2, 2]},
            {"type": "MultiDiscrete",
             "nvec": np.array([2, 3]), "start": np.array([0, 0]), "dtype": "<i8"},
        ]},
        "task": {"type": "Text", "min_length": 0, "max_length": 9, "charset": "abc"},
        "hint": {"type": "Text", "min_length": 0, "max_length": 5, "charset": "abc"},
    },
}
MIXED_OBSERVATION = {
    "images": {"camera": np.zeros((1, 6, 8, 4), np.uint8)},
    "states": {
        "a~1b~0/0": np.zeros((1, 1), np.int64),
        "a~1b~0/1": np.zeros((1, 4), np.int8),
        "a~1b~0/2": np.zeros((1, 2), np.int64),
        "hint": np.zeros((1, 5), np.uint32),
        "undeclared": np.zeros((1, 1)),
    },
    "text": ["go"],
}


# ------------------------------------------------------------------- everything malformed

Spoil = dict[str, list[Any]]


def spoiled(base: dict[str, Any], *path: str, to: Any = ...) -> dict[str, Any]:
    """``base`` with the value at ``path`` replaced, or removed."""
    message = copy.deepcopy(base)
    place = message
    for key in path[:-1]:
        place = place[key]
    if to is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return message


def array_with(**changes: Any) -> dict[bytes, Any]:
    """The env_indices [0] with some of its map's entries changed."""
    return array_map([0], "<i8") | {key.encode(): value for key, value in changes.items()}


ARRAYS: Spoil = {  # in the place of env_indices
    "msgpack-numpy": [
        {b"nd": True, b"type": "<i8", b"kind": b"", b"shape": [1], b"data": bytes(8)},
        {"nd": True, "type": "<i8", "kind": "", "shape": [1], "data": bytes(8)},
    ],
    "str-keys": [{"__ndarray__": True, "data": bytes(8), "dtype": "<i8", "shape": [1]}],
    "forbidden-dtype": [
        *(array_with(dtype=d, data=bytes(n)) for d, n in (
            ("|O", 8), ("<c8", 8), ("<M8[s]", 8), ("|V4", 4), ("|S3", 3), ("<f16", 16), ("i8", 8),
            ("=i8", 8), ("|i8", 8), ("|U1", 4), ("<i3", 3), ("", 8),
            ("<U01", 4), ("<U999999999999", 0),
        )),
        array_with(dtype=b"<i8"), array_with(dtype=8), array_with(dtype=[["x", "<i8"]]),
    ],
    "short-data": [
        array_with(data=bytes(7)), array_with(data=bytes(9)), array_with(data=b""),
        array_with(shape=[2]), array_with(shape=[10**9]), array_with(shape=[2**62, 2**62]),
        array_with(shape=[]) | {b"data": b""},
    ],
    "bad-array": [
        array_with(more=1), {k: v for k, v in array_with().items() if k != b"dtype"},
        {**array_with(), b"__ndarray__": False}, {**array_with(), b"__ndarray__": 1},
        array_with(data="x" * 8), array_with(data=[0] * 8), array_with(shape=1),
        array_with(shape=[-1]), array_with(shape=[1.0]), array_with(shape=[True]),
        array_with(shape=[[1]]), array_with(shape=[1] * 33),
        array_with(shape=[0, 2**63]) | {b"data": b""},
        array_with(shape=[0, 2**62, 2**62]) | {b"data": b""},
        array_with(dtype="<U1", data=b"\x00\x00\x11\x00"),
        array_with(dtype="<U1", data=b"\x00\xd8\x00\x00"),
        {b"__npgeneric__": True, b"data": 300, b"dtype": "|u1"},
        {b"__npgeneric__": True, b"data": True, b"dtype": "<i4"},
        {b"__npgeneric__": True, b"data": 1},
    ],
    "wrong-type": [
        None, 0, [0], "0", {}, b"0", {b"__npgeneric__": True, b"data": 0, b"dtype": "<i8"},
        np.array([0.0]), np.array([[0]]), np.array(0), np.array([True]), np.array(["0"]),
        np.array([2**63], np.uint64),
    ],
    "duplicate-index": [np.array([3, 3])],
    "negative-index": [np.array([-1])],
    "empty-set": [np.zeros(0, np.int64)],
    "row-mismatch": [np.array([0, 1])],
    "extension": [msgpack.ExtType(5, b"x"), msgpack.Timestamp(1), [msgpack.Timestamp(1)]],
    "odd-key": [{1: 2}, {b"x": 1}, {None: 1}],
}

HUGE_U0 = {b"__ndarray__": True, b"data": b"", b"dtype": "<U0", b"shape": [10**9]}
OBSERVATIONS: Spoil = {  # in the place of a one-row observation
    "missing-key": [spoiled(observation(1), key) for key in ("images", "states", "text")],
    "extra-key": [observation(1) | {"sounds": {}}],
    "wrong-type": [
        None, [], np.zeros(1),
        *(observation(1) | {"images": {"i": image}} for image in (
            np.zeros((1, 2, 2)), np.zeros((1, 2, 2, 3)), np.zeros((1, 2, 2), np.uint8),
            np.zeros((1, 2, 2, 3), np.uint16), None, [[1]])),
        *(observation(1) | {"states": {"s": state}} for state in (
            np.zeros(1), np.zeros((1, 2, 2)), np.array([["x"]]),
            [[1.0]], 1.0, {"t": np.zeros((1, 1))})),
        *(observation(1) | {"text": text} for text in (
            "x", None, [1], [None], np.zeros(1), np.array([["x"]]), {})),
        observation(1) | {"images": []}, observation(1) | {"states": None},
    ],
    "row-mismatch": [
        observation(2), observation(0), observation(1) | {"text": []},
        observation(1) | {"text": ["a", "b"]}, observation(1) | {"text": HUGE_U0},
        observation(1) | {"states": {"s": np.zeros((1, 1)), "t": np.zeros((3, 1))}},
        observation(1) | {"images": {"i": np.zeros((2, 2, 2, 3), np.uint8)}},
    ],
}

FRAMES: Spoil = {
    "text": ["hello", "{}"],
    "undecodable": [
        b"", b"\xc1", b"\x81", encode(infer())[:-1], encode(infer()) + b"\xc0", b"\x91" * 5000,
        b"\x91" * 500 + b"\xc0" * 2, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff", b"\xdd\x00\x10\x00\x00" * 900 + b"\xc0" * (1 << 20),
        b"\x81\xa1\xff\x01", b"\x81\x90\x01", bytes([0x82]) + b"\x81\xc0\xc0" * 4,
    ],
    "odd-key": [b"\x82" + 2 * (msgpack.packb("message_type") + msgpack.packb("infer"))],
    "wrong-type": [[], 1, None, "x", spoiled(infer(), "message_type", to=1),
                   spoiled(infer(), "message_type", to=np.array(["infer", "feedback"]))],
    "missing-key": [{}, spoiled(infer(), "message_type")],
    "wrong-message-type": [
        {"message_type": kind, "data": {}} for kind in ("metadata", "action", "hello", "")
    ],
}

INFERS: Spoil = {
    **{kind: [spoiled(infer(), "env_indices", to=bad) for bad in bads]
       for kind, bads in ARRAYS.items()},
    "two-feedbacks": [feedback()],
    "missing-key": [spoiled(infer(), key) for key in ("data", "env_indices", "step_ids")],
    "non-finite": [
        spoiled(infer(), "data", "states", "s", to=np.array([[0, bad]]))
        for bad in (np.nan, -np.inf)
    ],
    "reuse-without-feedback": [infer(reuse=np.array([True]), data=REUSE_ALL)],
    "late-spaces": [],
    "bad-spaces": [
        infer(spaces=bad) for bad in (
            {}, [], 5, spaces(env_id=5), spaces(num_envs=0), spaces(num_envs="1"),
            spaces(action=...),
            spaces(autoreset="never"),
            spaces(autoreset=np.array(["same-step"] * 2)), spaces(mode="x"),
            spaces(observation=None), spaces(observation={}), spaces(observation={"type": "Graph"}),
            spaces(action={"type": "Box"}), spaces(action=BOX | {"shape": [4]}),
            spaces(action=BOX | {"low": np.zeros(DA)}), spaces(action=BOX | {"low": [0.0] * DA}),
            spaces(observation={"type": "Dict", "spaces": []}),
            spaces(observation={"type": "Discrete", "n": 0, "start": 0, "dtype": "<i8"}),
            spaces(observation={"type": np.array(["Box", "x"])}),
        )
    ],
    "other-layout": [
        infer(spaces=spaces(), data=data) for data in (
            observation(1) | {"states": {}},
            observation(1) | {"states": {"s": np.zeros((1, 3))}},
            observation(1) | {"states": {"s": np.zeros((1, 2), np.float32)}},
        )
    ],
}
for kind, bads in (
    ("wrong-type", ("x", np.array([0.0]), [0])),
    ("row-mismatch", (np.array([0, 0]),)),
):
    INFERS[kind] = INFERS[kind] + [spoiled(infer(), "step_ids", to=bad) for bad in bads]
for kind, bads in (
    ("wrong-type", ([True], np.array([1]))),
    ("row-mismatch", (np.array([False] * 2),)),
):
    INFERS[kind] = INFERS[kind] + [infer(reuse=bad) for bad in bads]

ONE, DATA = feedback(), "data"
FEEDBACKS: Spoil = {
    **{kind: [spoiled(ONE, "env_indices", to=bad) for bad in bads]
       for kind, bads in ARRAYS.items()},
    "two-infers": [infer()],
    "missing-key": [
        *(spoiled(ONE, key) for key in ("data", "env_indices", "step_ids")),
        *(spoiled(ONE, DATA, key) for key in ONE[DATA]),
    ],
    "extra-key": [spoiled(ONE, DATA, "reward", to=1.0)],
    "wrong-type": [
        *(spoiled(ONE, DATA, "rewards", to=bad) for bad in (
            [1.0], 1.0, np.array([1]), np.array([[1.0]]), np.array(["1"]))),
        *(spoiled(ONE, DATA, "terminated", to=bad) for bad in (
            [False], False, np.zeros(1, np.uint8), np.zeros((1, 1), bool), np.zeros((), bool))),
        *(spoiled(ONE, DATA, "truncated", to=bad) for bad in ([False], np.zeros(1))),
        *(spoiled(ONE, DATA, "info", to=bad) for bad in (None, [], "x", np.zeros(1))),
    ],
    "row-mismatch": [
        spoiled(ONE, DATA, "rewards", to=np.ones(2)),
        spoiled(ONE, DATA, "terminated", to=np.zeros(0, bool)),
        spoiled(ONE, DATA, "truncated", to=np.zeros(2, bool)),
        spoiled(ONE, "step_ids", to=np.zeros(2, np.int64)),
    ],
    "unsplittable-info": [
        feedback((0, 1), info=info) for info in (
            {"a": 1}, {"a": np.zeros(3)}, {"a": np.zeros(())}, {"a": np.zeros((), bool)},
            {"a": {"b": np.zeros(5)}, "c": np.zeros(2)}, {"a": {"b": {"c": np.zeros(2)}}},
            {"a": [np.zeros(2)]}, {"a": HUGE_U0},
        )
    ],
    "bad-chunk-steps": [
        TWO | bad for bad in (
            STEPS | {"steps": np.array([0, 2])}, STEPS | {"steps": np.array([2])},
            STEPS | {"steps": [2, 1]}, STEPS | {"steps": np.array([2.0, 1.0])},
            STEPS | {"steps": np.array([3, 1]), "step_rewards": np.ones((3, 2), np.float32)},
            STEPS | {"step_rewards": np.ones((2, 2), np.float32)},
            STEPS | {"step_rewards": np.ones((1, 2), np.float32)},
            STEPS | {"step_rewards": np.ones((2, 2), np.int64)},
            {"steps": STEPS["steps"]}, {"step_rewards": STEPS["step_rewards"]},
        )
    ],
    "bad-executed-actions": [
        TWO | bad for bad in (
            ACTIONS | {"actions": np.zeros((2, 2))}, ACTIONS | {"actions": np.zeros((0, 2, DA))},
            ACTIONS | {"actions": np.zeros((2, 2, DA + 1))}, ACTIONS | {"actions": np.zeros(())},
            ACTIONS | {"actions": np.zeros((H + 1, 2, DA))}, ACTIONS | {"actions": [0.0]},
            ACTIONS | {"overridden": np.zeros(2)}, ACTIONS | {"overridden": np.zeros(1, bool)},
            {"actions": ACTIONS["actions"]}, {"overridden": ACTIONS["overridden"]},
            STEPS | ACTIONS | {"actions": np.zeros((1, 2, DA))},
        )
    ],
    "other-layout": [],
}
for kind, bads in OBSERVATIONS.items():
    INFERS[kind] = INFERS.get(kind, []) + [infer(data=bad) for bad in bads]
    FEEDBACKS[kind] = FEEDBACKS[kind] + [spoiled(ONE, DATA, "obs", to=bad) for bad in bads]
for kind, bads in FRAMES.items():
    INFERS[kind] = INFERS.get(kind, []) + bads
    FEEDBACKS[kind] = FEEDBACKS.get(kind, []) + bads
