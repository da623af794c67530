"""An SB3 model without envs: built from spaces alone."""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.noise import ActionNoise, VectorizedActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecEnv, VecTransposeImage

from plugrl_gym.agents.sb3.normalization import normalize_arguments, normalized_envs
from plugrl_gym.agents.sb3.policy_actions import PolicyActions
from plugrl_gym.agents.sb3.policy_spaces import SMALLEST_CNN_IMAGE, PolicyObservations
from plugrl_gym.agents.sb3.settings.algorithms import AlgorithmClass, is_a
from plugrl_gym.agents.sb3.settings.hyperparameters import check_hyperparameters, check_policy
from plugrl_gym.agents.sb3.settings.limits import (
    check_actions,
    check_noise,
    check_num_envs,
    check_settings,
)
from plugrl_gym.agents.sb3.settings.noise import NoisePlan
from plugrl_gym.agents.sb3.settings.presets import Preset
from plugrl_gym.errors import UnsupportedSpace, UsageError
from plugrl_gym.spaces.naming import brief

__all__ = ["ModelPlan", "SpacesOnlyVecEnv", "has_image"]

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
        horizon: Env steps that the policy chooses at once.
        normalize: Arguments of VecNormalize; False for no normalising, None for none unless
            other settings say so.
    """

    algorithm: AlgorithmClass
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    policy: str | type[BasePolicy] | None = None
    seed: int | None = None
    horizon: int = 1
    normalize: Mapping[str, Any] | Literal[False] | None = None

    @property
    def name(self) -> str:
        """The algorithm in lower case, as users type it."""
        return self.algorithm.__name__.lower()

    @property
    def gamma(self) -> float:
        """The discount that the model has."""
        gamma: float = self.hyperparameters.get("gamma", _default(self.algorithm, "gamma"))
        return gamma

    @property
    def own_network(self) -> bool:
        """Whether the user brings the network that reads observations."""
        policy_kwargs = self.hyperparameters.get("policy_kwargs") or {}
        return "features_extractor_class" in policy_kwargs or isinstance(self.policy, type)

    def over(self, settings: Preset) -> ModelPlan:
        """This plan, with a preset's settings where it has none of its own.

        Raises:
            UsageError: One of those settings cannot be.
        """
        place = f"{settings.source}: "
        check_policy(self.algorithm, settings.policy, place)
        policy = self.policy or settings.policy
        given = settings.hyperparameters
        checked = check_hyperparameters(self.algorithm, given, policy=policy, where=place)
        normalize = self.normalize
        if normalize is None:
            normalize = normalize_arguments(settings.normalize, place)
        hyperparameters = {**checked, **self.hyperparameters}
        return replace(self, policy=policy, hyperparameters=hyperparameters, normalize=normalize)

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
        check_actions(self.algorithm, space)
        try:
            return PolicyActions(space, self.horizon)
        except UnsupportedSpace:
            raise UnsupportedSpace(
                f"{self.name} takes Box, Discrete, 1-d MultiDiscrete or MultiBinary actions, "
                f"env has {brief(space)}"
            ) from None

    def policy_for(self, space: spaces.Space[Any]) -> str | type[BasePolicy]:
        """The policy for what it will see.

        Raises:
            UnsupportedSpace: The policy that the user chose cannot see it.
        """
        dictionary = isinstance(space, spaces.Dict)
        image = isinstance(space, spaces.Box) and _is_image(space)
        large = image and min(_shape(space)[1:]) >= SMALLEST_CNN_IMAGE
        if self.policy is None:
            fitting = "MultiInputPolicy" if dictionary else "CnnPolicy" if large else "MlpPolicy"
            if fitting not in self.algorithm.policy_aliases:
                raise UnsupportedSpace(f"{self.name} has no {fitting}, env has {brief(space)}")
            return fitting
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
    ) -> OnPolicyAlgorithm | OffPolicyAlgorithm:
        """Build the model; with a seed this sets the global generators, as SB3 does.

        Args:
            observation_space, action_space: As the policy sees them.
            num_envs: Columns of its rollout or replay buffer.

        Raises:
            UnsupportedSpace: The chosen policy cannot see these observations.
            UsageError: SB3 refuses these settings; the text is the first line of its own.
        """
        policy = self.policy_for(observation_space)
        check_settings(self.algorithm, self.hyperparameters, self.horizon)
        check_num_envs(self.hyperparameters, num_envs)
        envs = self.stand_in(observation_space, action_space, num_envs)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                arguments = self.arguments(action_space)
                if isinstance(arguments.get("action_noise"), ActionNoise):
                    check_noise(copy.deepcopy(arguments["action_noise"]), action_space, num_envs)
                make: Callable[..., OnPolicyAlgorithm | OffPolicyAlgorithm] = self.algorithm
                model = make(policy, envs, seed=self.seed, **arguments)
            except UsageError:
                raise
            except Exception as error:  # SB3 checks by assert, torch by whatever it meets
                raise UsageError(f"{self.name} cannot be built: {_first_line(error)}") from error
        for warning in caught:
            _log.warning("%s", _first_line(warning.message))
        return model

    def stand_in(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], num_envs: int
    ) -> VecEnv:
        """What the model gets for its envs, with SB3's own wrappers.

        Raises:
            UsageError: VecNormalize does not take these arguments.
        """
        envs: VecEnv = SpacesOnlyVecEnv(num_envs, observation_space, action_space)
        if isinstance(self.normalize, Mapping):
            envs = normalized_envs(envs, {"gamma": self.gamma, **self.normalize})
        # Without the skipping wrapper SB3 would guess from its shape whether to turn an image.
        return VecTransposeImage(envs, skip=True) if has_image(observation_space) else envs

    def arguments(self, action_space: spaces.Space[Any]) -> dict[str, Any]:
        """The hyperparameters for one constructor call, which may write into its dicts."""
        arguments = dict(self.hyperparameters)
        for name, value in arguments.items():
            if isinstance(value, NoisePlan):
                arguments[name] = value.build(_shape(action_space))
            elif isinstance(value, ActionNoise):
                arguments[name] = copy.deepcopy(value)  # it has a state
            elif isinstance(value, dict):
                arguments[name] = dict(value)
        return arguments

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
        check_settings(self.algorithm, self.hyperparameters, self.horizon)
        if observation_space is None and self.own_network:
            return  # its network may be made for the real spaces only
        unseeded = replace(self, seed=None)
        level = _log.level
        _log.setLevel(logging.ERROR)  # a warning may hang on the number of envs: it comes later
        try:
            with torch.random.fork_rng(devices=[]):
                unseeded.build(
                    observation_space or _fitting(self.policy),
                    action_space or self._fitting_actions(),
                    num_envs or self.fitting_num_envs(),
                )
        finally:
            _log.setLevel(level)

    def _fitting_actions(self) -> spaces.Space[Any]:
        """Few actions that this algorithm can choose from, of the noise's shape if there is any."""
        if is_a(self.algorithm, "DQN", "QRDQN"):
            return spaces.Discrete(2)
        noise = self.hyperparameters.get("action_noise")
        given = np.shape(copy.deepcopy(noise)()) if isinstance(noise, ActionNoise) else (2,)
        return spaces.Box(-1.0, 1.0, given[-1:], np.float32)

    def fitting_num_envs(self) -> int:
        """How many envs go with these settings, while nobody knows how many there will be."""
        noise = self.hyperparameters.get("action_noise")
        if isinstance(noise, VectorizedActionNoise):
            return noise.n_envs
        # A single env may be too few for a batch of PPO, and too many for none of the others.
        return 2 if issubclass(self.algorithm, OnPolicyAlgorithm) else 1


def _fitting(policy: object) -> spaces.Space[Any]:
    """Small observations that this policy can see."""
    numbers = spaces.Box(-1.0, 1.0, (2,), np.float32)
    side = SMALLEST_CNN_IMAGE
    named: Mapping[object, spaces.Space[Any]] = {
        "CnnPolicy": spaces.Box(0, 255, (3, side, side), np.uint8),
        "MultiInputPolicy": spaces.Dict({"obs": numbers}),
    }
    return named.get(policy, numbers)


def _default(algorithm: type[BaseAlgorithm], name: str) -> Any:
    return inspect.signature(algorithm).parameters[name].default


def _is_image(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8


def has_image(space: spaces.Space[Any]) -> bool:
    """Whether a policy that sees this has a convolutional network."""
    parts = space.values() if isinstance(space, spaces.Dict) else [space]
    return any(_is_image(part) for part in parts)


def _shape(space: spaces.Space[Any]) -> tuple[int, ...]:
    return tuple(space.shape or ())


def _first_line(error: object) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
