"""Returns and lengths of episodes, counted and cross-checked with the env's own (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["EpisodeCounter", "reported_statistics", "reported_success"]

_Floats = npt.NDArray[np.float64]


class EpisodeCounter:
    """Undiscounted return and length in env steps of each env's current episode.

    Attributes:
        returns: float64 [n].
        lengths: int64 [n].
    """

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, dtype=np.int64)

    def add(self, rewards: _Floats, active: npt.NDArray[np.bool_]) -> None:
        """Count one step for the envs ``active`` bool [n]."""
        self.returns[active] += rewards[active]
        self.lengths[active] += 1

    def reset(self, envs: npt.NDArray[np.bool_]) -> None:
        """Begin new episodes for ``envs`` bool [n]."""
        self.returns[envs] = 0.0
        self.lengths[envs] = 0

    def finished(
        self, info: Mapping[str, Any], ended: npt.NDArray[np.bool_]
    ) -> tuple[_Floats, npt.NDArray[np.int64]]:
        """Returns and lengths [n] of the episodes that ended.

        A statistics wrapper below may have seen other rewards than we (one that clips them sits
        above it): its return is what people report, so it is taken where its length agrees with
        ours. Where it does not, its count was disturbed, and ours holds.
        """
        returns, lengths = self.returns.copy(), self.lengths.copy()
        for env in np.flatnonzero(ended).tolist():
            reported = reported_statistics(info, env)
            if reported is not None and reported[1] == lengths[env]:
                returns[env] = reported[0]
        return returns, lengths


def reported_statistics(info: Mapping[str, Any], env: int) -> tuple[float, int] | None:
    """Return and length that a statistics wrapper put into ``info`` for ``env``; None if none."""
    for place in (info.get("final_info"), info):
        episode = _entry(place, "episode", env)
        if isinstance(episode, Mapping):
            try:
                return float(_at(episode["r"], env)), int(_at(episode["l"], env))
            except (KeyError, TypeError, ValueError, IndexError):
                continue
    return None


def reported_success(
    info: Mapping[str, Any], num_envs: int, ended: npt.NDArray[np.bool_]
) -> _Floats:
    """float64 [n]: 1 or 0 where a finished env tells its success, NaN elsewhere."""
    success = np.full(num_envs, np.nan)
    for env in np.flatnonzero(ended).tolist():
        for place in (info.get("final_info"), info):
            for key in ("is_success", "success"):
                value = _entry(place, key, env)
                if value is not None and np.isnan(success[env]):
                    try:
                        success[env] = float(bool(_at(value, env)))
                    except (TypeError, ValueError, IndexError):
                        continue
    return success


def _entry(place: object, key: str, env: int) -> object:
    """``place[key]`` where it holds for ``env``: Gymnasium's mask ``_key`` says so."""
    if isinstance(place, np.ndarray | list) and env < len(place):
        place = place[env]
    if not isinstance(place, Mapping) or key not in place:
        return None
    mask = place.get(f"_{key}")
    if mask is not None and not bool(_at(mask, env)):
        return None
    value: object = place[key]
    return value


def _at(value: Any, env: int) -> Any:
    """Entry ``env`` of a batched value; the value itself where it is a single one."""
    return value[env] if np.ndim(value) else value
