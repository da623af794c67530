"""Reading what vector envs hand out, in all the forms that they do (pure)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

from plugrl_gym.errors import UsageError
from plugrl_gym.protocol import EXECUTED_ACTIONS, Observation
from plugrl_gym.spaces import ActionLayout
from plugrl_gym.spaces.casting import as_array

__all__ = [
    "as_numpy",
    "check_text",
    "check_vector_env",
    "env_id",
    "like",
    "merge_info",
    "numbers",
    "read_actions",
    "read_override",
    "read_reset_mask",
    "replace_rows",
    "rows_of",
]


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


def check_text(env: VectorEnv[Any, Any, Any]) -> None:
    """Refuse Text through an AsyncVectorEnv's shared memory: it yields zeros, not the strings."""
    base = env.unwrapped
    if getattr(base, "shared_memory", False) and _has_text(env.single_observation_space):
        raise UsageError(
            "Text observations need shared_memory=False: through an AsyncVectorEnv's shared "
            "memory they arrive as zeros; pass vector_kwargs={'shared_memory': False} to make_vec"
        )


def _has_text(space: Any) -> bool:
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, gym.spaces.Dict) else space.spaces
        return any(_has_text(part) for part in parts)
    return isinstance(space, gym.spaces.Text)


def as_numpy(value: Any) -> Any:
    """``value`` with torch tensors of any device as NumPy arrays, in Dicts and Tuples too."""
    if isinstance(value, dict):
        return {key: as_numpy(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(as_numpy(part) for part in value)
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def like(actions: npt.NDArray[Any], observation: Any) -> Any:
    """``actions`` as a torch tensor where the env hands out torch tensors, on the same device."""
    while isinstance(observation, dict | tuple) and observation:
        parts = observation.values() if isinstance(observation, dict) else observation
        observation = next(iter(parts))
    if not hasattr(observation, "detach"):
        return actions
    torch = sys.modules["torch"]  # a tensor exists, so it is imported
    return torch.as_tensor(actions, device=observation.device)


def env_id(env: VectorEnv[Any, Any, Any]) -> str | None:
    """The registered id of the sub-envs; None where they have none."""
    spec = env.spec or env.unwrapped.spec
    if spec is None:
        subs = getattr(env.unwrapped, "envs", None)
        spec = getattr(subs[0], "spec", None) if subs else None
    name = getattr(spec, "id", None)  # EnvPool's specs are not Gymnasium's
    return name if isinstance(name, str) else None


def numbers(value: Any, what: str, n: int) -> npt.NDArray[Any]:
    """``value`` as an array [n]; [n, 1] is flattened."""
    array = np.asarray(as_numpy(value))
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


def read_actions(
    actions: Any,
    planned: npt.NDArray[Any],
    rows: npt.NDArray[np.bool_] | None = None,
    who: str = "step(actions)",
) -> npt.NDArray[Any]:
    """What a caller gave to execute in place of ``planned``, in its shape and dtype.

    Args:
        actions: The caller's.
        planned: [n, *da], the server's.
        rows: bool [n], those that the caller speaks for, whatever stands in the others; None for
            all.
        who: Begins the sentence of an error.

    Returns:
        A copy of ``planned`` with these rows replaced.

    Raises:
        UsageError: Another shape, a dtype that does not fit, or a number that is not finite.
    """
    given = as_array(actions, who)
    if given.shape != planned.shape or not np.can_cast(given.dtype, planned.dtype, "same_kind"):
        raise UsageError(
            f"{who}: expected {planned.dtype} {list(planned.shape)}, got {given.dtype} "
            f"{list(given.shape)}"
        )
    executed = planned.copy()
    spoken_for = slice(None) if rows is None else rows
    with np.errstate(over="ignore"):  # what becomes infinite is refused next
        executed[spoken_for] = given[spoken_for]
    if executed.dtype.kind == "f" and not np.isfinite(executed[spoken_for]).all():
        raise UsageError(f"{who}: an action is NaN or infinite")
    return executed


def read_override(
    actions: Any,
    planned: npt.NDArray[Any],
    running: npt.NDArray[np.bool_],
    features: Sequence[str],
    layout: ActionLayout,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """What to run, and in which rows it differs from what the server chose.

    Args:
        actions: The caller's, as for :func:`read_actions`; None for the server's.
        planned: [n, *da], the server's.
        running: bool [n], the rows in which there is one of the server's.
        features: What the server offers.
        layout: Of the envs' actions.

    Returns:
        [n, *da], and bool [n].

    Raises:
        UsageError: As :func:`read_actions`; a number outside the action space, of which
            ``layout.out_of_bounds`` makes an error; or the server could not be told of a
            difference.
    """
    if actions is None:
        return planned, np.zeros(len(planned), dtype=np.bool_)
    executed = _inside(read_actions(actions, planned), layout)
    different = (executed != planned).reshape(len(planned), -1).any(axis=1)
    overridden: npt.NDArray[np.bool_] = different & running
    if overridden.any() and EXECUTED_ACTIONS not in features:
        raise UsageError(
            f"step(actions): the action of env {int(np.flatnonzero(overridden)[0])} was "
            "replaced, but this server does not offer gym-executed-actions, so it would "
            "learn from an action that was not run"
        )
    return executed, overridden


def _inside(actions: npt.NDArray[Any], layout: ActionLayout) -> npt.NDArray[Any]:
    """``actions`` [n, *da] inside the bounds of their space, as a server's would be."""
    low, high = layout.bounds
    outside = (actions < low) | (actions > high)
    if not outside.any():
        return actions
    if layout.clipping:
        clipped: npt.NDArray[Any] = np.clip(actions, low, high)
        return clipped
    raise UsageError(
        f"step(actions): {actions[outside][0]} for env {np.nonzero(outside)[0][0]} lies outside "
        f"{layout.space}"
    )


def read_reset_mask(
    options: dict[str, Any] | None, num_envs: int, first: bool
) -> npt.NDArray[np.bool_]:
    """Which envs a reset is for, bool [n]; all where ``options`` do not say.

    Raises:
        UsageError: Not a mask of this vector env, or one that leaves out envs in the first reset.
    """
    if options is None or "reset_mask" not in options:
        return np.ones(num_envs, dtype=np.bool_)
    mask = np.asarray(options["reset_mask"])
    if mask.shape != (num_envs,) or mask.dtype != np.bool_ or not mask.any():
        raise UsageError(
            f"options['reset_mask']: expected bool [{num_envs}] with at least one True, "
            f"got {mask.dtype} {list(mask.shape)}"
        )
    if first and not mask.all():
        raise UsageError("the first reset() must reset every env")
    return mask.copy()
