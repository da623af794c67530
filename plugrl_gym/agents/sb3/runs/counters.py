"""What a run has done so far, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """Counts since the start of the run; only learning clients are counted.

    Attributes:
        transitions_stored: Rows that went into a rollout, or into the replay buffer.
        chunks_dropped: Action chunks that no usable feedback answered: their client left, or
            their row was not finite.
        overridden: Rows for which another action than the policy's was executed. On-policy
            algorithms leave them out; off-policy ones learn from what was executed, where the
            client told all of it.
        overridden_steps: Env steps in them that ran another action than the policy's.
        stale: Rows whose action an older policy chose than the one that learns, left out or not.
        stale_left_out: Those of them that were too old to learn from.
        updates: Times that the model was trained.
    """

    transitions_stored: int = 0
    chunks_dropped: int = 0
    overridden: int = 0
    overridden_steps: int = 0
    stale: int = 0
    stale_left_out: int = 0
    updates: int = 0
