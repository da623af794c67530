"""A Gymnasium vector env as Stable-Baselines3's VecEnv."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from plugrl_gym.errors import UsageError

__all__ = ["SB3VecEnv"]

_log = logging.getLogger("plugrl_gym.agents.sb3")
_MASKS: Final = "action_masks"
_NOT_A_ROW: Final = ("final_obs", "final_info")

_Indices = None | int | Iterable[int]


class SB3VecEnv(VecEnv):
    """Steps a SAME_STEP vector env for Stable-Baselines3, sb3-contrib and their wrappers.

    Args:
        envs: Whose envs run elsewhere: attributes and methods of theirs cannot be reached.
        action_masks: The key of a Dict observation that holds, for each env, which actions are
            allowed; :meth:`env_method` then gives these as ``action_masks``.

    Raises:
        UsageError: The observation has no such key.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], *, action_masks: str | None = None) -> None:
        space = envs.single_observation_space
        if action_masks is not None and action_masks not in getattr(space, "spaces", {}):
            raise UsageError(
                f"action_masks: the observation has no key {action_masks!r}, it is {space}"
            )
        self.envs = envs
        self._masks = action_masks
        self._observation: Any = None
        self._actions: npt.NDArray[Any] | None = None
        super().__init__(envs.num_envs, space, envs.single_action_space)

    def reset(self) -> VecEnvObs:
        """The first observations; later, what the envs show now: their episodes go on, and so the
        first that ``VecMonitor`` and ``evaluate_policy`` count after that is the rest of one.
        """
        if any(self._options):
            raise UsageError("set_options(...) cannot reach envs that run elsewhere")
        self._observation, _ = self.envs.reset()
        self.reset_infos = [{} for _ in range(self.num_envs)]
        first: VecEnvObs = _own(self._observation)
        return first

    def step_async(self, actions: npt.NDArray[Any]) -> None:
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        observation, reward, terminated, truncated, info = self.envs.step(self._actions)
        self._observation = observation
        done = terminated | truncated
        infos = [self._info(info, env) for env in range(self.num_envs)]
        for env, each in enumerate(infos):
            if done[env]:
                each.update(self._info(info["final_info"], env))
                each["terminal_observation"] = info["final_obs"][env]
            # Last, for a client may send anything under these names.
            each["TimeLimit.truncated"] = bool(truncated[env] and not terminated[env])
        return _own(observation), reward.astype(np.float32), done, infos

    def _info(self, info: dict[str, Any], env: int) -> dict[str, Any]:
        """One env's values out of a vector env's info."""
        row: dict[str, Any] = {}
        for key, value in info.items():
            mask = info.get(f"_{key}")
            if key in _NOT_A_ROW or (key[:1] == "_" and key[1:] in info):
                continue
            if mask is None or mask[env]:
                row[key] = self._info(value, env) if isinstance(value, dict) else value[env]
        return row

    def close(self) -> None:
        self.envs.close()

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """None for each env: they are seeded where they run. Algorithms call this with their own
        seed, which is theirs to use.
        """
        if seed is not None:
            _log.info("the seed %d does not reach the envs: they are seeded where they run", seed)
        return [None] * self.num_envs

    # -- what SB3 asks of single envs -----------------------------------------------------

    def get_attr(self, attr_name: str, indices: _Indices = None) -> list[Any]:
        """``render_mode`` is None, and ``action_masks`` there where masks are observed.

        Raises:
            AttributeError: For anything else.
        """
        known: dict[str, Any] = {"render_mode": None}
        if self._masks is not None:
            known[_MASKS] = None
        if attr_name not in known:
            raise AttributeError(f"{attr_name!r} of envs that run elsewhere cannot be read")
        return [known[attr_name] for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: _Indices = None) -> None:
        raise AttributeError(f"{attr_name!r} of envs that run elsewhere cannot be set")

    def env_method(
        self, method_name: str, *method_args: Any, indices: _Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """``action_masks`` gives the masks that the envs show now, bool [number of actions] each.

        Raises:
            AttributeError: For anything else, or where no masks are observed.
        """
        if method_name != _MASKS:
            raise AttributeError(f"{method_name}() of envs that run elsewhere cannot be called")
        if self._masks is None:
            raise AttributeError(
                "no action masks: make them part of the observation, a Dict, and name their key, "
                "as in as_sb3_vec_env(action_masks='action_mask')"
            )
        masks = np.asarray(self._observation[self._masks]).reshape(self.num_envs, -1) != 0
        return [masks[env] for env in self._get_indices(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: _Indices = None
    ) -> list[bool]:
        """False for each env: what wraps it does so where it runs."""
        return [False for _ in self._get_indices(indices)]


def _own(observation: Any) -> Any:
    """A copy that the caller may keep and change."""
    if isinstance(observation, dict):
        return {key: _own(part) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_own(part) for part in observation)
    return observation.copy() if isinstance(observation, np.ndarray) else observation
