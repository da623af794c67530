"""gSDE's exploration matrices: one for each env, drawn when SB3's own loop draws them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

__all__ = ["SdeNoise"]


class SdeNoise:
    """State-dependent exploration of one model; does nothing where the model has none.

    Args:
        model: Whose policy.
        num_envs: Envs in lockstep; one vector step is this many decisions.
    """

    def __init__(self, model: OnPolicyAlgorithm | OffPolicyAlgorithm, num_envs: int) -> None:
        #: What has ``reset_noise`` and the matrices: off-policy the actor, which is a part of it.
        self._policy: Any = getattr(model, "actor", model.policy)
        self._used = model.use_sde
        self._frequency = model.sde_sample_freq
        self._num_envs = num_envs
        self._slots = num_envs
        self._decisions = 0
        self._drawn = -1

    def begin(self) -> None:
        """A rollout begins."""
        if self._used:
            self._policy.reset_noise(self._slots)
        self._decisions, self._drawn = 0, -1

    @contextmanager
    def of(self, slots: Sequence[int]) -> Iterator[None]:
        """The next decision is for these envs, in this order: let each have its own matrix."""
        if not self._used:
            yield
            return
        self._draw(max(slots) + 1)
        self._decisions += len(slots)
        noise = self._distribution
        single, every = noise.exploration_mat, noise.exploration_matrices
        if list(slots) != list(range(len(every))):
            noise.exploration_matrices = every[list(slots)]
            if len(slots) == 1:  # SB3 takes the single matrix for a single row
                noise.exploration_mat = every[slots[0]]
        try:
            yield
        finally:
            noise.exploration_mat, noise.exploration_matrices = single, every

    @property
    def _distribution(self) -> StateDependentNoiseDistribution:
        distribution = self._policy.action_dist
        assert isinstance(distribution, StateDependentNoiseDistribution)
        return distribution

    def state(self) -> dict[str, Any] | None:
        """The matrices and when they were drawn; None where there are none."""
        if not self._used:
            return None
        noise = self._distribution
        return {
            "when": (self._slots, self._decisions, self._drawn),
            "matrices": tuple(
                matrix.detach().cpu().numpy()
                for matrix in (noise.exploration_mat, noise.exploration_matrices)
            ),
        }

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Go on from :meth:`state`."""
        if state is None:
            return
        self._slots, self._decisions, self._drawn = state["when"]
        noise, device = self._distribution, self._policy.device
        noise.exploration_mat, noise.exploration_matrices = (
            torch.as_tensor(matrix, device=device) for matrix in state["matrices"]
        )

    def _draw(self, needed: int) -> None:
        """Draw every ``sde_sample_freq`` vector steps, and where an env has no matrix yet."""
        step = self._decisions // self._num_envs
        due = self._frequency > 0 and step // self._frequency > self._drawn
        if due or needed > self._slots:
            self._slots = max(self._slots, needed)
            self._policy.reset_noise(self._slots)
        if due:
            self._drawn = step // self._frequency
