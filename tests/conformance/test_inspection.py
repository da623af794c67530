"""Which clauses of SPEC 3 and 4 the inspector finds broken in a frame."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest

from plugrl_gym.conformance.inspection import Broken, frame_checks, inspect, observe_frame
from plugrl_gym.conformance.report import Report
from plugrl_gym.protocol import encode
from plugrl_gym.protocol.arrays import array_to_wire

ROWS = np.arange(6, dtype="<f4").reshape(2, 3)


def packed(**entries: Any) -> bytes:
    """A metadata message with more entries; arrays are given as maps."""
    return bytes(msgpack.packb({"message_type": "metadata", "data": {}, **entries}))


def array(**fields: Any) -> dict[bytes, Any]:
    """The map of ROWS with some fields replaced; ``tag`` is ``__ndarray__``."""
    names = {"tag": b"__ndarray__"}
    changed = {names.get(key, key.encode()): value for key, value in fields.items()}
    return {**array_to_wire(ROWS), b"shape": [2, 3], **changed}


def scalar(typestr: str, data: object, **more: object) -> dict[object, object]:
    return {b"__npgeneric__": True, b"data": data, b"dtype": typestr, **more}


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def u(*codes: int) -> dict[bytes, Any]:
    data = np.array(codes, dtype="<u4").tobytes()
    return array(data=data, dtype=f"<U{len(codes)}", shape=[1])


BROKEN: list[tuple[str, bytes, set[str]]] = [
    ("empty", b"", {"3.1"}),
    ("not msgpack", b"\xc1", {"3.1"}),
    ("cut short", packed()[:-1], {"3.1"}),
    ("huge claim", b"\xdd\xff\xff\xff\xff", {"3.1"}),
    ("trailing byte", packed() + b"\0", {"3.1"}),
    ("two messages", packed() * 2, {"3.1"}),
    ("no map", msgpack.packb([1]), {"3.2"}),
    ("no message_type", msgpack.packb({"a": 1}), {"3.2"}),
    ("unknown message_type", msgpack.packb({"message_type": "infr"}), {"3.3"}),
    ("message_type of another type", msgpack.packb({"message_type": 3}), {"3.3"}),
    ("int key", packed(data={1: 2}), {"3.4"}),
    ("nil key", packed(data={None: 2}), {"3.4"}),
    ("bin key", packed(data={b"x": 2}), {"3.4"}),
    ("key order", msgpack.packb({"data": {}, "message_type": "metadata"}), {"3.6"}),
    ("key twice", b"\x83" + packed()[1:] + b"\xa4data\xc0", {"3.8"}),
    ("invalid UTF-8", packed(x="abc").replace(b"abc", b"a\xffc"), {"3.10"}),
    ("invalid UTF-8 in a key", packed(abc=1).replace(b"abc", b"a\xffc"), {"3.10"}),
    ("timestamp", packed(x=msgpack.Timestamp(1)), {"3.11"}),
    ("extension", packed(x=msgpack.ExtType(7, b"")), {"3.11"}),
    ("65 levels", packed(x=nested(64)), {"3.13"}),
    ("100000 levels", b"\x91" * 100_000 + b"\xc0", {"3.13"}),
    ("array without shape", packed(x=dict(list(array().items())[:3])), {"4.1"}),
    ("array with a key too many", packed(x={**array(), b"order": 1}), {"4.1"}),
    ("msgpack-numpy", packed(x={b"nd": True, b"type": "<f4", b"kind": b"", b"data": b""}), {"4.1"}),
    ("str keys", packed(x={k.decode(): v for k, v in array().items()}), {"4.2", "4.36"}),
    ("str tag alone", packed(x={"__ndarray__": 1}), {"4.36"}),
    ("scalar with str keys",
     packed(x={"__npgeneric__": True, "data": 1, "dtype": "<i4"}), {"4.30", "4.36"}),
    ("array key order", packed(x=dict(reversed(array().items()))), {"4.3"}),
    ("tag of 1", packed(x=array(tag=1)), {"4.5"}),
    ("data of str", packed(x=array(data="a" * 24)), {"4.6"}),
    ("dtype of bin", packed(x=array(dtype=b"<f4")), {"4.7"}),
    ("negative shape", packed(x=array(shape=[-2, -3])), {"4.8"}),
    ("float shape", packed(x=array(shape=[2.0, 3])), {"4.8"}),
    ("bool shape", packed(x=array(shape=[True, 6])), {"4.8"}),
    ("short data", packed(x=array(data=b"1")), {"4.10"}),
    ("long data", packed(x=array(data=bytes(25))), {"4.10"}),
    ("complex", packed(x=array(dtype="<c8")), {"4.14", "4.19"}),
    ("object", packed(x=array(dtype="|O")), {"4.14", "4.19"}),
    ("name of a dtype", packed(x=array(dtype="float32")), {"4.14", "4.19"}),
    ("bar with float", packed(x=array(dtype="|f4")), {"4.15"}),
    ("big-endian", packed(x=array(dtype=">f4")), {"4.18"}),
    ("bool of 2", packed(x=array(data=b"\2", dtype="|b1", shape=[1])), {"4.22"}),
    ("surrogate", packed(x=u(0xDC00)), {"4.28"}),
    ("code point too large", packed(x=u(0x110000)), {"4.28"}),
    ("scalar with a key too many", packed(x=scalar("<i4", 1, unit=2)), {"4.30"}),
    ("scalar out of range", packed(x=scalar("|u1", 256)), {"4.31"}),
    ("bool scalar of int", packed(x=scalar("|b1", 1)), {"4.31"}),
    ("int scalar of bool", packed(x=scalar("<i4", True)), {"4.31"}),
    ("float64 scalar", packed(x=scalar("<f8", 1.0)), {"4.32"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "frame", "clauses"), BROKEN, ids=[name for name, *_ in BROKEN])
def test_inspector_names_exactly_the_broken_clauses(
    name: str, frame: bytes, clauses: set[str]
) -> None:
    found = inspect(frame)
    assert {fault.clause for fault in found.faults} == clauses
    assert clauses <= found.clauses


def test_every_frame_check_is_broken_by_some_frame() -> None:
    broken = {clause for _, _, clauses in BROKEN for clause in clauses}
    assert {check.clause for check in frame_checks("server")} == broken


def test_valid_frame_has_no_faults_and_is_read_as_the_codec_reads_it() -> None:
    frame = encode(
        {
            "message_type": "action",
            "data": {
                "env_ids": np.arange(2),
                "action": ROWS.reshape(1, 2, 3),
                "more": [np.float32(0.5), np.bool_(True), np.array(["ä", ""]), np.array(1)],
                "empty": np.zeros((0, 7), dtype="|b1"),
            },
        }
    )
    found = inspect(frame)
    assert found.faults == []
    assert found.message_type == "action"
    data = found.value["data"]
    np.testing.assert_array_equal(data["action"], ROWS.reshape(1, 2, 3))
    assert [x.dtype.str for x in data["more"]] == ["<f4", "|b1", "<U1", "<i8"]
    assert data["empty"].shape == (0, 7)


def test_u0_array_is_read_without_an_allocation() -> None:
    found = inspect(packed(x=array(data=b"", dtype="<U0", shape=[2**40])))
    assert found.faults == []
    assert found.value["x"].shape == (2**40,)


def test_inspector_goes_on_after_a_fault() -> None:
    frame = packed(a=array(data=b"1"), b={1: msgpack.Timestamp(0)}, c=array(dtype=">f4"))
    found = inspect(frame)
    assert {fault.clause for fault in found.faults} == {"3.4", "3.11", "4.10", "4.18"}
    assert isinstance(found.value["a"], Broken)
    assert found.value["c"].shape == (2, 3)


def test_clauses_without_occasion_are_not_counted() -> None:
    found = inspect(packed())
    assert "4.1" not in found.clauses
    assert "4.30" not in found.clauses
    assert "3.1" in found.clauses


def test_observation_of_a_frame_says_where_and_what() -> None:
    report = Report("server", frame_checks("server"))
    observe_frame(report, inspect(packed(x=array(data=b"1"))), scenario="exchange")
    (found,) = report.violations
    assert found.check.clause == "4.10"
    assert found.evidence[0].got == "x.data: 1 bytes"
    assert found.evidence[0].expected == "24 bytes for <f4 [2, 3]"


@pytest.mark.parametrize("seed", range(40))
def test_inspector_survives_any_bytes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    valid = bytearray(packed(x=array(), y=u(65), z=[scalar("<i4", 1), {"k": nested(5)}]))
    for _ in range(50):
        frame = bytearray(valid)
        for place in rng.integers(0, len(frame), 3):
            frame[place] = rng.integers(256)
        inspect(bytes(frame[: rng.integers(len(frame) + 1)]))
        inspect(bytes(rng.integers(0, 256, rng.integers(60), dtype=np.uint8)))
