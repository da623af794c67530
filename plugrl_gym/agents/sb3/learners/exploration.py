"""How off-policy algorithms choose actions while they learn."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.noise import ActionNoise, VectorizedActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from plugrl_gym.agents.sb3.policy_spaces import PolicyArray, PolicyObservation

__all__ = ["Exploration"]


class Exploration:
    """Chooses as SB3's ``_sample_action``; out of lockstep it draws for each env by itself.

    Args:
        model: Whose policy acts, by whose step count and epsilon.
    """

    def __init__(self, model: OffPolicyAlgorithm) -> None:
        self._model = model
        noise = model.action_noise
        self._base: ActionNoise | None = noise
        self._noises: list[ActionNoise] = [] if noise is None else [noise]
        if isinstance(noise, VectorizedActionNoise):
            self._base, self._noises = noise.base_noise, list(noise.noises)

    def together(self, observation: PolicyObservation, rows: int) -> PolicyArray:
        """SB3's own choice for a batch of envs in lockstep: actions as its buffer holds them."""
        model = self._model
        model._last_obs = observation
        return model._sample_action(model.learning_starts, model.action_noise, rows)[1]

    def apart(self, observation: PolicyObservation, slots: Sequence[int]) -> PolicyArray:
        """The same, but each env has its own epsilon, its own noise and its own random actions.

        Args:
            observation: n rows.
            slots: Of the n envs.

        Returns:
            [n, *da] as the replay buffer holds them: a Box's scaled to [-1, 1].
        """
        model = self._model
        chosen = self._chosen(observation, len(slots))
        if not isinstance(model.action_space, spaces.Box):
            return chosen
        scaled = model.policy.scale_action(chosen)
        if self._base is None:
            return scaled
        noise = np.stack([self._noise(slot)() for slot in slots])
        noisy: PolicyArray = np.clip(scaled + noise, -1, 1)
        return noisy

    def _chosen(self, observation: PolicyObservation, rows: int) -> PolicyArray:
        model = self._model
        sde = model.use_sde and model.use_sde_at_warmup
        if model.num_timesteps < model.learning_starts and not sde:
            return np.array([model.action_space.sample() for _ in range(rows)])
        epsilon = getattr(model, "exploration_rate", None)
        if epsilon is None:
            return model.predict(observation, deterministic=False)[0]
        chosen: PolicyArray = model.policy.predict(observation, deterministic=False)[0]
        for row in np.flatnonzero(np.random.rand(rows) < epsilon):
            chosen[row] = model.action_space.sample()
        return chosen

    def forget(self, slot: int) -> None:
        """The episode of an env ended, or the env is gone: its noise begins anew."""
        if slot < len(self._noises):
            self._noises[slot].reset()

    def _noise(self, slot: int) -> ActionNoise:
        while slot >= len(self._noises):
            noise = copy.deepcopy(self._base)
            assert noise is not None
            noise.reset()
            self._noises.append(noise)
        return self._noises[slot]
