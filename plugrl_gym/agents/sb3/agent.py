"""Stable-Baselines3 as an agent: any client's envs, SB3's own models and training."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.utils import obs_as_tensor

from plugrl_gym.agents.sb3.learners import Learner, RunPlan, make_learner
from plugrl_gym.agents.sb3.learners.trajectories import concatenate
from plugrl_gym.agents.sb3.model import ModelPlan
from plugrl_gym.agents.sb3.policy_spaces import (
    PolicyActions,
    PolicyArray,
    PolicyObservations,
    brief,
)
from plugrl_gym.agents.sb3.runs.counters import Counters
from plugrl_gym.agents.sb3.runs.run_files import make_logger, save_model
from plugrl_gym.agents.sb3.settings.algorithms import check_hyperparameters, find_algorithm
from plugrl_gym.agents.sb3.settings.presets import Preset, load_preset, preset_names
from plugrl_gym.errors import UsageError
from plugrl_gym.protocol import Feedback, Infer, Metadata, SpaceDeclaration
from plugrl_gym.server.agent import Agent, Client, Refusal, Request
from plugrl_gym.spaces import build_space, describe_space

__all__ = ["DEFAULT_TIMESTEPS", "SB3Agent"]

_log: Final = logging.getLogger(__name__)

#: Env steps of a run for which neither the caller nor a preset says another number.
DEFAULT_TIMESTEPS: Final = 1_000_000

#: SB3 keeps lists of as many entries, so a client's word for it needs a bound.
_MOST_ENVS: Final = 65_536


class _Spaces(NamedTuple):
    """What the run's envs have, and how a policy deals with it."""

    observation: spaces.Space[Any]
    action: spaces.Space[Any]
    observations: PolicyObservations
    actions: PolicyActions


