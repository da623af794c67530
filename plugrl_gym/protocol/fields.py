"""Readers for the parts that several messages share; each error names its place (SPEC 6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plugrl_gym.errors import LocalProtocolError, RemoteProtocolError
from plugrl_gym.protocol.arrays import RESERVED_KEYS

__all__ = [
    "Observation",
    "as_int64",
    "bool_vector",
    "describe",
    "env_vector",
    "first_non_finite",
    "float_array",
    "index_vector",
    "is_finite",
    "plain",
    "require_keys",
    "require_map",
    "shown",
]

_OBSERVATION_KEYS: Final = frozenset({"images", "states", "text"})
_MAX_INDEX: Final = 2**63 - 1
_SHORT: Final = 1 << 16


def shown(name: str) -> str:
    """A name that the peer chose, fit for one line of an error."""
    return name if len(name) <= 60 and name.isprintable() else repr(name[:60])


def describe(value: object) -> str:
    """``value`` in a few words for an error: a dtype and shape, or a type."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name} array of shape {list(value.shape)}"
    if value is None:
        return "nil"
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**64):
        return f"{type(value).__name__} {value}"
    if isinstance(value, str):
        return f"str {value[:40]!r}"
    return {"dict": "map", "list": "list"}.get(type(value).__name__, type(value).__name__)


def plain(value: object) -> object:
    """A numpy scalar as the plain value that it stands for (SPEC 4.29); others unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def require_map(value: object, where: str) -> dict[str, Any]:
    """``value`` as a map with str keys (arrays are no maps once decoded)."""
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{where}: expected a map, got {describe(value)}")
    return value


def require_keys(value: Mapping[str, Any], keys: frozenset[str], where: str, exact: bool) -> None:
    """Check that all of ``keys`` are there, and with ``exact`` that nothing else is."""
    if not keys <= value.keys():
        missing = sorted(keys - value.keys())
        raise RemoteProtocolError(f"{where}: missing key {', '.join(missing)}")
    if exact and len(value) != len(keys):
        extra = [shown(key) for key in value if key not in keys]
        raise RemoteProtocolError(
            f"{where}: expected exactly the keys {', '.join(sorted(keys))}; "
            f"got also {', '.join(extra[:4])}"
        )


def index_vector(value: object, where: str, rows: int | None = None) -> npt.NDArray[np.int64]:
    """``value`` as int64 [rows], from an integer array of any width."""
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "iu":
        raise RemoteProtocolError(f"{where}: expected an int64 vector, got {describe(value)}")
    if rows is not None and len(value) != rows:
        raise RemoteProtocolError(f"{where}: expected {rows} entries, got {len(value)}")
    if value.dtype.kind == "u" and len(value) and value.max() > _MAX_INDEX:
        raise RemoteProtocolError(f"{where}: {value.max()} takes more than 63 bits")
    return value.astype(np.int64, copy=False)


def as_int64(indices: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Narrower integers as the int64 that is sent; whatever is no index is left to be refused."""
    if isinstance(indices, np.ndarray) and indices.dtype.char in "bBhHiIlq":
        return indices.astype(np.int64, copy=False)
    return indices


def env_vector(value: object, where: str) -> npt.NDArray[np.int64]:
    """``value`` as env indices: at least one, unique, not negative."""
    indices = index_vector(value, where)
    envs = indices.tolist()
    if not envs:
        raise RemoteProtocolError(f"{where}: names no env; at least one is needed")
    if min(envs) < 0:
        raise RemoteProtocolError(f"{where}: {min(envs)} is negative")
    if len(set(envs)) != len(envs):
        raise RemoteProtocolError(f"{where}: names an env twice: {envs[:16]}")
    return indices


def bool_vector(value: object, where: str, rows: int) -> npt.NDArray[np.bool_]:
    """``value`` as bool [rows]."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "b" or value.shape != (rows,):
        raise RemoteProtocolError(f"{where}: expected bool [{rows}], got {describe(value)}")
    return value


def float_array(value: object, where: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """``value`` as a float array of exactly ``shape``."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.shape != shape:
        raise RemoteProtocolError(f"{where}: expected float {list(shape)}, got {describe(value)}")
    return value


def is_finite(array: npt.NDArray[Any]) -> bool:
    """Whether ``array`` holds neither NaN nor infinity."""
    return array.dtype.kind != "f" or np.count_nonzero(np.isfinite(array)) == array.size


