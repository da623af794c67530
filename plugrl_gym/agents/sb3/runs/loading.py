"""Models from files that Stable-Baselines3's ``save()`` wrote."""

from __future__ import annotations

import inspect
import json
import logging
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.noise import VectorizedActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.save_util import json_to_data
from stable_baselines3.common.vec_env import VecEnv

from plugrl_gym.agents.sb3.model import ModelPlan
from plugrl_gym.agents.sb3.normalization import Normalizer
from plugrl_gym.agents.sb3.runs.choices import Choices
from plugrl_gym.agents.sb3.settings.algorithms import ALGORITHMS, find_algorithm
from plugrl_gym.agents.sb3.settings.limits import (
    check_num_envs,
    check_settings,
    limited_settings,
)
from plugrl_gym.errors import UsageError
from plugrl_gym.spaces.naming import brief

__all__ = ["NORMALIZER", "LoadedPlan", "StoredModel", "load_model"]

_log: Final = logging.getLogger(__name__)

#: The normaliser's file, beside a model's.
NORMALIZER: Final = "vecnormalize.pkl"
# A2C makes its optimizer of these when it is built.
_FIXED: Final = frozenset({"use_rms_prop", "rms_prop_eps"})


def load_model(
    path: str | Path,
    algorithm: type[BaseAlgorithm],
    env: VecEnv,
    device: torch.device | str = "auto",
    hyperparameters: Mapping[str, Any] | None = None,
) -> BaseAlgorithm:
    """A model from a file of plain SB3; the file may run code of whoever wrote it.

    Args:
        path: Of the file; ``.zip`` may be left out, as with SB3.
        algorithm: Whose model it must be.
        env: With the spaces that it must have; its number of envs becomes the model's.
        device: Where its networks go.
        hyperparameters: Arguments of the constructor, in place of the model's own.

    Raises:
        UsageError: There is no such file, it is of something else, or its spaces are others.
    """
    return StoredModel(path).load(algorithm, env, device, hyperparameters)


