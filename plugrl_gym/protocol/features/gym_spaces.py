"""``gym-spaces``: a client declares its env's spaces in its first infer (SPEC 9.3).

Plain descriptions only: this module knows no Gymnasium. ``plugrl_gym.spaces`` turns them into
Gymnasium spaces and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from plugrl_gym.errors import RemoteProtocolError
from plugrl_gym.protocol.fields import describe, plain, require_keys, require_map, shown

__all__ = [
    "AUTORESET_MODES",
    "MODES",
    "BoxSpec",
    "DictSpec",
    "DiscreteSpec",
    "MultiBinarySpec",
    "MultiDiscreteSpec",
    "SpaceDeclaration",
    "SpaceSpec",
    "TextSpec",
    "TupleSpec",
    "space_from_wire",
    "space_to_wire",
]

AUTORESET_MODES: Final = ("next-step", "same-step", "disabled")
MODES: Final = ("train", "eval")
_MAX_DEPTH: Final = 16
_INT_TYPESTRS: Final = frozenset(
    [f"{o}{k}{s}" for o in "<>" for k in "iu" for s in "1248"] + ["|i1", "|u1"]
)
_MAX_INT: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, eq=False)
class BoxSpec:
    """A Box: ``low`` and ``high`` of its shape and dtype; -inf below and inf above are allowed."""

    low: npt.NDArray[Any]
    high: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class DiscreteSpec:
    """The integers ``start`` to ``start + n - 1``."""

    n: int
    start: int
    dtype: str


@dataclass(frozen=True, slots=True, eq=False)
class MultiDiscreteSpec:
    """An array of Discrete values: ``nvec`` and ``start``, int64 of one shape."""

    nvec: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    dtype: str


@dataclass(frozen=True, slots=True)
class MultiBinarySpec:
    """An int8 array of zeros and ones."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TextSpec:
    """Strings of ``min_length`` to ``max_length`` characters of ``charset``."""

    min_length: int
    max_length: int
    charset: str


@dataclass(frozen=True, slots=True)
class DictSpec:
    """Named spaces, in declared order."""

    spaces: Mapping[str, SpaceSpec]


@dataclass(frozen=True, slots=True)
class TupleSpec:
    """Numbered spaces."""

    spaces: tuple[SpaceSpec, ...]


SpaceSpec: TypeAlias = (
    BoxSpec | DiscreteSpec | MultiDiscreteSpec | MultiBinarySpec | TextSpec | DictSpec | TupleSpec
)


@dataclass(frozen=True, slots=True)
class SpaceDeclaration:
    """What a client says of its envs.

    Attributes:
        env_id: The registered id, or None if it has none.
        num_envs: How many envs the client steps.
        autoreset: One of :data:`AUTORESET_MODES`.
        observation: The space of a single env's observation.
        action: The space of a single env's action.
        mode: ``"train"``, or ``"eval"`` for deterministic actions that nothing is learned from.
    """

    env_id: str | None
    num_envs: int
    autoreset: str
    observation: SpaceSpec
    action: SpaceSpec
    mode: str = "train"

    def to_wire(self) -> dict[str, Any]:
        """The map for ``infer.spaces``."""
        value = {
            "env_id": self.env_id,
            "num_envs": self.num_envs,
            "autoreset": self.autoreset,
            "observation": space_to_wire(self.observation),
            "action": space_to_wire(self.action),
        }
        return value if self.mode == "train" else {**value, "mode": self.mode}

    @classmethod
    def from_wire(cls, value: object) -> SpaceDeclaration:
        """Validate a received declaration.

        Raises:
            RemoteProtocolError: Naming the place, as ``infer.spaces.observation.low``.
        """
        where = "infer.spaces"
        data = require_map(value, where)
        keys = frozenset({"env_id", "num_envs", "autoreset", "observation", "action"})
        require_keys(data, keys, where, exact=False)
        env_id = data["env_id"]
        if env_id is not None and not isinstance(env_id, str):
            raise RemoteProtocolError(
                f"{where}.env_id: expected str or nil, got {describe(env_id)}"
            )
        return cls(
            env_id=env_id,
            num_envs=_integer(data["num_envs"], f"{where}.num_envs", 1),
            autoreset=_one_of(data["autoreset"], f"{where}.autoreset", AUTORESET_MODES),
            observation=space_from_wire(data["observation"], f"{where}.observation"),
            action=space_from_wire(data["action"], f"{where}.action"),
            mode=_one_of(data.get("mode", "train"), f"{where}.mode", MODES),
        )


