"""Gymnasium's three autoreset modes, read as finished rows and resetting rows (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from plugrl_gym.client.handed_out import as_numpy, merge_info
from plugrl_gym.errors import UsageError
from plugrl_gym.protocol import Observation
from plugrl_gym.spaces import ObservationLayout
from plugrl_gym.spaces.observations import select_row

__all__ = [
    "check_unmasked",
    "final_observations",
    "final_rows",
    "masked_rows",
    "read_autoreset_mode",
    "rows_of_finished",
    "same_step_info",
]

_FINAL_KEYS = ("final_obs", "final_observation")
_BY_NAME = {
    mode.value.lower().replace("_", "").replace("-", ""): mode
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
}


def read_autoreset_mode(
    env: VectorEnv[Any, Any, Any], given: AutoresetMode | str | None
) -> AutoresetMode:
    """When ``env`` resets a finished sub-env.

    Args:
        env: The vector env.
        given: The caller's word, which wins; ``"NextStep"`` and ``"next-step"`` are the same.

    Raises:
        UsageError: Neither the caller nor the env says it.
    """
    found = given if given is not None else _tag(env)
    if isinstance(found, AutoresetMode):
        return found
    if isinstance(found, str):
        mode = _BY_NAME.get(found.lower().replace("_", "").replace("-", ""))
        if mode is not None:
            return mode
    allowed = "AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED"
    if found is None:
        raise UsageError(
            f"{env} does not say when it resets a finished sub-env (no 'autoreset_mode' in its "
            f"metadata); pass autoreset_mode= one of {allowed}"
        )
    raise UsageError(f"autoreset_mode: expected {allowed}, got {found!r}")


def _tag(env: VectorEnv[Any, Any, Any]) -> object:
    """The innermost env's own attribute before its metadata.

    Before gymnasium 1.4 two vector envs over one env class shared their metadata dict, so that
    the tag could be another env's. A wrapper that sets metadata of its own has the last word.
    """
    while isinstance(env, VectorWrapper):
        own: Mapping[str, Any] | None = getattr(env, "_metadata", None)
        if own and "autoreset_mode" in own:
            return own["autoreset_mode"]
        env = env.env
    attribute = getattr(env, "autoreset_mode", None)
    return attribute if attribute is not None else (env.metadata or {}).get("autoreset_mode")


def final_observations(
    layout: ObservationLayout, info: Mapping[str, Any], ended: npt.NDArray[np.bool_]
) -> dict[int, Observation]:
    """Terminal observations of a SAME_STEP env, one row each, by env.

    ``info["final_obs"]`` may hold one observation for each env (an object array, as Gymnasium's
    own vector envs) or one dense batch; the mask key is not needed.

    Args:
        layout: Of the env's observation space.
        info: The step's info.
        ended: bool [n].

    Raises:
        UsageError: An episode ended and its terminal observation is nowhere: the first
            observation of the next episode is never taken for it.
    """
    final = _reported(layout.space, info, ended)
    envs = np.flatnonzero(ended).tolist()
    if _one_per_env(final, layout.space):
        return {env: layout.encode_one(as_numpy(final[env])) for env in envs}
    batch = layout.encode(as_numpy(final))
    return {env: batch.select([env]) for env in envs}


def final_rows(
    space: spaces.Space[Any], info: Mapping[str, Any], ended: npt.NDArray[np.bool_]
) -> dict[int, Any]:
    """As :func:`final_observations`, each as the env itself has it; copies.

    Args:
        space: Of a single env.
        info, ended: As there.

    Raises:
        UsageError: As there.
    """
    final = _reported(space, info, ended)
    envs = np.flatnonzero(ended).tolist()
    if _one_per_env(final, space):
        return {env: deepcopy(as_numpy(final[env])) for env in envs}
    batch = as_numpy(final)
    return {env: select_row(space, batch, env) for env in envs}


def _reported(
    space: spaces.Space[Any], info: Mapping[str, Any], ended: npt.NDArray[np.bool_]
) -> Any:
    """What ``info`` has of terminal observations, one for each env that ended at least."""
    envs = np.flatnonzero(ended).tolist()
    final = next((info[key] for key in _FINAL_KEYS if key in info), None)
    if final is None:
        raise UsageError(
            f"env {envs[0]} ended its episode and was reset in the same step, but info has no "
            "'final_obs', so its terminal observation is lost; make the vector env report it, or "
            "use AutoresetMode.NEXT_STEP"
        )
    missing = [env for env in envs if final[env] is None] if _one_per_env(final, space) else []
    if missing:
        raise UsageError(
            f"env {missing[0]} ended its episode, but info['final_obs'][{missing[0]}] is "
            "None; make the vector env report it, or use AutoresetMode.NEXT_STEP"
        )
    return final


def _one_per_env(final: Any, space: spaces.Space[Any]) -> bool:
    if isinstance(final, np.ndarray):
        return bool(final.dtype.kind == "O")
    if isinstance(final, list):
        return True
    # A tuple holds one observation for each env, unless the observation itself is a Tuple.
    return isinstance(final, tuple) and not isinstance(space, spaces.Tuple)


def masked_rows(info: Mapping[str, Any], num_envs: int) -> npt.NDArray[np.bool_]:
    """bool [n]: rows that the env itself declares not to be a real step (``info["masked"]``)."""
    masked = info.get("masked")
    if masked is None:
        return np.zeros(num_envs, dtype=np.bool_)
    rows: npt.NDArray[np.bool_] = np.asarray(masked).astype(np.bool_).reshape(num_envs)
    return rows


def check_unmasked(
    env: object, before: Observation, after: Observation, rows: npt.NDArray[np.bool_]
) -> None:
    """Check that a masked reset left ``rows`` bool [n] as they were.

    Raises:
        UsageError: It did not: the vector env ignores the mask.
    """
    different = np.zeros(len(rows), dtype=np.bool_)
    for group in ("images", "states"):
        for name, old in getattr(before, group).items():
            new = getattr(after, group)[name]
            same = (old == new) | ((old != old) & (new != new))
            different |= ~same.reshape(len(rows), -1).all(axis=1)
    different |= np.array([a != b for a, b in zip(before.text, after.text, strict=True)])
    changed = np.flatnonzero(different & rows)
    if len(changed):
        raise UsageError(
            f"{env} changed env {changed[0]} in a reset whose reset_mask left it out; a vector "
            "env that ignores reset_mask cannot be used with AutoresetMode.DISABLED: use "
            "NEXT_STEP or SAME_STEP"
        )


def rows_of_finished(
    space: spaces.Space[Any], observation: Any, ended: npt.NDArray[np.bool_]
) -> npt.NDArray[np.object_]:
    """For each env that ended its episode its observation, object [n]; None for the others.

    Args:
        space: Of a single env.
        observation: The batch that the step handed out.
        ended: bool [n].
    """
    final = np.full(len(ended), None, dtype=object)
    for env in np.flatnonzero(ended).tolist():
        final[env] = select_row(space, observation, env)
    return final


def same_step_info(
    info: dict[str, Any],
    reset_info: dict[str, Any],
    final: npt.NDArray[np.object_],
    ended: npt.NDArray[np.bool_],
) -> dict[str, Any]:
    """The info of a step and of the reset after it, as a SAME_STEP env has it.

    Args:
        info, reset_info: Of the step, and of the reset of the envs that ended.
        final: Terminal observations, object [n].
        ended: bool [n].
    """
    merged = merge_info(info, reset_info, ended)
    merged.update(
        final_obs=final,
        _final_obs=ended.copy(),
        final_info=dict(info),
        _final_info=ended.copy(),
    )
    return merged
