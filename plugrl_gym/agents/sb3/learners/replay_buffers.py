"""SB3's replay buffers, for transitions that arrive in any order.

In lockstep a buffer is SB3's own, with a column for each env. Out of lockstep it has one column,
in which the transitions of all envs lie in order of arrival. What a transition is by itself needs
no more than that; n-step returns find the next transition of the same trajectory by a link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

__all__ = [
    "DISCOUNT",
    "OVERRIDDEN",
    "TRAJECTORY",
    "ChunkReplayBuffer",
    "DemonstrationReplayBuffer",
    "DictChunkReplayBuffer",
    "DictDemonstrationReplayBuffer",
    "LinkedReplayBuffer",
    "cut_columns",
    "keep_next_observations",
    "make_chunk_buffer",
    "make_replay_buffer",
    "to_one_column",
]

#: Keys of the infos that go with a transition into these buffers: what the value of the next
#: observation counts, whether somebody took over, and which trajectory it belongs to.
DISCOUNT: Final = "discount"
OVERRIDDEN: Final = "overridden"
TRAJECTORY: Final = "trajectory"

_NOWHERE: Final = -1
_Infos: TypeAlias = list[dict[str, Any]]

B = TypeVar("B", bound=ReplayBuffer)


def make_replay_buffer(model: OffPolicyAlgorithm, columns: int) -> ReplayBuffer:
    """An empty replay buffer as the model's own, for ``columns`` envs in lockstep."""
    assert model.replay_buffer_class is not None  # SB3 has set it up
    return _made(model, model.replay_buffer_class, columns)


def make_chunk_buffer(model: OffPolicyAlgorithm, share: float = 0.0) -> ReplayBuffer:
    """An empty replay buffer of one column, whose rows have discounts of their own.

    Args:
        model: For whom.
        share: Of demonstrations in each batch; 0 for SB3's even chances.
    """
    own = model.replay_buffer_class
    assert own is ReplayBuffer or own is DictReplayBuffer  # limits.py lets no other through
    if share == 0.0:
        return _made(model, ChunkReplayBuffer if own is ReplayBuffer else DictChunkReplayBuffer, 1)
    kind = DemonstrationReplayBuffer if own is ReplayBuffer else DictDemonstrationReplayBuffer
    buffer = _made(model, kind, 1)
    buffer.share = share
    return buffer


def _made(model: OffPolicyAlgorithm, kind: type[B], columns: int) -> B:
    return kind(
        model.buffer_size,
        model.observation_space,
        model.action_space,
        device=model.device,
        n_envs=columns,
        optimize_memory_usage=model.optimize_memory_usage,
        **model.replay_buffer_kwargs,
    )


class _Discounted(ReplayBuffer):
    """Rows with a discount of their own; one column."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self.n_envs == 1
        self.discounts = np.ones((self.buffer_size, 1), np.float32)

    def add(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: _Infos
    ) -> None:
        self.discounts[self.pos] = [info[DISCOUNT] for info in infos]
        super().add(obs, next_obs, action, reward, done, infos)

    def _get_samples(
        self, batch_inds: npt.NDArray[np.intp], env: VecNormalize | None = None
    ) -> ReplayBufferSamples:
        samples = super()._get_samples(batch_inds, env)
        return samples._replace(discounts=self.to_torch(self.discounts[batch_inds]))


class ChunkReplayBuffer(_Discounted):
    """Transitions of chunks: SB3's samples, each with its discount."""


class DictChunkReplayBuffer(_Discounted, DictReplayBuffer):  # type: ignore[misc]  # as in SB3
    """The same for observations that are a Dict."""


class _Demonstrations(_Discounted):
    """Batches with a fixed share of demonstrations: rows in which somebody took over.

    That is the symmetric sampling of RLPD (Ball et al., 2023), which has a share of a half. A batch
    is made of what there is while one of the two kinds is missing.

    Attributes:
        share: Of demonstrations in a batch, rounded to whole rows.
        demonstrated: bool [buffer_size, 1].
    """

    share = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.demonstrated = np.zeros((self.buffer_size, 1), np.bool_)

    def add(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: _Infos
    ) -> None:
        self.demonstrated[self.pos] = [info[OVERRIDDEN] for info in infos]
        super().add(obs, next_obs, action, reward, done, infos)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        demonstrated = self.demonstrated[: self.size(), 0]
        theirs, own = np.flatnonzero(demonstrated), np.flatnonzero(~demonstrated)
        wanted = round(self.share * batch_size) if len(own) else batch_size
        wanted = wanted if len(theirs) else 0
        drawn = np.random.choice(theirs, wanted), np.random.choice(own, batch_size - wanted)
        return self._get_samples(np.concatenate(drawn), env)


class DemonstrationReplayBuffer(_Demonstrations):
    """Transitions of chunks, demonstrations among them."""


class DictDemonstrationReplayBuffer(_Demonstrations, DictReplayBuffer):  # type: ignore[misc]
    """The same for observations that are a Dict."""


