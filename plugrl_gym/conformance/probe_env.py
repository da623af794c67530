"""The probe environment (SPEC 10): each observation tells which steps were run, in what order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

__all__ = ["ProbeVectorEnv"]

_Bools = npt.NDArray[np.bool_]


class ProbeVectorEnv(VectorEnv[Any, Any, Any]):
    """n probe envs, stepped together.

    Episodes of env i last 3 + 2 * (i mod 3) steps, every step pays 1, and an observation is
    ``t``, the steps taken in this episode, and ``a``, the action applied last (0 after a reset).

    Args:
        num_envs: n, below 1000 (SPEC 10.1).
        action_dim: d, the numbers in an action.
        autoreset_mode: Any of the three.

    Raises:
        ValueError: Too many envs, or no number in an action.

    Example:
        >>> env = ProbeVectorEnv(2, 1)
        >>> env.reset()[0]["t"].tolist()
        [[0.0], [0.0]]
        >>> env.step(np.full((2, 1), 7.0))[0]["a"].tolist()
        [[7.0], [7.0]]
    """

    def __init__(
        self,
        num_envs: int,
        action_dim: int = 3,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
    ) -> None:
        if not 1 <= num_envs < 1000:
            raise ValueError(f"num_envs: expected 1 to 999 (SPEC 10.1), got {num_envs}")
        if action_dim < 1:
            raise ValueError(f"action_dim: expected at least 1, got {action_dim}")
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": autoreset_mode}
        self.single_action_space = spaces.Box(-np.inf, np.inf, (action_dim,), np.float64)
        self.single_observation_space = spaces.Dict(
            t=spaces.Box(0.0, np.inf, (1,), np.float64),
            a=spaces.Box(-np.inf, np.inf, (action_dim,), np.float64),
        )
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._mode = autoreset_mode
        self._lengths = 3 + 2 * (np.arange(num_envs) % 3)
        self._taken = np.zeros(num_envs, np.int64)
        self._applied = np.zeros((num_envs, action_dim), np.float64)
        self._over = np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, npt.NDArray[np.float64]], dict[str, Any]]:
        """Reset all envs, or those of ``options["reset_mask"]`` bool [n]; nothing is random."""
        mask = np.ones(self.num_envs, np.bool_)
        if options is not None and "reset_mask" in options:
            mask = np.asarray(options["reset_mask"], np.bool_)
        self._begin(mask)
        return self._observe(), {}

    def step(
        self, actions: npt.NDArray[Any]
    ) -> tuple[dict[str, npt.NDArray[np.float64]], npt.NDArray[np.float64], _Bools, _Bools, Any]:
        """Apply actions [n, d]."""
        ignored = self._over.copy()  # NEXT_STEP: these are only reset
        if ignored.any() and self._mode is AutoresetMode.DISABLED:
            raise RuntimeError(f"env {int(np.flatnonzero(ignored)[0])} must be reset first")
        self._taken += ~ignored
        self._applied[~ignored] = np.asarray(actions, np.float64)[~ignored]
        self._begin(ignored)
        terminated = ~ignored & (self._taken == self._lengths)
        info: dict[str, Any] = {}
        if self._mode is AutoresetMode.SAME_STEP and terminated.any():
            info = self._final(terminated)
            self._begin(terminated)
        else:
            self._over = terminated.copy()
        rewards = np.where(ignored, 0.0, 1.0)
        return self._observe(), rewards, terminated, np.zeros_like(terminated), info

    def _begin(self, rows: _Bools) -> None:
        self._taken[rows] = 0
        self._applied[rows] = 0.0
        self._over &= ~rows

    def _observe(self) -> dict[str, npt.NDArray[np.float64]]:
        return {"t": self._taken[:, None].astype(np.float64), "a": self._applied.copy()}

    def _final(self, rows: _Bools) -> dict[str, Any]:
        observation = self._observe()
        final = np.full(self.num_envs, None, dtype=object)
        for env in np.flatnonzero(rows).tolist():
            final[env] = {name: part[env].copy() for name, part in observation.items()}
        return {"final_obs": final, "_final_obs": rows.copy()}
