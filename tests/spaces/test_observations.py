"""Observations of any space onto the wire and back (SPEC 9.3.13 to 9.3.25)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from plugrl_gym.errors import RemoteProtocolError, UnsupportedSpace, UsageError
from plugrl_gym.protocol import Infer, MessageType, Observation, encode
from plugrl_gym.protocol.messages import read_message
from plugrl_gym.spaces import ObservationLayout
from plugrl_gym.spaces.images import image_to_wire
from plugrl_gym.spaces.observations import select_row
from tests.support.fuzzing import fuzz
from tests.support.spaces import any_space, sample_batch


def travel(observation: Observation) -> Observation:
    """Through bytes and back, as the observation of an infer."""
    n = observation.rows
    frame = encode(Infer(observation, np.arange(n), np.zeros(n, np.int64)).to_wire())
    read = read_message(frame, MessageType.INFER)
    assert isinstance(read, Infer)
    return read.observation


def leaves_equal(layout: ObservationLayout, batch: Any, decoded: Any) -> None:
    """Each decoded leaf is what the env gave, an image turned to [n, h, w, c]."""
    for leaf in layout.leaves:
        given = leaf.of(batch)
        got = decoded if leaf.keys == () else decoded[leaf.path]
        if isinstance(leaf.space, spaces.Text):
            assert got == [line.rstrip("\0") if leaf.kind == "codes" else line for line in given]
            continue
        expected = image_to_wire(given) if leaf.kind == "image" else given
        assert got.dtype == leaf.space.dtype
        assert np.array_equal(got, expected)
        assert got.flags.writeable
        assert got.flags.c_contiguous


@given(any_space(), st.integers(1, 3))
@fuzz(100)
def test_batch_of_any_space_survives_the_trip(space: spaces.Space[Any], n: int) -> None:
    layout = ObservationLayout(space)
    batch = sample_batch(space, n)
    leaves_equal(layout, batch, layout.decode(travel(layout.encode(batch))))


@given(any_space(), st.integers(1, 3))
@fuzz(100)
def test_batch_is_restored_in_the_form_in_which_the_env_gave_it(
    space: spaces.Space[Any], n: int
) -> None:
    layout = ObservationLayout(space)
    batch = sample_batch(space, n)
    restored = layout.restore(travel(layout.encode(batch)))
    for leaf in layout.leaves:
        given, got = leaf.of(batch), leaf.of(restored)
        if isinstance(leaf.space, spaces.Text):
            lines = [line.rstrip("\0") if leaf.kind == "codes" else line for line in given]
            assert got == tuple(lines)
        else:
            assert got.dtype == leaf.space.dtype
            assert np.array_equal(got, given)
            assert got.flags.writeable


@given(any_space())
@fuzz(50)
def test_single_observation_is_a_batch_of_one(space: spaces.Space[Any]) -> None:
    layout = ObservationLayout(space)
    batch = sample_batch(space, 2)
    single = select_row(space, batch, 1)
    alone = layout.encode_one(single)
    assert alone.rows == 1
    second = layout.encode(batch).select([1])
    for one, two in ((alone.images, second.images), (alone.states, second.states)):
        assert list(one) == list(two)
        for name in one:
            assert np.array_equal(one[name], two[name])
    assert list(alone.text) == list(second.text)


NESTED = spaces.Dict(
    {
        "arm": spaces.Dict({"pos/vel": spaces.Box(-1, 1, (2, 2)), "~": spaces.Discrete(3)}),
        "cams": spaces.Tuple([spaces.Box(0, 255, (4, 5, 3), np.uint8), spaces.MultiBinary(3)]),
        "say": spaces.Text(5, charset="ab\u2603"),
        "then": spaces.Tuple([spaces.Text(3, charset="xy")]),
        "a.b": spaces.Box(0, 1, (), np.float16),
        "flag": spaces.Box(0, 1, (2,), np.bool_),
        "big": spaces.Box(-(2**63), 2**63 - 1, (1,), np.int64),
        "multi": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    }
)


def nested_batch() -> dict[str, Any]:
    return {
        "arm": {
            "pos/vel": np.arange(8, dtype=np.float32).reshape(2, 2, 2) / 8,
            "~": np.array([2, 1]),
        },
        "cams": (
            np.arange(120, dtype=np.uint8).reshape(2, 4, 5, 3),
            np.array([[0, 1, 1], [1, 0, 0]], np.int8),
        ),
        "say": ("a\u2603b", ""),
        "then": (("xy", "yyx"),),
        "a.b": np.array([0.5, 0.25], np.float16),
        "flag": np.array([[True, False], [False, False]]),
        "big": np.array([[2**53 + 1], [-(2**63)]]),
        "multi": np.array([[[1, 2], [3, 4]], [[0, 0], [0, 0]]]),
    }


def test_leaves_have_the_names_and_kinds_of_the_spec() -> None:
    leaves = ObservationLayout(NESTED).leaves
    assert {leaf.path: leaf.kind for leaf in leaves} == {
        "arm/pos~1vel": "state", "arm/~0": "state", "cams/0": "image", "cams/1": "state",
        "say": "text", "then/0": "codes", "a.b": "state", "flag": "state", "big": "state",
        "multi": "state",
    }  # fmt: skip


def test_nested_observation_has_the_wire_form_of_the_spec() -> None:
    sent = ObservationLayout(NESTED).encode(nested_batch())
    assert {name: (a.dtype.str, a.shape) for name, a in sent.states.items()} == {
        "arm/pos~1vel": ("<f4", (2, 4)), "arm/~0": ("<i8", (2, 1)), "cams/1": ("|i1", (2, 3)),
        "then/0": ("<u4", (2, 3)), "a.b": ("<f2", (2, 1)), "flag": ("|u1", (2, 2)),
        "big": ("<i8", (2, 1)), "multi": ("<i8", (2, 4)),
    }  # fmt: skip
    assert {name: a.shape for name, a in sent.images.items()} == {"cams/0": (2, 4, 5, 3)}
    assert list(sent.text) == ["a\u2603b", ""]
    assert sent.states["then/0"].tolist() == [[120, 121, 0], [121, 121, 120]]
    assert sent.states["flag"].tolist() == [[1, 0], [0, 0]]


def test_nested_observation_survives_the_trip() -> None:
    layout = ObservationLayout(NESTED)
    decoded = layout.decode(travel(layout.encode(nested_batch())))
    leaves_equal(layout, nested_batch(), decoded)
    assert decoded["big"].tolist() == [[2**53 + 1], [-(2**63)]]
    assert decoded["flag"].dtype == np.bool_
    assert decoded["say"] == ["a\u2603b", ""]
    assert decoded["then/0"] == ["xy", "yyx"]


def test_policy_space_describes_what_decode_returns() -> None:
    layout = ObservationLayout(NESTED)
    policy = layout.policy_space
    assert isinstance(policy, spaces.Dict)
    assert list(policy.spaces) == [leaf.path for leaf in layout.leaves]
    decoded = layout.decode(layout.encode(nested_batch()))
    for name, part in policy.spaces.items():
        got = decoded[name]
        if not isinstance(part, spaces.Text):
            assert got.shape == (2, *(part.shape or ()))
            assert got.dtype == part.dtype
        assert part.contains(got[0] if isinstance(part, spaces.Text) else np.asarray(got[0])) or (
            isinstance(part, spaces.Discrete)
        )


@pytest.mark.parametrize(
    "space",
    [spaces.Box(-1, 1, (3,)), spaces.Discrete(4), spaces.MultiBinary([2, 2]),
     spaces.Box(0, 255, (4, 4, 3), np.uint8)],
    ids=str,
)  # fmt: skip
def test_observation_that_is_a_leaf_is_named_obs(space: spaces.Space[Any]) -> None:
    layout = ObservationLayout(space)
    batch = sample_batch(space, 2)
    sent = layout.encode(batch)
    assert [*sent.images, *sent.states] == ["obs"]
    assert list(sent.text) == ["", ""]
    assert np.array_equal(layout.decode(sent), batch)


def test_text_alone_is_a_list_of_strings() -> None:
    layout = ObservationLayout(spaces.Text(9))
    sent = layout.encode(("go", "stop"))
    assert (sent.images, sent.states, list(sent.text)) == ({}, {}, ["go", "stop"])
    assert layout.decode(travel(sent)) == ["go", "stop"]


def test_zero_size_leaves_keep_their_rows() -> None:
    space = spaces.Dict(a=spaces.Box(0, 1, (0,)), b=spaces.Box(0, 1, (2, 0, 3)))
    layout = ObservationLayout(space)
    sent = travel(layout.encode({"a": np.zeros((3, 0)), "b": np.zeros((3, 2, 0, 3))}))
    assert {k: v.shape for k, v in sent.states.items()} == {"a": (3, 0), "b": (3, 0)}
    assert layout.decode(sent)["b"].shape == (3, 2, 0, 3)


def test_encoding_copies_what_the_env_may_overwrite() -> None:
    for space in (spaces.Box(-1, 1, (2,)), spaces.Box(0, 255, (2, 2, 3), np.uint8)):
        batch = np.zeros((1, *space.shape), space.dtype)
        sent = ObservationLayout(space).encode(batch)
        batch[:] = 1
        for array in (*sent.images.values(), *sent.states.values()):
            assert not array.any()


@pytest.mark.parametrize(
    "batch",
    [
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(6.0).reshape(2, 3)[:, ::-1],
        np.arange(6).reshape(2, 3),
        [np.arange(3.0), np.arange(3, 6.0)],
        ([0.0, 1, 2], [3, 4, 5]),
        np.array([np.arange(3.0), None], dtype=object)[[0, 0]],
        np.arange(6.0).reshape(2, 3).astype(">f8"),
    ],
    ids=["fortran", "reversed", "ints", "list of arrays", "tuples", "objects", "big-endian"],
)
def test_encoding_takes_what_vector_envs_hand_out(batch: Any) -> None:
    layout = ObservationLayout(spaces.Box(-9, 9, (3,)))
    sent = layout.encode(batch).states["obs"]
    assert sent.dtype.str == "<f4"
    assert sent.tolist() == np.array([list(row) for row in batch], dtype=np.float64).tolist()


BOX = spaces.Box(-1, 1, (2,))
WRONG: list[tuple[spaces.Space[Any], Any, str]] = [
    (BOX, np.zeros((3, 4)), r"'obs' does not fit its space: expected float32 \[n, 2\], got "),
    (BOX, np.zeros(3), r"expected float32 \[n, 2\], got float64 \[3\]"),
    (BOX, [[1.0, 2.0], [1.0]], r"expected float32 \[n, 2\], got mixed rows"),
    (BOX, np.array([None, None]), "got mixed rows"),
    (BOX, ["a", "b"], "got <U1"),
    (BOX, 5, "has no batch 'obs', which its space declares; got a int"),
    (BOX, None, "has no batch 'obs'"),
    (spaces.Discrete(3), [0.5, 1], r"does not fit its space: 0\.5 of env 0 is no int64"),
    (spaces.Discrete(3), np.array([1.0, np.nan]), "nan of env 1 is no int64"),
    (spaces.Discrete(3), np.array([0, 3]), r"3 of env 1 lies outside Discrete\(3\)"),
    (spaces.Discrete(3, start=-1), [2], "2 of env 0 lies outside"),
    (spaces.MultiDiscrete([2, 3]), [[0, 0], [2, 0]], "2 of env 1 lies outside MultiDiscrete"),
    (spaces.Box(0, 255, (2,), np.uint8), np.array([[0, 256]]), "256 of env 0 is no uint8"),
    (spaces.Box(0, 255, (2, 2, 3), np.uint8), np.full((1, 2, 2, 3), -1), "-1 of env 0 is no uint8"),
    (spaces.Box(0, 1, (1,), bool), np.array([[2]]), "2 of env 0 is no bool"),
    (spaces.Text(3), ["a", None], "expected a str for env 1, got a NoneType"),
    (spaces.Text(3), [b"a"], "expected a str for env 0, got a bytes"),
    (spaces.Dict(a=BOX), np.zeros((3, 2)), "has no batch 'a', which its space declares"),
    (spaces.Dict(a=BOX), {"b": np.zeros((3, 2))}, "has no batch 'a'"),
    (spaces.Dict(a=BOX, b=BOX), {"a": np.zeros((3, 2)), "b": np.zeros((2, 2))}, "2 rows, another"),
    (spaces.Tuple([BOX, BOX]), (np.zeros((3, 2)),), "has no batch '1'"),
    (spaces.Tuple([spaces.Text(9), spaces.Text(3)]), (["a"], ["abcd"]), "at most 3 characters"),
    (spaces.Tuple([spaces.Text(9), spaces.Text(3)]), (["a"], ["b\0"]), "the last no NUL"),
]


@pytest.mark.parametrize(("space", "batch", "text"), WRONG)
def test_env_that_breaks_its_own_space_is_named(
    space: spaces.Space[Any], batch: Any, text: str
) -> None:
    with pytest.raises(UsageError, match=f"the (env's )?observation.*{text}"):
        ObservationLayout(space).encode(batch)


def test_number_too_large_for_the_space_is_left_to_the_check_of_what_is_sent() -> None:
    sent = ObservationLayout(BOX).encode(np.array([[0, 1e300]]))
    assert sent.first_non_finite() == ("obs", 0)


def sent(**states: Any) -> Observation:
    rows = len(next(iter(states.values())))
    return Observation(states=states, text=[""] * rows)


@pytest.mark.parametrize("code", ["e", "f", "d", ">d", "b", "H", ">i", "Q", "?"])
def test_v1_client_may_send_any_number_for_any_leaf(code: str) -> None:
    array = np.array([[1], [0]], dtype=code)
    for space in (
        spaces.Box(-1, 1, (1,)),
        spaces.Box(-1, 1, ()),
        spaces.Discrete(2),
        spaces.MultiBinary(1),
        spaces.Box(0, 1, (1,), bool),
        spaces.Box(0, 1, (1,), np.uint8),
    ):
        decoded = ObservationLayout(space).decode(sent(obs=array))
        assert decoded.dtype == space.dtype
        assert decoded.ravel().tolist() == [1, 0]


UNFIT: list[tuple[spaces.Space[Any], Observation, str]] = [
    (BOX, sent(state=np.zeros((1, 2))), r"states\.obs: missing; expected \[n, 2\]; got state"),
    (BOX, Observation(text=[""]), r"states\.obs: missing; .*; got no key at all"),
    (BOX, sent(**{"a\nb": np.zeros((1, 2))}), r"got 'a\\nb'"),
    (BOX, sent(obs=np.zeros((1, 3))), r"states\.obs: expected shape \[1, 2\], got \[1, 3\]"),
    (BOX, sent(obs=np.array([[0, 1e300]])), r"states\.obs: 1e\+300 in row 0 is no float32"),
    (spaces.Discrete(2), sent(obs=np.array([[1], [0.5]])), r"0\.5 in row 1 is no int64"),
    (spaces.Discrete(2), sent(obs=np.array([[np.nan]])), "nan in row 0 is no int64"),
    (spaces.Discrete(2), sent(obs=np.array([[2**63]], np.uint64)), "in row 0 is no int64"),
    (spaces.Discrete(2), sent(obs=np.array([[1], [2]])), r"2 in row 1 lies outside Discrete\(2\)"),
    (spaces.Discrete(2, start=3), sent(obs=np.array([[2]])), "2 in row 0 lies outside Discrete"),
    (spaces.MultiDiscrete([2, 3]), sent(obs=np.array([[1, 3]])), "3 in row 0 lies outside Multi"),
    (spaces.MultiDiscrete([2, 3], start=[0, -1]), sent(obs=np.array([[-1, 0]])), "-1 in row 0"),
    (spaces.MultiBinary(1), sent(obs=np.array([[300]])), "300 in row 0 is no int8"),
    (spaces.Box(0, 1, (1,), bool), sent(obs=np.array([[2]])), "2 in row 0 is no bool"),
    (spaces.Box(0, 255, (4, 4, 3), np.uint8), sent(obs=np.zeros((1, 48))),
     r"images\.obs: missing; expected \[n, 4, 4, 3\]"),
    (spaces.Box(0, 255, (3, 4, 5), np.uint8),
     Observation({"obs": np.zeros((1, 3, 4, 5), np.uint8)}, {}, [""]),
     r"images\.obs: expected shape \[1, 4, 5, 3\], got \[1, 3, 4, 5\]"),
]  # fmt: skip
SAYS = spaces.Dict(a=spaces.Text(3), b=spaces.Text(3))
for bad in (-1, 0xD800, 0x110000, 2**32, 0.5, np.nan, np.inf):
    UNFIT.append((SAYS, sent(b=np.array([[bad, 0, 0]])), r"states\.b: "))


@pytest.mark.parametrize(("space", "observation", "text"), UNFIT)
def test_observation_that_does_not_fit_is_the_peers_error(
    space: spaces.Space[Any], observation: Observation, text: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        ObservationLayout(space).decode(observation, "infer.data")
    assert str(caught.value).startswith("infer.data.")


def test_codes_end_at_their_padding_and_keep_what_lies_before() -> None:
    codes = np.array([[65, 0, 66], [0, 0, 0], [0x1F916, 0, 0]], np.uint32)
    decoded = ObservationLayout(SAYS).decode(Observation(states={"b": codes}, text=["x", "y", "z"]))
    assert decoded == {"a": ["x", "y", "z"], "b": ["A\0B", "", "\U0001f916"]}


REFUSED: list[tuple[Any, str]] = [
    (spaces.Sequence(BOX), "the observation is a Sequence space, which has no encoding"),
    (spaces.Dict(a=spaces.Graph(BOX, None)), "the observation 'a' is a Graph space"),
    (spaces.Dict({}), "has no leaf"),
    (spaces.Tuple([spaces.Dict({})]), "has no leaf"),
    (spaces.Dict({1: BOX}), "key 1 is no str; rename it"),  # type: ignore[dict-item]
    (spaces.Dict({"\ud800": BOX}), "lone surrogate"),
    (spaces.Dict({"__ndarray__": BOX}), "reserved for arrays"),
    (spaces.Dict({"x" * 2000: BOX}), "a name of 2000 characters"),
    (spaces.Dict({"a": spaces.Dict({"x" * 600: spaces.Dict({"y" * 600: BOX})})}), "a name of 1203"),
    (spaces.Box(0, 1, (2,), np.longdouble), "dtype .* cannot travel"),
    (spaces.Tuple([spaces.Text(3), spaces.Text(2**31)]), "would travel as 2147483648 numbers"),
    (spaces.Tuple([BOX] * 1025), "more than 1024 leaves"),
]


@pytest.mark.parametrize(("space", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_space_without_encoding_is_refused(space: spaces.Space[Any], text: str) -> None:
    with pytest.raises(UnsupportedSpace, match=text):
        ObservationLayout(space)


def test_first_text_of_any_length_is_taken() -> None:
    layout = ObservationLayout(spaces.Text(2**40))
    assert layout.decode(layout.encode(["x" * 100_000])) == ["x" * 100_000]


def test_one_of_a_discrete_batch_is_what_a_single_env_gives() -> None:
    space = spaces.Discrete(5, start=2)
    one = select_row(space, np.array([2, 6]), 1)
    assert one == 6
    assert type(one) is type(space.sample())
    assert space.contains(one)
