"""What the learners of all algorithms share: tracks of envs, SB3's callback and its episode log."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import MaybeCallback

from plugrl_gym.agents.sb3.acting import frozen_copy
from plugrl_gym.agents.sb3.learners.callbacks import callback_state, restore_callbacks
from plugrl_gym.agents.sb3.learners.executed import overridden_steps
from plugrl_gym.agents.sb3.learners.health import Health
from plugrl_gym.agents.sb3.learners.outcome import Outcome
from plugrl_gym.agents.sb3.learners.tracks import Track, Tracks
from plugrl_gym.agents.sb3.normalization import Normalizer
from plugrl_gym.agents.sb3.policy_actions import PolicyActions
from plugrl_gym.agents.sb3.policy_spaces import PolicyArray, PolicyObservation
from plugrl_gym.agents.sb3.runs.counters import Counters
from plugrl_gym.agents.sb3.runs.logs import learning_time, logged, restore_logged
from plugrl_gym.protocol import EpisodeStatistics, Feedback
from plugrl_gym.server.agent import Client, Request

__all__ = ["Learner", "RunPlan"]

M = TypeVar("M", bound=BaseAlgorithm)
D = TypeVar("D")


@dataclass(frozen=True, slots=True, eq=False)
class RunPlan:
    """What a learner needs to know beside the model.

    Attributes:
        num_envs: E: how many envs SB3 would have in one process. A rollout is ``n_steps * E``
            transitions, or ``train_freq * E`` env steps of an off-policy algorithm, whichever
            env sends them.
        total_timesteps: Env steps to learn from, rounded up to whole updates as SB3 does.
        counters: Kept up to date.
        actions: Read what envs executed.
        callback: SB3 callback(s); their ``on_step`` runs once for each feedback.
        log_interval: As for SB3's ``learn``: updates, or episodes of an off-policy algorithm,
            between two lines of the log.
        horizon: Env steps in one action of the policy.
        max_policy_lag: Updates that an on-policy transition may be old (``staleness.py``).
        demonstrations_share: Of each batch of an off-policy algorithm; 0 for SB3's even chances.
        resumed: The model has learned before: ``total_timesteps`` includes the steps that it
            knows of, and its counters go on.
    """

    num_envs: int
    total_timesteps: int
    counters: Counters
    actions: PolicyActions
    callback: MaybeCallback = None
    log_interval: int = 1
    horizon: int = 1
    max_policy_lag: int = 1
    demonstrations_share: float = 0.0
    resumed: bool = False


class Learner(ABC, Generic[M, D]):
    """Takes transitions as clients send them, and trains one model on them.

    Args:
        model: Built, not yet trained.
        plan: Of the run.

    Attributes:
        model: As given.
        finished: The last update is done, or the callback stopped the run.
        asynchronous: Whether :meth:`learn` may run in another thread while clients are served.
    """

    asynchronous = False

    def __init__(self, model: M, plan: RunPlan) -> None:
        self.model = model
        self.finished = False
        self._begun = False
        self._plan = plan
        self._counters = plan.counters
        self._tracks: Tracks[D] = Tracks(plan.counters)
        self._health = Health(model)
        self._normalizer = Normalizer.of(model)
        self._logged_overrides = (0, 0)
        known = model.num_timesteps if plan.resumed else 0
        self._total, self._callback = model._setup_learn(
            plan.total_timesteps - known,
            plan.callback,
            reset_num_timesteps=not plan.resumed,
            tb_log_name=type(model).__name__,
        )
        self._callback.on_training_start({"self": model, "total_timesteps": self._total}, {})

    @property
    @abstractmethod
    def due(self) -> bool:
        """Train before any further action."""

    @property
    def wanted(self) -> bool:
        """There is something to learn, but acting need not wait for it."""
        return False

    @property
    def policy_updates(self) -> int:
        """How many updates the policy of :meth:`frozen_policy` has seen."""
        return self._counters.updates

    def frozen_policy(self) -> BasePolicy:
        """A copy of the policy as it is between two updates; for the thread that acts."""
        return frozen_copy(self.model.policy)

    def frozen_normalizer(self) -> Normalizer | None:
        """Likewise of what normalises its observations, if anything does."""
        return copy.deepcopy(self._normalizer)

    @property
    def rows_kept(self) -> int:
        """Rows that were stored, or wait to be, since the start of the run."""
        return self._counters.transitions_stored

    @abstractmethod
    def act(self, requests: Sequence[Request]) -> list[PolicyArray]:
        """Choose the policy's actions [n, *da] for each request, in one forward pass."""

    @abstractmethod
    def feedback(
        self, client: Client, feedback: Feedback, following: PolicyObservation
    ) -> Mapping[str, int]:
        """Take a learning client's feedback.

        Args:
            client: Who sent it.
            feedback: Rows that answer actions of this learner.
            following: Its observation, decoded.

        Returns:
            How many of its rows were not stored, by reason.

        Raises:
            RemoteProtocolError: A reward that float32 cannot hold; nothing was stored.
        """

    @abstractmethod
    def learn(self) -> None:
        """Do the updates that are due."""

    def leave(self, client: Client) -> None:
        """A learning client is gone; what it had not fed back is dropped and counted."""
        self._tracks.leave(client)

    def close(self) -> None:
        """The run is over."""
        self._callback.on_training_end()

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of a learner beside its model and replay buffer; picklable.

        Asked between two other calls, and never while :attr:`due`. No client comes back, so none
        of them is part of it: their trajectories end here, and what they have not fed back counts
        as dropped. Subclasses add to it.
        """
        return {
            "tracks": self._tracks.state(),
            "callbacks": callback_state(self._callback),
            "log": logged(self.model.logger),
            "clock": (learning_time(self.model), self.model._num_timesteps_at_start),
            "logged_overrides": self._logged_overrides,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`; called on a new learner, whose plan is ``resumed``.

        Args:
            state: Of a learner of the same kind, with the same spaces.
        """
        self._tracks.restore(state["tracks"])
        restore_callbacks(self._callback, state["callbacks"])
        restore_logged(self.model.logger, state["log"])
        learning, self.model._num_timesteps_at_start = state["clock"]
        self.model.start_time -= learning  # the pause is no part of the run
        self._logged_overrides = state.get("logged_overrides", (0, 0))

    def check_finite(self) -> None:
        """Look at everything that a file of the model would hold.

        Raises:
            NotFinite: A number in it is not finite.
        """
        self._health.check()

    def _begin(self) -> None:
        """Begin a rollout, if none has begun since the last update."""
        if self._begun:
            return
        self._begun = True
        self.model.policy.set_training_mode(False)
        self._begin_exploring()
        self._callback.on_rollout_start()

    @abstractmethod
    def _begin_exploring(self) -> None:
        """What a rollout begins with, before the callback hears of it."""

    def _train(self, **arguments: Any) -> None:
        """``model.train(**arguments)``: one update, counted.

        Raises:
            NotFinite: It left a number that is not finite in the model.
        """
        with self._health.watch(self._counters.updates + 1):
            self.model.train(**arguments)  # type: ignore[attr-defined]  # all have one
        self._counters.updates += 1

    def _outcome(self, feedback: Feedback, chosen: Callable[[int], PolicyArray]) -> Outcome:
        """What came of the chunks of a feedback.

        Args:
            feedback: m rows.
            chosen: The policy's action for a row.
        """
        gamma = self.model.gamma  # type: ignore[attr-defined]  # all have one
        outcome = Outcome.of(feedback, self._plan.horizon, gamma)

        def sent(rows: npt.NDArray[np.intp]) -> PolicyArray:
            return self._sent(np.stack([chosen(row) for row in rows.tolist()]))

        overridden = overridden_steps(feedback, outcome.steps, sent)
        return replace(outcome, overridden=overridden)

    def _sent(self, chosen: PolicyArray) -> PolicyArray:
        """The chunks [H, k, *da] that were sent for the policy's actions [k, *da]."""
        return self._plan.actions.to_wire(chosen, self.model.policy)

    def _record_overridden(self) -> None:
        """Put into the next line of the log which share of the env steps since the last one ran
        another action than the policy's; a run in which none ever did has SB3's columns only."""
        steps, overridden = self.model.num_timesteps, self._counters.overridden_steps
        known_steps, known = self._logged_overrides
        self._logged_overrides = steps, overridden
        if overridden and steps > known_steps:
            share = (overridden - known) / (steps - known_steps)
            self.model.logger.record("rollout/overridden_share", share)

    def _see(self, observation: PolicyObservation) -> PolicyObservation:
        """What the policy is to act on now, as it sees it: counted and normalised, if at all."""
        return observation if self._normalizer is None else self._normalizer.see(observation)

    def _foresee(
        self, observation: PolicyObservation, unseen: npt.NDArray[np.bool_]
    ) -> PolicyObservation:
        """What follows, as the policy would see it; bool [n]: what it will act on next."""
        if self._normalizer is None:
            return observation
        return self._normalizer.foresee(observation, unseen)

    def _normalized(
        self, outcome: Outcome, answered: Sequence[Track[D]], ended: npt.NDArray[np.bool_]
    ) -> Outcome:
        """The outcome with rewards as the algorithm sees them: counted and normalised, if at all.

        Call it once for each feedback.
        """
        if self._normalizer is None:
            return outcome
        returns = np.array([track.running_return for track in answered], np.float64)
        returns = returns * outcome.discount + outcome.reward
        for track, so_far, over in zip(answered, returns.tolist(), ended.tolist(), strict=True):
            track.running_return = 0.0 if over else so_far
        return replace(outcome, reward=self._normalizer.rewards(outcome.reward, returns))

    def _notify(
        self, feedback: Feedback, outcome: Outcome, answered: Sequence[Track[D]]
    ) -> list[dict[str, Any]]:
        """Count the steps and tell SB3's callback, as SB3 does after ``env.step``.

        Returns:
            For each row SB3's info: the statistics of an episode that ended. Where the callback
            stops the run ``finished`` is set, and the rows are not to be stored.
        """
        infos = _episodes(feedback, outcome, answered)
        dones = feedback.ended
        self.model.num_timesteps += int(outcome.steps.sum())
        self._counters.overridden_steps += int(outcome.overridden.sum())
        self._callback.update_locals({"rewards": outcome.reward, "dones": dones, "infos": infos})
        if self._callback.on_step():
            self.model._update_info_buffer(infos, dones)
        else:
            self.finished = True
        return infos


