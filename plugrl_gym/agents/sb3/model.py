"""An SB3 model without envs: built from spaces alone."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnv, VecTransposeImage

from plugrl_gym.agents.sb3.learners.rollout_buffers import make_buffer
from plugrl_gym.agents.sb3.policy_spaces import (
    SMALLEST_CNN_IMAGE,
    PolicyActions,
    PolicyObservations,
    brief,
)
from plugrl_gym.errors import UnsupportedSpace, UsageError

__all__ = ["ModelPlan", "SpacesOnlyVecEnv", "set_num_envs"]

_log: Final = logging.getLogger(__name__)


class SpacesOnlyVecEnv(VecEnv):
    """Stands where SB3 expects its envs; they are at the clients, so it cannot step.

    Args:
        num_envs: How many envs SB3 is to believe in.
        observation_space, action_space: Of a single env, as the policy sees them.
    """

    def reset(self) -> Any:
        """An observation of zeros, which nothing learns from."""
        if isinstance(self.observation_space, spaces.Dict):
            return {key: self._zeros(part) for key, part in self.observation_space.items()}
        return self._zeros(self.observation_space)

    def _zeros(self, space: spaces.Space[Any]) -> npt.NDArray[Any]:
        return np.zeros((self.num_envs, *(space.shape or ())), space.dtype)

    def step_async(self, actions: npt.NDArray[Any]) -> None:
        """Not possible here."""
        raise UsageError("the envs are at the clients; only they can step them")

    def step_wait(self) -> Any:
        """Not possible here."""
        raise UsageError("the envs are at the clients; only they can step them")

    def close(self) -> None:
        """Nothing to close."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Nothing is known of the envs: None for each."""
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Not possible here."""
        raise UsageError(f"the envs are at the clients; {attr_name} cannot be set from here")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Not possible here."""
        raise UsageError(f"the envs are at the clients; {method_name} cannot be called from here")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Nothing is known of the envs: False for each."""
        return [False] * self.num_envs


@dataclass(frozen=True)
class ModelPlan:
    """Everything about a model but its spaces.

    Attributes:
        algorithm: The SB3 class.
        hyperparameters: Checked arguments of its constructor.
        policy: SB3's name or a class; None to choose it from the spaces.
        seed: Of all generators; None for no seed.
    """

    algorithm: type[OnPolicyAlgorithm]
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    policy: str | type[ActorCriticPolicy] | None = None
    seed: int | None = None

    @property
    def name(self) -> str:
        """The algorithm in lower case, as users type it."""
        return self.algorithm.__name__.lower()

    @property
    def own_network(self) -> bool:
        """Whether the user brings the network that reads observations."""
        policy_kwargs = self.hyperparameters.get("policy_kwargs") or {}
        return "features_extractor_class" in policy_kwargs or isinstance(self.policy, type)

    def observations(self, space: spaces.Space[Any]) -> PolicyObservations:
        """How observations of this space reach the policy.

        Raises:
            UnsupportedSpace: They cannot.
        """
        return PolicyObservations(space, flatten_small_images=not self.own_network)

    def actions(self, space: spaces.Space[Any]) -> PolicyActions:
        """How the policy's actions reach envs of this space.

        Raises:
            UnsupportedSpace: They cannot; the text names both sides.
        """
        try:
            return PolicyActions(space)
        except UnsupportedSpace:
            raise UnsupportedSpace(
                f"{self.name} takes Box, Discrete, 1-d MultiDiscrete or MultiBinary actions, "
                f"env has {brief(space)}"
            ) from None

    def policy_for(self, space: spaces.Space[Any]) -> str | type[ActorCriticPolicy]:
        """The policy for what it will see.

        Raises:
            UnsupportedSpace: The policy that the user chose cannot see it.
        """
        dictionary = isinstance(space, spaces.Dict)
        image = isinstance(space, spaces.Box) and _is_image(space)
        large = image and min(_shape(space)[1:]) >= SMALLEST_CNN_IMAGE
        if self.policy is None:
            return "MultiInputPolicy" if dictionary else "CnnPolicy" if large else "MlpPolicy"
        if dictionary and self.policy in ("MlpPolicy", "CnnPolicy"):
            raise UnsupportedSpace(f"{self.policy} takes no {brief(space)}; MultiInputPolicy does")
        if not dictionary and self.policy == "MultiInputPolicy":
            raise UnsupportedSpace(f"MultiInputPolicy takes a Dict, env has {brief(space)}")
        if self.policy == "CnnPolicy" and not (large or (image and self.own_network)):
            raise UnsupportedSpace(
                f"CnnPolicy takes uint8 images from {SMALLEST_CNN_IMAGE}x{SMALLEST_CNN_IMAGE} up, "
                f"env has {brief(space)}; MlpPolicy takes that"
            )
        return self.policy

    def build(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], num_envs: int
    ) -> OnPolicyAlgorithm:
        """Build the model; with a seed this sets the global generators, as SB3 does.

        Args:
            observation_space, action_space: As the policy sees them.
            num_envs: Columns of its rollout buffer.

        Raises:
            UnsupportedSpace: The chosen policy cannot see these observations.
            UsageError: SB3 refuses these settings; the text is the first line of its own.
        """
        policy = self.policy_for(observation_space)
        # Without the skipping wrapper SB3 would guess from its shape whether to turn an image.
        envs: VecEnv = SpacesOnlyVecEnv(num_envs, observation_space, action_space)
        if _has_image(observation_space):
            envs = VecTransposeImage(envs, skip=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                model = self.algorithm(policy, envs, seed=self.seed, **self._arguments())
            except Exception as error:  # SB3 checks by assert, torch by whatever it meets
                raise UsageError(f"{self.name} cannot be built: {_first_line(error)}") from error
        for warning in caught:
            _log.warning("%s", _first_line(warning.message))
        if model.n_steps < 1:
            raise UsageError(f"{self.name} cannot be built: n_steps is {model.n_steps}")
        return model

    def _arguments(self) -> dict[str, Any]:
        """The hyperparameters for one constructor call, which may write into its dicts."""
        given = self.hyperparameters.items()
        return {name: dict(value) if isinstance(value, dict) else value for name, value in given}

    def rehearse(
        self,
        num_envs: int | None,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
    ) -> None:
        """Build a model and throw it away, to find wrong settings before a client comes.

        Args:
            num_envs: As far as it is known.
            observation_space, action_space: As the policy will see them; None for small ones
                that fit.

        Raises:
            UsageError: As :meth:`build`.
        """
        if observation_space is None and self.own_network:
            return  # its network may be made for the real spaces only
        numbers = spaces.Box(-1.0, 1.0, (2,), np.float32)
        unseeded = replace(self, seed=None)
        level = _log.level
        _log.setLevel(logging.ERROR)  # a warning may hang on the number of envs: it comes later
        try:
            with torch.random.fork_rng(devices=[]):
                unseeded.build(
                    observation_space or _fitting(self.policy),
                    action_space or numbers,
                    num_envs or 2,
                )
        finally:
            _log.setLevel(level)


def _fitting(policy: object) -> spaces.Space[Any]:
    """Small observations that this policy can see."""
    numbers = spaces.Box(-1.0, 1.0, (2,), np.float32)
    side = SMALLEST_CNN_IMAGE
    named: Mapping[object, spaces.Space[Any]] = {
        "CnnPolicy": spaces.Box(0, 255, (3, side, side), np.uint8),
        "MultiInputPolicy": spaces.Dict({"obs": numbers}),
    }
    return named.get(policy, numbers)


def set_num_envs(model: OnPolicyAlgorithm, num_envs: int) -> None:
    """Let a model's rollouts have another number of columns."""
    assert model.env is not None
    for envs in _layers(model.env):
        envs.num_envs = num_envs
    model.n_envs = num_envs
    model.rollout_buffer = make_buffer(model, model.n_steps, num_envs)


def _layers(envs: VecEnv) -> Sequence[VecEnv]:
    inner = getattr(envs, "venv", None)
    return [envs] if inner is None else [envs, *_layers(inner)]


def _is_image(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8


def _has_image(space: spaces.Space[Any]) -> bool:
    parts = space.values() if isinstance(space, spaces.Dict) else [space]
    return any(_is_image(part) for part in parts)


def _shape(space: spaces.Space[Any]) -> tuple[int, ...]:
    return tuple(space.shape or ())


def _first_line(error: object) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
