"""SB3's on-policy loop turned inside out: fed from outside, step by step.

``OnPolicyAlgorithm.learn`` pulls transitions out of its envs. Here they are pushed in as clients
send them, and everything else happens in SB3's order: noise, forward pass, step count, callback,
episode statistics, bootstrap of a truncation, buffer, last values, ``train()``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

from plugrl_gym.agents.sb3.learners.columns import set_num_envs
from plugrl_gym.agents.sb3.learners.executed import overridden_rows
from plugrl_gym.agents.sb3.learners.gsde import SdeNoise
from plugrl_gym.agents.sb3.learners.learner import Learner, RunPlan
from plugrl_gym.agents.sb3.learners.outcome import Outcome
from plugrl_gym.agents.sb3.learners.rollout_buffers import fill_buffer, make_buffer
from plugrl_gym.agents.sb3.learners.staleness import weigh
from plugrl_gym.agents.sb3.learners.tracks import Track
from plugrl_gym.agents.sb3.learners.trajectories import (
    Decision,
    Rollout,
    Steps,
    concatenate,
    pick,
    take,
)
from plugrl_gym.agents.sb3.policy_spaces import PolicyArray, PolicyObservation
from plugrl_gym.protocol import Feedback
from plugrl_gym.server.agent import Client, Request

__all__ = ["OnPolicyLearner"]

_log: Final = logging.getLogger(__name__)

#: A decision, and the row of it that is meant.
_Row: TypeAlias = tuple[Decision, int]


class OnPolicyLearner(Learner[OnPolicyAlgorithm, _Row]):
    """Collects rollouts from clients that learn, and trains a model on them.

    What an older policy chose is dealt with as ``staleness.py`` says, and what somebody else chose
    as ``executed.py`` does.
    """

    def __init__(self, model: OnPolicyAlgorithm, plan: RunPlan) -> None:
        if plan.num_envs != model.n_envs:
            set_num_envs(model, plan.num_envs)
        model.rollout_buffer = make_buffer(model, model.n_steps, plan.num_envs, plan.horizon)
        super().__init__(model, plan)
        self._noise = SdeNoise(model, plan.num_envs)
        self._size = model.n_steps * plan.num_envs
        self._rollout = Rollout(self._size)
        self._iteration = 0
        self._relieved = 0

    @property
    def due(self) -> bool:
        """A rollout is complete: train before any further action."""
        return self._rollout.full and not self.finished

    @property
    def rows_kept(self) -> int:
        return super().rows_kept + sum(len(steps) for steps in self._rollout.beyond)

    def act(self, requests: Sequence[Request]) -> list[PolicyArray]:
        """Draw raw actions [n, *da] for each request, in one forward pass."""
        self._begin()
        observation = self._see(concatenate([request.prepared for request in requests]))
        tracks = self._tracks.asked(requests)
        with torch.no_grad(), self._noise.of([track.slot for track in tracks]):
            drawn = self.model.policy(obs_as_tensor(observation, self.model.device))
        action, value, log_prob = (tensor.cpu().numpy() for tensor in drawn)
        version = np.full(len(tracks), self._counters.updates, np.int64)
        decision = Decision(observation, action, value.reshape(-1), log_prob, version)
        for row, track in enumerate(tracks):
            track.pending = (decision, row)
        sizes = [len(request.infer.env_indices) for request in requests]
        return np.split(action, np.cumsum(sizes)[:-1])

    def feedback(
        self, client: Client, feedback: Feedback, following: PolicyObservation
    ) -> Mapping[str, int]:
        answered = self._tracks.answered(client, feedback)
        outcome = self._outcome(feedback, lambda row: _action(_pending(answered[row])))
        self._begin()
        chosen = [_taken(track) for track in answered]
        outcome = self._normalized(outcome, answered, feedback.ended)
        self._notify(feedback, outcome, answered)
        if self.finished:
            return {"stopped": len(answered)}
        left_out = self._left_out(feedback, chosen)
        kept = ~np.logical_or.reduce(list(left_out.values()))
        for row in np.flatnonzero(~kept).tolist():
            self._tracks.cut(answered[row])
        if kept.any():
            self._bootstrap(feedback, outcome, following, kept)
            self._store(feedback, outcome, following, answered, chosen, kept)
        for track, ended in zip(answered, feedback.ended.tolist(), strict=True):
            track.episode_start = ended
        counts = {reason: int(rows.sum()) for reason, rows in left_out.items()}
        self._note_relief(counts["overridden"], len(answered))
        self._counters.overridden += counts["overridden"]
        self._counters.stale_left_out += counts["stale-policy"]
        return {reason: count for reason, count in counts.items() if count}

    def _left_out(self, feedback: Feedback, chosen: list[_Row]) -> dict[str, npt.NDArray[np.bool_]]:
        """Which rows are not learned from, by reason; bool [m] each."""
        overridden = overridden_rows(feedback)
        too_old = np.zeros(len(chosen), np.bool_)
        before = 0
        for row in np.flatnonzero(~overridden).tolist():
            decision, at = chosen[row]
            learned_at = self._counters.updates + self._rollout.updates_before(before)
            lag = learned_at - int(decision.version[at])
            too_old[row] = lag > self._plan.max_policy_lag
            self._counters.stale += lag > 0
            before += not too_old[row]
        return {"overridden": overridden, "stale-policy": too_old}

    def _note_relief(self, overridden: int, rows: int) -> None:
        """Warn where as many chunks as a rollout has were all overridden: nothing comes of that."""
        before = self._relieved
        self._relieved = before + rows if overridden == rows else 0
        if before < self._size <= self._relieved:
            _log.warning(
                "%s learns from its own actions only, and somebody took over in all of the last "
                "%s chunks; an off-policy algorithm, as sac, learns from such ones too",
                type(self.model).__name__.lower(),
                f"{self._relieved:,}",
            )

    def _store(
        self,
        feedback: Feedback,
        outcome: Outcome,
        following: PolicyObservation,
        answered: list[Track[_Row]],
        chosen: list[_Row],
        kept: npt.NDArray[np.bool_],
    ) -> None:
        rows = np.flatnonzero(kept)
        if len(rows) < len(answered):
            following = take(following, rows)
        tracks = [answered[row] for row in rows]
        self._add(
            Steps(
                trajectory=np.array([track.trajectory for track in tracks], np.int64),
                decision=Decision.of_rows([chosen[row] for row in rows]),
                reward=outcome.reward[rows],
                discount=outcome.discount[rows],
                episode_start=np.array([track.episode_start for track in tracks], np.bool_),
                done=feedback.ended[rows],
                following=following,
            )
        )

    def _add(self, steps: Steps) -> None:
        self._counters.transitions_stored += self._rollout.add(steps)

    def _bootstrap(
        self,
        feedback: Feedback,
        outcome: Outcome,
        following: PolicyObservation,
        counted: npt.NDArray[np.bool_],
    ) -> None:
        """Add the value of what a truncation cut off to the reward.

        One row at a time and by way of ``obs_to_tensor``, as SB3 does: a batch, or an image in
        another order in memory, differs in the last bits.
        """
        policy = self.model.policy
        cut = np.flatnonzero(feedback.truncated & ~feedback.terminated & counted)
        if not len(cut):
            return
        following = self._foresee(following, ~feedback.ended)
        for row in cut.tolist():
            terminal, _ = policy.obs_to_tensor(pick(following, row))
            with torch.no_grad():
                value = policy.predict_values(terminal)
            outcome.reward[row] += (float(outcome.discount[row]) * value).item()

    def _critic(
        self, observation: PolicyObservation, unseen: npt.NDArray[np.bool_]
    ) -> torch.Tensor:
        observation = self._foresee(observation, unseen)
        with torch.no_grad():
            return self.model.policy.predict_values(obs_as_tensor(observation, self.model.device))

    def state(self) -> dict[str, Any]:
        """The rollout so far, whose trajectories end here."""
        return {
            **super().state(),
            "rollout": self._rollout,
            "begun": self._begun,
            "iteration": self._iteration,
            "noise": self._noise.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._iteration = state["iteration"]
        self._rollout, self._begun = state["rollout"], state["begun"]
        self._noise.restore(state["noise"])
        if self._begun:
            self.model.policy.set_training_mode(False)

    def learn(self) -> None:
        """Train on the complete rollout, and on further ones that are already complete."""
        while self.due:
            self._update()

    def _update(self) -> None:
        model, rollout = self.model, self._rollout
        self._begin()
        plan, updates = self._plan, self._counters.updates
        versions = fill_buffer(model, rollout, plan.num_envs, self._critic, plan.horizon)
        weigh(model, versions < updates)
        self._callback.update_locals({"rollout_buffer": model.rollout_buffer})
        self._callback.on_rollout_end()
        self._iteration += 1
        model._update_current_progress_remaining(model.num_timesteps, self._total)
        if self._iteration % self._plan.log_interval == 0:
            self._record_overridden()
            model.dump_logs(self._iteration)
        self._train()
        self._begun = False
        self._rollout = Rollout(self._size)
        for steps in rollout.beyond:
            self._add(steps)
        self.finished = model.num_timesteps >= self._total

    def _begin_exploring(self) -> None:
        self.model.rollout_buffer.reset()
        self._noise.begin()


def _taken(track: Track[_Row]) -> _Row:
    pending, track.pending = _pending(track), None
    return pending


def _pending(track: Track[_Row]) -> _Row:
    assert track.pending is not None  # the server passes on only rows that answer an action
    return track.pending


def _action(row: _Row) -> PolicyArray:
    decision, at = row
    action: PolicyArray = decision.action[at]
    return action
