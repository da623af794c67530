"""A received frame against sections 3 and 4 of SPEC.md, which bind both sides alike.

Unlike a receiver, which stops at the first error, an inspector goes on and names every clause
that the sender broke, with its place.

Example:
    >>> inspect(msgpack.packb({"message_type": "infr"})).faults[0].clause
    '3.3'
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np

from plugrl_gym.conformance.checks import Check, Severity, Subject
from plugrl_gym.conformance.report import Report

__all__ = ["Broken", "Fault", "Inspection", "frame_checks", "inspect", "observe_frame"]

MUST, SHOULD = Severity.VIOLATION, Severity.NOTE

_FRAME_RULES: Final = (
    ("3.1", MUST, "a frame is exactly one complete msgpack value"),
    ("3.2", MUST, "a message is a map with the key message_type"),
    ("3.3", MUST, "message_type is metadata, infer, action or feedback"),
    ("3.4", MUST, "every key outside arrays and scalars is a msgpack str"),
    ("3.6", SHOULD, "keys come in the customary order"),
    ("3.8", MUST, "no map names a key twice"),
    ("3.10", MUST, "every str is valid UTF-8"),
    ("3.11", MUST, "no msgpack extension type is sent"),
    ("3.13", MUST, "maps and arrays are nested at most 64 deep"),
)
_ARRAY_RULES: Final = (
    ("4.1", MUST, "an array has exactly the keys __ndarray__, data, dtype and shape"),
    ("4.2", MUST, "the keys of an array are msgpack bin, not str"),
    ("4.3", SHOULD, "the keys of an array come in the customary order"),
    ("4.5", MUST, "the value of __ndarray__ is true"),
    ("4.6", MUST, "the data of an array is a msgpack bin"),
    ("4.7", MUST, "the dtype of an array is a msgpack str"),
    ("4.8", MUST, "the shape of an array is a msgpack array of non-negative ints"),
    ("4.10", MUST, "the data of an array is as long as its shape and dtype say"),
    ("4.14", MUST, "a typestr has the form of numpy's, such as <f4"),
    ("4.15", MUST, "the byte order | is used with types of one byte only"),
    ("4.18", SHOULD, "arrays are little-endian"),
    ("4.19", MUST, "only bool, int, float and unicode arrays are sent"),
    ("4.36", MUST, "no map has a str key __ndarray__ or __npgeneric__"),
)
_BOOL_RULES: Final = (("4.22", MUST, "a bool is the byte 0 or 1"),)
_TEXT_RULES: Final = (("4.28", MUST, "unicode arrays hold valid code points only"),)
_SCALAR_RULES: Final = (
    ("4.30", MUST, "a typed scalar has exactly the bin keys __npgeneric__ (true), data and dtype"),
    ("4.31", MUST, "the value of a typed scalar fits its type"),
    ("4.32", MUST, "float64 and str scalars are sent as plain values"),
)

_ARRAY_KEYS: Final = (b"__ndarray__", b"data", b"dtype", b"shape")
_SCALAR_KEYS: Final = (b"__npgeneric__", b"data", b"dtype")
_STR_KEYS: Final = ("__ndarray__", "__npgeneric__")
_TYPESTR: Final = re.compile(r"[<>|](b1|[ui][1248]|f[248]|U(0|[1-9][0-9]{0,8}))")
_MAX_DEPTH: Final = 64

_ORDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "metadata": ("message_type", "data"),
    "infer": ("message_type", "data", "env_indices", "step_ids", "reuse", "spaces"),
    "action": ("message_type", "data"),
    "feedback": ("message_type", "env_indices", "step_ids", "data"),
    "action.data": ("env_ids", "action"),
    "infer.data": ("images", "states", "text"),
    "feedback.data": ("obs", "rewards", "terminated", "truncated", "info"),
    "feedback.data.obs": ("images", "states", "text"),
}


def frame_checks(subject: Subject) -> tuple[Check, ...]:
    """The checks that :func:`observe_frame` makes, for the table of ``subject``."""
    rules = (*_FRAME_RULES, *_ARRAY_RULES, *_BOOL_RULES, *_TEXT_RULES, *_SCALAR_RULES)
    return tuple(Check(clause, subject, severity, rule) for clause, severity, rule in rules)


class Fault(NamedTuple):
    """One breach: the clause, where in the message, what it asks for and what there is."""

    clause: str
    where: str
    expected: str
    got: object


@dataclass(frozen=True, slots=True)
class Broken:
    """Stands where a frame holds an array or scalar that cannot be read."""

    why: str

    def __str__(self) -> str:
        return f"an unreadable array ({self.why})"


@dataclass(slots=True)
class Inspection:
    """A frame, read as far as it can be.

    Attributes:
        value: Plain values, read-only numpy arrays, numpy scalars, and :class:`Broken`.
        faults: Every breach of sections 3 and 4.
        clauses: Every clause that the frame gave occasion to look at.
    """

    value: Any = None
    faults: list[Fault] = field(default_factory=list)
    clauses: set[str] = field(default_factory=set)

    @property
    def message_type(self) -> str | None:
        """The type of the message, if it has a known one."""
        kind = self.value.get("message_type") if isinstance(self.value, dict) else None
        return kind if isinstance(kind, str) and kind in _ORDERS else None

    @property
    def readable(self) -> bool:
        """Whether a receiver could take it for a message at all."""
        return self.message_type is not None


def observe_frame(report: Report, inspection: Inspection, *, scenario: str = "") -> None:
    """Record what was found in a frame; the report's table must hold :func:`frame_checks`."""
    broken = {fault.clause: fault for fault in reversed(inspection.faults)}
    for clause in inspection.clauses:
        fault = broken.get(clause)
        if fault is None:
            report.observe(clause, True)
        else:
            report.observe(
                clause,
                False,
                came=inspection.value,
                expected=fault.expected,
                got=f"{fault.where}: {_say(fault.got)}",
                scenario=scenario,
            )


