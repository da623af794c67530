"""Hypothesis strategies for what a broken or hostile peer may send."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgpack
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

__all__ = ["fuzz", "junk", "mutated", "places", "spliced", "unpacked"]


def fuzz(examples: int) -> settings:
    """Settings of a fuzz test: the same examples on every run, no time limit for one."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


TYPESTRS = st.sampled_from(
    ["<f8", "<f4", "<f2", ">f8", "|b1", "|u1", "|i1", "<i8", ">i8", "<u8", "<i4", "<U0", "<U1",
     ">U2", "<U999999999", "|O", "<M8[s]", "<c16", "|V4", "<f16", "float64", ""]
)  # fmt: skip
SIZES = st.sampled_from([0, 1, 2, 3, 4, 8, 2**31, 2**40, 2**62, 2**63])
NAMES = st.sampled_from(
    ["obs", "cam", "", "a/b", "~", "\n", "__ndarray__", "message_type", "data", "type", "spaces",
     "low", "n", "dtype", "episode", "r", "l", "mask", "reuse", "steps", "x" * 300]
)  # fmt: skip
NUMBERS = (
    st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([0, 1, -1, 2, 2**31, 2**62, 2**63, -(2**63)])
    | st.floats()
    | st.sampled_from([float("nan"), float("inf"), 1e300, 0.5])
)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """An array's map: mostly well-formed, mostly of a size that fits."""
    typestr = draw(TYPESTRS)
    shape = draw(st.lists(SIZES, max_size=4))
    count = 1
    for size in shape:
        count *= size
    width = int(typestr[2:] or 0) * (4 if "U" in typestr else 1) if typestr[2:].isdigit() else 8
    fitting = st.binary(min_size=count * width, max_size=count * width)
    small = count * width <= 256
    value = {
        b"__ndarray__": True,
        b"data": draw(fitting if small and draw(st.booleans()) else st.binary(max_size=16)),
        b"dtype": typestr,
        b"shape": shape,
    }
    if draw(st.integers(0, 9)) == 0:
        del value[draw(st.sampled_from(list(value)))]
    return value


@st.composite
def scalars(draw: st.DrawFn) -> Any:
    """A numpy scalar's map, often of the wrong kind."""
    data = draw(NUMBERS | st.booleans() | st.text(max_size=3) | st.none())
    return {b"__npgeneric__": True, b"data": data, b"dtype": draw(TYPESTRS)}


LEAVES = (
    st.none()
    | st.booleans()
    | NUMBERS
    | st.text(max_size=8)
    | NAMES
    | st.binary(max_size=8)
    | arrays()
    | scalars()
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=8))
    | st.builds(msgpack.Timestamp, st.integers(0, 2**32))
    | st.sampled_from(["Box", "Discrete", "MultiDiscrete", "MultiBinary", "Text", "Dict", "Tuple"])
)
KEYS = NAMES | st.text(max_size=4) | st.binary(max_size=4) | st.integers(0, 3) | st.none()


def junk() -> st.SearchStrategy[Any]:
    """Any value that msgpack packs."""
    return st.recursive(
        LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4)
    )


def unpacked(frame: bytes) -> Any:
    """A frame as maps and lists, arrays as the maps that they travel as."""
    return msgpack.unpackb(frame, strict_map_key=False)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from places(item, (*path, key))


@st.composite
def mutated(draw: st.DrawFn, frame: bytes) -> bytes:
    """``frame`` with one to three of its parts replaced, dropped or added."""
    value = {"": copy.deepcopy(unpacked(frame))}
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(value))[1:]))
        holder: Any = value
        for key in path[:-1]:
            holder = holder[key]
        change = draw(st.sampled_from(["replace", "replace", "replace", "drop", "add"]))
        if change == "add" and isinstance(holder, dict):
            holder[draw(KEYS)] = draw(junk())
        elif change == "drop" and len(path) > 1:
            del holder[path[-1]]
        else:
            holder[path[-1]] = draw(junk())
    packed: bytes = msgpack.packb(value[""])
    return packed


@st.composite
def spliced(draw: st.DrawFn, frame: bytes) -> bytes:
    """``frame`` with some bytes changed, cut out or put in."""
    data = bytearray(frame)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 6))
        data[place : place + length] = draw(st.binary(max_size=6))
    return bytes(data)
