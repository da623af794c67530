"""Frames in general (SPEC 3; cases B07 to B09): what is refused, and where it is said to be."""

from __future__ import annotations

import datetime
import enum
import pathlib
import struct
from collections import OrderedDict, namedtuple
from typing import Any

import msgpack
import numpy as np
import pytest

from plugrl_gym.errors import LocalProtocolError, RemoteProtocolError
from plugrl_gym.protocol import Metadata, check_encodable, decode, encode
from plugrl_gym.protocol.codec import MAX_DEPTH
from tests.support.messages import feedback


def nested(depth: int, kind: type = list) -> Any:
    value: Any = kind()
    for _ in range(depth - 1):
        value = [value] if kind is list else {"a": value}
    return value


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
CYCLIC_MAP: dict[str, Any] = {}
CYCLIC_MAP["again"] = CYCLIC_MAP
Point = namedtuple("Point", "x y")


class Colour(enum.IntEnum):
    RED = 1


SENDABLE = {
    "none": None,
    "bools": [True, False],
    "numbers": [0, -1, 2**64 - 1, -(2**63), 1.5, float("nan"), float("inf")],
    "text": "snowman \u2603 and robot \U0001f916",
    "bytes": b"\x00\xff",
    "arrays": {"a": np.zeros((2, 3), np.uint8), "b": [np.float32(1), np.int64(2)]},
    "tuple": (1, (2, 3)),
    "named tuple": Point(1, 2),
    "ordered": OrderedDict(b=1, a=2),
    "enum": Colour.RED,
    "empty": [{}, [], "", b""],
    "deep": nested(MAX_DEPTH - 3),
}


@pytest.mark.parametrize("name", SENDABLE)
def test_checked_value_travels(name: str) -> None:
    info = {"key": SENDABLE[name]}
    check_encodable(info, "info", depth=2)
    decode(encode({"message_type": "feedback", "data": {"info": info}}))


UNSENDABLE: dict[str, tuple[Any, str]] = {
    "datetime64": (np.datetime64("2020-01-01"), "info.stamp: dtype datetime64"),
    "datetime": (datetime.datetime(2020, 1, 1), "info.stamp is a datetime"),
    "object array": (np.array([None]), "info.stamp: dtype object"),
    "structured": (np.zeros(2, "f4,f4"), "info.stamp: dtype"),
    "function": (len, "info.stamp is a builtin_function_or_method"),
    "set": ({1}, "info.stamp is a set"),
    "path": (pathlib.Path("x"), "info.stamp is a "),
    "complex": (1j, "info.stamp is a complex"),
    "bytearray": (bytearray(b"x"), "info.stamp is a bytearray"),
    "memoryview": (memoryview(b"abcd")[::2], "info.stamp is a memoryview"),
    "big int": (2**70, "info.stamp is an int of more than 64 bits"),
    "first int too large": (2**64, "info.stamp is an int"),
    "first int too small": (-(2**63) - 1, "info.stamp is an int"),
    "enormous int": (1 << 100_000, "info.stamp is an int"),
    "surrogate": ("\ud800", "info.stamp holds a lone surrogate"),
    "surrogate array": (np.array(["\ud800"]), "info.stamp: text with a lone surrogate"),
    "surrogate key": ({"\ud800": 1}, "info.stamp has the key '.ud800', which holds"),
    "int key": ({0: 1.0}, "info.stamp has the key 0; keys on the wire are str"),
    "tuple key": ({(1, 2): 3}, "info.stamp has the key .1, 2.; keys"),
    "numpy key": ({np.int64(1): 2}, "info.stamp has the key .*1.*; keys"),
    "none key": ({None: 1}, "info.stamp has the key None"),
    "bool key": ({True: 1}, "info.stamp has the key True"),
    "bytes key": ({b"a": 1}, "info.stamp has the key b'a'"),
    "array in bytes keys": (
        {b"__ndarray__": True, b"data": b"", b"dtype": "<f8", b"shape": [0]},
        "info.stamp has the key b'__ndarray__'",
    ),
    "reserved key": ({"__ndarray__": 1}, "info.stamp has the key '__ndarray__', which is reserved"),
    "other reserved key": ({"a": {"__npgeneric__": 1}}, "info.stamp.a has the key"),
    "extension": (msgpack.ExtType(5, b"x"), "info.stamp is a ExtType"),
    "timestamp": (msgpack.Timestamp(1), "info.stamp is a Timestamp"),
    "mapping": (OrderedDict(a=1).items(), "info.stamp is a odict_items"),
    "cyclic list": (CYCLE, "nested more than 64 deep, or in itself"),
    "cyclic map": (CYCLIC_MAP, "nested more than 64 deep, or in itself"),
    "too deep": (nested(MAX_DEPTH), "nested more than 64 deep"),
    "in a list": ([1, {"a": [object()]}], r"info.stamp\[1\].a\[0\] is a object"),
    "object array in a list": ([np.array([object()])], r"info.stamp\[0\]: dtype object"),
}


