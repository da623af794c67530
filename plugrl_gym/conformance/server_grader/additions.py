"""What the optional features add to a message (SPEC 9.2, 9.4, 9.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["add_chunk_steps", "add_executed", "add_reuse"]


def add_reuse(infer: dict[str, Any], reuse: Sequence[bool]) -> dict[str, Any]:
    """Leave the rows marked true out of an infer's observation."""
    kept = [row for row, again in enumerate(reuse) if not again]
    data = infer["data"]
    infer["data"] = {
        "images": {name: array[kept] for name, array in data["images"].items()},
        "states": {name: array[kept] for name, array in data["states"].items()},
        "text": data["text"][kept],
    }
    infer["reuse"] = np.array(reuse, dtype=np.bool_)
    return infer


def add_chunk_steps(feedback: dict[str, Any], steps: Sequence[int]) -> dict[str, Any]:
    """Tell how many steps each row's chunk ran; they share its reward evenly."""
    counts = np.array(steps, dtype=np.int64)
    ran = np.arange(counts.max())[:, None] < counts
    feedback["steps"] = counts
    feedback["step_rewards"] = (ran * feedback["data"]["rewards"] / counts).astype(np.float32)
    return feedback


def add_executed(
    feedback: dict[str, Any], action: np.ndarray[Any, Any], overridden: Sequence[bool]
) -> dict[str, Any]:
    """Tell what was executed: ``action`` [K, m, *da], other numbers in the overridden rows."""
    flags = np.array(overridden, dtype=np.bool_)
    executed = action.copy()
    executed[:, flags] = executed[:, flags] // 2
    feedback["actions"] = executed
    feedback["overridden"] = flags
    return feedback
