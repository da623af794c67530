"""Going on with a run: what it was, and nothing that contradicts it."""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gymnasium import spaces
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from plugrl_gym.agents.sb3.learners.learner import Learner
from plugrl_gym.agents.sb3.model import ModelPlan
from plugrl_gym.agents.sb3.runs.checkpoints import (
    CHECKPOINTS,
    Checkpoints,
    DamagedCheckpoint,
    read_note,
)
from plugrl_gym.agents.sb3.runs.choices import Choices
from plugrl_gym.agents.sb3.runs.config import RunConfig, algorithm_name, described
from plugrl_gym.agents.sb3.runs.counters import Counters
from plugrl_gym.agents.sb3.runs.loading import StoredModel
from plugrl_gym.agents.sb3.runs.snapshot import MODEL, read_state, restore_learner, restore_model
from plugrl_gym.agents.sb3.settings.algorithms import AlgorithmClass, find_algorithm
from plugrl_gym.agents.sb3.settings.hyperparameters import canonical
from plugrl_gym.errors import UsageError

__all__ = ["ResumedPlan", "StoredRun", "source_of"]

_log: Final = logging.getLogger(__name__)


class StoredRun:
    """A run directory that is to be gone on with.

    Args:
        directory: Of the run. Its files may run code of whoever wrote them.

    Attributes:
        config: What the run was started with.
        checkpoint: The newest that is whole.
        steps: Env steps of it.
        noted: What :attr:`RunKeeper.note` gave when it was written.

    Raises:
        UsageError: There is no run in it, no whole checkpoint, or it is of a newer format.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = RunConfig.read(directory)
        self.checkpoint, note = _newest(directory)
        self.steps = int(note["steps"])
        self.noted: Mapping[str, Any] = note["noted"]
        self._finished = bool(note["finished"])
        self._state: Mapping[str, Any] = {}

    @property
    def algorithm(self) -> AlgorithmClass:
        """The run's algorithm.

        Raises:
            UsageError: Its class is not installed.
        """
        module, colon, name = self.config.algorithm.partition(":")
        if not colon:
            return find_algorithm(module)
        try:
            return find_algorithm(getattr(importlib.import_module(module), name))
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"{self.directory} was started with {self.config.algorithm}: {error}"
            ) from error

    def plan(self, given: ModelPlan) -> ResumedPlan:
        """The run's own plan.

        Args:
            given: What the caller gave.

        Raises:
            UsageError: The caller gave something else than the run was started with; the text
                names both.
        """
        config = self.config
        self.check(
            algorithm=algorithm_name(given.algorithm),
            policy=given.policy,
            seed=given.seed,
            normalize=given.normalize,
        )
        parameters = inspect.signature(given.algorithm).parameters
        for name in given.hyperparameters.keys() - {"device"}:  # it may be another machine
            default = described(parameters[name].default)
            known = canonical(name, config.hyperparameters.get(name, default))
            self._compare(name, known, described(given.hyperparameters[name]))
        policy: Any = config.policy
        if policy is not None and ":" in policy:
            policy = StoredModel(self.checkpoint / MODEL).policy_class()
        device = given.hyperparameters.get("device", config.hyperparameters.get("device", "auto"))
        return ResumedPlan(
            given.algorithm,
            {**config.hyperparameters, "device": device},
            policy,
            config.seed,
            config.settings["horizon"],
            config.settings["normalize"],
            self,
        )

    def settle(self, choices: Choices) -> Choices:
        """The run's own choices.

        Args:
            choices: What the caller chose.

        Raises:
            UsageError: The caller chose something else than the run was started with.
        """
        config, settings = self.config, self.config.settings
        run_dir, env_id = choices.run_dir, choices.env_id
        if run_dir is not None and run_dir.resolve() != self.directory.resolve():
            raise UsageError(f"a run that goes on stays in {self.directory}, got run_dir {run_dir}")
        if config.env_id is None or _bare(env_id) == _bare(config.env_id):
            env_id = None
        self.check(
            num_envs=choices.num_envs,
            env_id=env_id,
            preset=None if choices.preset == Choices().preset else choices.preset,
            hyperparameter_file=choices.hyperparameter_file,
            max_policy_lag=choices.max_policy_lag,
            async_learn=choices.async_learn,
            demonstrations_share=choices.demonstrations_share,
        )
        return Choices(
            total_timesteps=self.total_timesteps(choices.total_timesteps),
            num_envs=config.num_envs,
            env_id=config.env_id or choices.env_id,
            run_dir=self.directory,
            preset="none",
            log_interval=_first(choices.log_interval, settings["log_interval"]),
            save_every=_first(choices.save_every, settings["save_every"]),
            keep=_first(choices.keep, settings["keep"]),
            max_policy_lag=settings["max_policy_lag"],
            async_learn=settings["async_learn"],
            demonstrations_share=settings.get("demonstrations_share", 0.0),
        )

    def check(self, **given: Any) -> None:
        """Compare arguments with what the run was started with.

        Args:
            given: Arguments of the agent; None for one that was not given.

        Raises:
            UsageError: One was given, and is another; the text names both.
        """
        config = self.config
        known = {
            "demonstrations_share": 0.0,
            **config.settings,
            "algorithm": config.algorithm,
            "policy": config.policy,
            "seed": config.seed,
            "num_envs": config.num_envs,
            "env_id": config.env_id,
        }
        for name, value in given.items():
            if value is not None:
                self._compare(name, known.get(name), described(value))

    def _compare(self, name: str, ours: Any, given: Any) -> None:
        if ours != given:
            raise UsageError(
                f"{self.directory} was started with {name}={ours}, it cannot go on with "
                f"{name}={given}"
            )

    def total_timesteps(self, given: int | None) -> int:
        """Env steps after which the run ends: its own number, or a larger one.

        Raises:
            UsageError: A smaller one was given, or there is nothing left to do.
        """
        own = self.config.total_timesteps
        total = given or own
        if total < own:
            raise UsageError(
                f"{self.directory} was started with total_timesteps={own}, which can only become "
                f"larger, got {given}"
            )
        if self._finished and self.steps >= total:
            raise UsageError(
                f"{self.directory} has done all of its {own:,} env steps; a larger "
                "--total-timesteps goes on"
            )
        return total

    def load(
        self, algorithm: AlgorithmClass, envs: VecEnv, device: Any
    ) -> OnPolicyAlgorithm | OffPolicyAlgorithm:
        """The model as it was, its replay buffer filled.

        Args:
            algorithm: The run's.
            envs: Stand-in envs with the run's spaces.
            device: Where its networks go.

        Raises:
            UsageError: It cannot be read.
        """
        model = StoredModel(self.checkpoint / MODEL).load(algorithm, envs, device)
        assert isinstance(model, OnPolicyAlgorithm | OffPolicyAlgorithm)  # as find_algorithm has it
        with self._read_here():
            self._state = read_state(self.checkpoint)
            restore_model(self.checkpoint, self._state, model)
        return model

    def restore(self, learner: Learner[Any, Any], counters: Counters) -> None:
        """Let a new learner of :meth:`load`'s model go on; then draw nothing at random.

        Raises:
            UsageError: Another version has written the checkpoint.
        """
        with self._read_here():
            restore_learner(self._state, learner, counters)
        self._state = {}
        _log.info("going on at env step %s, from %s", f"{self.steps:,}", self.checkpoint)

    @contextmanager
    def _read_here(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # its files are whole, so another version wrote them
            raise UsageError(
                f"{self.checkpoint} cannot be read here: {type(error).__name__}: {error}"
            ) from error


@dataclass(frozen=True)
class ResumedPlan(ModelPlan):
    """A run's plan, whose model is in a checkpoint.

    Its hyperparameters are for people: the model in the checkpoint has the real ones.

    Attributes:
        run: Whose.
    """

    run: StoredRun | None = None

    def build(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], num_envs: int
    ) -> OnPolicyAlgorithm | OffPolicyAlgorithm:
        """Load the model; see :meth:`ModelPlan.build`."""
        assert self.run is not None
        envs = self.stand_in(observation_space, action_space, num_envs)
        return self.run.load(self.algorithm, envs, self.hyperparameters["device"])


def _bare(env_id: str | None) -> str | None:
    """Without the module that registers it."""
    return None if env_id is None else env_id.rpartition(":")[2]


def _first(chosen: int | None, own: int) -> int:
    return own if chosen is None else chosen


def source_of(resume: str | Path | None, load: str | Path | None) -> StoredRun | StoredModel | None:
    """What a run goes on from, or begins with.

    Raises:
        UsageError: There is none there, or it would be both.
    """
    if resume is not None and load is not None:
        raise UsageError("a run either goes on (resume) or begins with a model (load), not both")
    if resume is not None:
        return StoredRun(Path(resume))
    return None if load is None else StoredModel(load)


def _newest(directory: Path) -> tuple[Path, dict[str, Any]]:
    """The newest whole checkpoint and what it says; a damaged one is passed over, and named."""
    damage: DamagedCheckpoint | None = None
    for path in Checkpoints(directory / CHECKPOINTS).found():
        try:
            note = read_note(path)
        except DamagedCheckpoint as error:
            damage = damage or error
            _log.warning("%s; trying the checkpoint before it", error)
            continue
        return path, note
    if damage is not None:
        raise UsageError(f"{directory} has no whole checkpoint: {damage}")
    raise UsageError(f"{directory} has no checkpoint to go on from")
