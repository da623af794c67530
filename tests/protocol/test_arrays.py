"""Arrays and scalars on the wire (SPEC 4; cases B01 to B06)."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack
import numpy as np
import pytest

from plugrl_gym.errors import LocalProtocolError, RemoteProtocolError
from plugrl_gym.protocol import decode, encode
from tests.support.messages import same

KEYS = (b"__ndarray__", b"data", b"dtype", b"shape")


def through(value: Any) -> Any:
    return decode(encode({"x": value}))["x"]


def wire(data: Any = b"\0" * 8, dtype: Any = "<f8", shape: Any = (1,)) -> bytes:
    return msgpack.packb({b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape})


def scalar(data: Any, dtype: Any) -> bytes:
    return msgpack.packb({b"__npgeneric__": True, b"data": data, b"dtype": dtype})


GRID = np.arange(12.0).reshape(3, 4)
CHW = np.arange(60, dtype=np.uint8).reshape(1, 3, 4, 5)
LAYOUTS = {
    "fortran": np.asfortranarray(GRID),
    "transposed": GRID.T,
    "sliced": GRID[:, ::2],
    "reversed": GRID[::-1],
    "chw as hwc": CHW.transpose(0, 2, 3, 1),
    "broadcast": np.broadcast_to(np.array([1.0, 2.0]), (3, 2)),
    "column": GRID[:, 1:2],
    "byte-swapped": GRID.astype(">f8"),
    "unaligned": np.frombuffer(b"\0" + GRID.tobytes(), np.uint8)[1:].view(np.float64),
    "large fortran": np.asfortranarray(np.arange(40000.0).reshape(200, 200)),
    "large contiguous": np.arange(40000.0).reshape(200, 200),
    "large reversed": np.arange(40000.0)[::-1],
    "large big-endian": np.arange(40000, dtype=">i4"),
    "large text": np.array(["ab", "c"] * 20000),
    "large read-only": np.broadcast_to(np.arange(40000.0), (1, 40000)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_any_memory_layout_travels(name: str) -> None:
    array = LAYOUTS[name]
    read = through(array)
    assert same(read, array)
    assert read.flags.c_contiguous


def test_payload_is_the_elements_and_nothing_else() -> None:
    packed = msgpack.unpackb(encode({"x": GRID.T}), strict_map_key=False)["x"]
    assert tuple(packed) == KEYS
    assert len(packed[b"data"]) == 96


@pytest.mark.parametrize("shape", [(), (0,), (0, 7), (2, 0), (0, 480, 640, 3)])
@pytest.mark.parametrize("dtype", [np.float64, np.uint8, np.bool_, np.str_])
def test_shapes_without_elements_or_dimensions_survive(shape: tuple[int, ...], dtype: Any) -> None:
    read = through(np.zeros(shape, dtype))
    assert read.shape == shape
    assert isinstance(read, np.ndarray)


@pytest.mark.parametrize("code", ["?", "b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d", "U3"])
@pytest.mark.parametrize("order", "<>")
def test_every_legal_dtype_travels_in_both_byte_orders(code: str, order: str) -> None:
    array = np.array([0, 1, 1], dtype=np.dtype(code).newbyteorder(order))
    read = through(array)
    assert same(read, array)
    assert read.dtype == array.dtype


@pytest.mark.parametrize(
    "value",
    [
        np.array([None, 1], dtype=object),
        np.zeros(2, dtype="f4,i8"),
        np.zeros(2, dtype="M8[s]"),
        np.zeros(2, dtype="m8[s]"),
        np.zeros(2, dtype="c8"),
        np.zeros(2, dtype="c16"),
        np.zeros(2, dtype="S3"),
        np.zeros(2, dtype="V3"),
        np.zeros(2, dtype=np.longdouble),
        np.datetime64("2020-01-01"),
        np.timedelta64(3, "s"),
        np.complex64(1),
        np.longdouble(1),
        np.void(b"abc"),
    ],
    ids=lambda value: f"{value.dtype} {value.ndim}-d",
)
def test_writer_refuses_dtype_that_cannot_travel(value: Any) -> None:
    with pytest.raises(LocalProtocolError, match=r"^m\.data\.stamp: dtype .* cannot travel"):
        encode({"message_type": "m", "data": {"stamp": value}})


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy 1 has none")
def test_writer_refuses_variable_width_strings() -> None:
    with pytest.raises(LocalProtocolError, match="StringDType"):
        encode({"x": np.array(["a"], dtype=np.dtypes.StringDType())})


@pytest.mark.parametrize("text", ["\ud800", "ok\udfff"])
def test_writer_refuses_array_with_lone_surrogate(text: str) -> None:
    with pytest.raises(LocalProtocolError, match=r"^message\.x: text with a lone surrogate"):
        encode({"x": np.array(["fine", text])})
    with pytest.raises(LocalProtocolError, match="surrogate"):
        encode({"x": np.array([text]).astype(">U4")})


@pytest.mark.parametrize(
    "value",
    [np.float32(1.5), np.float16(2), np.int64(-3), np.uint8(255), np.bool_(True), np.int8(-1)],
    ids=lambda value: value.dtype.name,
)
def test_numpy_scalar_travels_typed(value: Any) -> None:
    for read in (through(value), through([value])[0], through({"deep": value})["deep"]):
        assert read == value
        assert type(read) is type(value)
    assert b"__npgeneric__" in encode({"x": value})


@pytest.mark.parametrize(("value", "kind"), [(np.float64(1.5), float), (np.str_("a"), str)])
def test_numpy_scalar_that_is_a_python_value_travels_plain(value: Any, kind: type) -> None:
    read = through(value)
    assert read == value
    assert type(read) is kind


def test_truth_stays_truth() -> None:
    assert through(True) is True
    assert through(np.True_).dtype == np.bool_
    assert through(np.array([True, False])).tolist() == [True, False]


def test_numpy_str_is_a_legal_key() -> None:
    assert decode(encode({np.str_("x"): 1})) == {"x": 1}


def test_decoded_array_is_read_only_view_of_aligned_bytes() -> None:
    read = through(GRID)
    assert not read.flags.writeable
    assert read.flags.aligned
    with pytest.raises(ValueError, match="read-only"):
        read += 1


def test_reader_takes_keys_in_any_order() -> None:
    value = {b"shape": [2], b"data": b"\1\0", b"dtype": "|b1", b"__ndarray__": True}
    assert decode(msgpack.packb(value)).tolist() == [True, False]


def test_reader_takes_any_byte_but_zero_as_true() -> None:
    read = decode(wire(b"\0\1\2\xff", "|b1", (2, 2)))
    assert read.tolist() == [[False, True], [True, True]]
    assert read.tobytes() == b"\0\1\1\1"


@pytest.mark.parametrize(
    "typestr",
    ["<O", "|O", "<V8", "<c8", "<M8[s]", "<m8", "|S4", "<f16", "<g", "f8", "=f8", "<f3", "<u3", "",
     "<U", "<U01", "<U-1", "|f8", "|i4", "|U3", "<b2", "<b", "float64", "<f8\n", "<f8 ",
     "<U9999999999", "<U99999999999", "(2,)<f8", "<f8,<f8", "T", "|T16", "\u0660", "<i\u0664"],
)  # fmt: skip
def test_reader_refuses_dtype_that_may_not_travel(typestr: str) -> None:
    with pytest.raises(RemoteProtocolError, match="array dtype"):
        decode(wire(b"", typestr, (0,)))


@pytest.mark.parametrize("typestr", [None, 3, b"<f8", ["<f8"], {"a": 1}, 1.5])
def test_reader_refuses_dtype_that_is_no_str(typestr: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="array dtype must be a str"):
        decode(wire(dtype=typestr))


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((1000000000,), "takes 8000000000 bytes, got 8"),
        ((2,), "takes 16 bytes, got 8"),
        ((0,), "takes 0 bytes, got 8"),
        ((-1,), "non-negative ints, got -1"),
        ((-1, -1), "non-negative ints, got -1"),
        ((1.0,), "got float"),
        ((True,), "got bool"),
        (("1",), "got str"),
        ((None,), "got NoneType"),
        (([1],), "got list"),
        (1, "must be a list, got int"),
        (None, "must be a list, got NoneType"),
        ({}, "must be a list, got dict"),
        ("1", "must be a list, got str"),
        ((1,) * 33, "33 dimensions"),
        ((2**62, 2**62, 2**62), "takes"),
    ],
)
def test_reader_refuses_shape_that_does_not_fit(shape: Any, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        decode(wire(shape=shape))


def test_reader_refuses_twenty_bytes_of_float64() -> None:
    with pytest.raises(RemoteProtocolError, match="takes 24 bytes, got 20"):
        decode(wire(b"\0" * 20, "<f8", (3,)))


@pytest.mark.parametrize("shape", [(0, 2**62), (2**62, 0, 8), (0, 2**63, 2**63), (0,) * 32])
@pytest.mark.parametrize("typestr", ["<f8", "<U536870911", "|u1"])
def test_reader_survives_huge_shape_without_elements(shape: Any, typestr: str) -> None:
    with contextlib.suppress(RemoteProtocolError):
        assert decode(wire(b"", typestr, shape)).shape == shape


@pytest.mark.parametrize("data", [None, "text", 1, [1], {"a": 1}, True])
def test_reader_refuses_data_that_is_no_bin(data: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="array data must be a msgpack bin"):
        decode(wire(data=data))


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("code", [0x110000, 0xFFFFFFFF, 0xD800, 0xDFFF])
def test_reader_refuses_text_of_no_code_points(order: str, code: int) -> None:
    data = np.array([65, code], dtype=f"{order}u4").tobytes()
    with pytest.raises(RemoteProtocolError, match="no code points"):
        decode(wire(data, f"{order}U1", (2,)))


def test_reader_takes_byte_order_mark_as_a_character() -> None:
    data = "\ufeffa".encode("utf-32-le")
    assert decode(wire(data, "<U2", (1,))).tolist() == ["\ufeffa"]


@pytest.mark.parametrize("size", [0, 3, 2**20])
def test_reader_takes_empty_strings_of_no_bytes(size: int) -> None:
    read = decode(wire(b"", "<U0", (size,)))
    assert read.shape == (size,)
    assert read.dtype.kind == "U"
    assert read[:3].tolist() == [""] * min(size, 3)


@pytest.mark.parametrize(
    "value",
    [
        {b"__ndarray__": True, b"data": b"", b"dtype": "<f8"},
        {b"__ndarray__": True, b"data": b"", b"dtype": "<f8", b"shape": [0], b"more": 1},
        {b"__ndarray__": False, b"data": b"", b"dtype": "<f8", b"shape": [0]},
        {b"__ndarray__": 1, b"data": b"", b"dtype": "<f8", b"shape": [0]},
        {b"__ndarray__": True, b"data": b"", "dtype": "<f8", b"shape": [0]},
        {b"__ndarray__": True, b"__npgeneric__": True, b"data": b"", b"dtype": "<f8"},
        {b"__npgeneric__": True, b"data": 1},
        {b"__npgeneric__": None, b"data": 1, b"dtype": "<f8"},
        {b"__ndarray__": True},
    ],
)
def test_reader_refuses_tagged_map_of_other_keys(value: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="exactly the bin keys"):
        decode(msgpack.packb(value))


@pytest.mark.parametrize("tag", ["__ndarray__", "__npgeneric__"])
def test_reader_names_str_keys(tag: str) -> None:
    with pytest.raises(RemoteProtocolError, match="str keys"):
        decode(msgpack.packb({tag: True, "data": b"", "dtype": "<f8", "shape": [0]}))


@pytest.mark.parametrize("tag", [b"nd", b"kind"])
def test_reader_names_package_msgpack_numpy(tag: bytes) -> None:
    value = {tag: True, b"type": "<f8", b"shape": [1], b"data": b"\0" * 8}
    with pytest.raises(RemoteProtocolError, match="msgpack-numpy"):
        decode(msgpack.packb({"x": value}))


@pytest.mark.parametrize(
    ("data", "typestr"),
    [
        (300, "|u1"), (-1, "|u1"), (128, "|i1"), (-129, "|i1"), (2**63, "<i8"), (2**31, "<i4"),
        (1e300, "<f4"), (70000.0, "<f2"), (2**64 - 1, "<f2"), ("abc", "<U2"),
    ],
)  # fmt: skip
def test_reader_refuses_scalar_that_its_dtype_cannot_hold(data: Any, typestr: str) -> None:
    with pytest.raises(RemoteProtocolError, match="cannot hold"):
        decode(scalar(data, typestr))


@pytest.mark.parametrize(
    ("data", "typestr"),
    [(1, "|b1"), (True, "<i8"), (True, "<f8"), (1.0, "<i8"), ("1", "<f8"), (1, "<U1"),
     (None, "<f8"), (b"1", "<U1"), ([1], "<i8"), ({}, "<f8")],
)  # fmt: skip
def test_reader_refuses_scalar_of_another_kind(data: Any, typestr: str) -> None:
    with pytest.raises(RemoteProtocolError, match="holds a"):
        decode(scalar(data, typestr))


@pytest.mark.parametrize(
    ("data", "typestr"),
    [(1, "<f8"), (1.5, ">f4"), (float("inf"), "<f2"), (-7, ">i2"), (True, "<b1"), ("ab", "<U4"),
     (2**64 - 1, "<u8"), (2**64 - 1, "<f4")],
)  # fmt: skip
def test_reader_reads_scalar(data: Any, typestr: str) -> None:
    read = decode(scalar(data, typestr))
    assert read.dtype.kind == np.dtype(typestr).kind
    assert read == pytest.approx(data) if not isinstance(data, str) else read == data


def test_reader_reads_scalar_nan() -> None:
    assert np.isnan(decode(scalar(float("nan"), "<f4")))