class LinkedReplayBuffer(NStepReplayBuffer):
    """N-step returns where the transitions of several trajectories lie in one column.

    SB3's own class takes the next row for the next step. Here each row knows the next one of its
    trajectory; where there is none yet, or none any more, the return ends and its bootstrap is
    from the row's own next observation.

    Attributes:
        following: int64 [buffer_size], the row of the next step of the same trajectory, -1 where
            there is none.
    """

    following: npt.NDArray[np.int64]
    _added: int
    _last: dict[int, tuple[int, int]]

    @classmethod
    def of(cls, buffer: NStepReplayBuffer, trajectories: Sequence[int]) -> LinkedReplayBuffer:
        """Take over a buffer and its memory; ``trajectories`` are those of its columns."""
        rows, columns, newest = buffer.buffer_size, buffer.n_envs, buffer.pos - 1
        made = cls.__new__(cls)
        vars(made).update(vars(buffer))
        step = (np.arange(rows, dtype=np.int64) + 1) % rows * columns
        following = step[:, None] + np.arange(columns)
        following[newest] = _NOWHERE  # in an empty buffer too: a row that nobody samples
        made.following = following.reshape(-1)
        made._added, made._last = columns, {}
        if buffer.size() > 0:
            place = newest % rows * columns
            made._last = {name: (place + k, k) for k, name in enumerate(trajectories)}
        to_one_column(made)
        return made

    def add(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: _Infos
    ) -> None:
        trajectory: int = infos[0][TRAJECTORY]
        before = self._last.get(trajectory)
        row = self.pos
        if before is not None and self._added - before[1] < self.buffer_size:
            self.following[before[0]] = row
        self.following[row] = _NOWHERE
        self._last[trajectory] = (row, self._added)
        self._added += 1
        if len(self._last) > 2 * self.buffer_size:
            self._forget()
        super().add(obs, next_obs, action, reward, done, infos)

    def _forget(self) -> None:
        oldest = self._added - self.buffer_size
        self._last = {name: last for name, last in self._last.items() if last[1] >= oldest}

    def _get_samples(
        self, batch_inds: npt.NDArray[np.intp], env: VecNormalize | None = None
    ) -> ReplayBufferSamples:
        np.random.randint(0, 1, size=batch_inds.shape)  # SB3 draws a column
        last = batch_inds
        rewards = self._normalize_reward(self.rewards[:, 0], env)
        returns = rewards[batch_inds].copy()
        steps = np.ones(len(batch_inds), np.float32)
        running = np.ones(len(batch_inds), np.bool_)
        for step in range(1, self.n_steps):
            following = self.following[last]
            running &= (self.dones[last, 0] == 0) & (self.timeouts[last, 0] == 0)
            running &= following != _NOWHERE
            last = np.where(running, following, last)
            returns += running * rewards[last] * np.float32(self.gamma**step)
            steps += running
        done = self.dones[last, 0] * (1.0 - self.timeouts[last, 0])
        observation = self._normalize_obs(self.observations[batch_inds, 0], env)
        next_observation = self._normalize_obs(self.next_observations[last, 0], env)
        return ReplayBufferSamples(
            observations=self.to_torch(observation),  # type: ignore[arg-type]  # no Dict
            actions=self.to_torch(self.actions[batch_inds, 0]),
            next_observations=self.to_torch(next_observation),  # type: ignore[arg-type]
            dones=self.to_torch(done[:, None]),
            rewards=self.to_torch(returns[:, None]),
            discounts=self.to_torch((self.gamma**steps)[:, None]),
        )


def to_one_column(buffer: ReplayBuffer) -> None:
    """Let the rows of all columns follow each other, oldest first; copies nothing."""
    rows, columns = buffer.buffer_size, buffer.n_envs
    shape = rows * columns, 1
    for holder, name, array in _arrays(buffer):
        holder[name] = array.reshape(*shape, *array.shape[2:])
    buffer.pos *= columns
    buffer.buffer_size, buffer.n_envs = shape


def keep_next_observations(buffer: ReplayBuffer) -> None:
    """Undo ``optimize_memory_usage``: a row then needs no row after it."""
    buffer.next_observations = np.roll(buffer.observations, -1, axis=0)
    buffer.optimize_memory_usage = False
    if buffer.full:
        # The observation of the oldest row was overwritten; it goes with the next row anyway.
        for holder, name, array in _arrays(buffer):
            holder[name][buffer.pos] = array[buffer.pos - 1]


def cut_columns(buffer: ReplayBuffer, columns: Sequence[int]) -> None:
    """The newest row of these columns has no next step: its trajectory was cut there."""
    newest = buffer.pos - 1
    if buffer.size() > 0:
        unfinished = buffer.dones[newest, list(columns)] == 0
        # SB3 ends an n-step return there, and bootstraps: a timeout counts for done no more.
        buffer.timeouts[newest, list(columns)] = np.maximum(
            buffer.timeouts[newest, list(columns)], unfinished
        )


def _arrays(buffer: ReplayBuffer) -> Iterator[tuple[dict[str, Any], str, npt.NDArray[Any]]]:
    """Every array [buffer_size, n_envs, ...] of a buffer, and where it is kept."""
    shape = buffer.buffer_size, buffer.n_envs
    kept = [(vars(buffer), name) for name in vars(buffer)]
    for part in vars(buffer).values():
        if isinstance(part, dict):
            kept += [(part, name) for name in part]
    for holder, name in kept:
        value = holder[name]
        if isinstance(value, np.ndarray) and value.shape[:2] == shape:
            yield holder, name, value
