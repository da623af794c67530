"""What an agent's arguments come to, and what is built of them once the spaces are known."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TextIO

from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import MaybeCallback

from plugrl_gym.agents.sb3.learners import Learner, RunPlan, make_learner
from plugrl_gym.agents.sb3.model import ModelPlan, has_image
from plugrl_gym.agents.sb3.normalization import normalize_arguments
from plugrl_gym.agents.sb3.run_spaces import RunSpaces
from plugrl_gym.agents.sb3.runs.choices import Choices
from plugrl_gym.agents.sb3.runs.config import RunConfig
from plugrl_gym.agents.sb3.runs.counters import Counters
from plugrl_gym.agents.sb3.runs.loading import StoredModel
from plugrl_gym.agents.sb3.runs.logs import make_logger
from plugrl_gym.agents.sb3.runs.resuming import StoredRun
from plugrl_gym.agents.sb3.settings.algorithms import (
    AlgorithmClass,
    default_log_interval,
    find_algorithm,
)
from plugrl_gym.agents.sb3.settings.choice import (
    DEFAULT_TIMESTEPS,
    SettingsChoice,
    first_said,
)
from plugrl_gym.agents.sb3.settings.hyperparameter_file import HyperparameterFile
from plugrl_gym.agents.sb3.settings.hyperparameters import check_hyperparameters, check_policy
from plugrl_gym.agents.sb3.settings.limits import (
    check_demonstrations,
    check_num_envs,
    limited_settings,
)
from plugrl_gym.agents.sb3.settings.presets import Preset
from plugrl_gym.agents.sb3.threads import TorchThreads, check_torch_threads, set_torch_threads
from plugrl_gym.errors import UsageError

__all__ = ["RunSetup", "check_counts", "check_seed", "make_plan"]

_log: Final = logging.getLogger(__name__)

#: SB3 keeps lists of as many entries, so a client's word for it needs a bound.
_MOST_ENVS: Final = 65_536


class RunSetup:
    """One run as its caller wants it; :meth:`build` settles what hangs on the run's env.

    Args:
        given: The plan of the caller's own arguments.
        asked: The caller's other arguments.
        source: What the run goes on from, or begins with; None for neither.
        torch_threads: As of the agent.

    Attributes:
        plan: Of the model; without the settings of a file and a preset until it is built.
        choices: Complete.
        run: What is resumed; None for a run that begins.
        settings: Those of a file and a preset, from those that win over all others down.
        env_id: Of the run's env; None while nobody has said it.
        columns: Of the log, besides the learner's; see
            :class:`~plugrl_gym.agents.sb3.runs.logs.RunLogger`.

    Raises:
        UsageError: Settings that cannot be, or others than those of ``source``.
    """

    def __init__(
        self,
        given: ModelPlan,
        asked: Choices,
        source: StoredRun | StoredModel | None,
        torch_threads: TorchThreads,
    ) -> None:
        check_torch_threads(torch_threads)
        if asked.async_learn and not issubclass(given.algorithm, OffPolicyAlgorithm):
            raise UsageError(
                f"{given.name} learns from what its newest policy did, so acting has "
                "to wait for it: async_learn is for off-policy algorithms, as sac or dqn"
            )
        self.plan = given if source is None else source.plan(given)
        choices = asked if source is None else source.settle(asked)
        self.choices = choices.complete(default_log_interval(given.algorithm))
        self._check_demonstrations(self.plan.hyperparameters)
        named = choices.hyperparameter_file
        file = None if named is None else HyperparameterFile(named)
        self._choice = SettingsChoice(self.plan.name, choices.preset, file)
        self._torch_threads = torch_threads
        self.run = source if isinstance(source, StoredRun) else None
        self.env_id = choices.env_id
        self.settings = self._choice.settings_for(self.env_id)
        self.columns: Callable[[], Mapping[str, float | None]] = dict

    @property
    def total_timesteps(self) -> int:
        """Env steps after which the run ends."""
        if self.choices.total_timesteps is not None:
            return self.choices.total_timesteps
        return first_said(self.settings, "total_timesteps") or DEFAULT_TIMESTEPS

    @property
    def known_steps(self) -> int | None:
        """Env steps after which the run goes on; None for a run that begins."""
        return None if self.run is None else self.run.steps

    def known_spaces(
        self, observation: spaces.Space[Any] | None, action: spaces.Space[Any] | None
    ) -> RunSpaces | None:
        """The run's spaces as far as they are known before a client comes; None where not at all.

        Args:
            observation, action: Of a single env, where the caller gives them.

        Raises:
            UsageError: There can be no model for them, or a resumed run has others.
        """
        if self.run is not None:
            return self._stored_spaces(self.run, observation, action)
        if (observation is None) != (action is None):
            raise UsageError("give both observation_space and action_space, or neither")
        plan = self.plan_for(None)
        if observation is None or action is None:
            plan.rehearse(self.choices.num_envs)
            return None
        adapted = RunSpaces.of(plan, observation, action)
        if self.choices.num_envs is None:
            plan.rehearse(None, adapted.observations.space, adapted.actions.space)
        return adapted

    def _stored_spaces(
        self,
        run: StoredRun,
        observation: spaces.Space[Any] | None,
        action: spaces.Space[Any] | None,
    ) -> RunSpaces:
        adapted = RunSpaces.of(self.plan, *run.config.spaces())
        if observation is not None and action is not None:
            given = RunSpaces.of(self.plan, observation, action)
            difference = adapted.difference(given.observation, given.action)
            if difference:
                raise UsageError(f"{run.directory}: {difference}")
        return adapted

    def plan_for(self, env_id: str | None) -> ModelPlan:
        """The plan with all settings for an env; the earlier of them win over the later ones.

        Args:
            env_id: Where :attr:`env_id` does not say it.
        """
        plan = self.plan
        for settings in self._choice.settings_for(self.env_id or env_id):
            plan = plan.over(settings)
        return plan

    def build(
        self, adapted: RunSpaces, rows: int, env_id: str | None
    ) -> OnPolicyAlgorithm | OffPolicyAlgorithm:
        """Build the model; what fails leaves no trace.

        Args:
            adapted: The run's spaces.
            rows: The first client's number of envs.
            env_id: As it declares it; None where it does not.

        Raises:
            UsageError: There can be no model for them.
        """
        self._check_rows(rows)
        env_id = self.env_id or env_id
        plan, settings = self.plan_for(env_id), self._choice.settings_for(env_id)
        set_torch_threads(self._torch_threads, has_image(adapted.observations.space))
        model = plan.build(
            adapted.observations.space, adapted.actions.space, self.choices.num_envs or rows
        )
        self._check_demonstrations(limited_settings(model))
        _log_settings(settings, self.plan)
        self.plan, self.settings, self.env_id = plan, settings, env_id
        return model

    def check_learning(self, model: BaseAlgorithm, rows: int) -> None:
        """Find out whether a model can learn from a first client of ``rows`` envs.

        Raises:
            UsageError: It cannot. An evaluating client, for whom it was built, may have had others.
        """
        self._check_rows(rows)
        noise = self.plan.hyperparameters.get("action_noise")
        settings = {**limited_settings(model), "action_noise": noise}
        check_num_envs(settings, self.choices.num_envs or rows)

    def _check_demonstrations(self, settings: Mapping[str, Any]) -> None:
        share = self.choices.demonstrations_share or 0.0
        check_demonstrations(self.plan.algorithm, settings, share)

    def _check_rows(self, rows: int) -> None:
        if self.choices.num_envs is None and rows > _MOST_ENVS:
            raise UsageError(f"a client's rollouts span at most {_MOST_ENVS} envs, it has {rows}")

    def config(self, own: RunSpaces, num_envs: int) -> RunConfig:
        """What config.json tells of the run.

        Args:
            own: The run's spaces.
            num_envs: E.
        """
        if self.run is not None:
            return replace(self.run.config, total_timesteps=self.total_timesteps)
        choices = self.choices._replace(
            num_envs=num_envs,
            env_id=self.env_id,
            total_timesteps=self.total_timesteps,
        )
        return RunConfig.of(self.plan, own, choices)

    def set_logger(self, model: BaseAlgorithm, console: TextIO | None) -> None:
        """Give the model the run's log; where there is none, it keeps what the user chose."""
        own_logger = {"tensorboard_log", "verbose"} & self.plan.hyperparameters.keys()
        if self.choices.run_dir is not None or console is not None or not own_logger:
            logger = make_logger(self.choices.run_dir, console, self.known_steps)
            logger.columns = self.columns
            model.set_logger(logger)

    def learner(
        self,
        model: BaseAlgorithm,
        own: RunSpaces,
        num_envs: int,
        counters: Counters,
        callback: MaybeCallback,
    ) -> Learner[Any, Any]:
        """The learner of a model that :meth:`build` has built and that has its logger."""
        lag = self.choices.max_policy_lag
        assert lag is not None  # the choices are complete
        plan = RunPlan(
            num_envs,
            self.total_timesteps,
            counters,
            own.actions,
            callback,
            self.choices.log_interval or 1,
            horizon=self.plan.horizon,
            max_policy_lag=lag,
            demonstrations_share=self.choices.demonstrations_share or 0.0,
            resumed=self.run is not None,
        )
        return make_learner(model, plan, bool(self.choices.async_learn))


