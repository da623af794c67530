"""Which part of an observation travels where: images, states, text (SPEC 9.3).

| leaf of the space                                | on the wire                          |
|--------------------------------------------------|--------------------------------------|
| Box uint8 with bounds 0..255, 2 to 4 dimensions  | ``images[path]`` uint8 [n, h, w, c]  |
| any other Box                                    | ``states[path]`` [n, d], own dtype   |
| Discrete                                         | ``states[path]`` [n, 1], own dtype   |
| MultiDiscrete, MultiBinary                       | ``states[path]`` [n, d], own dtype   |
| the first Text                                   | ``text`` n strings                   |
| every further Text                               | ``states[path]`` uint32 [n, length]  |

``path`` joins the keys from the root by "/"; an observation that is a leaf itself is "obs".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from plugrl_gym.errors import LocalProtocolError, RemoteProtocolError, UnsupportedSpace, UsageError
from plugrl_gym.protocol import Observation, check_encodable
from plugrl_gym.protocol.arrays import wire_dtype
from plugrl_gym.protocol.fields import shown
from plugrl_gym.spaces.casting import lost
from plugrl_gym.spaces.description import MOST_LEAVES
from plugrl_gym.spaces.images import image_from_wire, image_to_wire, is_image, wire_shape

__all__ = ["Leaf", "ObservationLayout", "select_row"]

_Array = npt.NDArray[Any]

_LONGEST_NAME: Final = 1024
_LONGEST_CODES: Final = 2**16


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of an observation space and its place on the wire.

    Attributes:
        path: Its name on the wire.
        keys: How to reach it: a str for each Dict, an int for each Tuple on the way.
        space: The leaf's own space.
        kind: ``"image"``, ``"state"``, ``"text"`` or ``"codes"`` (a further Text).
    """

    path: str
    keys: tuple[str | int, ...]
    space: spaces.Space[Any]
    kind: str

    def of(self, observation: Any) -> Any:
        """This leaf's part of an observation, single or batched."""
        for key in self.keys:
            observation = observation[key]
        return observation

    @property
    def policy_space(self) -> spaces.Space[Any]:
        """The leaf as a policy sees it: an image as (h, w, c), anything else as declared."""
        if self.kind != "image":
            return self.space
        return spaces.Box(0, 255, wire_shape(_shape(self.space)), np.uint8)

    @property
    def wire_shape(self) -> tuple[int, ...]:
        """The shape of one env's row on the wire; () for ``text``."""
        if self.kind == "text":
            return ()
        if self.kind == "image":
            return wire_shape(_shape(self.space))
        if isinstance(self.space, spaces.Text):
            return (self.space.max_length,)
        return (math.prod(_shape(self.space)),)


