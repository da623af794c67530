"""Images of any axis order as [n, h, w, c] (SPEC 9.3.16 to 9.3.19)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

__all__ = ["image_from_wire", "image_to_wire", "is_image", "wire_shape"]


def is_image(space: spaces.Box) -> bool:
    """Whether a Box travels as an image."""
    return (
        space.dtype == np.uint8
        and 2 <= len(space.shape) <= 4
        and bool((space.low == 0).all() and (space.high == 255).all())
    )


def _channels_first(shape: tuple[int, ...]) -> bool:
    """Whether (a, b, c) is channel-first: c is no channel count, and a is smaller."""
    return shape[2] not in (1, 3, 4) and shape[0] < shape[2]


def wire_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """(h, w, c) of an image of two to four dimensions."""
    if len(shape) == 2:
        return (*shape, 1)
    *stack, a, b, c = shape
    images = stack[0] if stack else 1
    return (b, c, images * a) if _channels_first((a, b, c)) else (a, b, images * c)


def image_to_wire(images: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """uint8 [n, ...] of two to four dimensions per image as a contiguous copy [n, h, w, c]."""
    shape = images.shape[1:]
    if len(shape) >= 3 and _channels_first(shape[-3:]):
        images = np.moveaxis(images, -3, -1)
    if len(shape) == 4:  # [n, stack, h, w, c]: the stack joins the channels
        images = np.moveaxis(images, 1, -2)
    return np.array(images, order="C").reshape(len(images), *wire_shape(shape))


def image_from_wire(images: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """The inverse: uint8 [n, h, w, c] as a contiguous copy [n, *shape]."""
    if len(shape) >= 3:
        *stack, a, b, c = shape
        channels = a if _channels_first((a, b, c)) else c
        images = images.reshape(*images.shape[:3], *stack, channels)
        if stack:
            images = np.moveaxis(images, -2, 1)
        if _channels_first((a, b, c)):
            images = np.moveaxis(images, -1, -3)
    return np.array(images, order="C").reshape(len(images), *shape)
