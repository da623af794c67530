"""Whole episodes, written as a Minari dataset."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from plugrl_gym.errors import UsageError
from plugrl_gym.spaces import standard_space

__all__ = ["Episode", "MinariDataset", "free_place"]

#: What the episodes that wait for being written may take in memory.
_MOST_BYTES: Final = 1 << 27
#: Of the objects around the numbers of one step.
_STEP_BYTES: Final = 500
#: What a vector env's spec has beyond that of one of its envs, and what only shows an env.
_NOT_OF_ONE_ENV: Final = frozenset(
    {"num_envs", "vectorization_mode", "vector_kwargs", "wrappers", "render_mode"}
)


@dataclass(slots=True)
class Episode:
    """One episode, or its beginning: T steps and T + 1 observations, all copies."""

    observations: list[Any]
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False


class MinariDataset:
    """A new Minari dataset; its first episodes make it.

    Args:
        dataset_id: As Minari has it: ``"cartpole/mine-v0"``, or without a namespace ``"mine-v0"``.
            It lies below ``MINARI_DATASETS_PATH``, else in ``~/.minari/datasets``.
        env: The vector env whose episodes it will hold.
        metadata: More for ``minari.create_dataset_from_buffers``, as ``algorithm_name``.

    Attributes:
        path: Where it will lie.
        episodes, steps: Written so far.

    Raises:
        UsageError: Minari is not installed, the id is malformed or taken, or Minari has no place
            for a space.
    """

    def __init__(self, dataset_id: str, env: VectorEnv[Any, Any, Any], **metadata: Any) -> None:
        self.dataset_id = dataset_id
        self.path = free_place(dataset_id)
        self.observation_space = standard_space(env.single_observation_space)
        self.action_space = env.single_action_space
        for space in (self.observation_space, self.action_space):
            _check_space(space)
        self._env_spec = _spec_of_one(env)
        self._metadata = metadata
        self._waiting: list[Episode] = []
        self._bytes = 0
        self._dataset: Any = None
        self.episodes = self.steps = 0

    def add(self, episode: Episode) -> None:
        """Take an episode of at least one step; now and then all that wait are written.

        Raises:
            UsageError: As for :meth:`write`.
        """
        self._waiting.append(episode)
        one = _size(episode.observations[0]) + _size(episode.actions[0]) + _STEP_BYTES
        self._bytes += one * len(episode.rewards)
        if self._bytes > _MOST_BYTES:
            self.write()

    def write(self) -> None:
        """Write what waits.

        Raises:
            UsageError: Somebody else has taken the name meanwhile, or the disk is full.
        """
        if not self._waiting:
            return
        episodes, self._waiting, self._bytes = self._waiting, [], 0
        buffers = [self._buffer(episode) for episode in episodes]
        try:
            if self._dataset is None:
                self._dataset = self._create(buffers)
            else:
                self._dataset.update_dataset_from_buffer(buffers)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written ({error})") from error
        self.episodes += len(episodes)
        self.steps += sum(len(episode.rewards) for episode in episodes)

    def _create(self, buffers: list[Any]) -> Any:
        import minari

        free_place(self.dataset_id)
        with warnings.catch_warnings():
            # Minari's advice on metadata that nobody gave.
            warnings.simplefilter("ignore", UserWarning)
            return minari.create_dataset_from_buffers(
                dataset_id=self.dataset_id,
                buffer=buffers,
                env=_OneEnv(self._env_spec, self.observation_space, self.action_space),
                data_format="hdf5",
                jpeg_encoding=False,  # it would change the pixels
                **self._metadata,
            )

    def _buffer(self, episode: Episode) -> Any:
        from minari.data_collector.episode_buffer import EpisodeBuffer

        ends = np.zeros((2, len(episode.rewards)), dtype=np.bool_)
        # In a dataset every episode ends one way or the other; one that was cut is truncated.
        ends[:, -1] = episode.terminated, episode.truncated or not episode.terminated
        return EpisodeBuffer(
            observations=_stacked(self.observation_space, episode.observations),
            actions=_stacked(self.action_space, episode.actions),
            rewards=np.array(episode.rewards, dtype=np.float64),
            terminations=ends[0],
            truncations=ends[1],
        )


class _OneEnv(gym.Env[Any, Any]):
    """What Minari wants to know of an env, without making one."""

    def __init__(
        self,
        spec: EnvSpec | None,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
    ) -> None:
        self.spec = spec
        self.observation_space = observation_space
        self.action_space = action_space


def free_place(dataset_id: str) -> Path:
    """Where a new dataset will lie.

    Raises:
        UsageError: Minari is not installed, the id is malformed, or there is such a dataset.
    """
    try:
        import h5py  # noqa: F401
        from minari.dataset.minari_dataset import parse_dataset_id
        from minari.storage import get_dataset_path
    except ImportError as error:
        raise UsageError(
            "a Minari dataset needs Minari and h5py, which are not both installed: "
            'pip install "plugrl-gym[minari]"'
        ) from error
    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError):  # a TypeError where the version is missing
        raise UsageError(
            f"Minari dataset {dataset_id!r}: expected a name as mine-v0 or cartpole/mine-v0 "
            "(letters, digits, - and _; at least two in front of a /)"
        ) from None
    try:
        path = Path(get_dataset_path(dataset_id))
    except OSError as error:
        raise UsageError(f"Minari dataset {dataset_id!r}: no place for it ({error})") from error
    if path.exists():
        raise UsageError(
            f"there is a Minari dataset {dataset_id!r} already, in {path}; take another name or "
            "version"
        )
    return path


def _check_space(space: spaces.Space[Any]) -> None:
    from minari.serialization import serialize_space

    try:
        serialize_space(space)
    except (NotImplementedError, TypeError) as error:
        raise UsageError(f"Minari has no place for a {type(space).__name__}: {space}") from error
    for key in _keys(space):
        if "/" in key:
            raise UsageError(f"Minari has no place for the key {key!r} of {space}: it has a /")


def _keys(space: spaces.Space[Any]) -> Iterator[str]:
    """Those of every Dict in a space."""
    if isinstance(space, spaces.Dict):
        yield from space.spaces
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        for part in parts:
            yield from _keys(part)


def _spec_of_one(env: VectorEnv[Any, Any, Any]) -> EnvSpec | None:
    """How to make one of the envs again; None where nobody knows."""
    subs = getattr(env.unwrapped, "envs", None)
    spec = getattr(subs[0], "spec", None) if subs else env.spec or env.unwrapped.spec
    if not isinstance(spec, EnvSpec):  # EnvPool's specs are not Gymnasium's
        return None
    spec = deepcopy(spec)
    spec.kwargs = {k: v for k, v in spec.kwargs.items() if k not in _NOT_OF_ONE_ENV}
    spec.additional_wrappers = tuple(
        wrapper for wrapper in spec.additional_wrappers if wrapper.name != "RecordVideo"
    )
    spec.vector_entry_point = None
    name = str(getattr(spec.entry_point, "__qualname__", ""))  # a str has none
    if name.isidentifier():
        spec.entry_point = f"{spec.entry_point.__module__}:{name}"
    try:
        spec.to_json()
    except (TypeError, ValueError):  # made by a function that has no name, or with such arguments
        return None
    return spec


def _size(value: Any) -> int:
    """Bytes of an observation or action."""
    if isinstance(value, dict):
        return sum(_size(part) for part in value.values())
    if isinstance(value, tuple):
        return sum(_size(part) for part in value)
    return int(np.asarray(value).nbytes)


def _stacked(space: spaces.Space[Any], rows: list[Any]) -> Any:
    """Rows one after the other: [T, ...] for each leaf of the space."""
    if isinstance(space, spaces.Dict):
        return {
            key: _stacked(part, [row[key] for row in rows]) for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        return tuple(
            _stacked(part, [row[place] for row in rows]) for place, part in enumerate(space.spaces)
        )
    return [str(row) for row in rows] if isinstance(space, spaces.Text) else np.stack(rows)
