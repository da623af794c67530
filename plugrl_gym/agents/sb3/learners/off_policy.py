"""SB3's off-policy loop turned inside out: fed from outside, step by step.

``OffPolicyAlgorithm.learn`` pulls transitions out of its envs. Here they are pushed in as clients
send them, and everything else happens in SB3's order: noise, choice of the action; then step
count, callback, episode statistics, replay buffer, progress, target network and epsilon, log,
``train()``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from plugrl_gym.agents.sb3.acting import split
from plugrl_gym.agents.sb3.learners.cadence import Cadence
from plugrl_gym.agents.sb3.learners.columns import set_num_envs
from plugrl_gym.agents.sb3.learners.executed import executed_chunks, overridden_rows
from plugrl_gym.agents.sb3.learners.exploration import Exploration
from plugrl_gym.agents.sb3.learners.gsde import SdeNoise
from plugrl_gym.agents.sb3.learners.learner import Learner, RunPlan
from plugrl_gym.agents.sb3.learners.outcome import Outcome
from plugrl_gym.agents.sb3.learners.replay import Replay, Transitions
from plugrl_gym.agents.sb3.learners.replay_buffers import DISCOUNT, OVERRIDDEN, TRAJECTORY
from plugrl_gym.agents.sb3.learners.tracks import Track
from plugrl_gym.agents.sb3.learners.trajectories import concatenate, gather
from plugrl_gym.agents.sb3.policy_spaces import PolicyArray, PolicyObservation
from plugrl_gym.protocol import Feedback
from plugrl_gym.server.agent import Client, Request

__all__ = ["Arrival", "OffPolicyLearner"]


@dataclass(frozen=True, slots=True, eq=False)
class _Choice:
    """One batch of actions: what envs saw, and what was chosen for them.

    Attributes:
        observation: n rows.
        action: [n, *da] as the replay buffer holds them.
        update: Updates of the policy that chose.
    """

    observation: PolicyObservation
    action: PolicyArray
    update: int


#: A choice, and the row of it that is meant.
_Row: TypeAlias = tuple[_Choice, int]


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """A feedback together with what it answers.

    Attributes:
        observation: What the policy saw, m rows.
        action: [m, *da] as the replay buffer holds them, those that were executed.
        following: The feedback's observation.
        kept: The rows to be stored.
        together: Whether the rows are one step of E envs that acted as one batch.
        trajectories: Of the m rows.
    """

    feedback: Feedback
    outcome: Outcome
    answered: list[Track[_Row]]
    observation: PolicyObservation
    action: PolicyArray
    following: PolicyObservation
    kept: list[int]
    together: bool
    trajectories: list[int]

    @property
    def left_out(self) -> dict[str, int]:
        """How many rows are not stored, by reason."""
        number = len(self.answered) - len(self.kept)
        return {"overridden": number} if number else {}

    def infos(self) -> list[dict[str, Any]]:
        """SB3's infos, as far as a replay buffer needs them."""
        cut = self.feedback.truncated & ~self.feedback.terminated
        return [{"TimeLimit.truncated": truncated} for truncated in cut.tolist()]


