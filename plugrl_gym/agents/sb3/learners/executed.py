"""What envs executed in place of what the policy chose (``gym-executed-actions``).

Where a person, an expert or a safety filter took over, an **off-policy** algorithm learns from the
chunk that was really run. Steps that an episode's end left over were chosen by nobody but the
policy, so they stay as they are, as in every other chunk that ends early.

An **on-policy** algorithm leaves such a chunk out of its loss: neither the ratio of PPO nor the
gradient of A2C means anything for an action that its policy did not draw. The advantages around it
are estimated for the policy too, not for whoever took over. So the trajectory is cut there: those
before it lean on the critic's value of the observation at which the policy was relieved, as they do
at the end of a rollout, and what was earned while it was relieved counts for none of its actions.
The env steps count for the run, and a rollout is as many transitions of the policy's own as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from plugrl_gym.agents.sb3.policy_spaces import PolicyArray
from plugrl_gym.protocol import Feedback

__all__ = ["Sent", "executed_chunks", "overridden_rows", "overridden_steps"]

#: Rows of a feedback -> the chunk [H, k, *da] that was sent for them.
Sent: TypeAlias = Callable[[npt.NDArray[np.intp]], PolicyArray]


def overridden_rows(feedback: Feedback) -> npt.NDArray[np.bool_]:
    """bool [m]: somebody took over in some step of the chunk."""
    executed = feedback.executed
    if executed is None:
        return np.zeros(len(feedback.env_indices), np.bool_)
    return executed.overridden


def overridden_steps(
    feedback: Feedback, steps: npt.NDArray[np.int64], sent: Sent
) -> npt.NDArray[np.int64]:
    """In how many of its env steps another action was run than the one that was sent; int64 [m].

    Args:
        feedback: m rows.
        steps: int64 [m], env steps run.
        sent: Asked for overridden rows of more than one step only.
    """
    rows = np.flatnonzero(overridden_rows(feedback))
    counted = np.zeros(len(steps), np.int64)
    counted[rows] = 1
    rows = rows[steps[rows] > 1]
    if not len(rows):
        return counted
    assert feedback.executed is not None  # else no row is overridden
    told = feedback.executed.actions[:, rows]
    # Conversion to the env's own dtype is no difference (SPEC 9.5.4).
    different = told != sent(rows)[: len(told)].astype(told.dtype)
    different = different.reshape(len(told), len(rows), -1).any(axis=-1)
    different &= np.arange(len(told))[:, None] < steps[rows]
    # The client says that there is one, also where both round to the same number.
    counted[rows] = np.maximum(different.sum(axis=0), 1)
    return counted


def executed_chunks(
    feedback: Feedback, steps: npt.NDArray[np.int64], rows: npt.NDArray[np.intp], sent: Sent
) -> PolicyArray:
    """The chunks [H, k, *da] of some rows as they were run, and where they ended early as sent.

    Args:
        feedback: m rows, with executed actions.
        steps: int64 [m], env steps run, of ``rows`` at most as many as there are actions.
        rows: k of them.
        sent: Asked for these.
    """
    assert feedback.executed is not None
    chunks = sent(rows)
    told = feedback.executed.actions[: len(chunks), rows]
    ran = np.arange(len(told))[:, None] < steps[rows]
    ran = ran.reshape(*ran.shape, *[1] * (told.ndim - 2))
    first = np.where(ran, told, chunks[: len(told)])
    whole: PolicyArray = np.concatenate([first, chunks[len(told) :]])
    return whole
