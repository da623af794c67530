"""Action chunks from the wire to ``env.step`` (case A12)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from plugrl_gym.errors import RemoteProtocolError, UnsupportedSpace, UsageError
from plugrl_gym.spaces import ActionLayout
from tests.support.fuzzing import fuzz
from tests.support.spaces import INTEGERS, box, discrete, multi_binary, multi_discrete, sample_batch

PENDULUM = spaces.Box(-2, 2, (1,))
GRID = spaces.Box(-1, 1, (2, 3))

# space, received shape: H, n and what follows them
SHAPES = [
    (spaces.Discrete(4), (3, 2)),
    (spaces.Discrete(4), (3, 2, 1)),
    (spaces.Discrete(4), (1, 1)),
    (PENDULUM, (3, 2, 1)),
    (PENDULUM, (1, 1, 1)),
    (spaces.MultiDiscrete([3, 4]), (3, 2, 2)),
    (spaces.MultiDiscrete([[3, 4], [2, 2]]), (3, 2, 2, 2)),
    (spaces.MultiBinary(5), (3, 2, 5)),
    (spaces.MultiBinary([2, 2]), (3, 2, 2, 2)),
    (GRID, (3, 2, 2, 3)),
    (spaces.Box(-1, 1, ()), (3, 2)),
    (spaces.Box(-1, 1, ()), (3, 2, 1)),
]


def member(space: spaces.Space[Any], action: Any) -> bool:
    """Whether the space holds one action out of a chunk."""
    if isinstance(space, spaces.Discrete):
        return space.contains(np.int64(action))
    return space.contains(np.asarray(action))


@pytest.mark.parametrize(("space", "shape"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["f4", "f8", ">f8", "f2", "i8", "u1", "?", ">i2"])
def test_chunk_becomes_what_step_takes(
    space: spaces.Space[Any], shape: tuple[int, ...], dtype: str
) -> None:
    layout = ActionLayout(space)
    received = np.ones(shape, dtype)
    received.flags.writeable = False
    chunk = layout.decode(received)
    assert chunk.shape == (*shape[:2], *(space.shape or ()))
    assert chunk.dtype == space.dtype
    assert chunk.flags.c_contiguous
    assert chunk.flags.writeable
    assert not np.shares_memory(chunk, received)
    assert (chunk == 1).all()
    for step in chunk:
        for action in step:
            assert member(space, action)


@pytest.mark.parametrize(
    ("space", "shape", "expected"),
    [
        (spaces.Discrete(4), (3, 2, 2), r"\[H, n\], got shape \[3, 2, 2\]"),
        (spaces.Discrete(4), (3, 2, 1, 1), r"\[H, n\], got shape \[3, 2, 1, 1\]"),
        (spaces.Discrete(4), (3, 2, 0), r"\[H, n\], got shape \[3, 2, 0\]"),
        (PENDULUM, (3, 2), r"\[H, n, 1\], got shape \[3, 2\]"),
        (PENDULUM, (3, 2, 2), r"\[H, n, 1\], got shape \[3, 2, 2\]"),
        (GRID, (3, 2, 6), r"\[H, n, 2, 3\], got shape \[3, 2, 6\]"),
        (GRID, (3, 2, 3, 2), r"\[H, n, 2, 3\], got shape \[3, 2, 3, 2\]"),
        (spaces.MultiDiscrete([3, 4]), (3, 2, 3), r"\[H, n, 2\], got shape \[3, 2, 3\]"),
        (spaces.MultiBinary(5), (3, 2, 1), r"\[H, n, 5\], got shape \[3, 2, 1\]"),
        (PENDULUM, (3,), r"\[H, n, 1\], got shape \[3\]"),
    ],
    ids=str,
)
def test_wrong_width_is_the_servers_error(
    space: spaces.Space[Any], shape: tuple[int, ...], expected: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=rf"action\.data\.action: .* takes {expected}"):
        ActionLayout(space).decode(np.zeros(shape))


def test_error_about_a_large_space_is_one_short_line() -> None:
    space = spaces.Box(-np.arange(1, 61.0).reshape(6, 10), np.ones((6, 10)), dtype=np.float64)
    with pytest.raises(RemoteProtocolError) as caught:
        ActionLayout(space).decode(np.zeros((1, 1, 2)))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_clip_brings_floats_to_their_nearest_bound(dtype: Any) -> None:
    space = spaces.Box(np.array([-2, 0], dtype), np.array([2, 10], dtype), dtype=dtype)
    received = np.array([[[-3, -3], [1e4, 1e4], [1.5, 1.5]]])
    assert ActionLayout(space).decode(received).tolist() == [[[-2, 0], [2, 10], [1.5, 1.5]]]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_clip_never_wraps_an_integer_around(dtype: str) -> None:
    info = np.iinfo(dtype)
    space = spaces.Box(info.min, info.max, (1,), dtype=np.dtype(dtype).type)
    for received, expected in (
        (np.array([[[2**64 - 1]]], np.uint64), info.max),
        (np.array([[[-(2**63)]]]), info.min),
        (np.array([[[1e30]]]), info.max),
        (np.array([[[-1e30]]]), info.min),
        (np.array([[[300]]]), min(300, info.max)),
        (np.array([[[-300]]]), max(-300, info.min)),
    ):
        assert int(ActionLayout(space).decode(received)[0, 0, 0]) == expected


def test_float_just_beyond_int64_is_an_error_and_no_wrap_around() -> None:
    layout = ActionLayout(spaces.Box(-(2**63), 2**63 - 1, (1,), dtype=np.int64))
    with pytest.raises(RemoteProtocolError, match=r"cannot hold 9\.22"):
        layout.decode(np.array([[[2.0**63]]]))
    assert layout.decode(np.array([[[-(2.0**63)]]])).tolist() == [[[-(2**63)]]]


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (PENDULUM, 2.5),
        (PENDULUM, -2.0000001),
        (spaces.Box(0, 9, (1,), dtype=np.int32), 10),
        (spaces.Box(0, 255, (1,), dtype=np.uint8), -1),
    ],
)
def test_error_mode_refuses_what_clip_would_move(space: spaces.Box, value: float) -> None:
    received = np.array([[[value]]])
    with pytest.raises(RemoteProtocolError, match=r"lies outside Box"):
        ActionLayout(space, "error").decode(received)
    inside = ActionLayout(space).decode(received)
    assert space.contains(inside[0, 0])


@pytest.mark.parametrize("mode", ["clip", "error"])
@pytest.mark.parametrize(
    ("space", "values"),
    [
        (spaces.Discrete(4), 4),
        (spaces.Discrete(4), -1),
        (spaces.Discrete(4), 2**63),
        (spaces.Discrete(3, start=-1), 2),
        (spaces.Discrete(3, start=5), 0),
        (spaces.Discrete(3, start=5), 8),
        (spaces.MultiDiscrete([3, 4]), [2, 4]),
        (spaces.MultiDiscrete([3, 4], start=[1, 1]), [0, 1]),
        (spaces.MultiBinary(2), [0, 2]),
        (spaces.MultiBinary(2), [-1, 0]),
        (spaces.Discrete(4), 1e300),
    ],
    ids=str,
)
def test_choice_outside_the_space_is_always_an_error(
    mode: str, space: spaces.Space[Any], values: Any
) -> None:
    received = np.array([[values]])
    with pytest.raises(RemoteProtocolError, match="lies outside"):
        ActionLayout(space, mode).decode(received)


def test_discrete_start_is_part_of_the_value() -> None:
    layout = ActionLayout(spaces.Discrete(3, start=-1))
    assert layout.decode(np.array([[-1, 0, 1]])).tolist() == [[-1, 0, 1]]
    layout = ActionLayout(spaces.Discrete(1, start=2**63 - 1))
    assert layout.decode(np.array([[2**63 - 1]])).tolist() == [[2**63 - 1]]


@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(4), spaces.MultiDiscrete([4]), spaces.MultiBinary(1),
     spaces.Box(0, 4, (1,), dtype=np.int8)],
    ids=str,
)  # fmt: skip
def test_whole_floats_are_taken_and_fractions_refused(space: spaces.Space[Any]) -> None:
    layout = ActionLayout(space)
    whole = layout.decode(np.ones((1, 2, 1)))
    assert whole.dtype == space.dtype
    assert whole.ravel().tolist() == [1, 1]
    with pytest.raises(RemoteProtocolError, match=r"cannot hold 0\.5; its dtype is int"):
        layout.decode(np.full((1, 2, 1), 0.5))


def test_float_that_becomes_infinite_is_an_error() -> None:
    layout = ActionLayout(spaces.Box(-np.inf, np.inf, (1,)))
    with pytest.raises(RemoteProtocolError, match=r"cannot hold 1e\+300; its dtype is float32"):
        layout.decode(np.array([[[1e300]]]))
    half = ActionLayout(spaces.Box(-np.inf, np.inf, (1,), dtype=np.float16))
    with pytest.raises(RemoteProtocolError, match="cannot hold"):
        half.decode(np.array([[[10**6]]]))
    assert half.decode(np.array([[[65504.0]]])).tolist() == [[[65504.0]]]


def test_float64_rounds_to_float32() -> None:
    layout = ActionLayout(spaces.Box(-1, 1, (1,)))
    assert layout.decode(np.array([[[0.1]]]))[0, 0, 0] == np.float32(0.1)


@pytest.mark.parametrize(
    "space",
    [spaces.Dict(a=spaces.Discrete(2)), spaces.Tuple([spaces.Discrete(2)]), spaces.Text(3),
     spaces.Sequence(spaces.Discrete(2))],
    ids=lambda space: type(space).__name__,
)  # fmt: skip
def test_space_without_encoding_is_refused(space: spaces.Space[Any]) -> None:
    with pytest.raises(UnsupportedSpace, match=f"actions of a {type(space).__name__} space"):
        ActionLayout(space)


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (spaces.Box(0, 1, (0,)), "holds no number"),
        (spaces.Box(0, 1, (1,), dtype=np.longdouble), "dtype .* cannot travel"),
        (spaces.Discrete(2, start=2**63 - 1), "does not fit its dtype"),
    ],
    ids=str,
)
def test_space_that_cannot_act_is_refused(space: spaces.Space[Any], text: str) -> None:
    with pytest.raises(UnsupportedSpace, match=text):
        ActionLayout(space)


def test_unknown_mode_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="expected one of clip, error, got 'wrap'"):
        ActionLayout(PENDULUM, "wrap")


@pytest.mark.parametrize(
    ("space", "dim", "shape"),
    [(spaces.Discrete(4), 1, ()), (PENDULUM, 1, (1,)), (GRID, 6, (2, 3)),
     (spaces.MultiBinary(5), 5, (5,)), (spaces.MultiDiscrete([3, 4]), 2, (2,))],
    ids=str,
)  # fmt: skip
def test_layout_tells_shape_and_dim(
    space: spaces.Space[Any], dim: int, shape: tuple[int, ...]
) -> None:
    layout = ActionLayout(space)
    assert (layout.dim, layout.shape) == (dim, shape)
    assert layout.dtype == space.dtype


ACTIONS = (
    box().filter(lambda space: space.shape == () or 0 not in space.shape)
    | discrete()
    | multi_discrete()
    | multi_binary()
)


@given(ACTIONS, st.integers(1, 3), st.integers(1, 3))
@fuzz(100)
def test_sampled_actions_pass_unchanged(space: spaces.Space[Any], horizon: int, n: int) -> None:
    layout = ActionLayout(space, "error")
    samples = sample_batch(space, horizon * n)
    chunk = samples.reshape(horizon, n, *layout.shape)
    decoded = layout.decode(chunk)
    assert decoded.dtype == chunk.dtype
    assert np.array_equal(decoded, chunk)


@given(ACTIONS, st.integers(0, 3))
@fuzz(60)
def test_placeholder_lies_in_the_space(space: spaces.Space[Any], n: int) -> None:
    batch = ActionLayout(space).placeholder(n)
    assert batch.dtype == space.dtype
    assert batch.shape == (n, *(space.shape or ()))
    assert batch.flags.writeable
    for action in batch:
        assert member(space, action)


@given(ACTIONS, st.sampled_from(["f2", "f4", "f8", ">f8", *INTEGERS, "?"]), st.data())
@fuzz(200)
def test_any_chunk_gives_actions_in_the_space_or_an_error(
    space: spaces.Space[Any], dtype: str, data: st.DataObject
) -> None:
    layout = ActionLayout(space)
    kind = np.dtype(dtype)
    count = layout.dim
    if kind.kind == "f":
        top = float(np.finfo(kind).max)
        values = st.floats(-top, top, width=kind.itemsize * 8) | st.integers(-3, 3)
    elif kind.kind == "b":
        values = st.booleans()
    else:
        values = st.integers(int(np.iinfo(kind).min), int(np.iinfo(kind).max)) | st.integers(0, 3)
    numbers = data.draw(st.lists(values, min_size=count, max_size=count))
    chunk = np.array(numbers, dtype=kind).reshape(1, 1, *layout.shape)
    try:
        (decoded,) = layout.decode(chunk)[0]
    except RemoteProtocolError as error:
        assert "cannot hold" in str(error) or "lies outside" in str(error)  # noqa: PT017
        return
    assert member(space, decoded)