class OffPolicyLearner(Learner[OffPolicyAlgorithm, _Row]):
    """Fills a replay buffer from clients that learn, and trains a model on it."""

    def __init__(self, model: OffPolicyAlgorithm, plan: RunPlan) -> None:
        if plan.num_envs != model.n_envs:
            set_num_envs(model, plan.num_envs)
        super().__init__(model, plan)
        self._replay = Replay(model, plan.num_envs, plan.horizon, plan.demonstrations_share)
        self._cadence = Cadence(model, plan.num_envs)
        self._exploration = Exploration(model)
        self._noise = SdeNoise(model, plan.num_envs)
        self._lockstep = True
        self._stopped = False

    @property
    def due(self) -> bool:
        """Enough env steps were run for an update."""
        return self._update_due

    @property
    def _update_due(self) -> bool:
        return self._cadence.due > 0 and not self.finished

    def act(self, requests: Sequence[Request]) -> list[PolicyArray]:
        """Explore: actions [n, *da] for each request, as the replay buffer holds them."""
        self._begin()
        return self._explore(requests, self._counters.updates)

    def _explore(self, requests: Sequence[Request], update: int) -> list[PolicyArray]:
        observation = concatenate([request.prepared for request in requests])
        tracks = self._tracks.asked(requests)
        slots = [track.slot for track in tracks]
        if len(requests) > 1 or slots != list(range(self._plan.num_envs)):
            self._lockstep = False
        seen = self._see(observation)
        with self._noise.of(slots):
            if self._lockstep:
                action = self._exploration.together(seen, len(slots))
            else:
                action = self._exploration.apart(seen, slots)
        choice = _Choice(observation, action, update)
        for row, track in enumerate(tracks):
            track.pending = (choice, row)
        return split(action, requests)

    def feedback(
        self, client: Client, feedback: Feedback, following: PolicyObservation
    ) -> Mapping[str, int]:
        arrival = self._arrive(client, feedback, following)
        if not self._take(arrival):
            return {"stopped": len(arrival.answered)}
        self._counters.transitions_stored += len(arrival.kept)
        return arrival.left_out

    def _arrive(self, client: Client, feedback: Feedback, following: PolicyObservation) -> Arrival:
        """Look up what a feedback answers; those actions are answered from now on."""
        answered = self._tracks.answered(client, feedback)
        chosen = [_pending(track) for track in answered]
        action = _actions(chosen)
        outcome = self._outcome(feedback, action.__getitem__)
        action, kept = self._executed(feedback, outcome, action)
        self._lockstep = self._lockstep and bool(kept.all()) and self._is_one_batch(chosen)
        arrival = Arrival(
            feedback,
            outcome,
            answered,
            gather([(choice.observation, row) for choice, row in chosen]),
            action,
            following,
            np.flatnonzero(kept).tolist(),
            self._lockstep,
            [track.trajectory for track in answered],
        )
        updates = self._counters.updates
        self._counters.stale += sum(choice.update != updates for choice, _ in chosen)
        for track, stored, ended in zip(answered, kept, feedback.ended, strict=True):
            track.pending = None
            if not stored:
                self._tracks.cut(track)
            if ended:
                self._exploration.forget(track.slot)
        return arrival

    def _is_one_batch(self, chosen: Sequence[_Row]) -> bool:
        first = chosen[0][0]
        return len(chosen) == self._plan.num_envs and all(
            choice is first and row == k for k, (choice, row) in enumerate(chosen)
        )

    def _executed(
        self, feedback: Feedback, outcome: Outcome, action: PolicyArray
    ) -> tuple[PolicyArray, npt.NDArray[np.bool_]]:
        """What was executed in place of what the policy chose, and which rows that tells whole.

        Args:
            feedback: m rows.
            outcome: Theirs.
            action: [m, *da], what the policy chose.

        Returns:
            [m, *da] as the replay buffer holds them; bool [m], False where the client did not
            tell the chunk to its end.
        """
        overridden = overridden_rows(feedback)
        if feedback.executed is None or not overridden.any():
            return action, np.ones(len(action), np.bool_)
        told = outcome.steps <= len(feedback.executed.actions)
        rows = np.flatnonzero(overridden & told)
        chunks = executed_chunks(
            feedback, outcome.steps, rows, lambda rows: self._sent(action[rows])
        )
        ran = self._plan.actions.from_wire(chunks)
        if isinstance(self.model.action_space, spaces.Box):
            ran = np.clip(self.model.policy.scale_action(ran), -1, 1)
        self._counters.overridden += int(overridden.sum())
        stored = action.copy()
        stored[rows] = ran
        return stored, ~overridden | told

    def _take(self, arrival: Arrival) -> bool:
        """Do what SB3 does after ``env.step``; False where the callback stops the run."""
        self._begin()
        feedback, model = arrival.feedback, self.model
        self._callback.update_locals(
            {
                "new_obs": arrival.following,
                "buffer_actions": arrival.action,
                "replay_buffer": self._replay.buffer,
            }
        )
        outcome = self._normalized(arrival.outcome, arrival.answered, feedback.ended)
        before = self.finished
        infos = self._notify(feedback, outcome, arrival.answered)
        if self.finished and not before:
            self._stopped = True
            return False
        self._store(arrival, infos)
        model._update_current_progress_remaining(model.num_timesteps, self._total)
        ended = int(feedback.ended.sum())
        for _ in range(self._cadence.ran(int(arrival.outcome.steps.sum()), ended)):
            model._on_step()
        for _ in range(ended):
            model._episode_num += 1
            if model._episode_num % self._plan.log_interval == 0:
                self._record_overridden()
                model.dump_logs()
        while self._update_due and not self._trains:
            self._update()
        return True

    def _store(self, arrival: Arrival, infos: list[dict[str, Any]]) -> None:
        told = (
            arrival.outcome.discount.tolist(),
            overridden_rows(arrival.feedback).tolist(),
            arrival.trajectories,
        )
        for info, *values in zip(infos, *told, strict=True):
            info[DISCOUNT], info[OVERRIDDEN], info[TRAJECTORY] = values
        transitions = Transitions(
            arrival.observation,
            arrival.action,
            arrival.following,
            arrival.outcome.reward,
            arrival.feedback.ended,
            infos,
        )
        if arrival.together and self._replay.in_columns:
            self._replay.add_columns(transitions)
        else:
            self._replay.add_rows(transitions, arrival.kept)

    @property
    def _update_at(self) -> int:
        """After how many env steps of the run SB3 would do the update that is due."""
        return self.model.num_timesteps - self._cadence.beyond

    @property
    def _trains(self) -> bool:
        """Whether the update that is due trains the policy, or is only passed over."""
        return (
            self._update_at > max(self.model.learning_starts, 0)
            and self.model.gradient_steps != 0
            and self._replay.buffer.size() > 0
        )

    def learn(self) -> None:
        """Do all updates that are due."""
        while self._update_due:
            self._update()

    def _update(self) -> None:
        model, trains = self.model, self._trains
        self._begin()
        last = self._update_at >= self._total
        steps = self._cadence.take()
        self._callback.on_rollout_end()
        self._begun = False
        if trains:
            gradient_steps = model.gradient_steps if model.gradient_steps >= 0 else steps
            self._train(gradient_steps=gradient_steps, batch_size=model.batch_size)
        self.finished = last

    def _begin_exploring(self) -> None:
        self._noise.begin()

    def leave(self, client: Client) -> None:
        for track in self._tracks.leave(client):
            self._exploration.forget(track.slot)

    def state(self) -> dict[str, Any]:
        """How far it is between two updates; the replay buffer is the model's."""
        return {
            **super().state(),
            "begun": self._begun,
            "lockstep": self._lockstep,
            "cadence": self._cadence.state(),
            "replay": self._replay.state(),
            "noise": self._noise.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._begun, self._lockstep = state["begun"], state["lockstep"]
        self._cadence.restore(state["cadence"])
        self._replay.restore(state["replay"])
        self._noise.restore(state["noise"])
        if self._begun:
            self.model.policy.set_training_mode(False)


def _pending(track: Track[_Row]) -> _Row:
    assert track.pending is not None  # the server passes on only rows that answer an action
    return track.pending


def _actions(chosen: Sequence[_Row]) -> PolicyArray:
    """Actions of several choices as one array; a choice that is meant whole, as it is."""
    actions = gather([(choice.action, row) for choice, row in chosen])
    assert not isinstance(actions, dict)
    return actions
