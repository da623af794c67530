"""Exploration noise as text, until the number of action dimensions is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from stable_baselines3.common.noise import (
    ActionNoise,
    NormalActionNoise,
    OrnsteinUhlenbeckActionNoise,
)

__all__ = ["NoisePlan", "read_noise"]

_KINDS: Final[dict[str, type[NormalActionNoise | OrnsteinUhlenbeckActionNoise]]] = {
    "normal": NormalActionNoise,
    "ornstein-uhlenbeck": OrnsteinUhlenbeckActionNoise,
}


@dataclass(frozen=True, slots=True)
class NoisePlan:
    """Noise of mean zero and of one scale in every dimension.

    Attributes:
        kind: ``"normal"`` or ``"ornstein-uhlenbeck"``.
        sigma: Its scale, where actions reach from -1 to 1.
    """

    kind: str
    sigma: float

    def build(self, shape: tuple[int, ...]) -> ActionNoise:
        """The noise of one env, for actions of this shape."""
        return _KINDS[self.kind](np.zeros(shape), np.full(shape, self.sigma))

    def __str__(self) -> str:
        return f"{self.kind}:{self.sigma:g}"


def read_noise(text: str) -> NoisePlan | None:
    """``"normal:0.1"`` or ``"ornstein-uhlenbeck:0.5"``; None where the text is neither.

    Example:
        >>> read_noise("normal:0.1")
        NoisePlan(kind='normal', sigma=0.1)
    """
    kind, _, scale = text.partition(":")
    try:
        sigma = float(scale)
    except ValueError:
        return None
    if kind not in _KINDS or not (math.isfinite(sigma) and sigma >= 0):
        return None
    return NoisePlan(kind, sigma)
