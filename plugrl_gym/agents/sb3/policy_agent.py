"""A trained SB3 policy that acts for any client and learns nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.utils import set_random_seed

from plugrl_gym.agents.sb3.acting import choose, in_groups, split
from plugrl_gym.agents.sb3.learners.trajectories import concatenate
from plugrl_gym.agents.sb3.model import ModelPlan, SpacesOnlyVecEnv, has_image
from plugrl_gym.agents.sb3.normalization import Normalizer, normalized_envs
from plugrl_gym.agents.sb3.policy_actions import PolicyActions
from plugrl_gym.agents.sb3.policy_spaces import PolicyArray, PolicyObservations
from plugrl_gym.agents.sb3.runs.loading import StoredModel
from plugrl_gym.agents.sb3.settings.algorithms import find_algorithm
from plugrl_gym.agents.sb3.setup import check_counts, check_seed
from plugrl_gym.agents.sb3.threads import TorchThreads, check_torch_threads, set_torch_threads
from plugrl_gym.errors import UnsupportedSpace, UsageError
from plugrl_gym.protocol import Feedback, Infer, Metadata
from plugrl_gym.server.agent import Agent, Client, Refusal, Request
from plugrl_gym.spaces import build_space
from plugrl_gym.spaces.naming import differing

__all__ = ["SB3PolicyAgent"]


class _Spaces(NamedTuple):
    """How the model deals with one client's envs; its ``Client.state``."""

    observations: PolicyObservations
    actions: PolicyActions


