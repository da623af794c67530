"""Images for people: which one is kept, and as what they are shown."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from plugrl_gym.protocol import Infer, Observation
from plugrl_gym.server.agent import Client
from plugrl_gym.server.page import camera as module
from plugrl_gym.server.page.camera import Camera, png, visible
from tests.support.raw_client import infer_of

FIRST, SECOND = Client(1, "127.0.0.1:1"), Client(2, "127.0.0.1:2")


class Clock:
    """Time, as a test says."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def seen(*envs: int, name: str = "front", shape: tuple[int, ...] = (4, 5, 3)) -> Infer:
    """An infer of envs, each with an image that is filled with its number."""
    images = np.stack([np.full(shape, env, np.uint8) for env in envs])
    observation = Observation(images={name: images, "other": images}, text=[""] * len(envs))
    return infer_of(*envs, observation=observation)


def test_camera_that_nobody_watches_keeps_nothing() -> None:
    camera = Camera()
    camera.look(FIRST, seen(0))
    assert camera.newest is None


def test_watched_camera_keeps_the_first_image_of_the_first_env_without_a_copy() -> None:
    camera, infer = Camera(), seen(3, 1)
    camera.watch()
    camera.look(FIRST, infer)
    sight = camera.newest
    assert sight is not None
    assert (sight.client, sight.env, sight.key, sight.image.shape) == (1, 3, "front", (4, 5, 3))
    assert np.shares_memory(sight.image, infer.observation.images["front"])
    assert (sight.image == 3).all()


def test_camera_stays_with_an_env_as_long_as_that_is_seen(clock: Clock) -> None:
    camera = Camera()
    camera.watch()
    for infer, client, env in [
        (seen(2, 0), FIRST, 2),
        (seen(0, 2), FIRST, 2),  # in another row
        (seen(0), FIRST, 2),  # not this one
        (seen(2), SECOND, 2),
    ]:
        camera.look(client, infer)
        assert camera.newest is not None
        assert (camera.newest.client, camera.newest.env) == (1, env)
    assert camera.newest.number == 2
    clock.now += 3
    camera.look(SECOND, seen(7))
    assert (camera.newest.client, camera.newest.env) == (2, 7)


def test_image_is_let_go_once_nobody_watches(clock: Clock) -> None:
    camera = Camera()
    camera.watch()
    camera.look(FIRST, seen(0))
    clock.now += 6
    camera.look(FIRST, seen(0))
    assert camera.newest is None
    camera.look(FIRST, seen(0))
    assert camera.newest is None


@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 0, 3), (4, 5, 0)])
def test_image_without_a_pixel_is_none(shape: tuple[int, ...]) -> None:
    camera = Camera()
    camera.watch()
    camera.look(FIRST, seen(0, shape=shape))
    assert camera.newest is None


def test_client_without_images_shows_nothing() -> None:
    camera = Camera()
    camera.watch()
    camera.look(FIRST, infer_of(0))
    assert camera.newest is None


def channels(*values: int) -> Any:
    """An image [2, 3, c], whose channels have these values."""
    return np.broadcast_to(np.array(values, np.uint8), (2, 3, len(values)))


@pytest.mark.parametrize(
    ("image", "shown"),
    [
        pytest.param(channels(9), (9,), id="grey"),
        pytest.param(channels(1, 2), (2,), id="two grey frames"),
        pytest.param(channels(1, 2, 3), (1, 2, 3), id="colours"),
        pytest.param(channels(1, 2, 3, 4), (4,), id="four grey frames"),
        pytest.param(channels(1, 2, 3, 255), (1, 2, 3), id="colours, opaque"),
        pytest.param(channels(*range(12)), (9, 10, 11), id="four frames in colours"),
        pytest.param(channels(*range(5)), (4,), id="five grey frames"),
    ],
)
def test_newest_frame_is_shown(image: Any, shown: tuple[int, ...]) -> None:
    found = visible(image)
    assert found.shape == (2, 3, len(shown))
    assert (found == shown).all()


def test_large_image_is_thinned() -> None:
    image = np.arange(1300 * 4, dtype=np.uint8).reshape(1300, 4, 1)
    found = visible(image)
    assert found.shape == (434, 2, 1)
    assert (found == image[::3, ::3]).all()


@pytest.mark.parametrize(
    ("shape", "mode"),
    [((7, 5, 3), "RGB"), ((7, 5, 1), "L"), ((1, 1, 3), "RGB"), ((1, 640, 1), "L")],
)
def test_png_is_read_by_others_as_the_same_image(shape: tuple[int, ...], mode: str) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    with Image.open(io.BytesIO(png(image))) as read:
        read.load()
        assert read.mode == mode
        assert (np.asarray(read).reshape(shape) == image).all()


def test_png_of_a_part_of_an_image_is_right_too() -> None:
    image = np.random.default_rng(0).integers(0, 256, (700, 9, 12), np.uint8)
    with Image.open(io.BytesIO(png(visible(image)))) as read:
        assert (np.asarray(read) == image[::2, ::2, -3:]).all()
