"""What the learners of all algorithms share: tracks of envs, SB3's callback and its episode log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.type_aliases import MaybeCallback

from plugrl_gym.agents.sb3.learners.outcome import Outcome
from plugrl_gym.agents.sb3.learners.tracks import Track, Tracks
from plugrl_gym.agents.sb3.policy_spaces import PolicyArray, PolicyObservation
from plugrl_gym.agents.sb3.runs.counters import Counters
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
            transitions, whichever env sends them.
        total_timesteps: Env steps to learn from, rounded up to whole updates as SB3 does.
        counters: Kept up to date.
        callback: SB3 callback(s); their ``on_step`` runs once for each feedback.
        log_interval: As for SB3's ``learn``: updates, or episodes of an off-policy algorithm,
            between two lines of the log.
        horizon: Env steps in one action of the policy.
    """

    num_envs: int
    total_timesteps: int
    counters: Counters
    callback: MaybeCallback = None
    log_interval: int = 1
    horizon: int = 1


class Learner(ABC, Generic[M, D]):
    """Takes transitions as clients send them, and trains one model on them.

    Args:
        model: Built, not yet trained.
        plan: Of the run.

    Attributes:
        model: As given.
        finished: The last update is done, or the callback stopped the run.
    """

    def __init__(self, model: M, plan: RunPlan) -> None:
        self.model = model
        self.finished = False
        self._plan = plan
        self._counters = plan.counters
        self._tracks: Tracks[D] = Tracks(plan.counters)
        name = type(model).__name__
        self._total, self._callback = model._setup_learn(
            plan.total_timesteps, plan.callback, tb_log_name=name
        )
        self._callback.on_training_start({"self": model, "total_timesteps": self._total}, {})

    @property
    @abstractmethod
    def due(self) -> bool:
        """Train before any further action."""

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

    def _outcome(self, feedback: Feedback) -> Outcome:
        return Outcome.of(feedback, self._plan.horizon, self.model.gamma)  # type: ignore[attr-defined]  # all have one

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
