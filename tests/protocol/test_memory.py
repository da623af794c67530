"""No frame makes its reader allocate more than its own length justifies (SPEC 3.13, case B09)."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest

from plugrl_gym.errors import PlugRLError
from plugrl_gym.protocol import MessageType, Observation, SpaceDeclaration, decode, encode
from plugrl_gym.protocol.messages import read_message
from plugrl_gym.spaces import ActionLayout, ObservationLayout, build_space
from tests.support.messages import infer

MIB = 2**20
# What the library allocates for its own: a list of 64 slots for each of a thousand levels.
FIXED = MIB


def peak_of(work: Callable[[], object]) -> int:
    """Bytes that ``work`` held at most; its protocol errors are its business."""
    with contextlib.suppress(PlugRLError):
        work()
    tracemalloc.start()
    try:
        with contextlib.suppress(PlugRLError):
            work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def array(typestr: str, shape: Any, data: bytes = b"") -> dict[bytes, Any]:
    return {b"__ndarray__": True, b"data": data, b"dtype": typestr, b"shape": shape}


HOSTILE: dict[str, bytes] = {
    "list of 4 Gi": b"\xdd\xff\xff\xff\xff",
    "map of 4 Gi": b"\xdf\xff\xff\xff\xff",
    "lists of 64 Ki": b"\xdc\xff\xff" * 1000,
    "lists of 64": b"\xdc\x00\x40" * 1000,
    "list as long as the frame could hold": b"\xdd\x00\x0f\xff\xff" + b"\xdd\x00\x0f\xff\xff" * 10,
    "str of 4 GiB": b"\xdb\xff\xff\xff\xff",
    "bin of 4 GiB": b"\xc6\xff\xff\xff\xff",
    "array of 8 GB": msgpack.packb(array("<f8", [1_000_000_000], b"\0" * 8)),
    "array of no rows, huge ones": msgpack.packb(array("<f8", [0, 2**40])),
    "array of no rows, overflowing": msgpack.packb(array("<f8", [0, 2**62, 2**62])),
    "text of huge width, no rows": msgpack.packb(array("<U536870911", [0])),
    "text too wide for numpy": msgpack.packb(array("<U999999999", [0])),
    "empty strings, 2**40": msgpack.packb(array("<U0", [2**40])),
    "empty strings, 2**62": msgpack.packb(array("<U0", [2**62])),
    "empty strings, overflowing": msgpack.packb(array("<U0", [2**31] * 4)),
    "bin key": msgpack.packb({b"k" * 1000: 1}),
    "shape of deep lists": msgpack.packb(array("<f8", eval("[" * 50 + "]" * 50))),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_reader_of_small_hostile_frame_allocates_little(name: str) -> None:
    frame = HOSTILE[name]
    assert peak_of(lambda: decode(frame)) < FIXED + 16 * len(frame)


def test_error_text_does_not_grow_with_the_frame() -> None:
    for value in (
        {b"k" * 5 * MIB: 1},
        array("<" * MIB, [1]),
        array("<f8", [1] * MIB),
        array("<f8", ["x" * MIB]),
        {"k" * MIB: 1},
        {"message_type": "x" * MIB},
        {"message_type": "infer", "env_indices": "x" * MIB, "step_ids": 1, "data": 1},
    ):
        with pytest.raises(PlugRLError) as caught:
            read_message(encode_raw(value), MessageType.INFER)
        assert len(str(caught.value)) < 400


def encode_raw(value: Any) -> bytes:
    return msgpack.packb(value, default=lambda a: array(a.dtype.str, a.shape, a.tobytes()))  # type: ignore[no-any-return]


def infer_with(data: Any, **more: Any) -> bytes:
    ids = np.arange(2)
    message = {"message_type": "infer", "data": data, "env_indices": ids, "step_ids": ids}
    return encode_raw({**message, **more})


def test_reader_of_empty_strings_holds_no_more_than_the_envs() -> None:
    frame = infer_with({"images": {}, "states": {}, "text": array("<U0", [2**40])})
    assert peak_of(lambda: read_message(frame, MessageType.INFER)) < FIXED


def test_reader_does_not_pad_one_huge_string() -> None:
    text = ["x" * MIB, *[""] * 499]
    ids = np.arange(500)
    frame = encode_raw(
        {
            "message_type": "infer",
            "data": {"images": {}, "states": {}, "text": text},
            "env_indices": ids,
            "step_ids": ids,
        }
    )
    assert peak_of(lambda: read_message(frame, MessageType.INFER)) < 3 * MIB


def test_writer_does_not_pad_one_huge_string() -> None:
    ragged = Observation(text=["x" * MIB, *[""] * 499])  # padded: 2 GB
    assert peak_of(lambda: encode(ragged.to_wire())) < 6 * MIB
    assert decode(encode(ragged.to_wire()))["text"] == list(ragged.text)


def test_bytes_per_element_stay_bounded() -> None:
    """Python's own objects are the price: the worst is an empty map, 72 bytes for one."""
    count = 200_000
    for one, most in ((b"\x80", 80), (b"\x90", 80), (b"\xc0", 12), (b"\xa2ab", 32)):
        frame = b"\xdd" + count.to_bytes(4, "big") + one * count
        assert peak_of(lambda frame=frame: decode(frame)) < FIXED + most * len(frame)  # type: ignore[misc]


