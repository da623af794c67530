"""What the grader's envs look like: observations made from numbers, and their declaration.

Every observation row is a function of one integer, its *tick*, so that an env's observation can
be repeated exactly (SPEC 5.25) by remembering a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plugrl_gym.protocol.features.gym_spaces import (
    BoxSpec,
    DictSpec,
    DiscreteSpec,
    SpaceDeclaration,
    SpaceSpec,
)

__all__ = ["IMAGE_SHAPE", "Scene", "box", "declaration", "discrete"]

#: (h, w, c) of the observation named by ``image_key``.
IMAGE_SHAPE: Final = (64, 64, 3)


@dataclass(frozen=True, slots=True)
class Scene:
    """The observation that the graded server's policy reads.

    Attributes:
        state_dim: Numbers in its state; None if it reads no state.
        state_key: The name of the state.
        image_key: The name of its image of :data:`IMAGE_SHAPE`; None if it reads none.
        reads: Whether the server's policy needs what is named above, as far as is known.
    """

    state_dim: int | None
    state_key: str
    image_key: str | None
    reads: bool

    @classmethod
    def of(cls, state_dim: int | None, state_key: str, image_key: str | None) -> Scene:
        """From the options: a server that reads nothing is shown a state of one number."""
        reads = state_dim is not None or image_key is not None
        return cls(state_dim if reads else 1, state_key, image_key, reads)

    def observation(self, ticks: Sequence[int], dtype: str = "<f4") -> dict[str, Any]:
        """The wire's observation (SPEC 6.2) of ``len(ticks)`` rows, without text."""
        rows = np.asarray(ticks, dtype=np.int64)
        images, states = {}, {}
        if self.state_dim is not None:
            angle = rows[:, None] * 0.37 + np.arange(self.state_dim)
            states[self.state_key] = np.sin(angle).astype(dtype)
        if self.image_key is not None:
            pixels = np.arange(np.prod(IMAGE_SHAPE)).reshape(IMAGE_SHAPE)
            images[self.image_key] = ((rows[:, None, None, None] + pixels) % 256).astype(np.uint8)
        return {"images": images, "states": states, "text": empty_text(len(rows))}

    def space(self) -> SpaceSpec:
        """The observation space of one env, whose leaves have the names of the observation."""
        leaves: dict[str, SpaceSpec] = {}
        if self.state_dim is not None:
            leaves[self.state_key] = box((self.state_dim,), np.inf)
        if self.image_key is not None:
            low = np.zeros(IMAGE_SHAPE, dtype=np.uint8)
            leaves[self.image_key] = BoxSpec(low, low + np.uint8(255))
        if list(leaves) == ["obs"]:  # the name of a leaf that is the whole (SPEC 9.3.14)
            return leaves["obs"]
        return _nested(leaves)

    def __str__(self) -> str:
        parts = []
        if self.state_dim is not None:
            parts.append(f"states[{self.state_key!r}] [n, {self.state_dim}]")
        if self.image_key is not None:
            shape = ", ".join(map(str, IMAGE_SHAPE))
            parts.append(f"images[{self.image_key!r}] [n, {shape}]")
        return " and ".join(parts)


def empty_text(rows: int) -> npt.NDArray[np.str_]:
    """n empty strings."""
    return np.zeros(rows, dtype="<U1")


def _nested(leaves: dict[str, SpaceSpec]) -> DictSpec:
    """The Dict whose leaves have these paths (SPEC 9.3.14, 9.3.15)."""
    tree: dict[str, SpaceSpec] = {}
    inner: dict[str, dict[str, SpaceSpec]] = {}
    for path, leaf in leaves.items():
        head, slash, rest = path.partition("/")
        key = head.replace("~1", "/").replace("~0", "~")
        if slash:
            tree.setdefault(key, DictSpec({}))  # keeps the place in the order
            inner.setdefault(key, {})[rest] = leaf
        else:
            tree[key] = leaf
    return DictSpec({key: _nested(inner[key]) if key in inner else tree[key] for key in tree})


def box(shape: tuple[int, ...], bound: float = 1.0) -> BoxSpec:
    """A float32 Box from -bound to bound."""
    # np.full and not -high: a negated array of no dimensions is a scalar, which travels otherwise.
    return BoxSpec(*(np.full(shape, b, dtype=np.float32) for b in (-bound, bound)))


def discrete(n: int, start: int = 0) -> DiscreteSpec:
    """An int64 Discrete."""
    return DiscreteSpec(n, start, "<i8")


def declaration(observation: SpaceSpec, action: SpaceSpec, mode: str = "train") -> SpaceDeclaration:
    """What the grader says of its envs (SPEC 9.3)."""
    return SpaceDeclaration(
        env_id=None,
        num_envs=2,
        autoreset="same-step",
        observation=observation,
        action=action,
        mode=mode,
    )