class ObservationLayout:
    """The mapping between one observation space and the wire.

    Args:
        space: The observation space of a single env.

    Raises:
        UnsupportedSpace: The space has no encoding.

    Example:
        >>> import numpy as np
        >>> from gymnasium import spaces
        >>> layout = ObservationLayout(spaces.Dict(speed=spaces.Box(-1, 1, (2,))))
        >>> layout.encode({"speed": np.zeros((3, 2), np.float32)}).states["speed"].shape
        (3, 2)
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.space = space
        self.leaves: tuple[Leaf, ...] = _find_leaves(space)

    @property
    def policy_space(self) -> spaces.Space[Any]:
        """The space of what :meth:`decode` returns: one leaf, or a flat Dict of leaves."""
        if self.leaves[0].keys == ():
            return self.leaves[0].policy_space
        # Pairs, because a dict would be sorted.
        return spaces.Dict([(leaf.path, leaf.policy_space) for leaf in self.leaves])

    def encode(self, batch: Any) -> Observation:
        """Copy a vector env's batched observation, each leaf [n, ...], into wire form.

        Raises:
            UsageError: The env's observation does not fit its own space.
        """
        images: dict[str, _Array] = {}
        states: dict[str, _Array] = {}
        text: list[str] | None = None
        rows: int | None = None
        for leaf in self.leaves:
            part = _part(leaf, batch)
            if leaf.kind == "image":
                images[leaf.path] = image_to_wire(_numbers(leaf, part))
            elif leaf.kind == "state":
                states[leaf.path] = _state_to_wire(leaf, part)
            elif leaf.kind == "text":
                text = _lines(leaf, part)
            else:
                states[leaf.path] = _codes_to_wire(leaf, part)
            if rows not in (None, len(part)):
                raise UsageError(
                    f"the observation {leaf.path!r} has {len(part)} rows, another leaf {rows}"
                )
            rows = len(part)
        return Observation(images, states, [""] * (rows or 0) if text is None else text)

    def encode_one(self, single: Any) -> Observation:
        """Copy one env's observation, as an observation of one row."""
        return self.encode(_add_axis(self.space, single))

    def decode(self, observation: Observation, where: str = "observation") -> Any:
        """Turn a received observation back, each leaf [n, ...] in its own dtype (copies).

        Returns:
            One array for an observation that is a leaf, else a dict path -> array (text: list).

        Raises:
            RemoteProtocolError: A leaf is missing or does not fit the declared space.
        """
        parts = {leaf.path: _decode_leaf(leaf, observation, where) for leaf in self.leaves}
        return parts["obs"] if self.leaves[0].keys == () else parts

    def restore(self, observation: Observation, where: str = "observation") -> Any:
        """Turn a received observation back into what a vector env would hand out (copies).

        Returns:
            The declared structure of dicts and tuples; of each leaf an array [n, *shape], of a
            Text a tuple of n str. The inverse of :meth:`encode`.

        Raises:
            RemoteProtocolError: A leaf is missing or does not fit the declared space.
        """
        parts = {leaf.keys: _restore_leaf(leaf, observation, where) for leaf in self.leaves}
        return _nest(self.space, (), parts)


def _restore_leaf(leaf: Leaf, observation: Observation, where: str) -> Any:
    part = _decode_leaf(leaf, observation, where)
    if leaf.kind == "image":
        return image_from_wire(part, _shape(leaf.space))
    return tuple(part) if isinstance(part, list) else part


def _nest(
    space: spaces.Space[Any],
    keys: tuple[str | int, ...],
    parts: Mapping[tuple[str | int, ...], Any],
) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _nest(part, (*keys, key), parts) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nest(part, (*keys, i), parts) for i, part in enumerate(space.spaces))
    return parts[keys]


def _find_leaves(space: spaces.Space[Any]) -> tuple[Leaf, ...]:
    found: list[Leaf] = []
    seen_text = False
    for keys, part in _walk(space, ()):
        path = "/".join(str(k).replace("~", "~0").replace("/", "~1") for k in keys)
        kind = _kind(part, path, seen_text)
        seen_text |= kind == "text"
        found.append(Leaf(path if keys else "obs", keys, part, kind))
        _check_leaf(found[-1])
        if len(found) > MOST_LEAVES:
            raise UnsupportedSpace(f"the observation has more than {MOST_LEAVES} leaves")
    if not found:
        raise UnsupportedSpace("the observation space has no leaf: nothing would be observed")
    return tuple(found)


def _walk(
    space: spaces.Space[Any], keys: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], spaces.Space[Any]]]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            if not isinstance(key, str):
                raise UnsupportedSpace(f"the observation's key {key!r} is no str; rename it")
            yield from _walk(part, (*keys, key))
    elif isinstance(space, spaces.Tuple):
        for number, part in enumerate(space.spaces):
            yield from _walk(part, (*keys, number))
    else:
        yield keys, space


def _kind(space: spaces.Space[Any], path: str, seen_text: bool) -> str:
    if isinstance(space, spaces.Text):
        return "codes" if seen_text else "text"
    if isinstance(space, spaces.Box):
        return "image" if is_image(space) else "state"
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return "state"
    where = f"the observation {path!r}" if path else "the observation"
    raise UnsupportedSpace(
        f"{where} is a {type(space).__name__} space, which has no encoding on the wire; flatten "
        "or pad it to a Box below the wrapper, e.g. with gymnasium.wrappers.TransformObservation"
    )


