"""Reading what vector envs hand out, in all the forms that they do (pure)."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

from plugrl_gym.errors import UsageError
from plugrl_gym.protocol import Observation

__all__ = ["check_vector_env", "env_id", "merge_info", "numbers", "replace_rows", "rows_of"]


def check_vector_env(env: object) -> None:
    """Refuse what is no vector env, and show how to make it one."""
    if isinstance(env, VectorEnv):
        return
    if isinstance(env, gym.Env):
        raise UsageError(
            f"{env} is a single env; PlugRLVectorEnv wraps a vector env: make one with "
            "gym.make_vec(ENV_ID, num_envs=1) or gym.vector.SyncVectorEnv([lambda: env])"
        )
    raise UsageError(
        f"PlugRLVectorEnv wraps a gymnasium.vector.VectorEnv, got {type(env).__name__}"
    )


def env_id(env: VectorEnv[Any, Any, Any]) -> str | None:
    """The registered id of the sub-envs; None where they have none."""
    spec = env.spec or env.unwrapped.spec
    if spec is None:
        subs = getattr(env.unwrapped, "envs", None)
        spec = getattr(subs[0], "spec", None) if subs else None
    return None if spec is None else str(spec.id)


def numbers(value: Any, what: str, n: int) -> npt.NDArray[Any]:
    """``value`` as an array [n]; [n, 1] is flattened."""
    array = np.asarray(value)
    if array.shape == (n, 1):
        array = array[:, 0]
    if array.shape != (n,) or array.dtype.kind not in "buif":
        raise UsageError(
            f"the vector env's {what}: expected {n} numbers, got {array.dtype} {list(array.shape)}"
        )
    return array


def rows_of(observation: Observation, rows: npt.NDArray[Any]) -> Observation:
    """``rows`` of ``observation``; itself where these are all."""
    return observation if len(rows) == observation.rows else observation.select(rows)


def replace_rows(current: Observation, finals: dict[int, Observation]) -> Observation:
    """``current`` with the rows of ``finals`` in place of its own; a copy."""
    rows = list(finals)
    final = Observation.concatenate(list(finals.values()))
    replaced = current.select(np.arange(current.rows))
    for group in ("images", "states"):
        for name, array in getattr(replaced, group).items():
            array[rows] = getattr(final, group)[name]
    text = list(current.text)
    for row, line in zip(rows, final.text, strict=True):
        text[row] = line
    return Observation(replaced.images, replaced.states, text)


def merge_info(
    info: dict[str, Any], reset_info: dict[str, Any], ended: npt.NDArray[np.bool_]
) -> dict[str, Any]:
    """The step's info with the rows of finished envs taken from their reset's info."""
    merged = dict(info)
    for key, value in reset_info.items():
        old = merged.get(key)
        if (
            isinstance(old, np.ndarray)
            and isinstance(value, np.ndarray)
            and old.shape == value.shape
            and old.shape[:1] == ended.shape
        ):
            merged[key] = np.where(ended.reshape(-1, *[1] * (old.ndim - 1)), value, old)
        else:
            merged[key] = value
    return merged