def space_to_wire(space: SpaceSpec) -> dict[str, Any]:
    """The description of one space as it travels."""
    match space:
        case BoxSpec(low, high):
            return {
                "type": "Box",
                "shape": list(low.shape),
                "dtype": low.dtype.str,
                "low": low,
                "high": high,
            }
        case DiscreteSpec(n, start, dtype):
            return {"type": "Discrete", "n": n, "start": start, "dtype": dtype}
        case MultiDiscreteSpec(nvec, start, dtype):
            return {"type": "MultiDiscrete", "nvec": nvec, "start": start, "dtype": dtype}
        case MultiBinarySpec(shape):
            return {"type": "MultiBinary", "shape": list(shape)}
        case TextSpec(low, high, charset):
            return {"type": "Text", "min_length": low, "max_length": high, "charset": charset}
        case DictSpec(spaces):
            return {"type": "Dict", "spaces": {k: space_to_wire(s) for k, s in spaces.items()}}
        case TupleSpec(parts):
            return {"type": "Tuple", "spaces": [space_to_wire(s) for s in parts]}


def space_from_wire(value: object, where: str) -> SpaceSpec:
    """Validate the description of one space.

    Raises:
        RemoteProtocolError: Naming the place below ``where``.
    """
    try:
        return _read(value, 0)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"{where}{error}") from None


# The readers' errors begin with the path below the space at hand, and each level puts its own
# part before it: a path is built only once there is something to say.


def _read(value: object, depth: int) -> SpaceSpec:
    if depth > _MAX_DEPTH:
        raise RemoteProtocolError(f": nested more than {_MAX_DEPTH} deep")
    data = require_map(value, "")
    name = data.get("type")
    reader = _READERS.get(name) if isinstance(name, str) else None
    if reader is None:
        raise RemoteProtocolError(
            f".type: expected one of {', '.join(_READERS)}, got {describe(name)}"
        )
    space: SpaceSpec = reader(data, depth)
    return space


def _nested(place: str, value: object, depth: int) -> SpaceSpec:
    try:
        return _read(value, depth + 1)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f".spaces{place}{error}") from None


def _dict(data: dict[str, Any], depth: int) -> DictSpec:
    spaces = require_map(data.get("spaces"), ".spaces")
    return DictSpec({key: _nested(f".{shown(key)}", s, depth) for key, s in spaces.items()})


def _tuple(data: dict[str, Any], depth: int) -> TupleSpec:
    spaces = data.get("spaces")
    if not isinstance(spaces, list):
        raise RemoteProtocolError(f".spaces: expected a list, got {describe(spaces)}")
    return TupleSpec(tuple(_nested(f"[{i}]", space, depth) for i, space in enumerate(spaces)))


def _box(data: dict[str, Any], depth: int) -> BoxSpec:
    require_keys(data, frozenset({"shape", "dtype", "low", "high"}), "", exact=False)
    shape = _shape(data["shape"])
    low = _bound(data["low"], "low", shape, data["dtype"])
    high = _bound(data["high"], "high", shape, data["dtype"])
    # A comparison with NaN is false; a bound of inf below or -inf above leaves no finite number.
    if not ((low <= high) & (low < np.inf) & (high > -np.inf)).all():
        raise RemoteProtocolError(": no finite number lies between a lower and its upper bound")
    return BoxSpec(low, high)


def _bound(array: object, key: str, shape: tuple[int, ...], typestr: object) -> npt.NDArray[Any]:
    if (
        not isinstance(array, np.ndarray)
        or array.shape != shape
        or array.dtype.kind not in "buif"
        or not isinstance(typestr, str)
        or array.dtype.str[1:] != typestr[1:]
    ):
        raise RemoteProtocolError(
            f".{key}: expected an array of dtype {describe(typestr)} and shape {list(shape)}, "
            f"got {describe(array)}"
        )
    return array