class SB3Agent(Agent):
    """Trains one SB3 model on what all clients send.

    The model is built when the first client shows its spaces, or from ``observation_space`` and
    ``action_space`` for clients that cannot (plain v1). All later clients must have the same.
    One client of N envs in lockstep (SAME_STEP resets) gets weights that are byte for byte those
    of SB3's own ``learn()``.

    Args:
        algorithm: ``"ppo"``, or an on-policy class of SB3.
        total_timesteps: Env steps to learn from, rounded up to whole rollouts as SB3 does. None
            for the preset's number, else :data:`DEFAULT_TIMESTEPS`.
        policy: ``"MlpPolicy"``, ``"CnnPolicy"``, ``"MultiInputPolicy"`` or a class; None to
            choose by the spaces.
        seed: Seeds Python, NumPy and torch when the model is built, as SB3 does.
        num_envs: E, where a rollout is ``n_steps * E`` transitions, whichever env sends them;
            None for the first learning client's number of envs.
        hyperparameters: Any arguments of the SB3 constructor; they win over a preset. ``"lin_X"``
            is a schedule that falls linearly from X to 0.
        preset: ``"auto"`` takes the preset of the env that the first client declares, ``"none"``
            takes none, any other str is the env id of the preset to take.
        run_dir: Gets progress.csv and, at the end, model.zip; None for no files.
        observation_space, action_space: Of a single env; both or neither.
        env_id: Stands in for the declaration of clients that make none.
        console: Gets SB3's table of numbers after each update; None for none.
        callback: SB3 callback(s). Their ``on_step`` runs once for each feedback message.
        log_interval: Updates between two lines of the log.
        arguments: More hyperparameters, for ``SB3Agent("ppo", n_steps=128)``.

    Attributes:
        model: The SB3 model; None until it is built.
        counters: What happened so far.

    Raises:
        UsageError: An unknown algorithm, hyperparameter or preset, or settings that SB3 refuses.

    Example:
        >>> agent = SB3Agent("ppo", total_timesteps=10_000, seed=0, n_steps=128)
        >>> agent.metadata().algorithm
        'PPO'
    """

    def __init__(
        self,
        algorithm: str | type[BaseAlgorithm] = "ppo",
        *,
        total_timesteps: int | None = None,
        policy: str | type[ActorCriticPolicy] | None = None,
        seed: int | None = None,
        num_envs: int | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        preset: str = "auto",
        run_dir: str | Path | None = None,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        env_id: str | None = None,
        console: TextIO | None = None,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        **arguments: Any,
    ) -> None:
        _check_counts(total_timesteps=total_timesteps, num_envs=num_envs, log_interval=log_interval)
        found = find_algorithm(algorithm)
        explicit = check_hyperparameters(found, {**(hyperparameters or {}), **arguments})
        _check_policy(found, policy)
        self._plan = ModelPlan(found, explicit, policy, seed)
        self._preset_choice = preset
        self._total_timesteps = total_timesteps
        self._num_envs = num_envs
        self._run_dir = None if run_dir is None else Path(run_dir)
        self._console = console
        self._callback = callback
        self._log_interval = log_interval
        self.env_id = env_id
        self.model: OnPolicyAlgorithm | None = None
        self.counters = Counters()
        self._learner: Learner[Any, Any] | None = None
        self._spaces: _Spaces | None = None
        self._preset = self._named_preset()
        self._take_given_spaces(observation_space, action_space)

    # -- the run, for commands ------------------------------------------------------------

    @property
    def timesteps(self) -> int:
        """Env steps that learning clients have run."""
        return 0 if self.model is None else self.model.num_timesteps

    @property
    def total_timesteps(self) -> int:
        """Env steps after which the run ends."""
        if self._total_timesteps is not None:
            return self._total_timesteps
        return DEFAULT_TIMESTEPS if self._preset is None else self._preset.total_timesteps

    @property
    def model_path(self) -> Path | None:
        """Where :meth:`close` puts the model; None without a run directory."""
        return None if self._run_dir is None else self._run_dir / "model.zip"

    # -- what the server calls ------------------------------------------------------------

    def metadata(self) -> Metadata:
        """Algorithm, policy and action size as far as they are known."""
        policy = self._plan.policy
        if self._spaces is not None:
            policy = self._plan.policy_for(self._spaces.observations.space)
        return Metadata(
            algorithm=self._plan.algorithm.__name__,
            policy=policy.__name__ if isinstance(policy, type) else policy,
            action_horizon=1,
            action_dim=None if self._spaces is None else self._spaces.actions.dim,
        )

    def join(self, client: Client) -> None:
        """Build the model for the first client; compare the spaces of every other."""
        declaration = client.declaration
        if declaration is None:
            if self._spaces is None:
                raise Refusal(
                    f"this {self._plan.name} server knows no spaces and the client declares none; "
                    "start it with an env id"
                )
            return
        try:
            self._serve(declaration)
        except UsageError as error:
            raise Refusal(str(error)) from error

    def prepare(self, client: Client, infer: Infer) -> Any:
        """Decode a request's observation for the policy."""
        assert self._spaces is not None  # join has refused where there are none
        observation = self._spaces.observations.decode(infer.observation, "infer.data")
        declared = client.declaration
        rows = len(infer.env_indices) if declared is None else declared.num_envs
        if self.model is None:
            self._build(self._spaces, rows, self.env_id)
        if self._learner is None and client.learning:
            self._start_learning(rows)
        return observation

    def act(self, requests: Sequence[Request]) -> list[npt.NDArray[np.generic]]:
        """Draw actions for learning clients, take the most likely ones for evaluating clients."""
        actions: dict[int, PolicyArray] = {}
        learning = [k for k, request in enumerate(requests) if request.client.learning]
        if learning:
            assert self._learner is not None  # prepare has made it
            drawn = self._learner.act([requests[k] for k in learning])
            actions.update(zip(learning, drawn, strict=True))
        evaluating = [k for k in range(len(requests)) if k not in actions]
        if evaluating:
            chosen = self._most_likely([requests[k] for k in evaluating])
            actions.update(zip(evaluating, chosen, strict=True))
        assert self._spaces is not None
        assert self.model is not None
        to_wire, policy = self._spaces.actions.to_wire, self.model.policy
        return [to_wire(actions[k], policy) for k in range(len(requests))]

    def _most_likely(self, requests: Sequence[Request]) -> list[PolicyArray]:
        assert self.model is not None
        policy = self.model.policy
        policy.set_training_mode(False)
        observation = concatenate([request.prepared for request in requests])
        with torch.no_grad():
            chosen = policy._predict(obs_as_tensor(observation, policy.device), deterministic=True)
        action = chosen.cpu().numpy().reshape(-1, *(self.model.action_space.shape or ()))
        sizes = [len(request.infer.env_indices) for request in requests]
        return np.split(action, np.cumsum(sizes)[:-1])

    def feedback(self, client: Client, feedback: Feedback) -> Mapping[str, int]:
        """Store transitions; an evaluating client's are left alone."""
        if not client.learning:
            return {"evaluation": len(feedback.env_indices)}
        assert self._spaces is not None
        assert self._learner is not None
        following = self._spaces.observations.decode(feedback.observation, "feedback.data.obs")
        return self._learner.feedback(client, feedback, following)

    def leave(self, client: Client) -> None:
        """Cut the client's trajectories where they are, without an end of the episode."""
        if self._learner is not None and client.learning:
            self._learner.leave(client)

    @property
    def learning_due(self) -> bool:
        """Whether a rollout is complete."""
        return self._learner is not None and self._learner.due

    def learn(self) -> None:
        """Train on the complete rollout."""
        if self._learner is not None:
            self._learner.learn()

    @property
    def finished(self) -> bool:
        """Whether all env steps are learned from, or a callback ended the run."""
        return self._learner is not None and self._learner.finished

    def close(self) -> None:
        """Write model.zip and close the log."""
        if self._learner is not None:
            self._learner.close()
        if self.model is None:
            return
        self.save()
        if self._learner is not None:
            self.model.logger.close()

    def save(self) -> None:
        """Write model.zip into the run directory now; nothing without one or without a model."""
        if self.model is not None and self.model_path is not None:
            save_model(self.model, self.model_path)

    # -- building -------------------------------------------------------------------------

    def _named_preset(self) -> Preset | None:
        """The preset that the caller named, or that belongs to the env id the caller gave."""
        name, algorithm = self._preset_choice, self._plan.name
        if name == "none":
            return None
        if name == "auto":
            return load_preset(algorithm, self.env_id)
        preset = load_preset(algorithm, name)
        if preset is None:
            names = ", ".join(preset_names(algorithm)) or "none at all"
            raise UsageError(f"{algorithm} has no preset {name!r}; it has {names}")
        return preset

    def _take_given_spaces(
        self, observation: spaces.Space[Any] | None, action: spaces.Space[Any] | None
    ) -> None:
        if (observation is None) != (action is None):
            raise UsageError("give both observation_space and action_space, or neither")
        if observation is None or action is None:
            self._plan.rehearse(self._num_envs)
            return
        self._spaces = self._adapt(observation, action)
        if self._num_envs is None:
            seen, chosen = self._spaces.observations.space, self._spaces.actions.space
            self._plan.rehearse(None, seen, chosen)
        else:
            self._build(self._spaces, self._num_envs, self.env_id)

    def _adapt(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> _Spaces:
        actions = self._plan.actions(action)
        observations = self._plan.observations(observation)
        self._plan.policy_for(observations.space)
        # As they come back from the wire, so that those of a caller compare with a client's.
        observation, action = (build_space(describe_space(s)) for s in (observation, action))
        return _Spaces(observation, action, observations, actions)

    def _serve(self, declaration: SpaceDeclaration) -> None:
        """Compare declared spaces with the run's; the first ones become the run's.

        Raises:
            Refusal: They differ.
            UsageError: There can be no model for them.
        """
        observation = build_space(declaration.observation)
        action = build_space(declaration.action)
        if self._spaces is not None and (observation, action) != self._spaces[:2]:
            raise Refusal(_difference(self._spaces, observation, action))
        if self.model is None:
            adapted = self._spaces or self._adapt(observation, action)
            self._build(adapted, declaration.num_envs, declaration.env_id)

    def _build(self, adapted: _Spaces, rows: int, env_id: str | None) -> None:
        """Build the model for a first client of ``rows`` envs; what fails leaves no trace."""
        if self._num_envs is None and rows > _MOST_ENVS:
            raise UsageError(f"a client's rollouts span at most {_MOST_ENVS} envs, it has {rows}")
        env_id = self.env_id or env_id
        preset, plan = self._preset, self._plan
        if self._preset_choice == "auto":
            preset = load_preset(plan.name, env_id)
        if preset is not None:
            plan = _with_preset(plan, preset)
        self.model = plan.build(
            adapted.observations.space, adapted.actions.space, self._num_envs or rows
        )
        self._spaces, self._preset, self.env_id = adapted, preset, env_id

    def _start_learning(self, rows: int) -> None:
        assert self.model is not None
        own_logger = {"tensorboard_log", "verbose"} & self._plan.hyperparameters.keys()
        if self._run_dir is not None or self._console is not None or not own_logger:
            self.model.set_logger(make_logger(self._run_dir, self._console))
        self._learner = make_learner(
            self.model,
            RunPlan(
                self._num_envs or rows,
                self.total_timesteps,
                self.counters,
                self._callback,
                self._log_interval,
            ),
        )


def _with_preset(plan: ModelPlan, preset: Preset) -> ModelPlan:
    """The plan with the preset's hyperparameters where the caller gave none; one line says so."""
    taken = {k: v for k, v in preset.hyperparameters.items() if k not in plan.hyperparameters}
    said = ", ".join(f"{name}={value}" for name, value in taken.items())
    _log.info("preset %s for %s: %s (--preset none turns it off)", preset.env_id, plan.name, said)
    checked = check_hyperparameters(plan.algorithm, taken)
    return replace(plan, hyperparameters={**checked, **plan.hyperparameters})


def _check_counts(**counts: int | None) -> None:
    for name, number in counts.items():
        if number is not None and number < 1:
            raise UsageError(f"{name}: expected at least 1, got {number}")


def _check_policy(algorithm: type[OnPolicyAlgorithm], policy: object) -> None:
    if isinstance(policy, str) and policy not in algorithm.policy_aliases:
        names = ", ".join(algorithm.policy_aliases)
        raise UsageError(f"{algorithm.__name__} has no policy {policy!r}; it has {names}")


def _difference(run: _Spaces, observation: spaces.Space[Any], action: spaces.Space[Any]) -> str:
    """Both sides in one sentence."""
    for what, ours, theirs in (
        ("observations", run.observation, observation),
        ("actions", run.action, action),
    ):
        if ours != theirs:
            said = brief(theirs)
            if said == brief(ours):
                said += " of other bounds or type"
            return f"this run has {what} {brief(ours)}, env has {said}"
    raise AssertionError("the spaces are equal")