def space(observation: Any, action: Any = None) -> bytes:
    spaces = {
        "env_id": None,
        "num_envs": 1,
        "autoreset": "disabled",
        "observation": observation,
        "action": action or {"type": "Discrete", "n": 2},
    }
    return infer_with({"images": {}, "states": {}, "text": ["", ""]}, spaces=spaces)


def build(frame: bytes) -> None:
    declared = read_message(frame, MessageType.INFER).spaces  # type: ignore[union-attr]
    assert isinstance(declared, SpaceDeclaration)
    layout = ObservationLayout(build_space(declared.observation))
    assert layout.policy_space is not None
    ActionLayout(build_space(declared.action))


TEXT = {"type": "Text", "max_length": 2**31, "charset": "a"}
SPACES: dict[str, tuple[Any, Any]] = {
    "codes of 2**31": ({"type": "Tuple", "spaces": [TEXT, TEXT]}, None),
    "text of 2**40": ({**TEXT, "max_length": 2**40}, None),
    "bits": ({"type": "MultiBinary", "shape": [2**31]}, None),
    "bits, many dimensions": ({"type": "MultiBinary", "shape": [2**20] * 20}, None),
    "bits to act with": (TEXT, {"type": "MultiBinary", "shape": [2**20]}),
    "discrete of 2**62": (TEXT, {"type": "Discrete", "n": 2**62}),
    "image of no pixel": (
        {"type": "Box", "shape": [0, 2**40], "dtype": "|u1",
         "low": array("|u1", [0, 2**40]), "high": array("|u1", [0, 2**40])}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", SPACES)
def test_hostile_space_allocates_little(name: str) -> None:
    frame = space(*SPACES[name])
    assert peak_of(lambda: build(frame)) < 2 * FIXED


def test_space_of_many_parts_is_refused_in_linear_time() -> None:
    parts = [{"type": "Discrete", "n": 2}] * 20_000
    deep: Any = {"type": "Tuple", "spaces": parts}
    for _ in range(10):
        deep = {"type": "Dict", "spaces": {"k" * 100_000: deep}}
    frame = space(deep)
    begin = time.perf_counter()
    peak = peak_of(lambda: build(frame))
    assert time.perf_counter() - begin < 10
    assert peak < 100 * len(frame)


def test_space_with_long_names_does_not_multiply_them() -> None:
    parts = {f"{i}": {"type": "Discrete", "n": 2} for i in range(1000)}
    deep: Any = {"type": "Dict", "spaces": {"k" * 100_000: {"type": "Dict", "spaces": parts}}}
    assert peak_of(lambda: build(space(deep))) < 4 * MIB


def test_frame_of_112_mib_passes() -> None:
    """128 envs with one camera each: above the 100 MiB that msgpack's own stream reader allows."""
    shape = (128, 480, 640, 3)
    pixels = np.zeros(shape, np.uint8)
    pixels[-1, -1, -1] = 7
    request = infer(range(128), observation=Observation(images={"cam": pixels}, text=[""] * 128))
    frame = encode(request.to_wire())
    assert len(frame) > 112.5 * MIB
    read = read_message(frame, MessageType.INFER)
    cam = read.observation.images["cam"]  # type: ignore[union-attr]
    assert cam.shape == shape
    assert cam[-1, -1, -1].tolist() == [7, 7, 7]
    assert not cam.flags.owndata or not cam.flags.writeable
    del read, cam
    assert peak_of(lambda: decode(frame)) < len(frame) + FIXED


def test_metadata_with_unknown_key_of_two_mib_is_read() -> None:
    frame = encode({"message_type": "metadata", "data": {"pad": "x" * 2 * MIB, "features": []}})
    read = read_message(frame, MessageType.METADATA)
    assert len(read.extra["pad"]) == 2 * MIB  # type: ignore[union-attr]


def test_deep_recursion_is_no_crash() -> None:
    for code in (b"\x91", b"\x81\xa1a"):
        frame = code * 1_000_000 + b"\xc0"
        with pytest.raises(PlugRLError):
            decode(frame)
