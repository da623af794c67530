"""The newest camera image of a run, for whoever watches."""

from __future__ import annotations

import struct
import time
import zlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plugrl_gym.protocol import Infer
from plugrl_gym.server.agent import Client

__all__ = ["Camera", "Sight", "png", "visible"]

_WATCHED_SECONDS: Final = 5.0
_FOLLOWED_SECONDS: Final = 2.0
_MOST_PIXELS: Final = 640


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """An image that a client sent.

    Attributes:
        number: Counts the sights.
        client: The number of the client.
        env: Of its envs.
        key: Of the observation's images.
        image: uint8 [h, w, c], a view of the client's message.
        seen: When it came, by ``time.monotonic``.
    """

    number: int
    client: int
    env: int
    key: str
    image: npt.NDArray[np.uint8]
    seen: float


class Camera:
    """Keeps a reference to the newest image while somebody watches, and nothing otherwise.

    It stays with one env of one client for as long as that sends images.

    Attributes:
        newest: None while nobody watches, or no client sends images.
    """

    def __init__(self) -> None:
        self.newest: Sight | None = None
        self._watched = False
        self._until = 0.0
        self._count = 0

    def watch(self) -> None:
        """Somebody wants to see something, now and in the next few seconds."""
        self._until = time.monotonic() + _WATCHED_SECONDS
        self._watched = True

    def look(self, client: Client, infer: Infer) -> None:
        """A client asked for actions."""
        if self._watched:
            self._look(client, infer, time.monotonic())

    def _look(self, client: Client, infer: Infer, now: float) -> None:
        if now > self._until:
            self._watched, self.newest = False, None
            return
        key = next(iter(infer.observation.images), None)
        if key is None or not len(infer.env_indices):
            return
        row, last = 0, self.newest
        if last is not None and now - last.seen < _FOLLOWED_SECONDS:
            envs = infer.env_indices.tolist()
            if client.number != last.client or last.env not in envs:
                return
            row = envs.index(last.env)
        image = infer.observation.images[key][row]
        if image.size == 0:
            return
        self._count += 1
        env = int(infer.env_indices[row])
        self.newest = Sight(self._count, client.number, env, key, image, now)


def visible(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """What can be shown of an observation: grey [h, w, 1] or colours [h, w, 3].

    Stacked frames are channels (SPEC 9.3.21): the newest frame is the last of them. Large images
    are thinned.

    Args:
        image: uint8 [h, w, c], of at least one pixel.
    """
    thinning = -(-max(image.shape[:2]) // _MOST_PIXELS)
    image = image[::thinning, ::thinning]
    channels = image.shape[2]
    if channels == 4 and bool((image[..., 3] == 255).all()):
        return image[..., :3]  # opaque, so the fourth channel is no frame
    return image[..., -3:] if channels % 3 == 0 else image[..., -1:]


def png(image: npt.NDArray[np.uint8]) -> bytes:
    """An image as a PNG file.

    Args:
        image: uint8 [h, w, 1] or [h, w, 3], of at least one pixel.
    """
    height, width, channels = image.shape
    lines: npt.NDArray[Any] = np.zeros((height, 1 + width * channels), np.uint8)
    lines[:, 1:] = image.reshape(height, -1)  # the 0 before each line says: not filtered
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
