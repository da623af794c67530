"""The feedback: what came of the chunks that ended (SPEC 6.5)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plugrl_gym.errors import RemoteProtocolError
from plugrl_gym.protocol.codec import check_encodable
from plugrl_gym.protocol.episodes import EpisodeStatistics
from plugrl_gym.protocol.features import ALL_FEATURES, CHUNK_STEPS, EXECUTED_ACTIONS
from plugrl_gym.protocol.features.chunk_steps import ChunkSteps
from plugrl_gym.protocol.features.executed_actions import ExecutedActions
from plugrl_gym.protocol.fields import (
    Observation,
    as_int64,
    bool_vector,
    describe,
    env_vector,
    float_array,
    index_vector,
    is_finite,
    require_keys,
    require_map,
    shown,
)
from plugrl_gym.protocol.state import MessageType

__all__ = ["Feedback", "chunk_shape"]


@dataclass(frozen=True, slots=True, eq=False)
class Feedback:
    """What came of the chunks that finished (SPEC 6.5).

    Attributes:
        env_indices: int64 [m].
        step_ids: int64 [m].
        observation: m rows, after each chunk's last step; terminal where the episode ended.
        rewards: float [m], the sum over each chunk's steps.
        terminated, truncated: bool [m], the flags of each chunk's last step.
        info: A map that servers can split into m parts, or empty.
        chunk_steps: With the feature ``gym-chunk-steps``.
        executed: With the feature ``gym-executed-actions``.
    """

    env_indices: npt.NDArray[np.int64]
    step_ids: npt.NDArray[np.int64]
    observation: Observation
    rewards: npt.NDArray[Any]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    info: Mapping[str, Any] = field(default_factory=dict)
    chunk_steps: ChunkSteps | None = None
    executed: ExecutedActions | None = None

    @property
    def ended(self) -> npt.NDArray[np.bool_]:
        """bool [m]: the episode is over."""
        return self.terminated | self.truncated

    @property
    def episode(self) -> EpisodeStatistics | None:
        """Returns and lengths of finished episodes, where the client sent them."""
        return EpisodeStatistics.from_info(self.info, len(self.env_indices))

    def select(self, rows: Sequence[int] | npt.NDArray[Any]) -> Feedback:
        """The given rows, at least one, as a new feedback (copies).

        Of ``info`` only ``episode`` is kept.
        """
        index = np.asarray(rows, dtype=np.intp)
        episode = self.episode
        if episode is not None:
            success = None if episode.success is None else episode.success[index]
            episode = EpisodeStatistics(
                episode.returns[index], episode.lengths[index], episode.mask[index], success
            )
        steps, executed = self.chunk_steps, self.executed
        if steps is not None:
            steps = steps.select(index)
        if executed is not None:
            executed = executed.select(index, None if steps is None else len(steps.rewards))
        return replace(
            self,
            env_indices=self.env_indices[index],
            step_ids=self.step_ids[index],
            observation=self.observation.select(index),
            rewards=self.rewards[index],
            terminated=self.terminated[index],
            truncated=self.truncated[index],
            info={} if episode is None else {"episode": episode.to_wire()},
            chunk_steps=steps,
            executed=executed,
        )

    def to_wire(self) -> dict[str, Any]:
        """The message's map.

        Raises:
            LocalProtocolError: ``info`` holds what cannot travel.
        """
        info = dict(self.info)
        if info:
            check_encodable(info, "feedback.data.info", depth=2)
        message: dict[str, Any] = {
            "message_type": str(MessageType.FEEDBACK),
            "env_indices": as_int64(self.env_indices),
            "step_ids": as_int64(self.step_ids),
            "data": {
                "obs": self.observation.to_wire(),
                "rewards": self.rewards,
                "terminated": self.terminated,
                "truncated": self.truncated,
                "info": info,
            },
        }
        for feature in (self.chunk_steps, self.executed):
            if feature is not None:
                message.update(feature.to_wire())
        return message

    @classmethod
    def from_wire(
        cls, message: dict[str, Any], offered: Collection[str] = ALL_FEATURES
    ) -> Feedback:
        """Validate a received feedback.

        Args:
            message: The decoded map.
            offered: The features whose keys mean something; those of others are ignored.
        """
        require_keys(message, _KEYS, "feedback", exact=False)
        envs = env_vector(message["env_indices"], "feedback.env_indices")
        rows = len(envs)
        data = require_map(message["data"], "feedback.data")
        require_keys(data, _DATA_KEYS, "feedback.data", exact=True)
        info = require_map(data["info"], "feedback.data.info")
        if info and rows > 1:
            _check_splittable(info, rows)
        steps = ChunkSteps.from_wire(message, rows) if CHUNK_STEPS in offered else None
        executed = ExecutedActions.from_wire(message, rows) if EXECUTED_ACTIONS in offered else None
        if steps and executed and len(executed.actions) != len(steps.rewards):
            raise RemoteProtocolError(
                f"feedback.actions: covers {len(executed.actions)} steps, "
                f"feedback.steps says {len(steps.rewards)}"
            )
        return cls(
            env_indices=envs,
            step_ids=index_vector(message["step_ids"], "feedback.step_ids", rows),
            observation=Observation.from_wire(data["obs"], "feedback.data.obs", rows),
            rewards=float_array(data["rewards"], "feedback.data.rewards", (rows,)),
            terminated=bool_vector(data["terminated"], "feedback.data.terminated", rows),
            truncated=bool_vector(data["truncated"], "feedback.data.truncated", rows),
            info=info,
            chunk_steps=steps,
            executed=executed,
        )

    def non_finite_rows(self) -> dict[int, str]:
        """Row -> place of a NaN or infinity in it, as ``"rewards"`` or ``"states.speed"``."""
        rows: dict[int, str] = {}
        places = [(f"states.{shown(k)}", array, 0) for k, array in self.observation.states.items()]
        places.append(("rewards", self.rewards, 0))
        if self.chunk_steps is not None:
            places.append(("step_rewards", self.chunk_steps.rewards, 1))
        if self.executed is not None:
            places.append(("actions", self.executed.actions, 1))
        for place, array, axis in places:
            if not is_finite(array):
                bad = np.unique(np.nonzero(~np.isfinite(array))[axis])
                rows.update(dict.fromkeys(bad.tolist(), place))
        return rows

    def check(self, chunks: Mapping[int, tuple[int, ...]]) -> None:
        """Compare what ran with the chunks that were given.

        Args:
            chunks: Env -> (H, *da) of the chunk that it holds; other envs are not looked at.

        Raises:
            RemoteProtocolError: A row ran more steps than its chunk has, or actions of another
                shape.
        """
        envs = self.env_indices.tolist()
        if self.chunk_steps is not None:
            for env, ran in zip(envs, self.chunk_steps.steps.tolist(), strict=True):
                if env in chunks and ran > chunks[env][0]:
                    raise RemoteProtocolError(
                        f"feedback.steps: {ran} for env {env}, whose chunk has {chunks[env][0]}"
                    )
        if self.executed is not None:
            self._check_executed(self.executed.actions, [chunks[e] for e in envs if e in chunks])

    def _check_executed(self, actions: npt.NDArray[Any], chunks: list[tuple[int, ...]]) -> None:
        ran = len(actions)
        if self.chunk_steps is None and ran > max((chunk[0] for chunk in chunks), default=ran):
            raise RemoteProtocolError(
                f"feedback.actions: covers {ran} steps, the longest chunk has "
                f"{max(chunk[0] for chunk in chunks)}"
            )
        for chunk in chunks:
            if actions.shape[2:] != chunk[1:]:
                raise RemoteProtocolError(
                    f"feedback.actions: expected {['K', 'm', *chunk[1:]]} as in the action, "
                    f"got {list(actions.shape)}".replace("'", "")
                )


def chunk_shape(action: npt.NDArray[Any]) -> tuple[int, ...]:
    """(H, *da) of an action message's [H, n, *da]."""
    return (len(action), *action.shape[2:])


_KEYS: Final = frozenset({"data", "env_indices", "step_ids"})
_DATA_KEYS: Final = frozenset({"obs", "rewards", "terminated", "truncated", "info"})


def _check_splittable(info: Mapping[str, Any], rows: int) -> None:
    """Servers split an info by the first array at top level or one level down (SPEC 6.5.16)."""
    nested = [value if isinstance(value, Mapping) else {"": value} for value in info.values()]
    arrays = (item for part in nested for item in part.values() if isinstance(item, np.ndarray))
    first = next(arrays, None)
    if first is None or first.ndim < 1 or len(first) != rows:
        found = "no array" if first is None else f"{describe(first)} first"
        raise RemoteProtocolError(
            f"feedback.data.info: cannot be split into {rows} rows: it needs an array of leading "
            f"dimension {rows} at top level or one level down, and holds {found}"
        )
