"""``gym-spaces`` in a client's first infer, and whether its observations travel as declared."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plugrl_gym.conformance.client_grader.messages import ObservationSeen, describe
from plugrl_gym.conformance.client_grader.witness import Witness

__all__ = ["Declaration", "Leaf", "Space", "read_declaration", "see_layout"]

Array = npt.NDArray[Any]

_TYPESTR: Final = re.compile(r"[<>|][bui]1|[<>](?:[ui][248]|f[248])")
_INTEGER: Final = re.compile(r"[<>|][ui]1|[<>][ui][248]")
_NUMBERS: Final = ("Discrete", "MultiDiscrete", "MultiBinary")
_MOST_DEPTH: Final = 32


@dataclass(frozen=True)
class Space:
    """A described space.

    Attributes:
        kind: Its type, as in the table of SPEC 9.3.6.
        shape: Of one value; empty for Discrete, Text and containers.
        dtype: Of one value; None for Text and containers.
        low, high: The bounds of a Box; for integers the first and the last value.
        max_length: Of a Text.
        parts: Key -> space of a Dict or Tuple.
    """

    kind: str
    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] | None = None
    low: Array | None = None
    high: Array | None = None
    max_length: int = 0
    parts: dict[str, Space] = field(default_factory=dict)

    @property
    def is_discrete(self) -> bool:
        """Whether its values are whole numbers of a finite set."""
        return self.kind in _NUMBERS

    def chunk(self, rows: int, horizon: int) -> Array:
        """Actions that this space holds: [H, n, *shape], in its dtype."""
        assert self.low is not None
        assert self.high is not None
        if self.kind == "Box":
            middle = np.clip(np.zeros(self.shape, self.dtype), self.low, self.high)
            return np.broadcast_to(middle, (horizon, rows, *self.shape)).copy()
        numbers = np.arange(horizon)[:, None] + np.arange(rows)[None, :]
        numbers = numbers.reshape(horizon, rows, *(1 for _ in self.shape))
        chunk: Array = (self.low + numbers % (self.high - self.low + 1)).astype(self.dtype)
        return chunk


@dataclass(frozen=True)
class Leaf:
    """A part of an observation that is no container.

    Attributes:
        keys: From the root; the whole observation has none.
        numbered: Whether one of them is a position in a Tuple.
        space: What it holds.
    """

    keys: tuple[str, ...]
    numbered: bool
    space: Space

    @property
    def name(self) -> str:
        """The name on the wire (SPEC 9.3.14, 9.3.15)."""
        return "/".join(k.replace("~", "~0").replace("/", "~1") for k in self.keys) or "obs"

    @property
    def plain_name(self) -> str:
        """The name without escapes."""
        return "/".join(self.keys) or "obs"

    @property
    def is_image(self) -> bool:
        """Whether it travels as an image (SPEC 9.3.17)."""
        s = self.space
        if s.kind != "Box" or s.dtype != np.dtype("u1") or len(s.shape) not in (2, 3, 4):
            return False
        assert s.low is not None
        assert s.high is not None
        return bool((s.low == 0).all() and (s.high == 255).all())


@dataclass(frozen=True)
class Declaration:
    """What a client says of its envs.

    Attributes:
        num_envs: How many it has.
        observation, action: Of one env.
    """

    num_envs: int
    observation: Space
    action: Space

    @property
    def leaves(self) -> list[Leaf]:
        """The observation's leaves in declared order, depth first."""
        return list(_leaves(self.observation, (), False))


def _leaves(space: Space, keys: tuple[str, ...], numbered: bool) -> Iterator[Leaf]:
    if space.kind not in ("Dict", "Tuple"):
        yield Leaf(keys, numbered, space)
        return
    for key, part in space.parts.items():
        yield from _leaves(part, (*keys, key), numbered or space.kind == "Tuple")


# ---------------------------------------------------------------- the declaration


def read_declaration(witness: Witness, value: object) -> Declaration | None:
    """Check ``spaces``; None if it cannot be used."""
    data = value if isinstance(value, dict) else {}
    types = {
        "env_id": isinstance(data.get("env_id", 0), str | None),
        "num_envs": type(data.get("num_envs")) is int and data["num_envs"] > 0,
        "autoreset": _is_one_of(data.get("autoreset"), ("next-step", "same-step", "disabled")),
        "observation": isinstance(data.get("observation"), dict),
        "action": isinstance(data.get("action"), dict),
        "mode": _is_one_of(data.get("mode", "train"), ("train", "eval")),
    }
    odd = [key for key, ok in types.items() if not ok]
    got = {key: data.get(key, "(absent)") for key in odd} if data else describe(value)
    if not witness.see("9.3.3", not odd, "spaces: the keys and types of 9.3", got):
        return None
    observation = _space(witness, data["observation"], "spaces.observation", 0)
    action = _space(witness, data["action"], "spaces.action", 0)
    if observation is None or action is None:
        return None
    fits = action.kind in ("Box", *_NUMBERS)
    if not witness.see("6.4.20", fits, "Box, Discrete, MultiDiscrete or MultiBinary", action.kind):
        return None
    return Declaration(data["num_envs"], observation, action)


