"""Each validation of SPEC 6 and 9, with the place that its error names.

A case breaks one thing in a valid message. The reader must refuse it as the peer's error.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from plugrl_gym.errors import RemoteProtocolError
from plugrl_gym.protocol import (
    Action,
    Feedback,
    Infer,
    MessageType,
    Metadata,
    Observation,
    encode,
)
from plugrl_gym.protocol.messages import read_message
from tests.support.messages import feedback, infer

REMOVE = object()


def change(message: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of ``message`` with the entry at the dotted ``path`` set, or removed."""
    message = copy.deepcopy(message)
    *way, last = path.split(".")
    holder = message
    for key in way:
        holder = holder[key]
    if value is REMOVE:
        del holder[last]
    else:
        holder[last] = value
    return message


def refuse(kind: MessageType, message: dict[str, Any], text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        read_message(encode(message), kind)


I2 = np.arange(2)
F2 = np.zeros(2, np.float32)
B2 = np.zeros(2, np.bool_)
CAM = np.zeros((2, 4, 5, 3), np.uint8)

OBSERVATION: list[tuple[str, Any, str]] = [
    ("", [], "{}: expected a map, got list"),
    ("", np.zeros((2, 3)), "{}: expected a map, got float64 array"),
    ("", None, "{}: expected a map, got nil"),
    ("images", REMOVE, "{}: missing key images"),
    ("states", REMOVE, "{}: missing key states"),
    ("text", REMOVE, "{}: missing key text"),
    ("extra", 1, "{}: expected exactly the keys images, states, text; got also extra"),
    ("images", None, r"{}\.images: expected a map, got nil"),
    ("images", CAM, r"{}\.images: expected a map, got uint8 array"),
    ("states", [1], r"{}\.states: expected a map, got list"),
    ("images.cam", CAM[0], r"{}\.images\.cam: expected uint8 \[n, h, w, c\], got .* \[4, 5, 3\]"),
    ("images.cam", CAM[None], r"{}\.images\.cam: expected uint8"),
    ("images.cam", CAM.astype(np.int8), r"{}\.images\.cam: expected uint8 .*, got int8"),
    ("images.cam", CAM.astype(np.uint16), r"{}\.images\.cam: expected uint8 .*, got uint16"),
    ("images.cam", CAM / 255, r"{}\.images\.cam: expected uint8 .*, got float64"),
    ("images.cam", CAM.astype(bool), r"{}\.images\.cam: expected uint8 .*, got bool"),
    ("images.cam", b"png", r"{}\.images\.cam: expected uint8 .*, got bytes"),
    ("images.cam", CAM[:1], r"{}\.images\.cam: expected 2 rows, one for each env index, got 1"),
    ("images.cam", np.zeros((0, 4, 5, 3), np.uint8), r"{}\.images\.cam: expected 2 rows"),
    ("states.obs", np.zeros(2), r"{}\.states\.obs: expected numeric \[n, d\], got .* \[2\]"),
    ("states.obs", np.zeros((2, 1, 1)), r"{}\.states\.obs: expected numeric"),
    ("states.obs", np.zeros((3, 1)), r"{}\.states\.obs: expected 2 rows, .* got 3"),
    ("states.obs", np.array([["a"], ["b"]]), r"{}\.states\.obs: expected numeric .*, got str"),
    ("states.obs", [[1.0], [2.0]], r"{}\.states\.obs: expected numeric .*, got list"),
    ("states.obs", np.float32(1), r"{}\.states\.obs: expected numeric .*, got float32"),
    ("states.obs", {"nested": np.zeros((2, 1))}, r"{}\.states\.obs: expected numeric .*, got map"),
    ("states.a\nb", np.zeros(2), r"{}\.states\.'a\\nb': expected numeric"),
    ("text", None, r"{}\.text: expected a unicode array or list of 2 str, got nil"),
    ("text", "go", r"{}\.text: expected a unicode array or list of 2 str, got str 'go'"),
    ("text", np.array(["a"]), r"{}\.text: expected a unicode array of shape \[2\], got .* \[1\]"),
    ("text", np.array([["a"], ["b"]]), r"{}\.text: expected a unicode array of shape"),
    ("text", np.zeros(2), r"{}\.text: expected a unicode array of shape .* got float64"),
    ("text", ["a"], r"{}\.text: expected a list of 2 str"),
    ("text", ["a", None], r"{}\.text: expected a list of 2 str"),
    ("text", ["a", b"b"], r"{}\.text: expected a list of 2 str"),
]  # fmt: skip


def indices(place: str) -> list[tuple[str, Any, str]]:
    """What no vector of n integers may be."""
    where = place.replace(".", r"\.")
    return [
        (place, [0, 1], f"{where}: expected an int64 vector, got list"),
        (place, 0, f"{where}: expected an int64 vector, got int 0"),
        (place, None, f"{where}: expected an int64 vector, got nil"),
        (place, np.int64(1), f"{where}: expected an int64 vector, got int64"),
        (place, np.zeros(2), f"{where}: expected an int64 vector, got float64 array"),
        (place, B2, f"{where}: expected an int64 vector, got bool array"),
        (place, np.zeros((2, 1), int), f"{where}: expected an int64 vector, got int64 array"),
        (place, np.array(1), f"{where}: expected an int64 vector"),
        (place, np.array([1, 2**63], np.uint64), f"{where}: 9223372036854775808 takes more"),
    ]


def envs(kind: str) -> list[tuple[str, Any, str]]:
    where = rf"{kind}\.env_indices"
    return [
        *[(path, value, f"{kind}.{text}") for path, value, text in indices("env_indices")],
        *[(path, value, f"{kind}.{text}") for path, value, text in indices("step_ids")],
        ("env_indices", np.zeros(0, np.int64), f"{where}: names no env"),
        ("env_indices", np.array([1, -1]), f"{where}: -1 is negative"),
        ("env_indices", np.array([1, 1]), rf"{where}: names an env twice: \[1, 1\]"),
        ("step_ids", np.arange(3), rf"{kind}\.step_ids: expected 2 entries, got 3"),
        ("step_ids", np.arange(0), rf"{kind}\.step_ids: expected 2 entries, got 0"),
        ("env_indices", REMOVE, f"{kind}: missing key env_indices"),
        ("step_ids", REMOVE, f"{kind}: missing key step_ids"),
        ("data", REMOVE, f"{kind}: missing key data"),
    ]


def place(cases: list[tuple[str, Any, str]], at: str, name: str) -> list[tuple[str, Any, str]]:
    return [(f"{at}.{p}".strip("."), v, text.format(name)) for p, v, text in cases]


INFER = infer(observation=Observation({"cam": CAM}, {"obs": np.zeros((2, 1))}, ["", ""])).to_wire()
INFER_CASES = [
    *envs("infer"),
    *place(OBSERVATION, "data", r"infer\.data"),
    ("reuse", True, r"infer\.reuse: expected bool \[2\], got bool True"),
    ("reuse", [True, False], r"infer\.reuse: expected bool \[2\], got list"),
    ("reuse", np.zeros(2, np.int64), r"infer\.reuse: expected bool \[2\], got int64"),
    ("reuse", np.zeros(3, np.bool_), r"infer\.reuse: expected bool \[2\], got bool array"),
    ("reuse", np.ones(2, np.bool_), r"infer\.data\.images\.cam: expected 0 rows"),
    ("reuse", np.array([True, False]), r"infer\.data\.images\.cam: expected 1 rows"),
]


@pytest.mark.parametrize(("path", "value", "text"), INFER_CASES)
def test_reader_refuses_infer(path: str, value: Any, text: str) -> None:
    refuse(MessageType.INFER, change(INFER, path, value), f"^{text}")


ACTION = Action(np.zeros((3, 2, 1)), I2).to_wire()
ACTION_CASES: list[tuple[str, Any, str]] = [
    ("data", REMOVE, "action: missing key data"),
    ("data", np.zeros((1, 2)), r"action\.data: expected a map, got float64 array"),
    ("data.action", REMOVE, r"action\.data: missing key action"),
    ("data.action", None, r"action\.data\.action: expected numeric .*, got nil"),
    ("data.action", [[0.0, 1.0]], r"action\.data\.action: expected numeric .*, got list"),
    ("data.action", np.zeros(2), r"action\.data\.action: expected numeric .* \[2\]"),
    ("data.action", np.array(1.0), r"action\.data\.action: expected numeric"),
    ("data.action", np.zeros((0, 2, 1)), r"action\.data\.action: .*H >= 1, got .* \[0, 2, 1\]"),
    ("data.action", np.array([["a", "b"]]), r"action\.data\.action: expected numeric .*, got str"),
    ("data.action", np.array([[[0.0], [np.nan]]]), r"action\.data\.action\[0, 1, 0\]: nan is not"),
    ("data.action", np.array([[[-np.inf], [0]]]), r"action\.data\.action\[0, 0, 0\]: -inf is not"),
    *[p for p in indices("data.env_ids") if p[1] is not None],
]
ACTION_CASES = [
    (p, v, t if t.startswith("action") else rf"action\.{t}") for p, v, t in ACTION_CASES
]


@pytest.mark.parametrize(("path", "value", "text"), ACTION_CASES)
def test_reader_refuses_action(path: str, value: Any, text: str) -> None:
    refuse(MessageType.ACTION, change(ACTION, path, value), f"^{text}")


EPISODE = {"r": np.zeros(2), "l": I2, "mask": B2}
FEEDBACK = feedback(
    observation=Observation({"cam": CAM}, {"obs": np.zeros((2, 1))}, ["", ""])
).to_wire()
UNSPLITTABLE = r"feedback\.data\.info: cannot be split into 2 rows"
STEPS = {"steps": np.array([1, 2]), "step_rewards": np.ones((2, 2), np.float32) * [[1, 1], [0, 1]]}
FEEDBACK_CASES: list[tuple[str, Any, str]] = [
    *envs("feedback"),
    *place(OBSERVATION, "data.obs", r"feedback\.data\.obs"),
    ("data", None, r"feedback\.data: expected a map, got nil"),
    *[
        (f"data.{key}", REMOVE, rf"feedback\.data: missing key {key}")
        for key in ("obs", "rewards", "terminated", "truncated", "info")
    ],
    ("data.dones", B2, r"feedback\.data: expected exactly the keys .*; got also dones"),
    ("data.rewards", np.zeros(3), r"feedback\.data\.rewards: expected float \[2\], got .* \[3\]"),
    ("data.rewards", np.zeros((2, 1)), r"feedback\.data\.rewards: expected float"),
    ("data.rewards", I2, r"feedback\.data\.rewards: expected float \[2\], got int64"),
    ("data.rewards", [1.0, 2.0], r"feedback\.data\.rewards: expected float \[2\], got list"),
    ("data.rewards", np.float64(1), r"feedback\.data\.rewards: .*, got float 1.0"),
    *[
        case
        for key in ("terminated", "truncated")
        for case in [
            (f"data.{key}", I2, rf"feedback\.data\.{key}: expected bool \[2\], got int64"),
            (f"data.{key}", F2, rf"feedback\.data\.{key}: expected bool \[2\], got float32"),
            (f"data.{key}", B2[:1], rf"feedback\.data\.{key}: expected bool \[2\]"),
            (f"data.{key}", B2[None], rf"feedback\.data\.{key}: expected bool \[2\]"),
            (f"data.{key}", [True, False], rf"feedback\.data\.{key}: .* got list"),
            (f"data.{key}", False, rf"feedback\.data\.{key}: .* got bool False"),
        ]
    ],
    ("data.info", None, r"feedback\.data\.info: expected a map, got nil"),
    ("data.info", [{}, {}], r"feedback\.data\.info: expected a map, got list"),
    ("data.info", F2, r"feedback\.data\.info: expected a map, got float32"),
    ("data.info", {"a": 1}, f"{UNSPLITTABLE}.*holds no array"),
    ("data.info", {"a": [F2]}, f"{UNSPLITTABLE}.*holds no array"),
    ("data.info", {"a": {"b": {"c": F2}}}, f"{UNSPLITTABLE}.*holds no array"),
    ("data.info", {"a": np.zeros(3), "b": F2}, rf"{UNSPLITTABLE}.* \[3\] first"),
    ("data.info", {"a": np.array(1.0), "b": F2}, f"{UNSPLITTABLE}.*first"),
    ("data.info", {"a": {"b": np.zeros(1)}}, f"{UNSPLITTABLE}.*first"),
    ("steps", I2 + 1, r"feedback\.step_rewards: expected float \[2, 2\], got nil"),
    ("step_rewards", F2[None], r"feedback\.steps: expected an int64 vector, got nil"),
    ("actions", np.zeros((1, 2)), r"feedback\.overridden: expected bool \[2\], got nil"),
    ("overridden", B2, r"feedback\.actions: expected numeric \[K, 2, \.\.\.\], got nil"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "text"), FEEDBACK_CASES)
def test_reader_refuses_feedback(path: str, value: Any, text: str) -> None:
    refuse(MessageType.FEEDBACK, change(FEEDBACK, path, value), f"^{text}")


METADATA_CASES: list[tuple[str, Any, str]] = [
    ("data", REMOVE, "metadata: missing key data"),
    ("data", [], r"metadata\.data: expected a map, got list"),
    *[
        case
        for key in ("protocol_version", "action_horizon", "action_dim")
        for case in [
            (f"data.{key}", 0, rf"metadata\.data\.{key}: expected a positive int, got int 0"),
            (f"data.{key}", -1, rf"metadata\.data\.{key}: expected a positive int"),
            (f"data.{key}", 1.0, rf"metadata\.data\.{key}: .*, got float 1.0"),
            (f"data.{key}", True, rf"metadata\.data\.{key}: .*, got bool True"),
            (f"data.{key}", "1", rf"metadata\.data\.{key}: .*, got str '1'"),
            (f"data.{key}", np.zeros(1, int), rf"metadata\.data\.{key}: .*, got int64 array"),
        ]
    ],
    *[
        (f"data.{key}", 1, rf"metadata\.data\.{key}: expected a str, got int 1")
        for key in ("server", "server_version", "algorithm", "policy")
    ],
    ("data.features", "reuse", r"metadata\.data\.features: expected a list of str, got str"),
    ("data.features", [1], r"metadata\.data\.features: expected a list of str"),
    ("data.features", {"reuse": True}, r"metadata\.data\.features: expected a list of str"),
    ("data.features", np.array(["a"]), r"metadata\.data\.features: .*, got str"),
]


@pytest.mark.parametrize(("path", "value", "text"), METADATA_CASES)
def test_reader_refuses_metadata(path: str, value: Any, text: str) -> None:
    refuse(MessageType.METADATA, change(Metadata().to_wire(), path, value), f"^{text}")


ENVELOPES: list[tuple[Any, str]] = [
    ([], "expected a map, got list"),
    (1, "expected a map, got int 1"),
    (None, "expected a map, got nil"),
    (np.zeros(2), "expected a map, got float64 array"),
    ({}, r"without message_type \(keys: none\); the peer seems to speak openpi"),
    ({"observation/image": 1, "prompt": "x"}, r"keys: observation/image, prompt"),
    ({"message_type": None}, "without message_type"),
    ({"message_type": "hello"}, "expected infer, got message_type str 'hello'"),
    ({"message_type": "Infer"}, "expected infer, got message_type str 'Infer'"),
    ({"message_type": 1}, "expected infer, got message_type int 1"),
    ({"message_type": ["infer"]}, "expected infer, got message_type list"),
    ({"message_type": np.array(["infer", "infer"])}, "expected infer, got message_type str"),
    ({"message_type": np.zeros(0)}, "expected infer, got message_type float64 array"),
    ({"message_type": "x" * 1000}, "expected infer, got message_type str 'x{40}' "),
    ({f"k{i}": 0 for i in range(100)}, r"keys: k0, k1, k2, k3, k4, k5\)"),
]


@pytest.mark.parametrize(("value", "text"), ENVELOPES)
def test_reader_refuses_envelope(value: Any, text: str) -> None:
    frame = encode({"": value})[2:]
    with pytest.raises(RemoteProtocolError, match=text):
        read_message(frame, MessageType.INFER)


@pytest.mark.parametrize("kind", MessageType)
def test_reader_refuses_text_frame(kind: MessageType) -> None:
    with pytest.raises(RemoteProtocolError, match="a text frame"):
        read_message("Traceback (most recent call last):", kind)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (MessageType.INFER, INFER),
        (MessageType.ACTION, ACTION),
        (MessageType.FEEDBACK, FEEDBACK),
        (MessageType.METADATA, Metadata().to_wire()),
    ],
)
def test_reader_ignores_unknown_keys_at_top_level(kind: MessageType, message: Any) -> None:
    read_message(encode({**message, "spice": np.zeros(3), "more": {"a": None}}), kind)