def first_non_finite(array: npt.NDArray[Any]) -> tuple[int, ...] | None:
    """Index of the first NaN or infinity in ``array``; None if there is none."""
    if is_finite(array):
        return None
    return tuple(int(i) for i in np.unravel_index(np.argmin(np.isfinite(array)), array.shape))


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """A batch of observations in the wire's terms (SPEC 6.2).

    Attributes:
        images: Name -> uint8 [n, h, w, c].
        states: Name -> bool, integer or float [n, d].
        text: n strings.
    """

    images: Mapping[str, npt.NDArray[np.uint8]] = field(default_factory=dict)
    states: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    text: Sequence[str] = ()

    @property
    def rows(self) -> int:
        """The leading dimension n that all parts share."""
        return len(self.text)

    def select(self, rows: Sequence[int] | npt.NDArray[Any]) -> Observation:
        """The given rows as a new observation (copies)."""
        index = np.asarray(rows, dtype=np.intp)
        return Observation(
            images={name: array[index] for name, array in self.images.items()},
            states={name: array[index] for name, array in self.states.items()},
            text=[self.text[i] for i in index.tolist()],
        )

    @staticmethod
    def concatenate(parts: Sequence[Observation]) -> Observation:
        """All rows of ``parts``, in order (copies); every part has the names of the first."""
        first = parts[0]
        return Observation(
            images={k: np.concatenate([part.images[k] for part in parts]) for k in first.images},
            states={k: np.concatenate([part.states[k] for part in parts]) for k in first.states},
            text=[line for part in parts for line in part.text],
        )

    def first_non_finite(self) -> tuple[str, int] | None:
        """State name and row of the first NaN or infinity; None if all is finite."""
        for name, array in self.states.items():
            if not is_finite(array):
                bad = first_non_finite(array)
                assert bad is not None
                return name, bad[0]
        return None

    def to_wire(self) -> dict[str, Any]:
        """The map for ``infer.data`` or ``feedback.data.obs``.

        Raises:
            LocalProtocolError: A name or a text that no receiver would take.
        """
        return {
            "images": _named(self.images, "images"),
            "states": _named(self.states, "states"),
            "text": _text_to_wire(self.text),
        }

    @classmethod
    def from_wire(cls, value: object, where: str, rows: int) -> Observation:
        """Validate one received observation of ``rows`` rows."""
        data = require_map(value, where)
        require_keys(data, _OBSERVATION_KEYS, where, exact=True)
        images = require_map(data["images"], f"{where}.images")
        states = require_map(data["states"], f"{where}.states")
        _check_leaves(images, f"{where}.images", rows, 4, "B", "uint8 [n, h, w, c]")
        _check_leaves(states, f"{where}.states", rows, 2, "?bBhHiIlLqQefd", "numeric [n, d]")
        return cls(images, states, _text_from_wire(data["text"], f"{where}.text", rows))


def _named(arrays: Mapping[str, npt.NDArray[Any]], group: str) -> dict[str, npt.NDArray[Any]]:
    for name in arrays:
        if not isinstance(name, str) or name in RESERVED_KEYS:
            raise LocalProtocolError(
                f"{group} has the name {name!r}; names are str, and not those of arrays (SPEC 4.31)"
            )
    return dict(arrays)


def _check_leaves(
    arrays: Mapping[str, Any], where: str, rows: int, dimensions: int, chars: str, expected: str
) -> None:
    """Each of ``arrays``: ``rows`` rows, ``dimensions`` axes and a dtype out of ``chars``."""
    for name, array in arrays.items():
        if (
            not isinstance(array, np.ndarray)
            or array.ndim != dimensions
            or array.dtype.char not in chars
        ):
            raise RemoteProtocolError(
                f"{where}.{shown(name)}: expected {expected}, got {describe(array)}"
            )
        if len(array) != rows:
            raise RemoteProtocolError(
                f"{where}.{shown(name)}: expected {rows} rows, one for each env index, "
                f"got {len(array)}"
            )


def _text_to_wire(text: Sequence[str]) -> object:
    if not any(text):
        return np.zeros(len(text), dtype="<U1")
    for row, line in enumerate(text):
        if not isinstance(line, str):
            raise LocalProtocolError(f"text[{row}]: expected a str, got {describe(line)}")
    # A unicode array pads with NUL, so a string that ends in one needs the list (SPEC 4.23); so
    # do strings of which one is far longer than the others.
    if any(line.endswith("\0") for line in text) or _is_wasteful(text):
        return list(text)
    return np.array(text, dtype=np.str_)


def _is_wasteful(text: Iterable[str]) -> bool:
    lengths = [len(line) for line in text]
    padded = 4 * len(lengths) * max(lengths)
    return padded > _SHORT and padded > 8 * sum(lengths)


def _text_from_wire(value: object, where: str, rows: int) -> Sequence[str]:
    if isinstance(value, np.ndarray):
        if value.dtype.kind != "U" or value.shape != (rows,):
            raise RemoteProtocolError(
                f"{where}: expected a unicode array of shape [{rows}], got {describe(value)}"
            )
        lines: list[str] = value.tolist()
        return lines
    if isinstance(value, list):
        if len(value) != rows or not all(isinstance(line, str) for line in value):
            raise RemoteProtocolError(f"{where}: expected a list of {rows} str")
        return value
    raise RemoteProtocolError(
        f"{where}: expected a unicode array or list of {rows} str, got {describe(value)}"
    )