def _space(witness: Witness, value: object, where: str, depth: int) -> Space | None:
    data = value if isinstance(value, dict) else {}
    reader = _READERS.get(str(data.get("type")))
    if reader is None or depth > _MOST_DEPTH:
        kinds = ", ".join(_READERS)
        witness.see("9.3.6", False, f"{where}.type: one of {kinds}", data.get("type", value))
        return None
    space: Space | None = reader(witness, data, where, depth)
    return space


def _as_described(witness: Witness, ok: bool, data: dict[str, Any], where: str) -> bool:
    return witness.see("9.3.6", ok, f"{where}: a {data['type']} as in the table", data)


def _is_one_of(value: object, words: tuple[str, ...]) -> bool:
    return isinstance(value, str) and value in words


def _is_int(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_shape(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= 32
        and all(type(size) is int and size >= 0 for size in value)
        and math.prod(value) < 2**31
    )


def _box(witness: Witness, data: dict[str, Any], where: str, depth: int) -> Space | None:
    typestr = data.get("dtype")
    ok = isinstance(typestr, str) and _TYPESTR.fullmatch(typestr) is not None
    ok = ok and _is_shape(data.get("shape")) and "low" in data and "high" in data
    if not _as_described(witness, ok, data, where):
        return None
    shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
    bounds = (data["low"], data["high"])
    full = all(isinstance(b, np.ndarray) and b.shape == shape and b.dtype == dtype for b in bounds)
    expected = f"{where}: low and high {dtype.str} {list(shape)}"
    if not witness.see("9.3.7", full, expected, [describe(bound) for bound in bounds]):
        return None
    return Space("Box", shape, dtype, *bounds)


def _discrete(witness: Witness, data: dict[str, Any], where: str, depth: int) -> Space | None:
    ok = _is_int(data.get("n")) and _is_int(data.get("start")) and data["n"] > 0
    ok = ok and _INTEGER.fullmatch(str(data.get("dtype"))) is not None
    if not _as_described(witness, ok, data, where):
        return None
    low = np.array(data["start"], dtype=np.int64)
    return Space("Discrete", (), np.dtype(data["dtype"]), low, low + data["n"] - 1)


def _multi_discrete(witness: Witness, data: dict[str, Any], where: str, depth: int) -> Space | None:
    nvec, start = data.get("nvec"), data.get("start")
    ok = all(isinstance(a, np.ndarray) and a.dtype.str[1:] == "i8" for a in (nvec, start))
    ok = ok and _INTEGER.fullmatch(str(data.get("dtype"))) is not None
    if not _as_described(witness, ok, data, where):
        return None
    assert isinstance(nvec, np.ndarray)
    assert isinstance(start, np.ndarray)
    alike = nvec.shape == start.shape
    if not witness.see("9.3.8", alike, f"{where}: one shape", [nvec.shape, start.shape]):
        return None
    dtype = np.dtype(data["dtype"])
    return Space("MultiDiscrete", nvec.shape, dtype, start, start + nvec - 1)


def _multi_binary(witness: Witness, data: dict[str, Any], where: str, depth: int) -> Space | None:
    if not _as_described(witness, _is_shape(data.get("shape")), data, where):
        return None
    zeros = np.zeros(tuple(data["shape"]), dtype=np.int8)
    return Space("MultiBinary", zeros.shape, zeros.dtype, zeros, zeros + 1)


def _text(witness: Witness, data: dict[str, Any], where: str, depth: int) -> Space | None:
    lengths = (data.get("min_length"), data.get("max_length"))
    ok = all(_is_int(n) for n in lengths) and isinstance(data.get("charset"), str)
    ok = ok and 0 <= data["min_length"] <= data["max_length"]
    if not _as_described(witness, ok, data, where):
        return None
    return Space("Text", max_length=data["max_length"])


def _dict(witness: Witness, data: dict[str, Any], where: str, depth: int) -> Space | None:
    spaces = data.get("spaces")
    if not _as_described(witness, isinstance(spaces, dict), data, where):
        return None
    assert isinstance(spaces, dict)
    return _container(witness, "Dict", spaces, where, depth)


def _tuple(witness: Witness, data: dict[str, Any], where: str, depth: int) -> Space | None:
    spaces = data.get("spaces")
    if not _as_described(witness, isinstance(spaces, list), data, where):
        return None
    assert isinstance(spaces, list)
    numbered = {str(number): space for number, space in enumerate(spaces)}
    return _container(witness, "Tuple", numbered, where, depth)


def _container(
    witness: Witness, kind: str, spaces: dict[str, Any], where: str, depth: int
) -> Space | None:
    parts = {}
    for key, value in spaces.items():
        part = _space(witness, value, f"{where}.{key}", depth + 1)
        if part is None:
            return None
        parts[key] = part
    return Space(kind, parts=parts)


_READERS: Final[dict[str, Any]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
    "Text": _text,
    "Dict": _dict,
    "Tuple": _tuple,
}


# ---------------------------------------------------------------- the layout


def see_layout(witness: Witness, declared: Declaration, sent: ObservationSeen) -> None:
    """Check that an observation travels as its declared space says (SPEC 9.3.14 to 9.3.26)."""
    leaves = declared.leaves
    texts = [leaf for leaf in leaves if leaf.space.kind == "Text"]
    for leaf in leaves:
        if texts and leaf is texts[0]:
            stray = leaf.name in sent.states or leaf.plain_name in sent.states
            got = "a state" if stray else "text"
            witness.see("9.3.24", not stray, f"the Text {leaf.name} in text", got)
        elif leaf.space.kind == "Text":
            _see_further_text(witness, leaf, sent)
        elif leaf.is_image:
            if _see_name(witness, leaf, sent, "images"):
                _see_image(witness, leaf, sent.images[leaf.name].shape[1:])
        elif _see_name(witness, leaf, sent, "states"):
            _see_state(witness, leaf, sent.states[leaf.name], declared.num_envs)
    if not texts:
        lines = [line for line in sent.text if line]
        witness.see("9.3.26", not lines, "empty strings, for no Text is declared", lines[:4])


def _see_name(witness: Witness, leaf: Leaf, sent: ObservationSeen, part: str) -> bool:
    """Whether a leaf is where it belongs, under its name."""
    right, wrong = sent.images, sent.states
    if part == "states":
        right, wrong = wrong, right
    got = {"images": sorted(sent.images), "states": sorted(sent.states)}
    if leaf.space.kind == "Box" and (leaf.name in right or leaf.name in wrong):
        witness.see("9.3.17", leaf.name in right, f"{part}.{leaf.name}", got)
    elif leaf.name in wrong:
        witness.see("9.3.22", False, f"{part}.{leaf.name}", got)
    if leaf.name in wrong and leaf.name not in right:
        return False
    escaped = leaf.name != leaf.plain_name
    clause = "9.3.15" if escaped else "9.3.16" if leaf.numbered else "9.3.14"
    if escaped and leaf.plain_name not in right:
        clause = clause if leaf.name in right else "9.3.14"
    return witness.see(clause, leaf.name in right, f"{part}.{leaf.name}", got)


def _see_image(witness: Witness, leaf: Leaf, row: tuple[int, ...]) -> None:
    shape = leaf.space.shape
    if len(shape) == 2:
        witness.see("9.3.18", row == (*shape, 1), f"{leaf.name}: [n, {shape}, 1]", row)
    elif len(shape) == 3:
        first = _channels_first(shape)
        expected = _turned(shape) if first else shape
        ok = row == expected
        if first and (ok or row == shape):
            witness.see("9.3.20", ok, f"{leaf.name}: {expected}, its channels come first", row)
        if ok or row != shape:
            # Another axis was taken for the channels.
            witness.see("9.3.19", ok, f"{leaf.name}: {expected} of {shape}", row)
    else:
        single = _turned(shape[1:]) if _channels_first(shape[1:]) else shape[1:]
        expected = (*single[:2], single[2] * shape[0])
        witness.see("9.3.21", row == expected, f"{leaf.name}: {expected} of {shape}", row)


def _channels_first(shape: tuple[int, ...]) -> bool:
    """The channel axis by 9.3.19: the last if it has 1, 3 or 4; else the first if smaller."""
    return shape[2] not in (1, 3, 4) and shape[0] < shape[2]


def _turned(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[1:], shape[0])


def _see_state(witness: Witness, leaf: Leaf, array: Array, num_envs: int) -> None:
    space = leaf.space
    width, got = math.prod(space.shape), array.shape[1]
    batched = num_envs > 1 and width == got * num_envs and space.shape[:1] == (num_envs,)
    if batched:
        expected = f"{leaf.name}: the space of one env; {got} numbers are sent of each"
        witness.see("9.3.5", False, expected, f"shape {list(space.shape)}")
        return
    witness.see("9.3.5", True)
    witness.see("9.3.22", got == width, f"{leaf.name}: {width} numbers", got)
    assert space.dtype is not None
    travels = np.dtype("u1") if space.dtype.kind == "b" else space.dtype
    same = array.dtype.newbyteorder("=") == travels.newbyteorder("=")
    witness.see("9.3.23", same, f"{leaf.name}: {travels.name}", array.dtype.name)


def _see_further_text(witness: Witness, leaf: Leaf, sent: ObservationSeen) -> None:
    array = sent.states.get(leaf.name)
    expected = f"states.{leaf.name}: uint32 [n, {leaf.space.max_length}]"
    ok = array is not None and array.dtype.str[1:] == "u4"
    ok = ok and array.shape[1] == leaf.space.max_length  # type: ignore[union-attr]
    witness.see("9.3.25", ok, expected, "absent" if array is None else describe(array))