@pytest.mark.parametrize("kind", ["infer", "feedback", "action"])
def test_reader_takes_keys_in_any_order(kind: str) -> None:
    message = {"infer": INFER, "feedback": FEEDBACK, "action": ACTION}[kind]
    turned = dict(reversed({**message, "data": dict(reversed(message["data"].items()))}.items()))
    read_message(encode(turned), MessageType(kind))


WIDTHS = ["b", "h", "i", "q", "B", "H", "I", "Q", ">i", ">q", ">Q"]


@pytest.mark.parametrize("code", WIDTHS)
def test_reader_takes_indices_of_any_integer_width(code: str) -> None:
    ids = np.array([5, 3], dtype=code)
    message = change(change(INFER, "env_indices", ids), "step_ids", ids)
    read = read_message(encode(message), MessageType.INFER)
    assert isinstance(read, Infer)
    assert read.env_indices.dtype == read.step_ids.dtype == np.int64
    assert read.env_indices.tolist() == read.step_ids.tolist() == [5, 3]


@pytest.mark.parametrize("code", ["e", "f", "d", ">f", ">d", "b", "H", ">i", "Q", "?"])
def test_reader_takes_states_of_any_number(code: str) -> None:
    message = change(INFER, "data.states.obs", np.array([[1], [0]], dtype=code))
    read = read_message(encode(message), MessageType.INFER)
    assert read.observation.states["obs"].tolist() == [[1], [0]]  # type: ignore[union-attr]


