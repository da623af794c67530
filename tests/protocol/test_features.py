"""The fields of this project's own features (SPEC 9.3 to 9.5)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from plugrl_gym.errors import RemoteProtocolError
from plugrl_gym.protocol import ChunkSteps, ExecutedActions, Feedback, SpaceDeclaration
from plugrl_gym.protocol.features.gym_spaces import (
    BoxSpec,
    DiscreteSpec,
    MultiDiscreteSpec,
    TextSpec,
    space_from_wire,
    space_to_wire,
)
from tests.support.messages import feedback

I2 = np.array([1, 2])
STEP_REWARDS = np.array([[1, 1], [0, 2]], np.float32)


def read(**keys: Any) -> Feedback:
    return Feedback.from_wire({**feedback().to_wire(), **keys})


@pytest.mark.parametrize("code", ["e", "f", "d", ">f"])
@pytest.mark.parametrize("index", ["b", "q", "B", ">i"])
def test_chunk_steps_may_have_any_width(code: str, index: str) -> None:
    steps = read(steps=I2.astype(index), step_rewards=STEP_REWARDS.astype(code)).chunk_steps
    assert steps is not None
    assert steps.steps.dtype == np.int64
    assert steps.rewards.dtype == np.float32
    assert steps.rewards.tolist() == [[1, 1], [0, 2]]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"steps": I2 - 1}, "feedback.steps: 0 is less than one step"),
        ({"steps": I2 - 5}, "feedback.steps: -4 is less than one step"),
        ({"steps": I2[:1]}, "feedback.steps: expected 2 entries, got 1"),
        ({"steps": I2 / 1.0}, "feedback.steps: expected an int64 vector"),
        ({"steps": np.array([1, 2**62])}, r"feedback.step_rewards: expected float \[4611"),
        ({"step_rewards": STEP_REWARDS[:1]}, r"feedback.step_rewards: expected float \[2, 2\]"),
        ({"step_rewards": np.zeros((3, 2))}, r"feedback.step_rewards: expected float \[2, 2\]"),
        ({"step_rewards": np.zeros((2, 3))}, r"feedback.step_rewards: expected float \[2, 2\]"),
        ({"step_rewards": np.zeros((2, 2), int)}, "feedback.step_rewards: expected float"),
        ({"step_rewards": STEP_REWARDS.tolist()}, "feedback.step_rewards: .*, got list"),
        ({"step_rewards": STEP_REWARDS[::-1]}, "not zero after the last step"),
        ({"step_rewards": np.array([[1, 1], [np.nan, 2]])}, "not zero after the last step"),
    ],
)
def test_reader_refuses_chunk_steps(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        read(**{"steps": I2, "step_rewards": STEP_REWARDS, **keys})


def test_chunk_steps_are_sent_as_float32_even_where_too_large() -> None:
    wire = ChunkSteps(I2, np.array([[1e300, 0], [0, 0]])).to_wire()  # type: ignore[arg-type]
    assert wire["step_rewards"].dtype == np.float32
    assert wire["step_rewards"][0, 0] == np.inf


@pytest.mark.parametrize("code", ["?", "b", "Q", ">i", "e", "d"])
@pytest.mark.parametrize("shape", [(1, 2), (3, 2, 1), (2, 2, 2, 3)])
def test_executed_actions_may_be_any_number(code: str, shape: tuple[int, ...]) -> None:
    executed = read(actions=np.ones(shape, code), overridden=np.zeros(2, bool)).executed
    assert executed is not None
    assert executed.actions.shape == shape


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"actions": np.zeros(2)}, r"feedback.actions: expected numeric \[K, 2, \.\.\.\]"),
        ({"actions": np.zeros((0, 2))}, "feedback.actions: expected numeric"),
        ({"actions": np.zeros((1, 3))}, "feedback.actions: expected numeric"),
        ({"actions": np.array([["a", "b"]])}, "feedback.actions: expected numeric .*, got str"),
        ({"actions": [[0, 0]]}, "feedback.actions: expected numeric .*, got list"),
        ({"overridden": np.zeros(3, bool)}, r"feedback.overridden: expected bool \[2\]"),
        ({"overridden": np.zeros(2, int)}, r"feedback.overridden: expected bool \[2\]"),
    ],
)
def test_reader_refuses_executed_actions(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        read(**{"actions": np.zeros((1, 2)), "overridden": np.zeros(2, bool), **keys})


def test_executed_actions_and_chunk_steps_cover_the_same_steps() -> None:
    parts = {"steps": I2, "step_rewards": STEP_REWARDS, "overridden": np.zeros(2, bool)}
    assert read(**parts, actions=np.zeros((2, 2))).executed is not None
    with pytest.raises(RemoteProtocolError, match=r"covers 3 steps, feedback\.steps says 2"):
        read(**parts, actions=np.zeros((3, 2)))


def test_features_are_independent() -> None:
    assert read(steps=I2, step_rewards=STEP_REWARDS).executed is None
    alone = read(actions=np.zeros((1, 2)), overridden=np.zeros(2, bool))
    assert alone.chunk_steps is None
    assert isinstance(alone.executed, ExecutedActions)


DISCRETE = {"type": "Discrete", "n": 2, "start": 0, "dtype": "<i8"}
DECLARED: dict[str, Any] = {
    "env_id": "CartPole-v1",
    "num_envs": 8,
    "autoreset": "same-step",
    "observation": DISCRETE,
    "action": DISCRETE,
}


@pytest.mark.parametrize("mode", ["next-step", "same-step", "disabled"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "", None])
def test_reader_reads_declaration(mode: str, env_id: str | None) -> None:
    declared = SpaceDeclaration.from_wire({**DECLARED, "autoreset": mode, "env_id": env_id})
    assert declared.autoreset == mode
    assert declared.env_id == env_id
    assert declared.num_envs == 8
    assert declared.mode == "train"
    assert declared.action == DiscreteSpec(2, 0, "<i8")
    assert "mode" not in declared.to_wire()


def test_reader_reads_declaration_of_evaluation_and_ignores_other_keys() -> None:
    declared = SpaceDeclaration.from_wire({**DECLARED, "mode": "eval", "spec": {"x": 1}})
    assert declared.mode == "eval"
    assert declared.to_wire()["mode"] == "eval"


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"env_id": 5}, "env_id: expected str or nil, got int 5"),
        ({"num_envs": 0}, "num_envs: expected an int of at least 1, got int 0"),
        ({"num_envs": 2.0}, "num_envs: expected an int of at least 1, got float 2.0"),
        ({"num_envs": True}, "num_envs: expected an int of at least 1, got bool True"),
        ({"num_envs": 2**63}, "num_envs: 9223372036854775808 takes more than 63 bits"),
        ({"autoreset": "SameStep"}, "autoreset: expected one of next-step, same-step, disabled"),
        ({"autoreset": None}, "autoreset: expected one of .*, got nil"),
        ({"autoreset": np.array(["same-step"])}, "autoreset: expected one of .*, got str"),
        ({"mode": "test"}, "mode: expected one of train, eval, got str 'test'"),
        ({"mode": None}, "mode: expected one of train, eval, got nil"),
        ({"observation": None}, "observation: expected a map, got nil"),
        ({"action": []}, "action: expected a map, got list"),
    ],
)
def test_reader_refuses_declaration(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=rf"^infer\.spaces\.{text}"):
        SpaceDeclaration.from_wire({**DECLARED, **keys})


@pytest.mark.parametrize("key", DECLARED)
def test_reader_needs_each_key_of_a_declaration(key: str) -> None:
    declared = {name: value for name, value in DECLARED.items() if name != key}
    with pytest.raises(RemoteProtocolError, match=rf"^infer\.spaces: missing key {key}"):
        SpaceDeclaration.from_wire(declared)


def test_reader_takes_typed_scalars_in_declaration() -> None:
    space = {"type": "Discrete", "n": np.int64(3), "start": np.int32(-1)}
    declared = SpaceDeclaration.from_wire({**DECLARED, "num_envs": np.uint8(4), "action": space})
    assert declared.num_envs == 4
    assert declared.action == DiscreteSpec(3, -1, "<i8")


def box(low: Any, high: Any, dtype: Any = np.float32, **keys: Any) -> dict[str, Any]:
    low, high = np.asarray(low, dtype), np.asarray(high, dtype)
    shape, typestr = list(low.shape), low.dtype.str
    return {"type": "Box", "shape": shape, "dtype": typestr, "low": low, "high": high, **keys}


F1 = np.zeros(1, np.float32)
SPACES: list[tuple[Any, str]] = [
    (5, ": expected a map, got int 5"),
    (F1, ": expected a map, got float32 array"),
    ({}, r"\.type: expected one of Box, Discrete, .*, got nil"),
    ({"type": "Sequence"}, r"\.type: .*, got str 'Sequence'"),
    ({"type": "box"}, r"\.type: .*, got str 'box'"),
    ({"type": ["Box"]}, r"\.type: .*, got list"),
    ({"type": {"Box": 1}}, r"\.type: .*, got map"),
    ({"type": np.array(["Box", "Box"])}, r"\.type: .*, got str"),
    ({"type": "Box"}, ": missing key dtype, high, low, shape"),
    (box([0], [1], shape=1), r"\.shape: expected a list of at most 32 dimensions"),
    (box([0], [1], shape=[-1]), r"\.shape: expected a list"),
    (box([0], [1], shape=[1.0]), r"\.shape: expected a list"),
    (box([0], [1], shape=[1] * 33), r"\.shape: expected a list"),
    (box([0], [1], shape=[2]), r"\.low: .* shape \[2\], got float32 array of shape \[1\]"),
    (box([0], [1], np.float64) | {"low": F1}, r"\.low: expected .*'<f8' .*, got float32"),
    (box([0], [1]) | {"high": np.zeros(2, np.float32)}, r"\.high: .* shape \[1\], got .* \[2\]"),
    (box([0], [1]) | {"low": 0.0}, r"\.low: .*, got float 0.0"),
    (box([0], [1]) | {"low": None}, r"\.low: .*, got nil"),
    (box([0], [1]) | {"dtype": 5}, r"\.low: expected an array of dtype int 5"),
    (box([0], [1]) | {"dtype": F1}, r"\.low: expected an array of dtype float32 array"),
    (box([0], [1]) | {"dtype": ["<f4"]}, r"\.low: expected an array of dtype list"),
    (box(["a"], ["b"], dtype="U1"), r"\.low: expected an array"),
    (box([2], [1]), ": no finite number lies between"),
    (box([np.nan], [1]), ": no finite number lies between"),
    (box([0], [np.nan]), ": no finite number lies between"),
    (box([np.inf], [np.inf]), ": no finite number lies between"),
    (box([-np.inf], [-np.inf]), ": no finite number lies between"),
    (box([True], [False], dtype=bool), ": no finite number lies between"),
    (box([5], [4], dtype=np.uint8), ": no finite number lies between"),
    ({"type": "Discrete"}, ": missing key n"),
    ({"type": "Discrete", "n": 0}, r"\.n: expected an int of at least 1, got int 0"),
    ({"type": "Discrete", "n": 2.0}, r"\.n: .*, got float 2.0"),
    ({"type": "Discrete", "n": True}, r"\.n: .*, got bool True"),
    ({"type": "Discrete", "n": 2**63}, r"\.n: 9223372036854775808 takes more"),
    ({"type": "Discrete", "n": 2, "start": "0"}, r"\.start: expected an int, got str '0'"),
    ({"type": "Discrete", "n": 2, "start": None}, r"\.start: expected an int, got nil"),
    ({"type": "Discrete", "n": 2, "dtype": "<f4"}, r"\.dtype: expected an integer typestr"),
    ({"type": "Discrete", "n": 2, "dtype": ["<i8"]}, r"\.dtype: .*, got list"),
    ({"type": "Discrete", "n": 2, "dtype": {"a": 1}}, r"\.dtype: .*, got map"),
    ({"type": "Discrete", "n": 2, "dtype": I2}, r"\.dtype: .*, got int64 array"),
    ({"type": "Discrete", "n": 2, "dtype": "|i8"}, r"\.dtype: expected an integer typestr"),
    ({"type": "Discrete", "n": 2, "start": 2**63 - 1}, ": 2 values from 9223372036854775807"),
    ({"type": "Discrete", "n": 256, "dtype": "|u1"}, ": 256 values from 0 do not fit"),
    ({"type": "Discrete", "n": 2, "start": -1, "dtype": "|u1"}, ": 2 values from -1 do not fit"),
    ({"type": "Discrete", "n": 100, "start": 100, "dtype": "|i1"}, ": 100 values from 100 do not"),
    ({"type": "MultiDiscrete"}, ": missing key nvec"),
    ({"type": "MultiDiscrete", "nvec": [2, 3]}, r"\.nvec: expected int64 \[k\], got list"),
    ({"type": "MultiDiscrete", "nvec": np.array(3)}, r"\.nvec: expected int64"),
    ({"type": "MultiDiscrete", "nvec": I2 / 1.0}, r"\.nvec: expected int64 \[k\], got float64"),
    ({"type": "MultiDiscrete", "nvec": I2 - 1}, ": nvec must be positive"),
    ({"type": "MultiDiscrete", "nvec": I2[:0]}, ": nvec must be positive"),
    ({"type": "MultiDiscrete", "nvec": I2, "start": I2[:1]}, r": nvec .* \[2\] and \[1\]"),
    ({"type": "MultiDiscrete", "nvec": I2, "start": None}, r"\.start: expected int64 .*, got nil"),
    ({"type": "MultiDiscrete", "nvec": I2, "start": [0, 0]}, r"\.start: .*, got list"),
    ({"type": "MultiDiscrete", "nvec": np.array([2**63], np.uint64)}, r"\.nvec: .* 63 bits"),
    ({"type": "MultiDiscrete", "nvec": I2 * 128, "dtype": "|i1"}, ": a value does not fit"),
    ({"type": "MultiDiscrete", "nvec": I2, "start": -I2, "dtype": "<u2"}, ": a value does not"),
    ({"type": "MultiDiscrete", "nvec": I2, "start": I2 + (2**63 - 3)}, ": a value does not fit"),
    ({"type": "MultiDiscrete", "nvec": I2, "dtype": I2}, r"\.dtype: expected an integer typestr"),
    ({"type": "MultiBinary"}, ": missing key shape"),
    ({"type": "MultiBinary", "shape": 5}, r"\.shape: expected a list"),
    ({"type": "MultiBinary", "shape": [0, 2**62]}, r"\.shape: expected at least one element"),
    ({"type": "MultiBinary", "shape": [2**64 - 1]}, r"\.shape: expected a list"),
    ({"type": "Text"}, ": missing key charset, max_length"),
    ({"type": "Text", "max_length": 0, "charset": ""}, r"\.max_length: expected an int of at"),
    ({"type": "Text", "max_length": 3, "charset": ["a"]}, r"\.charset: expected str, got list"),
    ({"type": "Text", "max_length": 3, "charset": "a", "min_length": -1}, r"\.min_length: "),
    ({"type": "Text", "max_length": 3, "charset": "a", "min_length": 4}, ": min_length 4 exceeds"),
    ({"type": "Dict"}, r"\.spaces: expected a map, got nil"),
    ({"type": "Dict", "spaces": []}, r"\.spaces: expected a map, got list"),
    ({"type": "Dict", "spaces": {"a": {"type": "x"}}}, r"\.spaces\.a\.type: expected one of"),
    ({"type": "Dict", "spaces": {"a\n": 1}}, r"\.spaces\.'a\\n': expected a map, got int 1"),
    ({"type": "Tuple"}, r"\.spaces: expected a list, got nil"),
    ({"type": "Tuple", "spaces": {}}, r"\.spaces: expected a list, got map"),
    ({"type": "Tuple", "spaces": [DISCRETE, {"type": "Dict", "spaces": {"b": 0}}]},
     r"\.spaces\[1\]\.spaces\.b: expected a map, got int 0"),
]  # fmt: skip


@pytest.mark.parametrize(("space", "text"), SPACES)
def test_reader_refuses_space(space: Any, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"^here{text}"):
        space_from_wire(space, "here")


def test_reader_bounds_the_depth_of_spaces() -> None:
    space: Any = DISCRETE
    for depth in range(17):
        assert (depth <= 16) is (space_from_wire(space, "x") is not None)
        space = {"type": "Tuple", "spaces": [space]}
    with pytest.raises(RemoteProtocolError, match=r"\.spaces\[0\]: nested more than 16 deep"):
        space_from_wire(space, "x")


@pytest.mark.parametrize("dtype", ["?", "b", "B", "h", "i", "q", "Q", "e", "f", "d", ">f", ">i"])
def test_reader_reads_box_of_every_dtype(dtype: str) -> None:
    spec = space_from_wire(box([0, 0], [1, 1], dtype=dtype), "x")
    assert isinstance(spec, BoxSpec)
    assert spec.low.dtype.char == np.dtype(dtype).char
    assert spec.high.tolist() == [1, 1]


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (2, 3, 4)])
def test_reader_reads_box_of_every_shape(shape: tuple[int, ...]) -> None:
    spec = space_from_wire(box(np.zeros(shape), np.ones(shape)), "x")
    assert isinstance(spec, BoxSpec)
    assert spec.low.shape == shape


def test_reader_reads_infinite_bounds_and_single_values() -> None:
    space_from_wire(box([-np.inf, 3], [np.inf, 3]), "x")


def test_reader_fills_in_what_a_space_leaves_out() -> None:
    assert space_from_wire({"type": "Discrete", "n": 5}, "x") == DiscreteSpec(5, 0, "<i8")
    multi = space_from_wire({"type": "MultiDiscrete", "nvec": I2.astype(np.uint8)}, "x")
    assert isinstance(multi, MultiDiscreteSpec)
    assert multi.nvec.dtype == multi.start.dtype == np.int64
    assert multi.start.tolist() == [0, 0]
    text = space_from_wire({"type": "Text", "max_length": 5, "charset": "ab"}, "x")
    assert text == TextSpec(0, 5, "ab")


def test_reader_keeps_the_order_of_dict_entries() -> None:
    names = ["z", "a", "", "m/n", "~"]
    space = {"type": "Dict", "spaces": {name: copy.deepcopy(DISCRETE) for name in names}}
    assert list(space_to_wire(space_from_wire(space, "x"))["spaces"]) == names