def make_plan(
    algorithm: str | AlgorithmClass | type[BaseAlgorithm],
    policy: str | type[BasePolicy] | None,
    seed: int | None,
    hyperparameters: Mapping[str, Any],
    horizon: int,
    normalize: bool | str | Mapping[str, Any] | None,
) -> ModelPlan:
    """Check a caller's arguments for the model; they are those of the agent.

    Raises:
        UsageError: One of them cannot be.
    """
    check_seed(seed)
    found = find_algorithm(algorithm)
    check_policy(found, policy)
    checked = check_hyperparameters(found, hyperparameters, policy=policy)
    return ModelPlan(found, checked, policy, seed, horizon, normalize_arguments(normalize))


def check_counts(**counts: int | None) -> None:
    """Find out whether each is None or at least 1.

    Raises:
        UsageError: One is not; the text has its name.
    """
    for name, number in counts.items():
        if number is not None and number < 1:
            raise UsageError(f"{name}: expected at least 1, got {number}")


def check_seed(seed: int | None) -> None:
    """Find out whether it is None or what SB3 takes, which is what NumPy's older generators take.

    Raises:
        UsageError: It is not.
    """
    if seed is not None and not 0 <= seed < 2**32:
        raise UsageError(f"seed: expected 0 to {2**32 - 1}, got {seed}")


def _log_settings(settings: Sequence[Preset], plan: ModelPlan) -> None:
    """A line for each of them that says what it adds to the plan."""
    known = set(plan.hyperparameters)
    for preset in settings:
        added = {k: v for k, v in preset.hyperparameters.items() if k not in known}
        known |= added.keys()
        said = ", ".join(f"{name}={value}" for name, value in added.items())
        _log.info("%s: %s", preset.source, said or "nothing more")