def _check_leaf(leaf: Leaf) -> None:
    if len(leaf.path) > _LONGEST_NAME:
        raise UnsupportedSpace(
            f"the observation {leaf.path[:40]!r}... has a name of {len(leaf.path)} characters; "
            f"at most {_LONGEST_NAME} can travel"
        )
    try:
        check_encodable({leaf.path: None}, "the observation")
        if leaf.kind == "state":
            wire_dtype(np.dtype(leaf.space.dtype))
    except LocalProtocolError as error:
        raise UnsupportedSpace(f"the observation {leaf.path!r}: {error}") from None
    if leaf.kind == "codes" and leaf.wire_shape[0] > _LONGEST_CODES:
        raise UnsupportedSpace(
            f"the observation {leaf.path!r} is a further Text and would travel as "
            f"{leaf.wire_shape[0]} numbers for each env; at most {_LONGEST_CODES} can: set a "
            "smaller max_length"
        )


def _part(leaf: Leaf, batch: Any) -> Any:
    try:
        part = leaf.of(batch)
        len(part)
    except (TypeError, KeyError, IndexError):
        raise UsageError(
            f"the env's observation has no batch {leaf.path!r}, which its space declares; got a "
            f"{type(batch).__name__}"
        ) from None
    return part


def _numbers(leaf: Leaf, part: Any) -> _Array:
    """The leaf's batch [n, *shape] in its own dtype; may share the env's memory."""
    dtype = np.dtype(leaf.space.dtype)
    try:
        array = np.asarray(part)
        if array.dtype.kind == "O":
            array = np.array([np.asarray(row) for row in part])
    except (TypeError, ValueError):  # rows of different shapes
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "buif" or array.shape[1:] != _shape(leaf.space):
        expected = ", ".join(["n", *map(str, _shape(leaf.space))])
        got = f"{array.dtype} {list(array.shape)}" if array.dtype.kind != "O" else "mixed rows"
        raise UsageError(
            f"the env's observation {leaf.path!r} does not fit its space: expected {dtype} "
            f"[{expected}], got {got}"
        )
    if dtype.kind != "f":
        bad = lost(array, dtype)
        if bad is not None and bad.any():
            env = int(np.nonzero(bad)[0][0])
            raise UsageError(
                f"the env's observation {leaf.path!r} does not fit its space: {array[bad][0]} of "
                f"env {env} is no {dtype}"
            )
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):  # what becomes infinite is refused where it is sent
        return array.astype(dtype)


def _state_to_wire(leaf: Leaf, part: Any) -> _Array:
    array = np.array(_numbers(leaf, part), order="C")
    wrong = _no_index(leaf, array, "of env")
    if wrong is not None:
        raise UsageError(f"the env's observation {leaf.path!r} does not fit its space: {wrong}")
    if array.dtype.kind == "b":
        array = array.view(np.uint8)
    return array.reshape(len(array), *leaf.wire_shape)


def _lines(leaf: Leaf, part: Sequence[Any]) -> list[str]:
    lines = list(part)
    for env, line in enumerate(lines):
        if not isinstance(line, str):
            raise UsageError(
                f"the env's observation {leaf.path!r}: expected a str for env {env}, got a "
                f"{type(line).__name__}"
            )
    return [str(line) for line in lines]  # of np.str_ too


def _codes_to_wire(leaf: Leaf, part: Sequence[Any]) -> _Array:
    lines = _lines(leaf, part)
    codes = np.zeros((len(lines), *leaf.wire_shape), dtype=np.uint32)
    for env, line in enumerate(lines):
        if len(line) > codes.shape[1] or line.endswith("\0"):
            raise UsageError(
                f"the env's observation {leaf.path!r} of env {env}: expected at most "
                f"{codes.shape[1]} characters, the last no NUL, got {len(line)}"
            )
        codes[env, : len(line)] = [ord(letter) for letter in line]
    return codes