@pytest.mark.parametrize("name", UNSENDABLE)
def test_check_names_place_of_value_that_cannot_travel(name: str) -> None:
    value, text = UNSENDABLE[name]
    with pytest.raises(LocalProtocolError, match=f"^info.*{text[4:]}"):
        check_encodable({"fine": 1, "stamp": value}, "info")


@pytest.mark.parametrize("name", UNSENDABLE)
def test_feedback_with_such_info_is_refused_before_it_is_packed(name: str) -> None:
    value, text = UNSENDABLE[name]
    with pytest.raises(
        LocalProtocolError, match=f"^feedback.data.{text}" if "info" in text else text
    ):
        feedback(info={"row": np.zeros(2), "stamp": value}).to_wire()


@pytest.mark.parametrize("name", UNSENDABLE)
def test_metadata_with_such_extra_is_refused_before_it_is_packed(name: str) -> None:
    value, _ = UNSENDABLE[name]
    with pytest.raises(LocalProtocolError, match=r"^metadata\.data"):
        Metadata(extra={"stamp": value}).to_wire()


@pytest.mark.parametrize(
    "name", [n for n in UNSENDABLE if "key" not in n and n not in (
        "extension", "timestamp", "bytearray", "too deep", "array in bytes keys")]
)  # fmt: skip
def test_writer_names_place_in_message(name: str) -> None:
    value, _ = UNSENDABLE[name]
    with pytest.raises(LocalProtocolError, match=r"^feedback\.data\.info(\.stamp|.*nested)"):
        encode({"message_type": "feedback", "data": {"info": {"fine": 1, "stamp": value}}})


def test_depth_counts_maps_lists_and_the_two_levels_of_an_array() -> None:
    check_encodable(nested(64), "x")
    check_encodable(nested(62), "x", depth=2)
    with pytest.raises(LocalProtocolError):
        check_encodable(nested(63), "x", depth=2)
    check_encodable(np.zeros(1), "x", depth=62)
    with pytest.raises(LocalProtocolError):
        check_encodable(np.zeros(1), "x", depth=63)


def test_counters_beyond_32_bits_travel() -> None:
    assert decode(encode({"x": [2**31 + 5, 2**32, 2**63]})) == {"x": [2**31 + 5, 2**32, 2**63]}


HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "no msgpack": b"\xc1",
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "json": b'{"message_type": "infer"}',
    "trailing byte": b"\x80\x00",
    "two values": b"\x80\x80",
    "int key": b"\x81\x01\x02",
    "nil key": b"\x81\xc0\x02",
    "float key": b"\x81\xcb" + bytes(8) + b"\x01",
    "list key": b"\x81\x90\x01",
    "map key": b"\x81\x80\x01",
    "array key": b"\x81" + msgpack.packb({b"__ndarray__": True}) + b"\x01",
    "bin key": b"\x81\xc4\x01a\x01",
    "same key twice": b"\x82\xa1a\x01\xa1a\x02",
    "same key twice, deep": b"\x81\xa1x\x91\x82\xa1a\x01\xa1a\x02",
    "array key twice": b"\x85\xc4\x0b__ndarray__\xc3\xc4\x04data\xc4\x00\xc4\x05dtype\xa3<f8"
    b"\xc4\x05shape\x91\x00\xc4\x05shape\x91\x00",
    "invalid UTF-8": b"\xa2\xff\xfe",
    "surrogate in UTF-8": b"\xa3\xed\xa0\x80",
    "invalid UTF-8 key": b"\x81\xa1\xff\x01",
    "fixext1": b"\xd4\x05x",
    "ext8": b"\xc7\x01\x05x",
    "ext8 of no bytes": b"\xc7\x00\x05",
    "ext32": b"\xc9\x00\x00\x00\x01\x05x",
    "timestamp 32": b"\xd6\xff\x00\x00\x00\x01",
    "timestamp 64": b"\xd7\xff" + bytes(8),
    "timestamp 96": b"\xc7\x0c\xff" + bytes(12),
    "timestamp in a map": b"\x81\xa1a\xd6\xff\x00\x00\x00\x01",
    "timestamp in a list": b"\x91\xd6\xff\x00\x00\x00\x01",
    "bad timestamp": b"\xd4\xffx",
    "announced list": b"\xdd\xff\xff\xff\xff",
    "announced map": b"\xdf\xff\xff\xff\xff",
    "announced str": b"\xdb\xff\xff\xff\xff",
    "announced bin": b"\xc6\xff\xff\xff\xff",
    "announced ext": b"\xc9\xff\xff\xff\xff\x05",
    "announced lists in lists": b"\xdd\x00\x00\xff\xff" * 100,
    "announced just more": b"\xdc\x00\x50" + b"\x01" * 79,
    "deep lists": b"\x91" * 100_000,
    "deep maps": b"\x81\xa1a" * 100_000,
    "deep closed lists": b"\x91" * 100_000 + b"\x90",
    "deep after a large list": b"\x92\xdc\x00\x50" + b"\x01" * 80 + b"\x91" * 5000 + b"\x90",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_reader_refuses_hostile_frame_in_one_line(name: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(HOSTILE[name])
    text = str(caught.value)
    assert text.isprintable()
    assert 10 < len(text) < 300


@pytest.mark.parametrize("name", [n for n in HOSTILE if "timestamp" in n or "ext8" in n])
def test_reader_names_extension_types(name: str) -> None:
    with pytest.raises(RemoteProtocolError, match=r"msgpack extension type \(SPEC 3\.11\)"):
        decode(HOSTILE[name])


def test_reader_names_repeated_key() -> None:
    with pytest.raises(RemoteProtocolError, match="names a key twice"):
        decode(HOSTILE["same key twice"])


@pytest.mark.parametrize("size", [63, 64, 65, 1000, 70_000])
def test_reader_reads_large_lists_and_maps(size: int) -> None:
    value = {"list": list(range(size)), "map": {str(i): i for i in range(size)}, "n": np.arange(2)}
    read = decode(encode(value))
    assert read["list"] == value["list"]
    assert read["map"] == value["map"]
    assert read["n"].tolist() == [0, 1]


def test_reader_refuses_large_list_that_ends_early() -> None:
    frame = encode({"x": list(range(1000))})
    for length in range(4, len(frame), 97):
        with pytest.raises(RemoteProtocolError):
            decode(frame[:length])


def test_reader_reads_what_lies_at_the_limit_of_depth() -> None:
    assert decode(msgpack.packb(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    assert decode(msgpack.packb(nested(MAX_DEPTH, dict))) == nested(MAX_DEPTH, dict)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -0.0, struct.unpack(">f", b"\0\0\0\1")[0]]
)
def test_reader_reads_any_float(value: float) -> None:
    assert struct.pack(">d", decode(msgpack.packb(value))) == struct.pack(">d", value)