def _episodes(
    feedback: Feedback, outcome: Outcome, answered: Sequence[Track[Any]]
) -> list[dict[str, Any]]:
    statistics = feedback.episode
    steps: npt.NDArray[np.int64] = outcome.steps
    infos: list[dict[str, Any]] = []
    for row, track in enumerate(answered):
        track.episode_return += float(feedback.rewards[row])
        track.episode_length += int(steps[row])
        info: dict[str, Any] = {}
        if _finished(statistics, feedback, row):
            info = _episode_info(statistics, track, row)
        if feedback.ended[row]:
            track.episode_return, track.episode_length = 0.0, 0
        info["TimeLimit.truncated"] = bool(feedback.truncated[row] and not feedback.terminated[row])
        infos.append(info)
    return infos


def _finished(statistics: EpisodeStatistics | None, feedback: Feedback, row: int) -> bool:
    if statistics is None:
        return bool(feedback.ended[row])
    return bool(statistics.mask[row])


def _episode_info(
    statistics: EpisodeStatistics | None, track: Track[Any], row: int
) -> dict[str, Any]:
    """SB3's info of a finished episode; what the client did not tell, the track has counted."""
    if statistics is None:
        return {"episode": {"r": track.episode_return, "l": track.episode_length}}
    info: dict[str, Any] = {
        "episode": {"r": float(statistics.returns[row]), "l": int(statistics.lengths[row])}
    }
    if statistics.success is not None:
        info["is_success"] = bool(statistics.success[row])
    return info
