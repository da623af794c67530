"""What was seen when a check failed, cut down to what a person can read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

__all__ = ["Evidence", "abbreviate"]

_LINE = 400
_TEXT = 160
_ITEMS = 8
_BYTES = 24
_DEPTH = 5


@dataclass(frozen=True)
class Evidence:
    """One failure; every part may be empty.

    Attributes:
        scenario: What the grader was doing.
        sent: What the grader had sent.
        came: What the subject sent.
        expected: What the clause asks for.
        got: What there was instead.
    """

    scenario: str = ""
    sent: str = ""
    came: str = ""
    expected: str = ""
    got: str = ""

    def lines(self) -> list[tuple[str, str]]:
        """The parts that say something, as (label, text), the verdict first."""
        parts = [(name, getattr(self, name)) for name in ("expected", "got", "sent", "came")]
        return [(name, text) for name, text in parts if text]


def abbreviate(value: object) -> str:
    """``value`` in one readable line, however large it is; empty for None.

    Example:
        >>> abbreviate({"states": {"t": np.zeros((2, 1))}, "text": "x" * 5})
        "{states: {t: float64 [2, 1]: 0, 0}, text: 'xxxxx'}"
    """
    if value is None:
        return ""
    text = _sentence(value) if isinstance(value, str) else _short(value, 0)
    return text if len(text) <= _LINE else f"{text[: _LINE - 1]}…"


def _sentence(text: str) -> str:
    """A str at top level is the grader's own sentence: no quotes, but one line and printable."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _short(value: object, depth: int) -> str:
    match value:
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case np.ndarray() | np.generic():
            return _array(np.asarray(value))
        case str():
            return repr(value) if len(value) <= _TEXT else f"{value[:_TEXT]!r}… ({len(value)})"
        case bytes() | bytearray() | memoryview():
            return _bin(bytes(value))
        case Mapping():
            return _mapping(value, depth)
        case list() | tuple() | set() | frozenset():
            if depth >= _DEPTH:
                return "[…]"
            items = [_short(item, depth + 1) for item, _ in zip(value, range(_ITEMS), strict=False)]
            return f"[{', '.join(items)}{_rest(len(value))}]"
    return _sentence(str(value))


def _mapping(value: Mapping[object, object], depth: int) -> str:
    if depth >= _DEPTH:
        return "{…}"
    items: list[str] = []
    for key, item in value.items():
        if len(items) == _ITEMS:
            break
        name = key if isinstance(key, str) else repr(key)
        items.append(f"{_sentence(name[:_TEXT])}: {_short(item, depth + 1)}")
    return f"{{{', '.join(items)}{_rest(len(value))}}}"


def _array(array: np.ndarray) -> str:
    order = " big-endian" if array.dtype.str.startswith(">") else ""
    head = f"{array.dtype.name}{order} {list(array.shape)}"
    if array.size == 0:
        return head
    # flat, not reshape: a broadcast array may be far larger than the bytes behind it.
    first = [item for item, _ in zip(array.flat, range(_ITEMS), strict=False)]
    shown = ", ".join(f"{x:.6g}" if array.dtype.kind == "f" else _plain(x) for x in first)
    return f"{head}: {shown}{', …' if array.size > _ITEMS else ''}"


def _plain(item: object) -> str:
    return repr(str(item)[:40]) if isinstance(item, str) else str(item)


def _bin(data: bytes) -> str:
    shown = data[:_BYTES].hex(" ")
    return f"{len(data)} bytes{': ' if data else ''}{shown}{' …' if len(data) > _BYTES else ''}"


def _rest(length: int) -> str:
    return f", … ({length} in all)" if length > _ITEMS else ""
