"""SB3's on-policy loop turned inside out: fed from outside, step by step.

``OnPolicyAlgorithm.learn`` pulls transitions out of its envs. Here they are pushed in as clients
send them, and everything else happens in SB3's order: noise, forward pass, step count, callback,
episode statistics, bootstrap of a truncation, buffer, last values, ``train()``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

from plugrl_gym.agents.sb3.learners.gsde import SdeNoise
from plugrl_gym.agents.sb3.learners.learner import Learner, RunPlan
from plugrl_gym.agents.sb3.learners.outcome import Outcome
from plugrl_gym.agents.sb3.learners.rollout_buffers import fill_buffer
from plugrl_gym.agents.sb3.learners.tracks import Track
from plugrl_gym.agents.sb3.learners.trajectories import (
    Decision,
    Rollout,
    Steps,
    concatenate,
    pick,
    take,
)
from plugrl_gym.agents.sb3.model import set_num_envs
from plugrl_gym.agents.sb3.policy_spaces import PolicyArray, PolicyObservation
from plugrl_gym.protocol import Feedback
from plugrl_gym.server.agent import Client, Request

__all__ = ["OnPolicyLearner"]

#: A decision, and the row of it that is meant.
_Row: TypeAlias = tuple[Decision, int]


class OnPolicyLearner(Learner[OnPolicyAlgorithm, _Row]):
    """Collects rollouts from clients that learn, and trains a model on them."""

    def __init__(self, model: OnPolicyAlgorithm, plan: RunPlan) -> None:
        if plan.num_envs != model.n_envs:
            set_num_envs(model, plan.num_envs)
        super().__init__(model, plan)
        self._noise = SdeNoise(model, plan.num_envs)
        self._size = model.n_steps * plan.num_envs
        self._rollout = Rollout(self._size)
        self._begun = False
        self._iteration = 0

    @property
    def due(self) -> bool:
        """A rollout is complete: train before any further action."""
        return self._rollout.full and not self.finished

    def act(self, requests: Sequence[Request]) -> list[PolicyArray]:
        """Draw raw actions [n, *da] for each request, in one forward pass."""
        self._begin()
        observation = concatenate([request.prepared for request in requests])
        tracks = self._tracks.asked(requests)
        with torch.no_grad(), self._noise.of([track.slot for track in tracks]):
            drawn = self.model.policy(obs_as_tensor(observation, self.model.device))
        action, value, log_prob = (tensor.cpu().numpy() for tensor in drawn)
        decision = Decision(observation, action, value.reshape(-1), log_prob)
        for row, track in enumerate(tracks):
            track.pending = (decision, row)
        sizes = [len(request.infer.env_indices) for request in requests]
        return np.split(action, np.cumsum(sizes)[:-1])

    def feedback(
        self, client: Client, feedback: Feedback, following: PolicyObservation
    ) -> Mapping[str, int]:
        outcome = self._outcome(feedback)
        self._begin()
        answered = self._tracks.answered(client, feedback)
        executed = feedback.executed
        overridden = np.zeros(len(answered), bool) if executed is None else executed.overridden
        self._notify(feedback, outcome, answered)
        if self.finished:
            return {"stopped": len(answered)}
        self._bootstrap(feedback, outcome.reward, following, ~overridden)
        kept: list[int] = []
        chosen: list[_Row] = []
        for row, track in enumerate(answered):
            pending, track.pending = track.pending, None
            assert pending is not None  # the server passes on only rows that answer an action
            if overridden[row]:
                self._tracks.cut(track)
            else:
                kept.append(row)
                chosen.append(pending)
        left_out = len(answered) - len(kept)
        self._counters.overridden += left_out
        if kept:
            self._store(feedback, outcome, following, answered, kept, chosen)
        for track, ended in zip(answered, feedback.ended.tolist(), strict=True):
            track.episode_start = ended
        return {"overridden": left_out} if left_out else {}

    def _store(
        self,
        feedback: Feedback,
        outcome: Outcome,
        following: PolicyObservation,
        answered: list[Track[_Row]],
        kept: list[int],
        chosen: list[_Row],
    ) -> None:
        reward = outcome.reward
        if len(kept) < len(answered):
            following, reward = take(following, kept), reward[kept]
        tracks = [answered[row] for row in kept]
        self._add(
            Steps(
                trajectory=np.array([track.trajectory for track in tracks], np.int64),
                decision=Decision.of_rows(chosen),
                reward=reward,
                episode_start=np.array([track.episode_start for track in tracks], np.bool_),
                done=feedback.ended[kept],
                following=following,
            )
        )

    def _add(self, steps: Steps) -> None:
        self._counters.transitions_stored += self._rollout.add(steps)

    def _bootstrap(
        self,
        feedback: Feedback,
        reward: npt.NDArray[np.float32],
        following: PolicyObservation,
        counted: npt.NDArray[np.bool_],
    ) -> None:
        """Add the value of what a truncation cut off.

        One row at a time and by way of ``obs_to_tensor``, as SB3 does: a batch, or an image in
        another order in memory, differs in the last bits.
        """
        policy = self.model.policy
        cut = feedback.truncated & ~feedback.terminated & counted
        for row in np.flatnonzero(cut).tolist():
            terminal, _ = policy.obs_to_tensor(pick(following, row))
            with torch.no_grad():
                value = policy.predict_values(terminal)
            reward[row] += (self.model.gamma * value).item()

    def _critic(self, observation: PolicyObservation) -> torch.Tensor:
        with torch.no_grad():
            return self.model.policy.predict_values(obs_as_tensor(observation, self.model.device))

    def learn(self) -> None:
        """Train on the complete rollout, and on further ones that are already complete."""
        while self.due:
            self._update()

    def _update(self) -> None:
        model, rollout = self.model, self._rollout
        self._begin()
        fill_buffer(model, rollout, self._plan.num_envs, self._critic)
        self._callback.update_locals({"rollout_buffer": model.rollout_buffer})
        self._callback.on_rollout_end()
        self._iteration += 1
        model._update_current_progress_remaining(model.num_timesteps, self._total)
        if self._iteration % self._plan.log_interval == 0:
            model.dump_logs(self._iteration)
        model.train()
        self._counters.updates += 1
        self._begun = False
        self._rollout = Rollout(self._size)
        for steps in rollout.beyond:
            self._add(steps)
        self.finished = model.num_timesteps >= self._total

    def _begin(self) -> None:
        """Begin a rollout, if none has begun since the last update."""
        if self._begun:
            return
        self._begun = True
        self.model.policy.set_training_mode(False)
        self.model.rollout_buffer.reset()
        self._noise.begin()
        self._callback.on_rollout_start()
