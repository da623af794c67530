"""Descriptions of spaces: there and back, and what has none (SPEC 9.3)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from plugrl_gym.errors import PlugRLError, UnsupportedSpace
from plugrl_gym.protocol import SpaceDeclaration, decode, encode
from plugrl_gym.protocol.features.gym_spaces import (
    DiscreteSpec,
    MultiBinarySpec,
    TextSpec,
    TupleSpec,
    space_from_wire,
    space_to_wire,
)
from plugrl_gym.spaces import ActionLayout, ObservationLayout, build_space, describe_space
from plugrl_gym.spaces.description import MOST_LEAVES
from tests.support.fuzzing import arrays, fuzz, junk
from tests.support.spaces import FLOATS, INTEGERS, any_space


def through(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Described, sent, received and built."""
    spec = describe_space(space)
    wire = decode(encode({"space": space_to_wire(spec)}))["space"]
    return build_space(space_from_wire(wire, "space"))


def names(space: spaces.Space[Any]) -> Any:
    """The names of a space in their order: equality of Dict spaces does not look at it."""
    if isinstance(space, spaces.Dict):
        return [(key, names(part)) for key, part in space.spaces.items()]
    return [names(part) for part in space] if isinstance(space, spaces.Tuple) else None


@given(any_space())
@fuzz(100)
def test_any_supported_space_comes_back_equal(space: spaces.Space[Any]) -> None:
    back = through(space)
    assert back == space
    assert names(back) == names(space)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 3), (1, 2, 3, 4, 5)])
def test_box_of_every_dtype_and_shape_comes_back_equal(dtype: str, shape: tuple[int, ...]) -> None:
    low, high = np.zeros(shape, dtype), np.ones(shape, dtype)
    space = spaces.Box(low, high, dtype=np.dtype(dtype).type)
    back = through(space)
    assert back == space
    assert back.dtype == space.dtype


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (2,)),
        spaces.Box(np.array([0, -np.inf]), np.array([np.inf, 0]), dtype=np.float64),
        spaces.Box(-np.inf, np.inf, (2,), dtype=np.int64),
        spaces.Box(0, 2**63, (1,), dtype=np.uint64),
        spaces.Discrete(2**62),
        spaces.Discrete(1, start=-(2**63)),
        spaces.Discrete(2**63 - 1),
        spaces.MultiDiscrete([2**62, 1], start=[5, 2**63 - 1]),
        spaces.MultiDiscrete(np.full((2, 3), 7)),
        spaces.MultiBinary(1),
        spaces.MultiBinary([2, 3]),
        spaces.Text(2**40),
        spaces.Text(1, min_length=0, charset=""),
        spaces.Text(5, charset="\U0001f916\n\0"),
        spaces.Dict({"a": spaces.Tuple([]), "b": spaces.Dict({}), "c": spaces.Discrete(2)}),
        spaces.Dict({"": spaces.Discrete(2), "a/b": spaces.Discrete(3), "~": spaces.Discrete(4)}),
    ],
    ids=str,
)
def test_space_at_the_edge_comes_back_equal(space: spaces.Space[Any]) -> None:
    assert through(space) == space


@pytest.mark.parametrize("dtype", INTEGERS)
def test_discrete_of_every_dtype_comes_back_equal(dtype: str) -> None:
    try:
        space = spaces.Discrete(5, start=3, dtype=np.dtype(dtype).type)
    except TypeError:
        pytest.skip("this Gymnasium knows only int64")
    back = through(space)
    assert back == space
    assert back.dtype == space.dtype


def test_dict_keeps_its_own_order() -> None:
    space = spaces.Dict(OrderedDict(z=spaces.Discrete(2), a=spaces.Text(3), m=spaces.Text(4)))
    assert list(through(space).spaces) == ["z", "a", "m"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [">f4", ">i8", ">u2"])
def test_numbers_come_back_in_the_byte_order_of_this_machine(dtype: str) -> None:
    back = through(spaces.Box(0, 9, (2,), dtype=np.dtype(dtype)))  # type: ignore[arg-type]
    assert isinstance(back, spaces.Box)
    assert back.dtype == np.dtype(dtype).newbyteorder("=")
    assert back.dtype.isnative
    assert back.high.tolist() == [9, 9]


class Odd(spaces.Space[Any]):
    """A space that nobody knows."""


def nest(space: spaces.Space[Any], depth: int) -> spaces.Space[Any]:
    for _ in range(depth):
        space = spaces.Dict({"k": space})
    return space


REFUSED: list[tuple[spaces.Space[Any], str]] = [
    (spaces.Sequence(spaces.Discrete(2)), "env is a Sequence, which has no encoding"),
    (spaces.Graph(spaces.Discrete(2), None), "env is a Graph, which has no encoding"),
    (spaces.OneOf([spaces.Discrete(2)]), "env is a OneOf, which has no encoding"),
    (Odd((), np.float32), "env is a Odd, which has no encoding"),
    (spaces.Dict(a=spaces.Tuple([spaces.Discrete(2), Odd()])), r"env\.a\[1\] is a Odd"),
    (spaces.Dict({1: spaces.Discrete(2)}), "env: the key 1 is no str; rename it"),  # type: ignore[dict-item]
    (spaces.Dict({"\ud800": spaces.Discrete(2)}), "env.spaces has the key .* lone surrogate"),
    (spaces.Dict({"__ndarray__": spaces.Discrete(2)}), "env.spaces has the key '__ndarray__'"),
    (spaces.Text(3, charset="\ud800"), "env.charset holds a lone surrogate"),
    (spaces.Box(0, 1, (2,), dtype=np.longdouble), "env.low: dtype .* cannot travel"),
    (spaces.Box(np.inf, np.inf, (1,)), "env: no finite number"),
    (nest(spaces.Discrete(2), 17), r"nested more than 16 deep"),
]


