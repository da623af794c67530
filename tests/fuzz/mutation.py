"""Frames that are almost right, and frames that are nothing: fast, and repeatable from a seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

import msgpack

__all__ = ["Mutator"]

_TYPESTRS = (
    *("<f8", "<f4", ">f8", "|b1", "|u1", "<i8", "<u8", "<U0", "<U1", ">U2", "<U999999999"),
    *("|O", "<M8[s]", "<c16", "|V4", "<f16", "float64", "", "<f8\n", "<i99999999999999999999"),
)
_SIZES = (0, 1, 2, 3, 8, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64 - 1, -1)
_NAMES = (
    *("obs", "", "a/b", "~", "\n", "\x1b[31m", "__ndarray__", "__npgeneric__", "message_type"),
    *("data", "type", "spaces", "low", "high", "n", "dtype", "shape", "episode", "r", "l", "mask"),
    *("reuse", "steps", "actions", "env_indices", "step_ids", "images", "states", "text", "info"),
    *("x" * 300, "\U0001f916"),
)
_HEADERS = (
    *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xde\xff\xff"),
    *(b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xc1"),
    *(b"\xd6\xff", b"\xc7\x0c\xff", b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\x00" * 7),
    *(b"\xcb\x7f\xf0" + b"\x00" * 6, b"\xcb\x7f\xf8" + b"\x00" * 6),
)


class Mutator:
    """Draws frames.

    Args:
        frames: Good ones, to start from.
        seed: Equal seeds give equal frames.
    """

    def __init__(self, frames: Sequence[bytes], seed: int) -> None:
        self._frames = list(frames)
        self.random = random.Random(seed)

    def frame(self) -> bytes:
        """The next frame."""
        kind = self.random.random()
        if kind < 0.45:
            return self._spliced(self.random.choice(self._frames))
        if kind < 0.85:
            return self._changed(self.random.choice(self._frames))
        if kind < 0.95:
            return self.random.choice(self._frames)[: self.random.randrange(1 << 10)]
        return self.random.choice((self._nested, self._huge, self._noise, self._wide))()

    # -- bytes ----------------------------------------------------------------------------

    def _spliced(self, frame: bytes) -> bytes:
        draw = self.random
        data = bytearray(frame)
        for _ in range(draw.choice((1, 1, 1, 2, 4))):
            at = draw.randrange(len(data) + 1)
            what = draw.randrange(6)
            if what == 0 and at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            elif what == 1 and at < len(data):
                data[at] = draw.choice((0x00, 0x7F, 0x80, 0x90, 0xC0, 0xC1, 0xDD, 0xDF, 0xFF))
            elif what == 2:
                data[at : at + draw.randrange(8)] = draw.randbytes(draw.randrange(8))
            elif what == 3:
                data[at : at + draw.randrange(3)] = draw.choice(_HEADERS)
            elif what == 4:
                other = draw.choice(self._frames)
                start = draw.randrange(len(other))
                data[at : at + draw.randrange(40)] = other[start : start + draw.randrange(80)]
            else:
                del data[at : at + draw.randrange(1, 20)]
        return bytes(data)

    # -- structure ------------------------------------------------------------------------

    def _changed(self, frame: bytes) -> bytes:
        try:
            value = {"": msgpack.unpackb(frame, strict_map_key=False)}
        except ValueError:
            return self._spliced(frame)
        for _ in range(self.random.choice((1, 1, 2, 3))):
            holder, key = self._place(value)
            change = self.random.randrange(5)
            if change == 0 and holder is not value:
                del holder[key]
            elif change == 1 and isinstance(holder, dict):
                holder[self._key()] = self._value(2)
            else:
                holder[key] = self._value(2)
        packed: bytes = msgpack.packb(value.get(""))
        return packed

    def _place(self, value: dict[Any, Any]) -> tuple[Any, Any]:
        """A random place, deeper ones likelier than their share."""
        holder: Any = value
        key: Any = ""
        while self.random.random() < 0.8:
            inner = holder[key]
            if not isinstance(inner, dict | list) or not inner:
                break
            keys = list(inner) if isinstance(inner, dict) else range(len(inner))
            holder, key = inner, self.random.choice(keys)
        return holder, key

    def _key(self) -> Any:
        draw = self.random
        return draw.choice((draw.choice(_NAMES), draw.randbytes(3), draw.randrange(4), None))

    def _value(self, depth: int) -> Any:
        draw = self.random
        kind = draw.randrange(12 if depth else 9)
        if kind == 0:
            return draw.choice((None, True, False, float("nan"), float("inf"), 1e300, -0.0, ""))
        if kind == 1:
            return draw.choice((*_SIZES, draw.randrange(100)))
        if kind == 2:
            return draw.choice((*_NAMES, *_TYPESTRS))
        if kind == 3:
            return draw.randbytes(draw.choice((0, 1, 8, 64)))
        if kind in (4, 5, 6):
            return self._array()
        if kind == 7:
            return {
                b"__npgeneric__": True,
                b"data": draw.choice(_SIZES),
                b"dtype": draw.choice(_TYPESTRS),
            }
        if kind == 8:
            return draw.choice((msgpack.ExtType(draw.randrange(127), b"xx"), msgpack.Timestamp(1)))
        if kind == 9:
            return [self._value(depth - 1) for _ in range(draw.randrange(4))]
        return {self._key(): self._value(depth - 1) for _ in range(draw.randrange(4))}

    def _array(self) -> dict[Any, Any]:
        draw = self.random
        shape = [draw.choice((0, 1, 2, 2, 3, *_SIZES)) for _ in range(draw.randrange(5))]
        typestr = draw.choice(_TYPESTRS)
        data = draw.randbytes(draw.choice((0, 1, 7, 8, 16, 32)))
        digits = typestr[2:]
        if draw.random() < 0.6 and digits.isdigit():
            size = int(digits) * (4 if "U" in typestr else 1)
            for extent in shape:
                size *= extent
            if 0 <= size <= 4096:
                data = draw.randbytes(size)
        array = {b"__ndarray__": True, b"data": data, b"dtype": typestr, b"shape": shape}
        if draw.random() < 0.1:
            del array[draw.choice(list(array))]
        return array

    # -- extremes -------------------------------------------------------------------------

    def _nested(self) -> bytes:
        depth = self.random.choice((10, 62, 63, 64, 65, 66, 200, 1023, 1024, 5000))
        opening = self.random.choice((b"\x91", b"\x81\xa1a", b"\x81\xa4data", b"\x81\x91"))
        return opening * depth + b"\xc0"

    def _huge(self) -> bytes:
        """A header that announces far more than there is."""
        draw = self.random
        frame = draw.choice(self._frames)
        at = draw.randrange(len(frame))
        size = struct.pack(">I", draw.choice((2**16, 2**24, 2**31, 2**32 - 1)))
        return frame[:at] + draw.choice((b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9")) + size

    def _wide(self) -> bytes:
        """A map or list that has as much as it announces."""
        draw = self.random
        count = draw.choice((65, 1000, 20_000))
        if draw.random() < 0.5:
            return b"\xdd" + struct.pack(">I", count) + b"\xc0" * count
        keys = b"".join(b"\xce" + struct.pack(">I", k) + b"\xc0" for k in range(count))
        return b"\xdf" + struct.pack(">I", count) + keys

    def _noise(self) -> bytes:
        return self.random.randbytes(self.random.choice((0, 1, 3, 30, 300)))
