"""Taking over: a person, an expert or a safety filter acts in place of the server's policy.

Whatever takes over is a function that is called before each step::

    def expert(observation, actions):
        mask = observation[:, 1] > 0  # the envs that it takes over
        return np.full_like(actions, 1.0), mask

    envs.run(takeover=expert)

It gets what the envs handed out last, [n, ...], and a copy of the server's actions [n, *da] for
this step. It returns the actions [n, *da] to execute; or these and a bool [n], true in the envs
that it takes over; or None, which leaves all to the server. The server is told what was executed
(``gym-executed-actions``): off-policy algorithms learn from it, on-policy ones leave it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from plugrl_gym.client.handed_out import read_actions
from plugrl_gym.errors import UsageError
from plugrl_gym.spaces.casting import as_array

__all__ = ["Sometimes", "Takeover", "replaced"]

#: (observation, server's actions [n, *da]) -> actions, (actions, mask bool [n]) or None.
Takeover: TypeAlias = Callable[[Any, npt.NDArray[Any]], Any]


def replaced(
    takeover: Takeover | None, observation: Any, planned: npt.NDArray[Any] | None
) -> npt.NDArray[Any] | None:
    """What to execute in the next step; None for the server's actions.

    Args:
        takeover: None for nobody.
        observation: What the envs handed out last.
        planned: The server's actions [n, *da]; needed where somebody may take over.

    Raises:
        UsageError: What ``takeover`` returned are no actions, or no mask.
    """
    if takeover is None or planned is None:
        return None
    wanted = takeover(observation, planned.copy())
    if wanted is None:
        return None
    if not isinstance(wanted, tuple):
        return read_actions(wanted, planned, who="takeover")
    if len(wanted) != 2:
        raise UsageError(f"takeover: expected actions, or (actions, mask), got {len(wanted)} parts")
    mask = as_array(wanted[1], "takeover: mask")
    if mask.shape != planned.shape[:1] or mask.dtype != np.bool_:
        raise UsageError(
            f"takeover: expected a mask bool [{len(planned)}], got {mask.dtype} {list(mask.shape)}"
        )
    return read_actions(wanted[0], planned, mask, who="takeover")


class Sometimes:
    """Lets somebody take over for a share of the env steps only, at random.

    Args:
        takeover: Whom.
        share: Of each env's steps, 0 to 1, in the long run.
        length: Env steps for which it stays once it has taken over.
        seed: Of the moments; None for no seed.

    Raises:
        UsageError: A share or length that cannot be.

    Example:
        >>> import numpy as np
        >>> always_left = lambda observation, actions: np.zeros_like(actions)
        >>> sometimes = Sometimes(always_left, share=0.5, seed=0)
        >>> chosen = [sometimes(None, np.ones(100, int))[1].mean() for _ in range(100)]
        >>> 0.48 < sum(chosen) / 100 < 0.52
        True
    """

    def __init__(
        self, takeover: Takeover, share: float, length: int = 1, seed: int | None = None
    ) -> None:
        if not 0.0 <= share <= 1.0:
            raise UsageError(f"share: expected 0 to 1, got {share}")
        if length < 1:
            raise UsageError(f"length: expected at least 1 step, got {length}")
        self._takeover, self._share, self._length = takeover, share, length
        # With probability p it begins at a step, so a gap has (1 - p) / p steps on average:
        # share = length / (length + (1 - p) / p).
        self._begins = share / (share + length * (1.0 - share))
        self._random = np.random.default_rng(seed)
        self._left: npt.NDArray[np.int64] | None = None

    def __call__(self, observation: Any, actions: npt.NDArray[Any]) -> Any:
        """See :data:`Takeover`."""
        if self._left is None:
            self._left = np.zeros(len(actions), np.int64)
        begins = (self._left == 0) & (self._random.random(len(actions)) < self._begins)
        self._left[begins] = self._length
        mask = self._left > 0
        self._left[mask] -= 1
        if not mask.any():
            return None
        planned = actions.copy()
        executed = replaced(self._takeover, observation, planned)
        return (planned if executed is None else executed), mask