@pytest.mark.parametrize("code", ["e", "f", "d", ">f", ">d", "b", "H", ">i", "Q", "?"])
def test_reader_takes_actions_of_any_number(code: str) -> None:
    message = change(ACTION, "data.action", np.array([[[1], [0]]], dtype=code))
    read = read_message(encode(message), MessageType.ACTION)
    assert isinstance(read, Action)
    assert read.action.tolist() == [[[1], [0]]]


@pytest.mark.parametrize("code", ["e", "f", "d", ">f", ">d"])
def test_reader_takes_rewards_of_any_float(code: str) -> None:
    message = change(FEEDBACK, "data.rewards", np.array([1.5, -2], dtype=code))
    read = read_message(encode(message), MessageType.FEEDBACK)
    assert isinstance(read, Feedback)
    assert read.rewards.tolist() == [1.5, -2]


TEXTS: list[tuple[Any, list[str]]] = [
    (np.array(["", ""]), ["", ""]),
    (np.array(["go", "stop"]), ["go", "stop"]),
    (np.array(["go", "stop"], dtype=">U9"), ["go", "stop"]),
    (["", ""], ["", ""]),
    (["go\0", "\0"], ["go\0", "\0"]),
]


@pytest.mark.parametrize(("sent", "expected"), TEXTS)
def test_reader_takes_text_as_array_or_list(sent: Any, expected: list[str]) -> None:
    read = read_message(encode(change(INFER, "data.text", sent)), MessageType.INFER)
    assert list(read.observation.text) == expected  # type: ignore[union-attr]