def _say(got: object) -> str:
    return got if isinstance(got, str) else repr(got)[:120]


def inspect(frame: bytes) -> Inspection:
    """Read the payload of a binary frame and find every breach of sections 3 and 4."""
    return _Inspector().run(frame)


class _Map(list[tuple[Any, Any]]):
    """A map as it was on the wire: pairs, in order."""


class _Ext(NamedTuple):
    code: int
    data: bytes


class _Inspector:
    """One frame's inspection."""

    def __init__(self) -> None:
        self._found = Inspection()

    def run(self, frame: bytes) -> Inspection:
        found = self._found
        self._look(_FRAME_RULES)
        try:
            tree = _unpack(frame)
        except msgpack.ExtraData as error:
            self._fault("3.1", "the frame", "one value", f"{len(error.extra)} bytes after it")
            tree = error.unpacked
        except msgpack.StackError:
            self._fault("3.13", "the frame", f"at most {_MAX_DEPTH} levels", "far more")
            return self._without_message()
        except Exception as error:  # msgpack's own kinds, ValueError, TypeError, OverflowError
            why = str(error) or type(error).__name__
            self._fault("3.1", "the frame", "one complete msgpack value", f"{why}: {frame[:24]!r}")
            return self._without_message()
        found.value = self._walk(tree, "", 1)
        self._check_envelope(tree)
        return found

    def _without_message(self) -> Inspection:
        self._found.clauses -= {"3.2", "3.3", "3.6"}  # there is nothing to look at
        return self._found

    def _look(self, rules: Iterable[tuple[str, Severity, str]]) -> None:
        self._found.clauses.update(clause for clause, _, _ in rules)

    def _fault(self, clause: str, where: str, expected: str, got: object) -> None:
        self._found.clauses.add(clause)
        self._found.faults.append(Fault(clause, where or "the message", expected, got))

    # -- the envelope

    def _check_envelope(self, tree: object) -> None:
        value = self._found.value
        if not isinstance(value, dict) or "message_type" not in value:
            got = sorted(map(str, value))[:6] if isinstance(value, dict) else value
            self._fault("3.2", "", "a map with the key message_type", got)
            self._found.clauses -= {"3.3", "3.6"}
        elif self._found.message_type is None:
            expected = "metadata, infer, action or feedback"
            self._fault("3.3", "message_type", expected, value["message_type"])
            self._found.clauses.discard("3.6")
        else:
            self._check_order(tree, str(value["message_type"]))

    def _check_order(self, tree: object, where: str) -> None:
        order = _ORDERS.get(where)
        if order is None or not isinstance(tree, _Map):
            return
        keys = [key for key, _ in tree if key in order]
        if keys != sorted(keys, key=order.index):
            self._fault("3.6", where, f"the order {', '.join(order)}", ", ".join(keys))
        for key, item in tree:
            self._check_order(item, f"{where}.{key}")

    # -- values

    def _walk(self, value: object, where: str, depth: int) -> Any:
        if isinstance(value, _Map | list) and depth > _MAX_DEPTH:
            self._fault("3.13", where[:60], f"at most {_MAX_DEPTH} levels", "more")
            return Broken("nested too deep")
        if isinstance(value, _Map):
            return self._walk_map(value, where, depth)
        if isinstance(value, list):
            return [self._walk(v, f"{where}[{n}]", depth + 1) for n, v in enumerate(value)]
        if isinstance(value, _Ext | msgpack.Timestamp):
            self._fault("3.11", where, "no extension type", str(value)[:60])
            return Broken("a msgpack extension type")
        if isinstance(value, str):
            self._check_text(value, where)
        return value

    def _check_text(self, text: str, where: str) -> None:
        if any("\ud800" <= character <= "\udfff" for character in text):
            self._fault("3.10", where, "valid UTF-8", ascii(text[:40]))

    def _walk_map(self, pairs: _Map, where: str, depth: int) -> Any:
        # A key of another type may be anything, a list even, which no set or dict takes.
        keys = [key if isinstance(key, str | bytes) else repr(key) for key, _ in pairs]
        twice = next((key for key, count in Counter(keys).items() if count > 1), None)
        if twice is not None:
            self._fault("3.8", where, "each key once", f"{twice!r} twice")
        special = self._walk_special(pairs, keys, where, depth)
        if special is not None:
            return special
        items: dict[str, Any] = {}
        for key, item in pairs:
            if isinstance(key, str):
                self._check_text(key, where)
            else:
                self._fault("3.4", where, "keys of type str", f"the key {key!r:.40}")
            name = key if isinstance(key, str) else repr(key)
            items[name] = self._walk(item, f"{where}.{name}".lstrip("."), depth + 1)
        return items

    def _walk_special(self, pairs: _Map, keys: Sequence[Any], where: str, depth: int) -> Any:
        """The array or scalar that a map stands for; None where it is a plain map."""
        value = {key: item for key, item in pairs if isinstance(key, bytes)}
        if b"__ndarray__" in value:
            return self._array(value, keys, where, depth)
        if b"__npgeneric__" in value:
            return self._scalar(value, keys, where)
        if {b"nd", b"type", b"data"} <= value.keys():
            self._look(_ARRAY_RULES)
            self._fault("4.1", where, _names(_ARRAY_KEYS), f"msgpack-numpy's {_names(keys)}")
            return Broken("the encoding of the package msgpack-numpy")
        tags = [key for key in keys if key in _STR_KEYS]
        if tags:
            self._look(_ARRAY_RULES)
            self._fault("4.36", where, "no such str key", tags[0])
            wanted = _ARRAY_KEYS if tags[0] == "__ndarray__" else _SCALAR_KEYS
            if {str(key) for key in keys} == {key.decode() for key in wanted}:
                clause = "4.2" if tags[0] == "__ndarray__" else "4.30"
                self._fault(clause, where, "keys of type bin", f"str keys {_names(keys)}")
            return Broken("str keys")
        return None

    # -- arrays and scalars

    def _array(self, value: dict[bytes, Any], keys: Sequence[Any], where: str, depth: int) -> Any:
        self._look(_ARRAY_RULES)
        before = len(self._found.faults)
        if depth + 1 > _MAX_DEPTH:
            self._fault("3.13", where[:60], f"at most {_MAX_DEPTH} levels", "more")
        if set(keys) != set(_ARRAY_KEYS):
            self._fault("4.1", where, _names(_ARRAY_KEYS), _names(keys))
            return Broken("wrong keys")
        if tuple(keys) != _ARRAY_KEYS:
            self._fault("4.3", where, f"the order {_names(_ARRAY_KEYS)}", _names(keys))
            before += 1
        data, shape = value[b"data"], value[b"shape"]
        if value[b"__ndarray__"] is not True:
            self._fault("4.5", f"{where}.__ndarray__", "true", value[b"__ndarray__"])
        if not isinstance(data, bytes):
            self._fault("4.6", f"{where}.data", "bin", type(data).__name__)
        if not isinstance(shape, list) or not all(type(d) is int and d >= 0 for d in shape):
            self._fault("4.8", f"{where}.shape", "a list of non-negative ints", str(shape)[:60])
        dtype = self._typestr(value[b"dtype"], where, "4.7")
        if dtype is None or len(self._found.faults) > before:
            return Broken("see the other clauses")
        return self._elements(data, dtype, shape, where)

    def _typestr(self, typestr: object, where: str, clause: str) -> np.dtype[Any] | None:
        if not isinstance(typestr, str):
            self._fault(clause, f"{where}.dtype", "str", type(typestr).__name__)
            return None
        if _TYPESTR.fullmatch(typestr) is None:
            self._fault("4.14", f"{where}.dtype", "a typestr such as <f4 or <U5", typestr[:40])
            self._fault("4.19", f"{where}.dtype", "kind b, u, i, f or U", typestr[:40])
            return None
        if typestr[0] == "|" and typestr[1:] not in ("b1", "u1", "i1"):
            self._fault("4.15", f"{where}.dtype", "< or >", typestr)
            return None
        return np.dtype(typestr)

    def _elements(self, data: bytes, dtype: np.dtype[Any], shape: list[int], where: str) -> Any:
        needed = math.prod(shape) * dtype.itemsize
        if needed != len(data):
            expected = f"{needed} bytes for {dtype.str} {shape}"
            self._fault("4.10", f"{where}.data", expected, f"{len(data)} bytes")
            return Broken("wrong length")
        if dtype.str.startswith(">"):
            self._fault("4.18", f"{where}.dtype", "<", dtype.str)
        if dtype.kind == "b":
            self._look(_BOOL_RULES)
            if data.translate(None, b"\0\1"):
                self._fault("4.22", f"{where}.data", "bytes 0 and 1", data[:16].hex(" "))
        if dtype.kind == "U":
            self._look(_TEXT_RULES)
            try:
                data.decode("utf-32-be" if dtype.str[0] == ">" else "utf-32-le")
            except UnicodeDecodeError as error:
                self._fault("4.28", f"{where}.data", "valid code points", error.reason)
                return Broken("invalid code points")
        try:
            if dtype.itemsize == 0:
                return np.broadcast_to(np.array("", dtype="<U1"), shape)
            return np.ndarray(shape, dtype, buffer=data)
        except (ValueError, OverflowError, MemoryError) as error:
            return Broken(str(error))

    def _scalar(self, value: dict[bytes, Any], keys: Sequence[Any], where: str) -> Any:
        self._look(_SCALAR_RULES)
        if set(keys) != set(_SCALAR_KEYS) or value[b"__npgeneric__"] is not True:
            self._fault("4.30", where, f"{_names(_SCALAR_KEYS)}, the first true", _names(keys))
            return Broken("wrong keys")
        dtype, data = self._typestr(value[b"dtype"], where, "4.30"), value[b"data"]
        if dtype is None:
            return Broken("wrong dtype")
        if dtype.str[1:] == "f8" or dtype.kind == "U":
            self._fault("4.32", where, "a plain value", f"a typed {dtype.str}")
        if not _fits(data, dtype):
            self._fault("4.31", where, f"a value of {dtype.str}", f"{data!r:.40}")
            return Broken("a value outside its type")
        with np.errstate(over="ignore"):
            return dtype.type(data)


def _fits(data: object, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "b" or isinstance(data, bool):
        return isinstance(data, bool) and dtype.kind == "b"
    if dtype.kind in "ui":
        bounds = np.iinfo(dtype)
        return isinstance(data, int) and bounds.min <= data <= bounds.max
    return isinstance(data, str) if dtype.kind == "U" else isinstance(data, int | float)


def _names(keys: Iterable[Any]) -> str:
    shown = [key.decode("latin-1") if isinstance(key, bytes) else str(key) for key in keys]
    return ", ".join(name[:20] for name in shown[:8])


def _unpack(frame: bytes) -> Any:
    limit = max(len(frame), 1)
    scanner = msgpack.Unpacker(max_buffer_size=limit)  # builds nothing, and so allocates nothing
    scanner.feed(frame)
    scanner.skip()
    return msgpack.unpackb(
        frame,
        object_pairs_hook=_Map,
        ext_hook=_Ext,
        strict_map_key=False,
        unicode_errors="surrogateescape",
        max_array_len=limit,
        max_map_len=limit,
    )