@dataclass(frozen=True)
class StoredModel:
    """A file of SB3's, looked at before it is loaded.

    Args:
        given: Its path; ``.zip`` may be left out.

    Raises:
        UsageError: There is no such file, or SB3 has not written it.
    """

    given: str | Path

    def __post_init__(self) -> None:
        if not self.path.is_file():
            raise UsageError(f"there is no file {self.given}")
        self._settings  # noqa: B018  # is it one?

    @property
    def path(self) -> Path:
        """Where the file is."""
        path = Path(self.given)
        with_suffix = path.with_name(f"{path.name}.zip")
        return with_suffix if not path.exists() and with_suffix.exists() else path

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """The model's attributes as they are stored: plain, or pickled and not yet loaded."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                settings: dict[str, Any] = json.loads(archive.read("data"))
                whole = archive.testzip() is None and "policy.pth" in archive.namelist()
        except (zipfile.BadZipFile, KeyError, ValueError, OSError, EOFError) as error:
            raise UsageError(
                f"{self.path} is no model that Stable-Baselines3 has saved ({error})"
            ) from None
        if not whole or not {"observation_space", "action_space"} <= settings.keys():
            raise UsageError(f"{self.path} is no whole model of Stable-Baselines3")
        return settings

    def space(self, name: str) -> spaces.Space[Any]:
        """``observation_space`` or ``action_space`` of its policy."""
        space = self._value(name)
        if not isinstance(space, spaces.Space):
            raise UsageError(f"{self.path}: its {name} cannot be read")
        return space

    @property
    def gamma(self) -> float:
        """The discount that it was trained with."""
        return float(self._value("gamma"))

    def plan(self, plan: ModelPlan) -> LoadedPlan:
        """The plan of a run that goes on learning from this model.

        Args:
            plan: What the caller gave; its hyperparameters win over the model's own.

        Raises:
            UsageError: The plan has a policy, too, or another algorithm.
        """
        self._check_algorithm(plan.algorithm)
        if plan.policy is not None:
            raise UsageError(f"{self.path} brings its own policy; leave out policy (--policy)")
        own = self.policy_class()
        names = {kind: name for name, kind in plan.algorithm.policy_aliases.items()}
        network = self._value("policy_kwargs") or {}
        kept = {"policy_kwargs": network} if "features_extractor_class" in network else {}
        given = {field.name: getattr(plan, field.name) for field in fields(plan)}
        given.update(policy=names.get(own, own), stored=self)
        given.update(hyperparameters={**kept, **plan.hyperparameters})
        if plan.normalize is None and self.normalizer is not None:
            given.update(normalize={})
        return LoadedPlan(**given)

    def settle(self, choices: Choices) -> Choices:
        """The model has its settings: no preset comes over them unasked."""
        return choices._replace(preset="none") if choices.preset == "auto" else choices

    @property
    def normalizer(self) -> Path | None:
        """VecNormalize's file beside it; None where there is none."""
        beside = f"{self.path.stem.removesuffix('model')}{NORMALIZER}"
        path = self.path.with_name(beside)
        return path if path.is_file() else None

    def policy_class(self) -> type[Any]:
        """The class of its policy.

        Raises:
            UsageError: It is of a module that is not here.
        """
        try:
            found = self._value("policy_class")
        except ImportError as error:
            raise UsageError(f"{self.path}: the class of its policy: {error}") from error
        if not isinstance(found, type):
            raise UsageError(f"{self.path}: the class of its policy cannot be read")
        return found

    def _value(self, name: str) -> Any:
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            return json_to_data(json.dumps({name: self._settings[name]})).get(name)

    @cached_property
    def algorithm(self) -> str:
        """The name of its algorithm, which the file does not say but shows.

        A model of DDPG cannot be told from one of TD3, which it is a case of.

        Raises:
            UsageError: It is none that can be served here, or is not installed.
        """
        module, stored = self._policy_module(), self._settings.keys()
        fitting: dict[str, int] = {}
        for name in ALGORITHMS:
            try:
                algorithm = find_algorithm(name)
            except UsageError:
                continue  # its package is not installed
            if module is None or module in _policy_modules(algorithm):
                expected = _attributes(algorithm)
                # A file of an older SB3 lacks what came later.
                fitting[name] = len(expected & stored) - len(expected - stored)
        if not fitting:
            raise UsageError(
                f"{self.path} holds a model that cannot be served, with a policy of {module}"
            )
        return max(fitting, key=fitting.__getitem__)

    def _policy_module(self) -> str | None:
        """Where in SB3 or sb3-contrib its policy comes from; None for a policy of someone else."""
        policy = self._settings.get("policy_class")
        module = policy.get("__module__") if isinstance(policy, dict) else None
        known = str(module).partition(".")[0] in ("stable_baselines3", "sb3_contrib")
        return str(module) if known else None

    def load(
        self,
        algorithm: type[BaseAlgorithm],
        env: VecEnv,
        device: torch.device | str = "auto",
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> BaseAlgorithm:
        """See :func:`load_model`."""
        self._check_algorithm(algorithm)
        for name, space in (
            ("observation_space", env.observation_space),
            ("action_space", env.action_space),
        ):
            self._check_space(name, space)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                model = algorithm.load(self.path, env, device, **(hyperparameters or {}))
            except Exception as error:  # whatever SB3, pickle and torch meet
                lines = str(error).strip().splitlines() or [type(error).__name__]
                raise UsageError(f"{self.path} cannot be loaded: {lines[0]}") from error
        for warning in caught:
            _log.warning("%s: %s", self.path, str(warning.message).splitlines()[0])
        return model

    def _check_algorithm(self, algorithm: type[BaseAlgorithm]) -> None:
        found = find_algorithm(self.algorithm)
        if not (issubclass(algorithm, found) or issubclass(found, algorithm)):
            raise UsageError(
                f"{self.path} holds a model of {found.__name__}, not of {algorithm.__name__}"
            )

    def _check_space(self, name: str, space: spaces.Space[Any]) -> None:
        own = self.space(name)
        if own == space:
            return
        what, said = name.replace("_space", "s"), brief(space)
        if said == brief(own):
            said += " of other bounds or type"
        raise UsageError(f"{self.path} has {what} {brief(own)}, env has {said}")


@dataclass(frozen=True)
class LoadedPlan(ModelPlan):
    """A plan whose model comes from a file: weights, optimizers, and settings.

    Attributes:
        stored: The file. Its settings stand where there are no hyperparameters, its seed where
            there is none.
    """

    stored: StoredModel | None = None

    def build(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], num_envs: int
    ) -> OnPolicyAlgorithm | OffPolicyAlgorithm:
        """Load the model; see :meth:`ModelPlan.build`."""
        assert self.stored is not None
        envs = self.stand_in(observation_space, action_space, num_envs)
        changes = self.arguments(action_space)
        fixed = changes.keys() & _FIXED
        if fixed:
            raise UsageError(f"{self.stored.path}: {min(fixed)} cannot be changed any more")
        device = changes.pop("device", "auto")
        if "stats_window_size" in changes:
            changes["_stats_window_size"] = changes.pop("stats_window_size")
        if self.seed is not None:
            changes["seed"] = self.seed
        check_num_envs(changes, num_envs)
        model = self.stored.load(self.algorithm, envs, device, changes)
        _fit_noise(model, num_envs)
        settings = limited_settings(model)
        check_settings(self.algorithm, settings, self.horizon)
        check_num_envs(settings, num_envs)
        normalizer = Normalizer.of(model)
        if normalizer is not None and self.stored.normalizer is not None:
            normalizer.load(self.stored.normalizer, self._chosen_for_normalizing())
        assert isinstance(model, OnPolicyAlgorithm | OffPolicyAlgorithm)  # as find_algorithm has it
        return model

    @property
    def gamma(self) -> float:
        """That of the file, unless another is given."""
        assert self.stored is not None
        gamma: float = self.hyperparameters.get("gamma", self.stored.gamma)
        return gamma

    def _chosen_for_normalizing(self) -> dict[str, Any]:
        gamma = {"gamma": self.gamma} if "gamma" in self.hyperparameters else {}
        return {**gamma, **(self.normalize or {})}

    def rehearse(
        self,
        num_envs: int | None,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
    ) -> None:
        """Load the model once to find out whether everything goes together."""
        assert self.stored is not None
        super().rehearse(
            num_envs,
            observation_space or self.stored.space("observation_space"),
            action_space or self.stored.space("action_space"),
        )


def _fit_noise(model: BaseAlgorithm, num_envs: int) -> None:
    """Take back the noise of one env where the file has that of another number of envs.

    SB3 makes noise for each env of it when it begins to learn, and saves the result.
    """
    noise = model.action_noise if isinstance(model, OffPolicyAlgorithm) else None
    if isinstance(noise, VectorizedActionNoise) and noise.n_envs != num_envs:
        assert isinstance(model, OffPolicyAlgorithm)
        model.action_noise = noise.base_noise


def _attributes(algorithm: type[BaseAlgorithm]) -> set[str]:
    """Arguments of the constructor; a model keeps nearly all of them under their names."""
    return set(inspect.signature(algorithm).parameters)


def _policy_modules(algorithm: type[BaseAlgorithm]) -> set[str]:
    return {policy.__module__ for policy in algorithm.policy_aliases.values()}
