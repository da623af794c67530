"""Statistics of finished episodes in a feedback's ``info`` (SPEC 6.5.20)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["LARGEST_RETURN", "EpisodeStatistics"]

#: A larger return is taken for none: sums of many, or of their squares, could be infinite.
LARGEST_RETURN: Final = 1e150
_MAX_LENGTH: Final = 2**53


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeStatistics:
    """``info.episode`` of a feedback: what servers read of finished episodes (SPEC 6.5).

    Attributes:
        returns: float64 [m], undiscounted return.
        lengths: int64 [m], in env steps.
        mask: bool [m], which rows are finished episodes; the others hold zeros.
        success: bool [m], or None where the env does not tell.
    """

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]
    success: npt.NDArray[np.bool_] | None = None

    def to_wire(self) -> dict[str, Any]:
        """The map for ``info.episode``."""
        value: dict[str, Any] = {"r": self.returns, "l": self.lengths, "mask": self.mask}
        if self.success is not None:
            value["s"] = self.success
        return value

    @classmethod
    def from_info(cls, info: Mapping[str, Any], rows: int) -> EpisodeStatistics | None:
        """What a received info says of episodes; None where it says nothing that can be read."""
        episode = info.get("episode")
        if not isinstance(episode, Mapping):
            return None
        returns = _vector(episode.get("r"), rows, "fiu")
        lengths = _vector(episode.get("l"), rows, "fiu")
        mask = _vector(episode.get("mask", np.ones(rows, dtype=np.bool_)), rows, "b")
        if returns is None or lengths is None or mask is None:
            return None
        readable = (lengths >= 0) & (lengths < _MAX_LENGTH)
        # A comparison with NaN is false.
        if not (readable & (np.abs(returns.astype(np.float64)) <= LARGEST_RETURN)).all():
            return None
        success = _vector(episode.get("s"), rows, "biuf")
        return cls(
            returns.astype(np.float64),
            lengths.astype(np.int64),
            mask,
            None if success is None else success.astype(np.bool_),
        )


def _vector(value: object, rows: int, kinds: str) -> npt.NDArray[Any] | None:
    if isinstance(value, np.ndarray) and value.shape == (rows,) and value.dtype.kind in kinds:
        return value
    return None
