"""Gymnasium spaces of every supported kind, as Hypothesis strategies."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

__all__ = ["any_space", "box", "leaf", "sample_batch"]

FLOATS = ["float16", "float32", "float64"]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
NAMES = st.sampled_from(
    ["obs", "cam", "arm", "", "a/b", "~", "~1", "a.b", "0", "z", "é", " "]
) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=4)


@st.composite
def box(draw: st.DrawFn) -> spaces.Box:
    """A Box of any dtype and shape, bounds infinite or not."""
    dtype = np.dtype(draw(st.sampled_from([*FLOATS, *INTEGERS, "bool"])))
    shape = draw(SHAPES)
    count = int(np.prod(shape))
    if dtype.kind == "f":
        ends = st.floats(-1000, 1000, width=16) | st.sampled_from([-np.inf, np.inf])
    elif dtype.kind == "b":
        ends = st.integers(0, 1)
    else:
        # Gymnasium cannot sample up to the very ends of 64 bits.
        least, most = max(np.iinfo(dtype).min, -(2**62)), min(np.iinfo(dtype).max, 2**62)
        ends = st.integers(least, most) | st.sampled_from([int(least), int(most)])
    pairs = draw(st.lists(st.tuples(ends, ends), min_size=count, max_size=count))
    lows = [min(pair) if min(pair) < np.inf else 0 for pair in pairs]
    highs = [max(pair) if max(pair) > -np.inf else 0 for pair in pairs]
    low, high = (np.array(part, dtype=dtype).reshape(shape) for part in (lows, highs))
    return spaces.Box(
        np.asarray(np.minimum(low, high)), np.asarray(np.maximum(low, high)), dtype=dtype.type
    )


@st.composite
def image(draw: st.DrawFn) -> spaces.Box:
    """A uint8 Box from 0 to 255 of two to four dimensions."""
    shape = draw(st.lists(st.integers(1, 6), min_size=2, max_size=4))
    return spaces.Box(0, 255, tuple(shape), np.uint8)


@st.composite
def discrete(draw: st.DrawFn) -> spaces.Discrete[Any]:
    """A Discrete of any start."""
    n = draw(st.integers(1, 100) | st.just(2**62))
    return spaces.Discrete(n, start=draw(st.integers(-50, 50) | st.just(2**61)))


@st.composite
def multi_discrete(draw: st.DrawFn) -> spaces.MultiDiscrete[Any]:
    """A MultiDiscrete of one or two axes and any integer dtype."""
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple))
    count = int(np.prod(shape))
    dtype = np.dtype(draw(st.sampled_from(INTEGERS)))
    least = 0 if dtype.kind == "u" else -10
    numbers = st.lists(st.integers(1, 50), min_size=count, max_size=count)
    starts = st.lists(st.integers(least, 50), min_size=count, max_size=count)
    nvec, start = (np.array(draw(part), dtype).reshape(shape) for part in (numbers, starts))
    return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)


def multi_binary() -> st.SearchStrategy[spaces.MultiBinary]:
    """A MultiBinary of one axis or two; one is given as an int, which Gymnasium tells apart."""
    sizes = st.integers(1, 4)
    return (sizes | st.lists(sizes, min_size=2, max_size=2)).map(lambda n: spaces.MultiBinary(n))


@st.composite
def text(draw: st.DrawFn) -> spaces.Text:
    """A Text, possibly of characters beyond the BMP."""
    longest = draw(st.integers(1, 12))
    shortest = draw(st.integers(0, longest))
    charset = draw(st.sampled_from(["ab", "é\u2603", "\U0001f916x", "a b\nc"]))
    return spaces.Text(longest, min_length=shortest, charset=charset)


def leaf() -> st.SearchStrategy[spaces.Space[Any]]:
    """Any space that is neither Dict nor Tuple."""
    return box() | image() | discrete() | multi_discrete() | multi_binary() | text()


def any_space() -> st.SearchStrategy[spaces.Space[Any]]:
    """Any supported space, nested or not."""
    return st.recursive(
        leaf(),
        lambda inner: (
            st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(
                lambda parts: spaces.Dict(list(parts.items()))
            )
            | st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple)
        ),
        max_leaves=5,
    )


def sample_batch(space: spaces.Space[Any], n: int) -> Any:
    """``n`` samples as a vector env batches them."""
    if isinstance(space, spaces.Dict):
        return {key: sample_batch(part, n) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(sample_batch(part, n) for part in space.spaces)
    samples = [space.sample() for _ in range(n)]
    if isinstance(space, spaces.Text):
        return tuple(samples)
    batch = np.array(samples, dtype=space.dtype).reshape(n, *(space.shape or ()))
    if isinstance(space, spaces.Box):  # some versions of Gymnasium sample beyond a bound
        batch = np.minimum(np.maximum(batch, space.low), space.high)
    return batch