@pytest.mark.parametrize(("space", "text"), REFUSED, ids=lambda value: str(value)[:40])
def test_space_without_encoding_is_refused(space: spaces.Space[Any], text: str) -> None:
    with pytest.raises(UnsupportedSpace, match=text):
        describe_space(space, "env")


def test_discrete_that_overflows_its_own_dtype_is_refused() -> None:
    with pytest.raises(UnsupportedSpace, match="2 values from 9223372036854775807 do not fit"):
        describe_space(spaces.Discrete(2, start=2**63 - 1))


def test_build_refuses_more_parts_than_any_env_has() -> None:
    one = DiscreteSpec(2, 0, "<i8")
    build_space(TupleSpec((one,) * (MOST_LEAVES - 1)))
    with pytest.raises(UnsupportedSpace, match=f"more than {MOST_LEAVES} parts"):
        build_space(TupleSpec((one,) * (MOST_LEAVES + 1)))


def test_build_refuses_more_bits_than_any_env_has() -> None:
    build_space(MultiBinarySpec((2**20,)))
    with pytest.raises(UnsupportedSpace, match="MultiBinary of 1099511627776 bits"):
        build_space(MultiBinarySpec((2**20, 2**20)))


def test_build_names_what_gymnasium_refuses() -> None:
    with pytest.raises(UnsupportedSpace, match="Gymnasium cannot build the described space: "):
        build_space(TextSpec(3, 1, "a"))


def hostile_spaces() -> Any:
    """Descriptions with hostile parts."""
    numbers = st.sampled_from([0, 1, 2, -1, 127, 255, 2**31, 2**62, 2**63 - 1, 2**63, -(2**63)])
    typestr = st.sampled_from(["<i8", "|i1", "|u1", "<u8", ">i4", "<f4", "<f8", "<f2", "|b1", "x"])
    values = st.sampled_from([0, 1, 2, -1, 1e300, float("nan"), float("inf"), float("-inf")])

    @st.composite
    def bounds(draw: st.DrawFn) -> Any:
        dtype = np.dtype(draw(typestr.filter(lambda t: t != "x")))
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        count = int(np.prod(shape))
        out = {"type": "Box", "shape": shape, "dtype": dtype.str}
        for key in ("low", "high"):
            numbers = draw(st.lists(values, min_size=count, max_size=count))
            with np.errstate(all="ignore"):
                out[key] = np.array(numbers, np.float64).astype(dtype).reshape(shape)
        return out

    sizes = st.lists(st.integers(0, 5) | numbers, max_size=3)
    vectors = st.lists(numbers, max_size=3).map(
        lambda v: (
            np.array(v, np.uint64 if any(x >= 2**63 for x in v) and min(v) >= 0 else np.int64)
            if all(-(2**63) <= x < 2**63 for x in v) or (v and min(v) >= 0)
            else np.zeros(2)
        )
    )
    flat = (
        bounds()
        | st.fixed_dictionaries(
            {"type": st.just("Discrete"), "n": numbers},
            optional={"start": numbers, "dtype": typestr},
        )
        | st.fixed_dictionaries(
            {"type": st.just("MultiDiscrete"), "nvec": vectors},
            optional={"start": vectors, "dtype": typestr},
        )
        | st.fixed_dictionaries({"type": st.just("MultiBinary"), "shape": sizes})
        | st.fixed_dictionaries(
            {"type": st.just("Text"), "max_length": numbers, "charset": st.text(max_size=4)},
            optional={"min_length": numbers},
        )
        | st.fixed_dictionaries({"type": st.text(max_size=4) | junk()})
        | arrays()
    )
    keys = st.sampled_from(["a", "", "/", "\n", "~", "x" * 500, "__ndarray__"])
    return st.recursive(
        flat,
        lambda inner: (
            st.fixed_dictionaries(
                {"type": st.just("Dict"), "spaces": st.dictionaries(keys, inner, max_size=3)}
            )
            | st.fixed_dictionaries(
                {"type": st.just("Tuple"), "spaces": st.lists(inner, max_size=3)}
            )
        ),
        max_leaves=4,
    )


def one_line(error: PlugRLError) -> None:
    assert "\n" not in str(error)
    assert len(str(error)) < 600


@given(hostile_spaces())
@fuzz(300)
def test_hostile_description_gives_a_space_or_a_typed_error(value: Any) -> None:
    declared = {
        "env_id": None,
        "num_envs": 1,
        "autoreset": "disabled",
        "observation": value,
        "action": value,
    }
    try:
        wire = decode(encode(declared))
        spec = SpaceDeclaration.from_wire(wire).observation
        space = build_space(spec)
    except PlugRLError as error:
        one_line(error)
        return
    assert repr(space)
    assert build_space(describe_space(space)) == space
    for layout in (ActionLayout, ObservationLayout):
        try:
            built = layout(space)
        except UnsupportedSpace as error:
            one_line(error)
            continue
        if isinstance(built, ActionLayout):
            assert built.placeholder(2).shape == (2, *built.shape)
        else:
            assert built.policy_space is not None