class SB3PolicyAgent(Agent):
    """Serves a model of Stable-Baselines3 or sb3-contrib as it is.

    Every action is the most likely one, unless ``stochastic``; for clients with ``mode: "eval"``
    it always is. Nothing is stored. A client's envs must have the spaces that the model was trained
    in.

    Args:
        model: The model, or its file, which SB3's ``save()`` wrote; ``.zip`` may be left out.
        algorithm: What a file holds: its name or class; None to find out. A model of DDPG is
            served as well as one of TD3.
        normalizer: VecNormalize's file, for a model that was trained with one. None takes
            ``vecnormalize.pkl`` (``best_vecnormalize.pkl`` for ``best_model.zip``) beside the
            model's file, if there is one.
        horizon: Env steps in one action of the model, H.
        stochastic: Draw actions for clients that do not declare ``mode: "eval"``. The policies of
            dqn, qrdqn, td3 and ddpg have no chance in them and always give the same action.
        seed: Of torch's and NumPy's generators, for drawn actions; None leaves them alone.
        total_timesteps: Env steps after which the run is over; None for never.
        observation_space, action_space: Of a single env, for clients that do not declare theirs;
            None takes the model's own. Both or neither.
        env_id: Their env, as far as known.
        device: Where a file's networks go.
        torch_threads: As of :class:`~plugrl_gym.agents.sb3.agent.SB3Agent`.

    Attributes:
        model: The SB3 model.
        timesteps: Env steps that clients have run, without evaluating ones.

    Raises:
        UsageError: The file holds no such model, or its policy cannot be served; or the spaces
            are not the model's.

    Example:
        >>> from plugrl_gym.agents.sb3 import SB3PolicyAgent
        >>> from plugrl_gym.server import serve
        >>> serve(SB3PolicyAgent("runs/cartpole/model.zip"))  # doctest: +SKIP
    """

    def __init__(
        self,
        model: BaseAlgorithm | str | Path,
        *,
        algorithm: str | type[BaseAlgorithm] | None = None,
        normalizer: str | Path | None = None,
        horizon: int = 1,
        stochastic: bool = False,
        seed: int | None = None,
        total_timesteps: int | None = None,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        env_id: str | None = None,
        device: torch.device | str = "auto",
        torch_threads: TorchThreads = None,
    ) -> None:
        check_torch_threads(torch_threads)
        check_counts(horizon=horizon, total_timesteps=total_timesteps)
        check_seed(seed)
        if not isinstance(model, BaseAlgorithm):
            stored = StoredModel(model)
            normalizer = normalizer or stored.normalizer
            model = _loaded(stored, algorithm, device)
        set_torch_threads(torch_threads, has_image(model.observation_space))
        self.model = model
        self.timesteps = 0
        self.total_timesteps = total_timesteps
        self.env_id = env_id
        self._horizon = horizon
        self._stochastic = stochastic
        self._policy = _servable(model)
        self._normalizer = None if normalizer is None else _normalizer(model, Path(normalizer))
        self._undeclared = self._given(observation_space, action_space)
        self._dim = None if self._undeclared is None else self._undeclared.actions.dim
        if seed is not None:
            set_random_seed(seed)

    def metadata(self) -> Metadata:
        """Algorithm, policy, and what is known of the actions."""
        return Metadata(
            algorithm=type(self.model).__name__,
            policy=type(self._policy).__name__,
            action_horizon=self._horizon,
            action_dim=self._dim,
        )

    # -- what the server calls ------------------------------------------------------------

    def join(self, client: Client) -> None:
        """Compare a client's spaces with the model's."""
        declaration = client.declaration
        if declaration is None:
            if self._undeclared is None:
                raise Refusal(
                    f"this model gives chunks of {self._horizon} steps and the client declares no "
                    "spaces; start the server with an env id"
                )
            client.state = self._undeclared
            return
        try:
            client.state = self._fitting(
                build_space(declaration.observation), build_space(declaration.action)
            )
        except UsageError as error:
            raise Refusal(str(error)) from error
        self._dim = client.state.actions.dim
        self.env_id = self.env_id or declaration.env_id

    def prepare(self, client: Client, infer: Infer) -> Any:
        """Decode a request's observation for the policy."""
        served: _Spaces = client.state
        observation = served.observations.decode(infer.observation, "infer.data")
        return observation if self._normalizer is None else self._normalizer.normalize(observation)

    def act(self, requests: Sequence[Request]) -> list[npt.NDArray[np.generic]]:
        """The most likely actions; for ordinary clients drawn ones, if that was asked for."""
        chosen = in_groups(
            requests, lambda request: self._stochastic and request.client.learning, self._choose
        )
        return [
            request.client.state.actions.to_wire(actions, self._policy)
            for request, actions in zip(requests, chosen, strict=True)
        ]

    def _choose(self, stochastic: bool, requests: Sequence[Request]) -> list[PolicyArray]:
        observation = concatenate([request.prepared for request in requests])
        if stochastic and self.model.use_sde:
            rows = sum(len(request.infer.env_indices) for request in requests)
            self._policy.reset_noise(rows)  # type: ignore[operator]  # all that use gSDE have it
        actions = choose(self._policy, observation, deterministic=not stochastic)
        return split(actions, requests)

    def feedback(self, client: Client, feedback: Feedback) -> Mapping[str, int]:
        """Count the steps."""
        rows = len(feedback.env_indices)
        if client.learning:
            told = feedback.chunk_steps
            self.timesteps += self._horizon * rows if told is None else int(told.steps.sum())
        return {"nothing learns": rows}

    @property
    def finished(self) -> bool:
        """Whether ``total_timesteps`` have been run."""
        return self.total_timesteps is not None and self.timesteps >= self.total_timesteps

    # -- spaces ---------------------------------------------------------------------------

    def _given(
        self, observation: spaces.Space[Any] | None, action: spaces.Space[Any] | None
    ) -> _Spaces | None:
        """What serves clients that declare nothing; None where that cannot be known."""
        if (observation is None) != (action is None):
            raise UsageError("give both observation_space and action_space, or neither")
        if observation is not None and action is not None:
            return self._fitting(observation, action)
        if self._horizon > 1:
            return None  # the model's actions are those of several steps
        return self._fitting(self.model.observation_space, self.model.action_space)

    def _fitting(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> _Spaces:
        """How the model deals with envs of these spaces.

        Raises:
            UsageError: It cannot; one sentence that names both.
        """
        actions = PolicyActions(action, self._horizon)
        _compare("actions", self.model.action_space, actions.space, action)
        reasons: list[UsageError] = []
        for flatten in (True, False):  # as the model was made, with SB3's network or its own
            try:
                observations = PolicyObservations(observation, flatten_small_images=flatten)
                _compare(
                    "observations", self.model.observation_space, observations.space, observation
                )
            except UsageError as error:
                reasons.append(error)
            else:
                return _Spaces(observations, actions)
        raise reasons[0]


def _compare(
    what: str, ours: spaces.Space[Any], adapted: spaces.Space[Any], theirs: spaces.Space[Any]
) -> None:
    if ours == adapted:
        return
    mine, said = differing(ours, theirs)
    raise UnsupportedSpace(f"this model has {what} {mine}, env has {said}")


def _loaded(
    stored: StoredModel,
    algorithm: str | type[BaseAlgorithm] | None,
    device: torch.device | str,
) -> BaseAlgorithm:
    found = find_algorithm(algorithm or stored.algorithm)
    observation, action = stored.space("observation_space"), stored.space("action_space")
    envs = ModelPlan(found).stand_in(observation, action, 1)
    # No replay buffer is filled here, so none of the size of the training's is made.
    small = {"buffer_size": 1} if issubclass(found, OffPolicyAlgorithm) else {}
    return stored.load(found, envs, device, small)


def _servable(model: BaseAlgorithm) -> BasePolicy:
    policy = model.policy
    if hasattr(policy, "lstm_actor"):
        raise UsageError(
            f"{type(model).__name__} remembers earlier steps, and such a model cannot be served"
        )
    policy.set_training_mode(False)
    return policy


def _normalizer(model: BaseAlgorithm, path: Path) -> Normalizer:
    envs = SpacesOnlyVecEnv(1, model.observation_space, model.action_space)
    normalizer = Normalizer(normalized_envs(envs, {}))
    normalizer.load(path)
    return normalizer