def _decode_leaf(leaf: Leaf, observation: Observation, where: str) -> Any:
    if leaf.kind == "text":
        return list(observation.text)
    group = observation.images if leaf.kind == "image" else observation.states
    name = f"{where}.{'images' if leaf.kind == 'image' else 'states'}.{shown(leaf.path)}"
    array = _pick(group, leaf, name)
    if leaf.kind == "image":
        return array.copy()
    if leaf.kind == "codes":
        return _codes_from_wire(_cast(array, np.dtype(np.uint32), name), name)
    dtype = np.dtype(leaf.space.dtype).newbyteorder("=")
    part = _cast(array, dtype, name).reshape(len(array), *_shape(leaf.space))
    wrong = _no_index(leaf, part, "in row")
    if wrong is not None:
        raise RemoteProtocolError(f"{name}: {wrong}")
    return part


def _no_index(leaf: Leaf, part: _Array, of: str) -> str | None:
    """Where [n, *shape] holds an index that is none; whoever looks it up would fail.

    A Box is another matter: many envs leave the bounds that they declare, and nothing breaks.
    """
    space = leaf.space
    if isinstance(space, spaces.Discrete):
        beyond: Any = int(space.start) + int(space.n)
    elif isinstance(space, spaces.MultiDiscrete):
        beyond = space.start.astype(np.int64) + space.nvec
    else:
        return None
    outside = (part < space.start) | (part >= beyond)
    if not outside.any():
        return None
    among = " ".join(str(space).split())[:80]
    return f"{part[outside][0]} {of} {np.nonzero(outside)[0][0]} lies outside {among}"


def _pick(group: Mapping[str, _Array], leaf: Leaf, name: str) -> _Array:
    shape = leaf.wire_shape
    if leaf.path not in group:
        raise RemoteProtocolError(
            f"{name}: missing; expected [n, {', '.join(map(str, shape))}]; got "
            f"{', '.join(shown(key) for key in sorted(group)[:8]) or 'no key at all'}"
        )
    array = group[leaf.path]
    if array.shape[1:] != shape:
        raise RemoteProtocolError(
            f"{name}: expected shape {[len(array), *shape]}, got {list(array.shape)}"
        )
    return array


def _cast(array: _Array, dtype: np.dtype[Any], name: str) -> _Array:
    """A copy in ``dtype``: v1 clients send float64 for anything."""
    bad = lost(array, dtype)
    if bad is not None and bad.any():
        row = int(np.nonzero(bad)[0][0])
        raise RemoteProtocolError(f"{name}: {array[bad][0]} in row {row} is no {dtype}")
    return np.array(array, dtype=dtype, order="C")


def _codes_from_wire(codes: _Array, name: str) -> list[str]:
    try:
        lines = [row.astype("<u4").tobytes().decode("utf-32-le") for row in codes]
    except UnicodeDecodeError:
        raise RemoteProtocolError(f"{name}: holds numbers that are no code points") from None
    return [line.rstrip("\0") for line in lines]


def _shape(space: spaces.Space[Any]) -> tuple[int, ...]:
    shape = space.shape
    assert shape is not None  # only Dict, Tuple and Text have none, and these never come here
    return tuple(shape)


def _add_axis(space: spaces.Space[Any], single: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _add_axis(part, single[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_add_axis(part, single[i]) for i, part in enumerate(space.spaces))
    if isinstance(space, spaces.Text):
        return [single]
    return np.asarray(single)[None]


def select_row(space: spaces.Space[Any], batch: Any, row: int) -> Any:
    """One env's observation out of a batched one, copied."""
    if isinstance(space, spaces.Dict):
        return {key: select_row(part, batch[key], row) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(select_row(part, batch[i], row) for i, part in enumerate(space.spaces))
    if isinstance(space, spaces.Text | spaces.Discrete):
        return batch[row]  # a str, or a numpy scalar as the env itself gives it
    return np.array(batch[row])
