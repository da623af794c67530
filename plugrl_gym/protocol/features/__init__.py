"""The optional features of SPEC 9, one module each."""

from __future__ import annotations

from typing import Final

__all__ = ["ALL_FEATURES", "CHUNK_STEPS", "EXECUTED_ACTIONS", "GYM_SPACES", "REUSE_FEEDBACK_OBS"]

REUSE_FEEDBACK_OBS: Final = "reuse-feedback-obs"
GYM_SPACES: Final = "gym-spaces"
CHUNK_STEPS: Final = "gym-chunk-steps"
EXECUTED_ACTIONS: Final = "gym-executed-actions"

#: What this implementation knows; a connection has those that its metadata lists.
ALL_FEATURES: Final = frozenset({REUSE_FEEDBACK_OBS, GYM_SPACES, CHUNK_STEPS, EXECUTED_ACTIONS})