def _discrete(data: dict[str, Any], depth: int) -> DiscreteSpec:
    require_keys(data, frozenset({"n"}), "", exact=False)
    n = _integer(data["n"], ".n", 1)
    start = _integer(data.get("start", 0), ".start", None)
    typestr, least, greatest = _integer_dtype(data)
    if not (least <= start and n <= greatest and start + n - 1 <= greatest):
        raise RemoteProtocolError(f": {n} values from {start} do not fit the dtype {typestr}")
    return DiscreteSpec(n, start, typestr)


def _multi_discrete(data: dict[str, Any], depth: int) -> MultiDiscreteSpec:
    require_keys(data, frozenset({"nvec"}), "", exact=False)
    nvec = _integers(data["nvec"], ".nvec")
    start = _integers(data["start"], ".start") if "start" in data else np.zeros_like(nvec)
    if nvec.shape != start.shape or nvec.size == 0 or nvec.min() < 1:
        raise RemoteProtocolError(
            f": nvec must be positive and start of the same shape, got {list(nvec.shape)} and "
            f"{list(start.shape)}"
        )
    typestr, least, greatest = _integer_dtype(data)
    greatest = min(greatest, _MAX_INT)
    if start.min() < least or nvec.max() > greatest or (start > greatest - (nvec - 1)).any():
        raise RemoteProtocolError(f": a value does not fit the dtype {typestr}")
    return MultiDiscreteSpec(nvec, start, typestr)


def _integers(array: object, where: str) -> npt.NDArray[np.int64]:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu" or array.ndim < 1:
        raise RemoteProtocolError(f"{where}: expected int64 [k], got {describe(array)}")
    if array.dtype.kind == "u" and array.size and array.max() > _MAX_INT:
        raise RemoteProtocolError(f"{where}: {array.max()} takes more than 63 bits")
    return array.astype(np.int64)


def _multi_binary(data: dict[str, Any], depth: int) -> MultiBinarySpec:
    require_keys(data, frozenset({"shape"}), "", exact=False)
    shape = _shape(data["shape"])
    if 0 in shape:
        raise RemoteProtocolError(".shape: expected at least one element")
    return MultiBinarySpec(shape)


def _text(data: dict[str, Any], depth: int) -> TextSpec:
    require_keys(data, frozenset({"max_length", "charset"}), "", exact=False)
    charset = data["charset"]
    if not isinstance(charset, str):
        raise RemoteProtocolError(f".charset: expected str, got {describe(charset)}")
    longest = _integer(data["max_length"], ".max_length", 1)
    shortest = _integer(data.get("min_length", 0), ".min_length", 0)
    if shortest > longest:
        raise RemoteProtocolError(f": min_length {shortest} exceeds max_length {longest}")
    return TextSpec(shortest, longest, charset)


_READERS: Final[Mapping[str, Any]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
    "Text": _text,
    "Dict": _dict,
    "Tuple": _tuple,
}


def _integer(value: object, where: str, least: int | None) -> int:
    value = plain(value)
    if type(value) is not int or (least is not None and value < least):
        bound = "an int" if least is None else f"an int of at least {least}"
        raise RemoteProtocolError(f"{where}: expected {bound}, got {describe(value)}")
    if value > _MAX_INT:
        raise RemoteProtocolError(f"{where}: {value} takes more than 63 bits")
    return value


def _one_of(value: object, where: str, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise RemoteProtocolError(
            f"{where}: expected one of {', '.join(allowed)}, got {describe(value)}"
        )
    return value


def _integer_dtype(data: dict[str, Any]) -> tuple[str, int, int]:
    """The typestr of a space of integers, with the dtype's least and greatest number."""
    typestr = data.get("dtype", "<i8")
    if not isinstance(typestr, str) or typestr not in _INT_TYPESTRS:
        raise RemoteProtocolError(f".dtype: expected an integer typestr, got {describe(typestr)}")
    info = np.iinfo(np.dtype(typestr))
    return typestr, int(info.min), int(info.max)


def _shape(value: object) -> tuple[int, ...]:
    if (
        not isinstance(value, list)
        or len(value) > 32
        or not all(type(size) is int and 0 <= size <= _MAX_INT for size in value)
    ):
        raise RemoteProtocolError(".shape: expected a list of at most 32 dimensions")
    return tuple(value)
