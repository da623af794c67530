"""Recording whole episodes of any vector env, as the env itself saw them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from plugrl_gym.client.autoreset import final_rows, masked_rows, read_autoreset_mode
from plugrl_gym.client.handed_out import as_numpy, check_vector_env, numbers, read_reset_mask
from plugrl_gym.client.minari_dataset import Episode, MinariDataset
from plugrl_gym.spaces.observations import select_row

__all__ = ["MinariRecorder"]

if TYPE_CHECKING:
    _Wrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:
    _Wrapper = VectorWrapper  # takes no parameters before gymnasium 1.3


class MinariRecorder(_Wrapper):
    """Keeps every episode of a vector env in a Minari dataset.

    It belongs directly over the envs, below :class:`~plugrl_gym.PlugRLVectorEnv`: the actions that
    come through here are those that were executed, whoever chose them. In every autoreset mode an
    episode's last observation is its terminal one, and the ignored step of NEXT_STEP is in no
    episode. An episode that is cut, by a reset or by :meth:`close`, ends as truncated.

    A step costs a copy of what the envs handed out. Episodes are written in batches, at the end of
    one of them, and by :meth:`close`. Observations and actions only: no infos.

    Args:
        env: Any vector env.
        dataset_id: See :class:`MinariDataset`.
        autoreset_mode: For an env that does not tag its mode in its metadata.
        metadata: As for :class:`MinariDataset`.

    Attributes:
        dataset: The :class:`MinariDataset`.

    Raises:
        UsageError: As for :class:`MinariDataset`; or no vector env, or an unreadable mode.

    Example:
        >>> import gymnasium as gym
        >>> from plugrl_gym import PlugRLVectorEnv
        >>> from plugrl_gym.client import MinariRecorder
        >>> inner = gym.make_vec("CartPole-v1", num_envs=8)
        >>> recorder = MinariRecorder(inner, "cartpole/mine-v0")  # doctest: +SKIP
        >>> with PlugRLVectorEnv(recorder, "ws://127.0.0.1:8000") as envs:  # doctest: +SKIP
        ...     envs.run(max_episodes=100)
        >>> import minari  # doctest: +SKIP
        >>> minari.load_dataset("cartpole/mine-v0").total_episodes  # doctest: +SKIP
        100
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        dataset_id: str,
        *,
        autoreset_mode: AutoresetMode | str | None = None,
        **metadata: Any,
    ) -> None:
        check_vector_env(env)
        super().__init__(env)
        self._mode = read_autoreset_mode(env, autoreset_mode)
        if autoreset_mode is not None:
            self.metadata = {**(env.metadata or {}), "autoreset_mode": self._mode}
        self.dataset = MinariDataset(dataset_id, env, **metadata)
        self._episodes: list[Episode | None] = [None] * env.num_envs

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the envs, all or those of ``options["reset_mask"]`` bool [n]."""
        mask = read_reset_mask(options, self.num_envs, first=False)  # popped by some vector envs
        for env in np.flatnonzero(mask).tolist():
            self._finish(env)
        observation, info = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        self._begin(mask & ~masked_rows(info, self.num_envs), as_numpy(observation))
        return observation, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of the wrapped env."""
        executed = np.array(as_numpy(actions))  # copied before the env may write into it
        step = observation, reward, terminated, truncated, info = self.env.step(actions)
        active = np.array([episode is not None for episode in self._episodes])
        term = numbers(terminated, "terminated", self.num_envs).astype(np.bool_) & active
        trunc = numbers(truncated, "truncated", self.num_envs).astype(np.bool_) & active
        rewards = numbers(reward, "reward", self.num_envs)
        after, ended = as_numpy(observation), term | trunc
        self._record(executed, after, rewards, term, trunc, info)
        # DISABLED: a new episode begins with its reset alone.
        begins = {AutoresetMode.SAME_STEP: ended | ~active, AutoresetMode.NEXT_STEP: ~active}
        if self._mode in begins:
            self._begin(begins[self._mode] & ~masked_rows(info, self.num_envs), after)
        return step

    def close(self, **kwargs: Any) -> None:
        """Write what is left, and close the envs."""
        if not hasattr(self, "dataset"):
            return  # the constructor refused, and the envs are still the caller's
        try:
            for env in range(self.num_envs):
                self._finish(env)
            self.dataset.write()
        finally:
            super().close(**kwargs)

    def _begin(self, envs: npt.NDArray[np.bool_], observation: Any) -> None:
        space = self.dataset.observation_space
        for env in np.flatnonzero(envs).tolist():
            self._episodes[env] = Episode([select_row(space, observation, env)])

    def _record(
        self,
        actions: npt.NDArray[Any],
        observation: Any,
        rewards: npt.NDArray[Any],
        terminated: npt.NDArray[np.bool_],
        truncated: npt.NDArray[np.bool_],
        info: dict[str, Any],
    ) -> None:
        """Add a step to every episode that is under way, and finish those that ended."""
        space, ended, finals = self.dataset.observation_space, terminated | truncated, {}
        if self._mode is AutoresetMode.SAME_STEP and ended.any():
            finals = final_rows(space, info, ended)
        for env, episode in enumerate(self._episodes):
            if episode is None:
                continue
            last = finals[env] if env in finals else select_row(space, observation, env)
            episode.observations.append(last)
            episode.actions.append(actions[env])
            episode.rewards.append(float(rewards[env]))
            episode.terminated, episode.truncated = bool(terminated[env]), bool(truncated[env])
            if ended[env]:
                self._finish(env)

    def _finish(self, env: int) -> None:
        episode, self._episodes[env] = self._episodes[env], None
        if episode is not None and episode.rewards:
            self.dataset.add(episode)
