"""Which spaces are images, and how each lies on the wire (SPEC 9.3.16 to 9.3.19, case D08)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from plugrl_gym.spaces import ObservationLayout
from plugrl_gym.spaces.images import image_to_wire, wire_shape

# shape of one image, shape on the wire, where pixel [...] of a numbered image goes
ORIENTATIONS: list[tuple[str, tuple[int, ...], tuple[int, ...], Any]] = [
    ("hw", (6, 8), (6, 8, 1), lambda a: a[..., None]),
    ("hwc", (6, 8, 3), (6, 8, 3), lambda a: a),
    ("hwc, 1", (84, 84, 1), (84, 84, 1), lambda a: a),
    ("hwc, 4", (5, 5, 4), (5, 5, 4), lambda a: a),
    ("chw", (3, 6, 8), (6, 8, 3), lambda a: a.transpose(1, 2, 0)),
    ("chw, stack of four", (4, 84, 84), (84, 84, 4), lambda a: a.transpose(1, 2, 0)),
    ("chw, 9 channels", (9, 10, 12), (10, 12, 9), lambda a: a.transpose(1, 2, 0)),
    ("hwc, 9 channels", (12, 10, 9), (12, 10, 9), lambda a: a),
    ("a cube is channel-last", (16, 16, 16), (16, 16, 16), lambda a: a),
    ("3, 3, 3", (3, 3, 3), (3, 3, 3), lambda a: a),
    ("1, h, w", (1, 6, 8), (6, 8, 1), lambda a: a.transpose(1, 2, 0)),
    ("khwc", (2, 6, 8, 3), (6, 8, 6), lambda a: np.concatenate([a[0], a[1]], axis=-1)),
    ("khwc, atari", (4, 84, 84, 3), (84, 84, 12), lambda a: np.concatenate(list(a), axis=-1)),
    ("kchw", (2, 3, 6, 8), (6, 8, 6),
     lambda a: np.concatenate([a[0].transpose(1, 2, 0), a[1].transpose(1, 2, 0)], axis=-1)),
    ("khw1", (2, 6, 8, 1), (6, 8, 2), lambda a: np.concatenate([a[0], a[1]], axis=-1)),
]  # fmt: skip
IDS = [name for name, *_ in ORIENTATIONS]


@pytest.mark.parametrize(("name", "shape", "on_wire", "turn"), ORIENTATIONS, ids=IDS)
def test_image_travels_as_rows_columns_channels(
    name: str, shape: tuple[int, ...], on_wire: tuple[int, ...], turn: Any
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, *shape), dtype=np.uint8)
    layout = ObservationLayout(spaces.Box(0, 255, shape, np.uint8))
    sent = layout.encode(pixels)
    assert set(sent.images) == {"obs"}
    assert sent.states == {}
    wire = sent.images["obs"]
    assert wire.shape == (3, *on_wire)
    assert wire.dtype == np.uint8
    assert wire.flags.c_contiguous
    for row in range(3):
        assert np.array_equal(wire[row], turn(pixels[row]))
    assert layout.policy_space == spaces.Box(0, 255, on_wire, np.uint8)
    decoded = layout.decode(sent)
    assert np.array_equal(decoded, wire)
    assert decoded.flags.writeable
    assert not np.shares_memory(decoded, wire)
    restored = layout.restore(sent)
    assert np.array_equal(restored, pixels)
    assert not np.shares_memory(restored, wire)


@pytest.mark.parametrize(("name", "shape", "on_wire", "turn"), ORIENTATIONS, ids=IDS)
@pytest.mark.parametrize("n", [0, 1])
def test_image_keeps_its_batch_axis(
    name: str, shape: tuple[int, ...], on_wire: tuple[int, ...], turn: Any, n: int
) -> None:
    assert image_to_wire(np.zeros((n, *shape), np.uint8)).shape == (n, *on_wire)
    assert wire_shape(shape) == on_wire


STATES: list[tuple[str, spaces.Box]] = [
    ("RAM", spaces.Box(0, 255, (128,), np.uint8)),
    ("five dimensions", spaces.Box(0, 255, (2, 2, 4, 4, 3), np.uint8)),
    ("floats in 0..1", spaces.Box(0, 1, (6, 8, 3), np.float32)),
    ("floats in 0..255", spaces.Box(0, 255, (6, 8, 3), np.float32)),
    ("other bounds", spaces.Box(0, 254, (6, 8, 3), np.uint8)),
    ("one other bound", spaces.Box(np.eye(6, 8, dtype=np.uint8), np.full((6, 8), 255, np.uint8),
                                   dtype=np.uint8)),
    ("signed", spaces.Box(0, 127, (6, 8, 3), np.int8)),
    ("16 bits", spaces.Box(0, 255, (6, 8, 3), np.uint16)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "space"), STATES, ids=[name for name, _ in STATES])
def test_other_boxes_are_states(name: str, space: spaces.Box) -> None:
    layout = ObservationLayout(space)
    batch = np.stack([space.sample(), space.sample()])
    sent = layout.encode(batch)
    assert sent.images == {}
    assert sent.states["obs"].shape == (2, int(np.prod(space.shape)))
    assert layout.policy_space == space
    assert np.array_equal(layout.decode(sent), batch)


def test_cameras_of_different_size_travel_side_by_side() -> None:
    space = spaces.Dict(
        {
            "left/rgb": spaces.Box(0, 255, (4, 6, 3), np.uint8),
            "wrist.rgb": spaces.Box(0, 255, (3, 8, 8), np.uint8),
            "ram": spaces.Box(0, 255, (16,), np.uint8),
        }
    )
    layout = ObservationLayout(space)
    batch = {key: np.stack([part.sample()] * 2) for key, part in space.spaces.items()}
    sent = layout.encode(batch)
    assert {name: a.shape for name, a in sent.images.items()} == {
        "left~1rgb": (2, 4, 6, 3),
        "wrist.rgb": (2, 8, 8, 3),
    }
    assert set(sent.states) == {"ram"}
    assert set(layout.policy_space.spaces) == {"left~1rgb", "wrist.rgb", "ram"}  # type: ignore[attr-defined]
