"""The replay buffer of a run: SB3's columns in lockstep, and after that one column for good."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from plugrl_gym.agents.sb3.learners.replay_buffers import (
    TRAJECTORY,
    LinkedReplayBuffer,
    cut_columns,
    keep_next_observations,
    make_chunk_buffer,
    to_one_column,
)
from plugrl_gym.agents.sb3.learners.trajectories import take
from plugrl_gym.agents.sb3.policy_spaces import PolicyArray, PolicyObservation

__all__ = ["Replay", "Transitions"]

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Transitions:
    """Transitions that arrived together, m rows.

    Attributes:
        observation: What the policy saw.
        action: [m, *da] as SB3's buffer holds them: a Box's scaled to [-1, 1].
        following: What was observed next; the terminal observation where the episode ended.
        reward: float32 [m].
        done: bool [m], the episode ended, either way.
        infos: SB3's, one for each row; they also have ``DISCOUNT``, ``OVERRIDDEN`` and
            ``TRAJECTORY`` of :mod:`replay_buffers`.
    """

    observation: PolicyObservation
    action: PolicyArray
    following: PolicyObservation
    reward: npt.NDArray[np.float32]
    done: npt.NDArray[np.bool_]
    infos: list[dict[str, Any]]

    def row(self, row: int) -> Transitions:
        """One of the rows, as m = 1."""
        one = slice(row, row + 1)
        return Transitions(
            take(self.observation, one),
            self.action[one],
            take(self.following, one),
            self.reward[one],
            self.done[one],
            self.infos[one],
        )


class Replay:
    """Puts transitions into a model's replay buffer, which it changes to fit them.

    In lockstep the buffer is SB3's, column by column. With the first transition that comes in
    another way it gets one column, for good: a view of the same memory. Its N-step variant is
    then linked by trajectory. A buffer that saves memory by ``optimize_memory_usage`` takes each
    transition to follow the one before it; where one does not, also because a client has come
    back, it gets an array of next observations, and a warning says so. A buffer of somebody's own
    class must keep its data in arrays [buffer_size, n_envs, ...].

    Args:
        model: Its buffer may hold transitions already.
        num_envs: E: columns that the buffer has in lockstep.
        horizon: Env steps in one action of the policy.
        share: Of demonstrations in each batch; 0 for SB3's even chances. Else the buffer has one
            column from the start.

    Attributes:
        in_columns: Whether the buffer still has a column for each env.
    """

    def __init__(
        self, model: OffPolicyAlgorithm, num_envs: int, horizon: int, share: float = 0.0
    ) -> None:
        self._model = model
        self._columns: list[int] = [0] * num_envs
        ragged = horizon > 1 or share > 0.0
        if ragged and self.buffer.size() == 0:
            model.replay_buffer = make_chunk_buffer(model, share)
        linked = isinstance(self.buffer, LinkedReplayBuffer)
        self.in_columns = not ragged and self.buffer.n_envs == num_envs and not linked
        if not self.in_columns:
            self._leave_columns()

    @property
    def buffer(self) -> ReplayBuffer:
        """The model's."""
        buffer = self._model.replay_buffer
        assert buffer is not None  # SB3 has set it up
        return buffer

    def add_columns(self, transitions: Transitions) -> None:
        """Store one transition of each env, in the order of the columns."""
        trajectories = [info[TRAJECTORY] for info in transitions.infos]
        if trajectories != self._columns:
            pairs = zip(self._columns, trajectories, strict=True)
            self._cut([column for column, (before, now) in enumerate(pairs) if before != now])
            self._columns = trajectories
        self._store(transitions)

    def add_rows(self, transitions: Transitions, rows: list[int]) -> None:
        """Store some transitions, of any envs; from now on the buffer has one column."""
        if self.in_columns:
            self.in_columns = False
            self._leave_columns()
        for row in rows:
            self._store(transitions.row(row))

    def _store(self, transitions: Transitions) -> None:
        model = self._model
        model._last_obs = transitions.observation
        envs = model.get_vec_normalize_env()
        if envs is not None:  # SB3 asks it for what it has normalised
            model._last_original_obs = transitions.observation
            envs.old_obs, envs.old_reward = transitions.following, transitions.reward
        model._store_transition(
            self.buffer,
            transitions.action,
            transitions.following,
            transitions.reward,
            transitions.done,
            transitions.infos,
        )

    def _cut(self, columns: list[int]) -> None:
        """What comes next in these columns does not follow what is there."""
        buffer = self.buffer
        if buffer.size() == 0:
            return
        if isinstance(buffer, NStepReplayBuffer):
            cut_columns(buffer, columns)
        elif buffer.optimize_memory_usage:
            self._keep_next_observations()

    def _leave_columns(self) -> None:
        buffer = self.buffer
        if buffer.optimize_memory_usage:
            self._keep_next_observations()
        if type(buffer) is NStepReplayBuffer:
            self._model.replay_buffer = LinkedReplayBuffer.of(buffer, self._columns)
        else:
            to_one_column(buffer)

    def _keep_next_observations(self) -> None:
        _log.warning(
            "optimize_memory_usage ends here: a transition came that does not follow the one "
            "before it, and from now on the replay buffer takes twice the memory"
        )
        keep_next_observations(self.buffer)
        self._model.optimize_memory_usage = False

    def state(self) -> dict[str, Any]:
        """What the buffer itself does not know."""
        return {"in_columns": self.in_columns, "columns": self._columns}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`, with the same buffer."""
        if self.in_columns and not state["in_columns"]:
            self._leave_columns()
        self.in_columns = self.in_columns and state["in_columns"]
        self._columns = state["columns"]