@pytest.mark.parametrize("text", [["a\0", ""], ["", "\0"], ["a\0b", ""], ["x", "yz"], ["", ""]])
def test_text_survives_the_trip(text: list[str]) -> None:
    sent = infer(observation=Observation(text=text))
    read = read_message(encode(sent.to_wire()), MessageType.INFER)
    assert list(read.observation.text) == text  # type: ignore[union-attr]
    assert isinstance(sent.to_wire()["data"]["text"], list) is any(t.endswith("\0") for t in text)


def test_reader_takes_empty_observation() -> None:
    read_message(encode(infer(observation=Observation(text=["", ""])).to_wire()), MessageType.INFER)


def test_reader_takes_metadata_that_declares_nothing() -> None:
    read = read_message(encode({"message_type": "metadata", "data": {}}), MessageType.METADATA)
    assert read == Metadata()


def test_reader_takes_typed_scalars_in_metadata() -> None:
    data = {"protocol_version": np.int64(1), "action_dim": np.uint8(3)}
    read = read_message(encode({"message_type": "metadata", "data": data}), MessageType.METADATA)
    assert (read.protocol_version, read.action_dim) == (1, 3)  # type: ignore[union-attr]


def test_reader_takes_nil_in_metadata_as_not_known() -> None:
    data = {"action_horizon": None, "server": None, "features": None}
    read = read_message(encode({"message_type": "metadata", "data": data}), MessageType.METADATA)
    assert read == Metadata()


def test_reader_keeps_what_it_does_not_know_of_metadata() -> None:
    data = {"features": ["a", "b"], "policy": "p", "x": {"y": [1]}, "z": np.arange(2)}
    read = read_message(encode({"message_type": "metadata", "data": data}), MessageType.METADATA)
    assert isinstance(read, Metadata)
    assert read.features == ("a", "b")
    assert read.extra["x"] == {"y": [1]}
    assert read.extra["z"].tolist() == [0, 1]


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"a": np.zeros(2)},
        {"a": 1, "b": {"c": "x", "d": np.zeros((2, 5))}, "e": np.zeros(7)},
        {"episode": EPISODE},
    ],
)
def test_reader_takes_info_that_can_be_split(info: Any) -> None:
    read_message(encode(change(FEEDBACK, "data.info", info)), MessageType.FEEDBACK)


@pytest.mark.parametrize("info", [{"a": 1}, {"a": np.zeros(7)}, {"a": None, "b": {"c": []}}])
def test_reader_takes_any_info_of_one_row(info: Any) -> None:
    read_message(encode(feedback([4], info=info).to_wire()), MessageType.FEEDBACK)
