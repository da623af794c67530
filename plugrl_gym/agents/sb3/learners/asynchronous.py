"""Off-policy learning that does not keep acting waiting.

Two threads share the work, and each owns what it changes. The one that serves clients acts on a
copy of the policy, draws exploration noise and looks up what a feedback answers. The one that
learns owns the model: it stores what has come, tells the callbacks, logs and trains. Feedback that
comes while it trains waits, and is stored before the next update. The copy takes over new weights
when it is to act, and only such as stood between two updates.

SB3's ratio of gradient steps to env steps is kept: where more than :data:`MOST_BEHIND` updates are
due, acting waits for them.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy

from plugrl_gym.agents.sb3.acting import frozen_copy
from plugrl_gym.agents.sb3.learners.cadence import Cadence
from plugrl_gym.agents.sb3.learners.exploration import Exploration
from plugrl_gym.agents.sb3.learners.gsde import SdeNoise
from plugrl_gym.agents.sb3.learners.learner import RunPlan
from plugrl_gym.agents.sb3.learners.off_policy import Arrival, OffPolicyLearner
from plugrl_gym.agents.sb3.normalization import Normalizer
from plugrl_gym.agents.sb3.policy_spaces import PolicyArray, PolicyObservation
from plugrl_gym.protocol import Feedback
from plugrl_gym.server.agent import Client, Request

__all__ = ["MOST_BEHIND", "AsyncOffPolicyLearner"]

#: Updates that may be due, the one under way included, while clients still get new actions.
MOST_BEHIND: Final = 2


class _Weights(NamedTuple):
    """A policy between two updates.

    Attributes:
        update: How many there were before.
        state: Copies of the policy's tensors.
        normalizer: A copy; None where observations are not normalised.
    """

    update: int
    state: Mapping[str, torch.Tensor]
    normalizer: Normalizer | None


class _Actor:
    """A copy of a model that acts; all of it belongs to the thread that acts.

    Attributes:
        model: Shares everything with the other but policy, step count and epsilon.
        update: Updates that its policy has seen.
    """

    def __init__(self, model: OffPolicyAlgorithm, weights: _Weights) -> None:
        self._source = model
        self._weights = weights
        self.model = copy.copy(model)
        self.model.policy = frozen_copy(model.policy)
        if hasattr(model, "_create_aliases"):
            self.model._create_aliases()  # type: ignore[attr-defined]  # DQN's, SAC's, ...

    @property
    def update(self) -> int:
        return self._weights.update

    def take_over(self, weights: _Weights) -> bool:
        """Act with newer weights, if these are; returns whether they are."""
        if hasattr(self._source, "exploration_rate"):
            self.model.exploration_rate = self._source.exploration_rate  # type: ignore[attr-defined]
        if weights is self._weights:
            return False
        newer = weights.update != self._weights.update
        self._weights = weights
        if newer:
            self.model.policy.load_state_dict(dict(weights.state))
        return newer

    def see(self, observation: PolicyObservation) -> PolicyObservation:
        """n observations as the policy sees them."""
        normalizer = self._weights.normalizer
        return observation if normalizer is None else normalizer.normalize(observation)


class AsyncOffPolicyLearner(OffPolicyLearner):
    """Learns in one thread while it acts in another.

    ``act``, ``feedback``, ``leave`` and the properties belong to the thread that acts, ``learn``
    and ``state`` to the one that learns, or to either while the other rests.
    """

    asynchronous = True

    def __init__(self, model: OffPolicyAlgorithm, plan: RunPlan) -> None:
        super().__init__(model, plan)
        self._arrived = Cadence(model, plan.num_envs)
        self._answered = 0
        self._waiting: deque[Arrival] = deque()
        self._published = self._weights()
        self._actor = _Actor(model, self._published)
        self._exploration = Exploration(self._actor.model)
        self._noise = SdeNoise(self._actor.model, plan.num_envs)
        self._noise.begin()

    # -- the thread that acts -----------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Learning is too far behind for any further action."""
        return self._arrived.due - self._answered > MOST_BEHIND and not self.finished

    @property
    def wanted(self) -> bool:
        """There is something to store or to learn."""
        return (bool(self._waiting) or self._update_due) and not self.finished

    def act(self, requests: Sequence[Request]) -> list[PolicyArray]:
        if self._actor.take_over(self._published):
            self._noise.begin()
        return self._explore(requests, self._actor.update)

    @property
    def policy_updates(self) -> int:
        return self._published.update

    def frozen_policy(self) -> BasePolicy:
        policy = frozen_copy(self._actor.model.policy)
        policy.load_state_dict(dict(self._published.state))
        return policy

    def frozen_normalizer(self) -> Normalizer | None:
        return self._published.normalizer

    def _see(self, observation: PolicyObservation) -> PolicyObservation:
        return self._actor.see(observation)

    def feedback(
        self, client: Client, feedback: Feedback, following: PolicyObservation
    ) -> Mapping[str, int]:
        arrival = self._arrive(client, feedback, following)
        steps = int(arrival.outcome.steps.sum())
        self._actor.model.num_timesteps += steps
        self._arrived.ran(steps, int(feedback.ended.sum()))
        self._counters.transitions_stored += len(arrival.kept)
        self._waiting.append(arrival)
        return arrival.left_out

    # -- the thread that learns ---------------------------------------------------------------

    def learn(self) -> None:
        """Store what waits, and do one update if one is due."""
        self._store_waiting()
        if self._update_due:
            self._update()
        self._published = self._weights()

    def _store_waiting(self) -> None:
        while self._waiting:
            arrival = self._waiting.popleft()
            if self._normalizer is not None:
                self._normalizer.see(arrival.observation)
            if self._stopped or not self._take(arrival):
                self._store(arrival, arrival.infos())  # it was said to be kept

    def _update(self) -> None:
        super()._update()
        self._answered += 1

    def _begin_exploring(self) -> None:
        """The thread that acts does that, whenever it has a newer policy."""

    def _weights(self) -> _Weights:
        """Copies of what acts; those of the policy only where an update has changed it."""
        updates = self._counters.updates
        published: _Weights | None = getattr(self, "_published", None)
        normalizer = copy.deepcopy(self._normalizer)
        if published is not None and published.update == updates:
            return published if normalizer is None else published._replace(normalizer=normalizer)
        state = {name: part.clone() for name, part in self.model.policy.state_dict().items()}
        return _Weights(updates, state, normalizer)

    # -- while the other thread rests -----------------------------------------------------------

    def close(self) -> None:
        self._store_waiting()
        super().close()

    def state(self) -> dict[str, Any]:
        """As in lockstep: first all that waits is stored."""
        self._store_waiting()
        return super().state()

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._arrived.restore(state["cadence"])
        self._actor.model.num_timesteps = self.model.num_timesteps
        self._published = self._weights()
