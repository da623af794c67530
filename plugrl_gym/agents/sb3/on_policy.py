"""SB3's on-policy loop turned inside out: fed from outside, step by step.

``OnPolicyAlgorithm.learn`` pulls transitions out of its envs. Here they are pushed in as clients
send them, and everything else happens in SB3's order: noise, forward pass, step count, callback,
episode statistics, bootstrap of a truncation, buffer, last values, ``train()``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.utils import obs_as_tensor

from plugrl_gym.agents.sb3.buffers import fill_buffer
from plugrl_gym.agents.sb3.counters import Counters
from plugrl_gym.agents.sb3.model import set_num_envs
from plugrl_gym.agents.sb3.noise import SdeNoise
from plugrl_gym.agents.sb3.policy_spaces import PolicyArray, PolicyObservation
from plugrl_gym.agents.sb3.trajectories import (
    Decision,
    Rollout,
    Steps,
    Track,
    concatenate,
    pick,
    take,
)
from plugrl_gym.errors import RemoteProtocolError
from plugrl_gym.protocol import EpisodeStatistics, Feedback
from plugrl_gym.server.agent import Client, Request
from plugrl_gym.spaces.casting import lost

__all__ = ["OnPolicyLearner"]


class OnPolicyLearner:
    """Collects rollouts from clients that learn, and trains a model on them.

    Args:
        model: Built, not yet trained.
        num_envs: E; a rollout is ``n_steps * E`` transitions, whichever env sends them.
        total_timesteps: Env steps to learn from, rounded up to whole rollouts as SB3 does.
        counters: Kept up to date.
        callback: SB3 callback(s); its ``on_step`` runs once for each feedback.
        log_interval: Updates between two lines of the log.

    Attributes:
        finished: The last update is done, or the callback stopped the run.
    """

    def __init__(
        self,
        model: OnPolicyAlgorithm,
        num_envs: int,
        total_timesteps: int,
        counters: Counters,
        callback: MaybeCallback = None,
        log_interval: int = 1,
    ) -> None:
        self.model = model
        self.finished = False
        self._num_envs = num_envs
        self._counters = counters
        self._log_interval = log_interval
        self._noise = SdeNoise(model, num_envs)
        self._size = model.n_steps * num_envs
        self._rollout = Rollout(self._size)
        self._begun = False
        self._iteration = 0
        self._trajectories = 0
        self._slots: set[int] = set()
        if num_envs != model.n_envs:
            set_num_envs(model, num_envs)
        name = type(model).__name__
        self._total, self._callback = model._setup_learn(
            total_timesteps, callback, tb_log_name=name
        )
        self._callback.on_training_start({"self": model, "total_timesteps": self._total}, {})

    @property
    def due(self) -> bool:
        """A rollout is complete: train before any further action."""
        return self._rollout.full and not self.finished

    def act(self, requests: Sequence[Request]) -> list[PolicyArray]:
        """Draw raw actions [n, *da] for each request, in one forward pass."""
        self._begin()
        observation = concatenate([request.prepared for request in requests])
        tracks = [track for request in requests for track in self._asked(request)]
        with torch.no_grad(), self._noise.of([track.slot for track in tracks]):
            drawn = self.model.policy(obs_as_tensor(observation, self.model.device))
        action, value, log_prob = (tensor.cpu().numpy() for tensor in drawn)
        decision = Decision(observation, action, value.reshape(-1), log_prob)
        for row, track in enumerate(tracks):
            track.pending = (decision, row)
        sizes = [len(request.infer.env_indices) for request in requests]
        return np.split(action, np.cumsum(sizes)[:-1])

    def _asked(self, request: Request) -> list[Track]:
        """The tracks of a request's envs, made where an env is new."""
        if request.client.state is None:
            request.client.state = {}
        tracks: dict[int, Track] = request.client.state
        infer = request.infer
        for env, step_id in zip(infer.env_indices.tolist(), infer.step_ids.tolist(), strict=True):
            track = tracks.get(env)
            if track is None:
                tracks[env] = Track(self._free_slot(), self._new_trajectory())
            elif track.pending is not None:
                # The server left out the feedback row (it was not finite): a gap.
                self._counters.chunks_dropped += 1
                track.pending = None
                track.trajectory = self._new_trajectory()
                track.episode_start = step_id == 0
        return [tracks[env] for env in infer.env_indices.tolist()]

    def feedback(self, client: Client, feedback: Feedback, following: PolicyObservation) -> None:
        """Take a learning client's feedback; ``following`` is its observation, decoded.

        Raises:
            RemoteProtocolError: A reward that float32 cannot hold; nothing was stored.
        """
        too_large = lost(feedback.rewards, np.dtype(np.float32))
        if too_large is not None and too_large.any():
            raise RemoteProtocolError(
                f"feedback.data.rewards: {feedback.rewards[too_large][0]} is no float32"
            )
        self._begin()
        tracks: dict[int, Track] = client.state or {}
        answered = [tracks[env] for env in feedback.env_indices.tolist()]
        executed = feedback.executed
        overridden = np.zeros(len(answered), bool) if executed is None else executed.overridden
        reward = np.array(feedback.rewards, dtype=np.float32)
        self.model.num_timesteps += len(answered)
        self._notify(feedback, reward, self._episodes(feedback, answered))
        if self.finished:
            return
        self._bootstrap(feedback, reward, following, ~overridden)
        kept: list[int] = []
        chosen: list[tuple[Decision, int]] = []
        for row, track in enumerate(answered):
            pending, track.pending = track.pending, None
            assert pending is not None  # the server passes on only rows that answer an action
            if overridden[row]:
                track.trajectory = self._new_trajectory()
            else:
                kept.append(row)
                chosen.append(pending)
        self._counters.overridden += len(answered) - len(kept)
        if kept:
            self._store(feedback, reward, following, answered, kept, chosen)
        for track, ended in zip(answered, feedback.ended.tolist(), strict=True):
            track.episode_start = ended

    def _store(
        self,
        feedback: Feedback,
        reward: npt.NDArray[np.float32],
        following: PolicyObservation,
        answered: list[Track],
        kept: list[int],
        chosen: list[tuple[Decision, int]],
    ) -> None:
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

    def _episodes(self, feedback: Feedback, answered: list[Track]) -> list[dict[str, Any]]:
        """For each row SB3's info: the statistics of an episode that ended."""
        statistics = feedback.episode
        infos: list[dict[str, Any]] = []
        for row, track in enumerate(answered):
            track.episode_return += float(feedback.rewards[row])
            track.episode_length += 1
            info: dict[str, Any] = {}
            if _finished(statistics, feedback, row):
                info = _episode_info(statistics, track, row)
            if feedback.ended[row]:
                track.episode_return, track.episode_length = 0.0, 0
            infos.append(info)
        return infos

    def _notify(
        self, feedback: Feedback, reward: npt.NDArray[np.float32], infos: list[dict[str, Any]]
    ) -> None:
        dones = feedback.ended
        self._callback.update_locals({"rewards": reward, "dones": dones, "infos": infos})
        if not self._callback.on_step():
            self.finished = True
            return
        self.model._update_info_buffer(infos, dones)

    def leave(self, client: Client) -> None:
        """A learning client is gone; what it had not fed back is dropped and counted."""
        tracks: dict[int, Track] = client.state or {}
        for track in tracks.values():
            self._counters.chunks_dropped += track.pending is not None
            self._slots.discard(track.slot)
        client.state = None

    def learn(self) -> None:
        """Train on the complete rollout, and on further ones that are already complete."""
        while self.due:
            self._update()

    def _update(self) -> None:
        model, rollout = self.model, self._rollout
        self._begin()
        fill_buffer(model, rollout, self._num_envs, self._critic)
        self._callback.update_locals({"rollout_buffer": model.rollout_buffer})
        self._callback.on_rollout_end()
        self._iteration += 1
        model._update_current_progress_remaining(model.num_timesteps, self._total)
        if self._iteration % self._log_interval == 0:
            model.dump_logs(self._iteration)
        model.train()
        self._counters.updates += 1
        self._begun = False
        self._rollout = Rollout(self._size)
        for steps in rollout.beyond:
            self._add(steps)
        self.finished = model.num_timesteps >= self._total

    def close(self) -> None:
        """The run is over."""
        self._callback.on_training_end()

    def _begin(self) -> None:
        """Begin a rollout, if none has begun since the last update."""
        if self._begun:
            return
        self._begun = True
        self.model.policy.set_training_mode(False)
        self.model.rollout_buffer.reset()
        self._noise.begin()
        self._callback.on_rollout_start()

    def _new_trajectory(self) -> int:
        self._trajectories += 1
        return self._trajectories

    def _free_slot(self) -> int:
        slot = next(number for number in range(len(self._slots) + 1) if number not in self._slots)
        self._slots.add(slot)
        return slot


def _finished(statistics: EpisodeStatistics | None, feedback: Feedback, row: int) -> bool:
    if statistics is None:
        return bool(feedback.ended[row])
    return bool(statistics.mask[row])


def _episode_info(statistics: EpisodeStatistics | None, track: Track, row: int) -> dict[str, Any]:
    """SB3's info of a finished episode; what the client did not tell, the track has counted."""
    if statistics is None:
        return {"episode": {"r": track.episode_return, "l": track.episode_length}}
    info: dict[str, Any] = {
        "episode": {"r": float(statistics.returns[row]), "l": int(statistics.lengths[row])}
    }
    if statistics.success is not None:
        info["is_success"] = bool(statistics.success[row])
    return info
