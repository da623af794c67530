"""Registered envs that draw themselves, or cannot: ``tests.support.drawing_envs:Drawing-v0``."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from tests.support.tracing import CountingEnv


class Drawing(CountingEnv):
    """Episodes of 4 steps; its picture gets brighter with each."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(4)
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((32, 32, 3), 60 * self.time, np.uint8)


class Undrawable(Drawing):
    """Its package of drawing is missing."""

    def render(self) -> Any:
        raise gym.error.DependencyNotInstalled("pens are not installed")


class Written(Drawing):
    """Only writes itself."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012


class Invisible(CountingEnv):
    """Knows nothing of rendering."""

    def __init__(self) -> None:
        super().__init__(4)


for kind in (Drawing, Undrawable, Written, Invisible):
    gym.register(f"{kind.__name__}-v0", kind)
