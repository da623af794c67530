"""Which of an env's info reaches the server (pure).

Only what the user names is sent, at most once a chunk: the value after the chunk's last step.
What cannot travel is left out with one warning for each key; info never stops a run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from plugrl_gym.errors import LocalProtocolError, UsageError
from plugrl_gym.protocol import check_encodable

__all__ = ["InfoForwarder"]

_log = logging.getLogger("plugrl_gym.client")
_RESERVED = ("episode", "action", "final_obs", "final_info")

#: One row's forwarded values.
InfoRow = dict[str, Any]


class InfoForwarder:
    """Picks the keys ``keys`` out of a vector env's info.

    Raises:
        UsageError: A key that the client itself gives a meaning.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        if isinstance(keys, str):
            raise UsageError(f"forward_info: expected a sequence of str, got the str {keys!r}")
        for key in keys:
            if not isinstance(key, str) or key in _RESERVED or key.startswith("_"):
                raise UsageError(
                    f"forward_info: {key!r} cannot be forwarded; name keys of the env's own info, "
                    f"which {', '.join(_RESERVED)} and names with a leading _ are not"
                )
        self._keys = tuple(keys)
        self._warned: set[str] = set()

    def rows(
        self, info: Mapping[str, Any], num_envs: int, ended: npt.NDArray[np.bool_]
    ) -> list[InfoRow]:
        """Each env's values after this step; a finished SAME_STEP env's are in ``final_info``."""
        if not self._keys:
            return [{}] * num_envs
        final = info.get("final_info")
        picked: list[InfoRow] = []
        for env in range(num_envs):
            source = final if ended[env] and isinstance(final, Mapping) else info
            values = {key: self._value(source, key, env) for key in self._keys}
            picked.append({key: value for key, value in values.items() if value is not None})
        return picked

    def _value(self, info: Mapping[str, Any], key: str, env: int) -> Any:
        if key not in info:
            return None
        mask = info.get(f"_{key}")
        if mask is not None and not bool(mask[env]):
            return None
        try:
            value = _plain(_row(info[key], env))
            check_encodable(value, f"info.{key}")
        except (LocalProtocolError, TypeError, ValueError, IndexError, KeyError) as error:
            if key not in self._warned:
                self._warned.add(key)
                _log.warning("info %r cannot be sent and is left out: %s", key, error)
            return None
        return value

    def message(self, rows: Sequence[InfoRow]) -> dict[str, Any]:
        """The map for a feedback of these m rows.

        Each key comes with its mask ``_key`` bool [m], as in Gymnasium; the masks go first, so
        that servers can split the map (SPEC 6.5.17). Values are an array [m, ...] where all rows
        have numbers of one shape and dtype, else a list of m values with nil in the gaps.
        """
        keys = [key for key in self._keys if any(key in row for row in rows)]
        masks = {f"_{key}": np.array([key in row for row in rows]) for key in keys}
        return {**masks, **{key: _column([row.get(key) for row in rows]) for key in keys}}


def _row(value: Any, env: int) -> Any:
    """Row ``env`` of one info value as a vector env batches it."""
    if isinstance(value, Mapping):
        return {key: _row(part, env) for key, part in value.items()}
    return value[env]


def _plain(value: Any, depth: int = 0) -> Any:
    """``value`` with tensors and object arrays as what msgpack knows."""
    if depth > 32:
        raise ValueError("it is nested too deep, or in itself")
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(part, depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, depth + 1) for part in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def _column(values: list[Any]) -> Any:
    kinds = {
        (np.asarray(value).dtype, np.shape(value)) if _is_number(value) else None
        for value in values
    }
    if len(kinds) == 1 and None not in kinds:
        return np.stack([np.asarray(value) for value in values])
    return values


def _is_number(value: Any) -> bool:
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biuf"
    return isinstance(value, bool | int | float)
