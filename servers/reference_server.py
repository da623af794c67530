"""A PlugRL v1 server that learns nothing, written against SPEC.md alone.

It answers every infer with a random action chunk and counts the feedback rows that come back.
What it does do is keep every server clause of SPEC.md: it speaks first, answers time-major,
validates all that it receives, closes for a resync on anything malformed, keeps one client's
mistake away from the others, and ends the run after ``--steps`` rows. It imports nothing of
plugrl_gym, so that each can be graded against the other::

    python servers/reference_server.py --port 8000 --horizon 4 --action-dim 3 --steps 1000

``--bug NAME`` makes it break one rule on purpose (``--help`` lists them), which is how the
conformance suite proves that each of its checks can fail. The bugs stand in reference_bugs.py;
this file runs without it and has only their hooks, the fields of :class:`Bug`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import math
import re
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import msgpack
import numpy as np
import numpy.typing as npt
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

Array = npt.NDArray[Any]
Leaf = tuple[str, str, str, tuple[int, ...]]  # group, name, kind and size, shape of one env
Layout = frozenset[Leaf]

FEATURES: Final = ("reuse-feedback-obs", "gym-spaces", "gym-chunk-steps", "gym-executed-actions")
STOP: Final = "plugrl-server-stop"
RESYNC: Final = "plugrl-server-resync"


class Malformed(Exception):
    """The client broke SPEC.md; its connection closes for a resync.

    ``kind`` is one of the keys of MALFORMED in reference_bugs.py.
    """

    def __init__(self, kind: str, complaint: str) -> None:
        super().__init__(complaint)
        self.kind = kind


class Refused(Exception):
    """The client's env does not fit this server; its arguments are the close code and reason."""


class Silent(Exception):
    """No feedback came in time."""


def need(condition: bool, kind: str, complaint: str) -> None:
    """Raise :class:`Malformed` unless ``condition`` holds."""
    if not condition:
        raise Malformed(kind, complaint)


async def nothing(*_: Any) -> None:
    """What a server without a bug does on top of its duties."""


@dataclass(frozen=True, kw_only=True)
class Bug:
    """One deliberate mistake; as it stands, none. Each field is one place to go wrong in."""

    what: str = ""
    # Sending: what a frame, an array's map or an action's data turns into.
    metadata: Mapping[Any, Any] = field(default_factory=dict)
    greeting: Callable[[dict[str, Any]], list[str | bytes]] = lambda message: [pack(message)]
    array: Callable[[Any], dict[Any, Any]] = dict
    action: Callable[[Array, Array], dict[str, Any]] = lambda ids, chunk: {}
    answer: Callable[[dict[str, Any], bytes], list[str | bytes]] = lambda message, frame: [frame]
    thanks: tuple[bytes, ...] = ()
    rows: Callable[[Connection, list[int]], list[int]] = lambda connection, envs: envs
    # Receiving: legal things to refuse, kinds of Malformed to overlook.
    refuses_array: Callable[[dict[Any, Any], Array], bool] = lambda *_: False
    refuses_scalars: bool = False
    refuses_infer: Callable[[Connection, dict[str, Any], list[int]], bool] = lambda *_: False
    refuses_feedback: Callable[[Connection, dict[str, Any], list[int]], bool] = lambda *_: False
    forgives: Callable[[str, str], bool] = lambda kind, expected: False
    # Closing: code and reason of each kind of close.
    resync: tuple[int, str] = (1001, RESYNC)
    stop: Callable[[int], tuple[int, str]] = lambda number: (1001, STOP)
    misfit: Callable[[str], tuple[int, str] | None] = lambda sentence: (1008, sentence)
    timeout: str = "Feedback timeout"
    shutdown: str = "Server shutdown"
    status: int = 0
    # Everything else.
    serving: Mapping[str, Any] = field(default_factory=dict)
    on_connect: Callable[[ServerConnection], None] = lambda socket: None
    on_end: Callable[[Connection], None] = lambda connection: None
    on_error: Callable[[Connection, Malformed], Awaitable[None]] = nothing
    never: frozenset[str] = frozenset()  # of the duties: stop, feedback-timeout, forget,
    # answer-alone, exploit, patience
    hurries_idle: bool = False


def say(line: str) -> None:
    """A word for the operator."""
    print(line, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- frames and arrays (SPEC 3, 4)

TYPESTR: Final = re.compile(r"[<>|][biu]1|[<>]([iu][248]|f[248]|U(0|[1-9]\d{0,7}))")
ARRAY_KEYS: Final = (b"__ndarray__", b"data", b"dtype", b"shape")
SCALAR_KEYS: Final = (b"__npgeneric__", b"data", b"dtype")
SCALAR_TYPES: Final = {"b": (bool,), "i": (int,), "u": (int,), "f": (float, int), "U": (str,)}


def pack(message: dict[str, Any], array_map: Callable[[Any], Any] = dict) -> bytes:
    """One message as a frame."""

    def wire_array(array: Array) -> Any:
        values = (True, array.tobytes(), array.dtype.str, list(array.shape))
        return array_map(zip(ARRAY_KEYS, values, strict=True))

    frame: bytes = msgpack.packb(message, default=wire_array, unicode_errors="surrogateescape")
    return frame


def unpack(frame: bytes, bug: Bug) -> Any:
    """One frame as plain values and arrays. Raises nothing but Malformed."""
    try:
        # skip() builds nothing: once it has passed, every element that a header announces is
        # known to be there, so unpackb cannot be made to allocate much more than was sent.
        scanner = msgpack.Unpacker(max_buffer_size=max(1, len(frame)))
        scanner.feed(frame)
        scanner.skip()
        return msgpack.unpackb(
            frame,
            object_pairs_hook=lambda pairs: read_map(pairs, bug),
            list_hook=read_list,
            ext_hook=lambda code, data: read_list([msgpack.Timestamp(0)]),
            strict_map_key=False,
        )
    except Malformed:
        raise
    except Exception as error:  # msgpack's own kinds, ValueError, TypeError, RecursionError
        what = str(error)[:80].strip(".") or type(error).__name__
        raise Malformed("undecodable", f"undecodable bytes ({what})") from None


def read_list(values: list[Any]) -> list[Any]:
    """A list without extension types; msgpack hands timestamps over as objects of its own."""
    extended = any(isinstance(value, msgpack.Timestamp) for value in values)
    need(not extended, "extension", "a msgpack extension type")
    return values


def read_map(pairs: list[tuple[Any, Any]], bug: Bug) -> Any:
    """A plain map, or the array or number that a map stands for."""
    value = dict(pairs)
    need(len(value) == len(pairs), "odd-key", "a map names one key twice")
    read_list(list(value.values()))
    names = {key.decode("latin-1") if isinstance(key, bytes) else key for key in value}
    foreign, as_str = {"nd", "type", "data"} <= names, {"__ndarray__", "__npgeneric__"} & set(value)
    need(not foreign, "msgpack-numpy", "an array in the encoding of the package msgpack-numpy")
    need(not as_str, "str-keys", "an array whose keys are msgpack str; they must be msgpack bin")
    if b"__npgeneric__" in value:
        need(not bug.refuses_scalars, "bad-array", bug.what)
        return read_scalar(value)
    if b"__ndarray__" in value:
        array = read_array(value)
        need(not bug.refuses_array(value, array), "bad-array", bug.what)
        return array
    need(all(isinstance(key, str) for key in value), "odd-key", "a map has a key that is no str")
    return value


def read_dtype(typestr: Any) -> np.dtype[Any]:
    """The dtype of a typestr, if it may travel."""
    legal = isinstance(typestr, str) and TYPESTR.fullmatch(typestr) is not None
    need(legal, "forbidden-dtype", f"the dtype {describe(typestr)} may not travel")
    dtype: np.dtype[Any] = np.dtype(typestr)
    return dtype


def read_scalar(value: dict[Any, Any]) -> Any:
    """The plain number that a numpy scalar stands for."""
    whole = set(value) == set(SCALAR_KEYS) and value[b"__npgeneric__"] is True
    need(whole, "bad-array", "a numpy scalar needs exactly __npgeneric__ (true), data and dtype")
    dtype, number = read_dtype(value[b"dtype"]), value[b"data"]
    fits = type(number) in SCALAR_TYPES[dtype.kind]
    if fits and dtype.kind in "iu":
        fits = bool(np.iinfo(dtype).min <= number <= np.iinfo(dtype).max)
    need(fits, "bad-array", f"a numpy scalar of dtype {dtype} cannot hold its data")
    return number


def read_array(value: dict[Any, Any]) -> Array:
    """The array of one map with bin keys: a view of the bytes that came."""
    whole = set(value) == set(ARRAY_KEYS) and value[b"__ndarray__"] is True
    need(whole, "bad-array", "an array needs exactly __ndarray__ (true), data, dtype and shape")
    dtype, data, shape = read_dtype(value[b"dtype"]), value[b"data"], value[b"shape"]
    need(isinstance(data, bytes), "bad-array", "the data of an array is no bin")
    sizes = isinstance(shape, list) and len(shape) <= 32
    sizes = sizes and all(type(size) is int and size >= 0 for size in shape)
    need(sizes, "bad-array", "the shape of an array is no list of up to 32 non-negative ints")
    wanted = math.prod(shape) * dtype.itemsize
    need(wanted == len(data), "short-data", f"an array of {wanted} bytes has {len(data)}")
    if dtype.kind == "U" and data:
        codes = np.frombuffer(data, f"{dtype.str[0]}u4")
        legal = codes.max() < 0x110000 and not ((codes >= 0xD800) & (codes < 0xE000)).any()
        need(bool(legal), "bad-array", "a unicode array holds numbers that are no characters")
    try:
        if dtype.itemsize == 0:  # no bytes justify an allocation: one "" seen many times
            return np.broadcast_to(np.zeros((), "<U1"), shape)
        if dtype.kind == "b":
            return np.ndarray(shape, np.uint8, buffer=data).astype(bool)
        return np.ndarray(shape, dtype, buffer=data)
    except (ValueError, OverflowError):
        raise Malformed("bad-array", "the shape of an array is too large") from None


def describe(value: Any) -> str:
    """A value in a few words, however large it is."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    return repr(value[:40]) if isinstance(value, str) else type(value).__name__


# ------------------------------------------------------------------ parts of messages (SPEC 6)


def open_frame(frame: str | bytes, expected: str, bug: Bug) -> dict[str, Any]:
    """The map in a frame that must hold an ``expected`` message (SPEC 3, 5)."""
    if isinstance(frame, str):
        raise Malformed("text", "a text frame")
    message = read_keys(unpack(frame, bug), {"message_type"}, "the message", exact=False)
    found = message["message_type"]
    need(isinstance(found, str), "wrong-type", f"message_type is {describe(found)}, not a str")
    kind = {"infer": "two-infers", "feedback": "two-feedbacks"}.get(found, "wrong-message-type")
    need(found == expected, kind, f"expected {expected}, got {describe(found)}")
    return message


def read_keys(value: Any, keys: set[str], where: str, exact: bool = True) -> dict[str, Any]:
    """``value`` as a map that has ``keys``, and with ``exact`` no others."""
    need(isinstance(value, dict), "wrong-type", f"{where} is {describe(value)}, not a map")
    missing, extra = sorted(keys - value.keys()), sorted(value.keys() - keys)
    need(not missing, "missing-key", f"{where} has no {', '.join(missing)}")
    need(not (exact and extra), "extra-key", f"{where} has a key too many: {str(extra)[:60]}")
    checked: dict[str, Any] = value
    return checked


def read_rows(value: Any, kinds: str, ndim: int, rows: int | None, where: str) -> Array:
    """``value`` as an array of one of ``kinds`` with ``rows`` rows; None takes any number."""
    fits = isinstance(value, np.ndarray) and value.ndim == ndim and value.dtype.kind in kinds
    wanted = f"expected {ndim} dimensions of kind {kinds}"
    need(fits, "wrong-type", f"{where} is {describe(value)}; {wanted}")
    array: Array = value
    fits = rows in (None, len(array))
    need(fits, "row-mismatch", f"{where} has {len(array)} rows, not {rows}")
    return array


def read_envs(value: Any) -> list[int]:
    """``env_indices``: at least one, unique, not negative."""
    envs: list[int] = read_rows(value, "iu", 1, None, "env_indices").tolist()
    need(len(envs) > 0, "empty-set", "env_indices names no env")
    need(min(envs) >= 0, "negative-index", f"env_indices names env {min(envs)}")
    need(max(envs) < 2**63, "wrong-type", f"env_indices names env {max(envs)}")
    need(len(set(envs)) == len(envs), "duplicate-index", "env_indices names an env twice")
    return envs


def read_observation(value: Any, rows: int, where: str) -> tuple[Layout, set[int]]:
    """Check an observation; its layout, and the rows that hold a NaN or an infinity."""
    observation = read_keys(value, {"images", "states", "text"}, where)
    layout, bad = set(), set()
    for group, kinds, ndim in (("images", "u", 4), ("states", "buif", 2)):
        for name, leaf in read_keys(observation[group], set(), f"{where}.{group}", False).items():
            array = read_rows(leaf, kinds, ndim, rows, f"{where}.{group}.{name[:40]}")
            fits = group == "states" or array.dtype.itemsize == 1
            need(fits, "wrong-type", f"{where}.{group}.{name[:40]} is not uint8")
            layout.add((group, name, array.dtype.str[1:], array.shape[1:]))
            bad |= non_finite_rows(array, 0)
    text = observation["text"]
    if isinstance(text, list):
        need(all(isinstance(line, str) for line in text), "wrong-type", f"{where}.text is no text")
        need(len(text) == rows, "row-mismatch", f"{where}.text has {len(text)} rows, not {rows}")
    else:
        read_rows(text, "U", 1, rows, f"{where}.text")
    return frozenset(layout), bad


def non_finite_rows(array: Array, axis: int) -> set[int]:
    """The indices along ``axis`` where ``array`` holds a NaN or an infinity."""
    if array.dtype.kind != "f":
        return set()
    finite = np.isfinite(array).all(axis=tuple(a for a in range(array.ndim) if a != axis))
    return set(np.flatnonzero(~finite).tolist())


def first_array(info: dict[str, Any]) -> Array | None:
    """The array by which an info is split: at top level or one level down."""
    for value in info.values():
        for leaf in value.values() if isinstance(value, dict) else [value]:
            if isinstance(leaf, np.ndarray):
                return leaf
    return None


# ------------------------------------------------------------------ optional features (SPEC 9)


def read_spaces(value: Any) -> dict[str, Any]:
    """The declaration of ``gym-spaces``, without its two spaces."""
    try:
        keys = {"env_id", "num_envs", "autoreset", "observation", "action"}
        spaces = read_keys(value, keys, "spaces", exact=False)
    except Malformed as error:
        raise Malformed("bad-spaces", str(error)) from None
    match spaces:
        case {
            "env_id": str() | None,
            "num_envs": int(count),
            "autoreset": str(autoreset),
        } if count > 0 and autoreset in ("next-step", "same-step", "disabled"):
            mode = spaces.get("mode", "train")
            need(isinstance(mode, str) and mode in ("train", "eval"), "bad-spaces", "spaces.mode")
            return spaces
    raise Malformed("bad-spaces", "env_id, num_envs or autoreset of spaces is wrong")


def read_space(value: Any, where: str, name: str = "") -> list[Leaf]:
    """Check one space (SPEC 9.3.6); its leaves as they travel (9.3.14 to 9.3.26)."""
    wrong = Malformed("bad-spaces", f"{where}.{name[:40]} describes no space")
    known = isinstance(value, dict) and isinstance(value.get("type"), str)
    if not known or len(name) > 1000 or name.count("/") > 60:
        raise wrong
    leaves: list[Leaf] = []
    match value:
        case {"type": "Dict", "spaces": dict(parts)}:
            for key, part in parts.items():
                path = f"{name}/{key.replace('~', '~0').replace('/', '~1')}"
                leaves += read_space(part, where, path)
        case {"type": "Tuple", "spaces": list(parts)}:
            for number, part in enumerate(parts):
                leaves += read_space(part, where, f"{name}/{number}")
        case {"type": "Box", "shape": list(), "dtype": str(), "low": low, "high": high}:
            leaves = [read_box(value, low, high, name, wrong)]
        case {"type": "Discrete", "n": int(n), "start": int(), "dtype": str(dtype)} if n > 0:
            leaves = [("states", name, read_dtype(dtype).str[1:], (1,))]
        case {"type": "MultiDiscrete", "nvec": nvec, "start": start, "dtype": str(dtype)}:
            nvec, start = array_or_none(nvec), array_or_none(start)
            if nvec.dtype.kind not in "iu" or nvec.shape != start.shape:
                raise wrong
            leaves = [("states", name, read_dtype(dtype).str[1:], (nvec.size,))]
        case {"type": "MultiBinary", "shape": list(shape)} if len(shape) <= 32:
            if not all(type(size) is int for size in shape):
                raise wrong
            leaves = [("states", name, "i1", (math.prod(shape),))]
        case {"type": "Text", "max_length": int(length), "charset": str()}:
            leaves = [("text", name, "u4", (length,))]
        case _:
            raise wrong
    return leaves


def read_box(box: dict[str, Any], low: Any, high: Any, name: str, wrong: Malformed) -> Leaf:
    """The leaf of a Box: an image or a flat state."""
    for bound in (low, high):
        fits = isinstance(bound, np.ndarray) and bound.dtype.kind in "buif"
        if not (fits and bound.dtype == read_dtype(box["dtype"]) and low.shape == bound.shape):
            raise wrong
    if not all(type(size) is int for size in box["shape"]) or tuple(box["shape"]) != low.shape:
        raise wrong
    image = low.dtype == np.uint8 and low.ndim in (2, 3, 4)
    if image and (low == 0).all() and (high == 255).all():
        return "images", name, "u1", image_shape(low.shape)
    kind = "u1" if low.dtype.kind == "b" else low.dtype.str[1:]
    return "states", name, kind, (low.size,)


def image_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The [h, w, c] in which an image of ``shape`` travels (SPEC 9.3.18 to 9.3.21)."""
    if len(shape) == 2:
        return (*shape, 1)
    if len(shape) == 4:
        height, width, channels = image_shape(shape[1:])
        return height, width, channels * shape[0]
    channel_last = shape[2] in (1, 3, 4) or shape[0] >= shape[2]
    return shape if channel_last else (*shape[1:], shape[0])


def declared_layout(space: Any) -> Layout:
    """What every observation of a declared space must hold; the first text goes in ``text``."""
    leaves = [
        (group, name[1:] or "obs", kind, shape)
        for group, name, kind, shape in read_space(space, "spaces.observation")
    ]
    texts = [("states", *leaf[1:]) for leaf in leaves if leaf[0] == "text"]
    return frozenset([leaf for leaf in leaves if leaf[0] != "text"] + texts[1:])


def read_chunk_steps(message: dict[str, Any], rows: int, horizon: int) -> set[int]:
    """Check ``steps`` and ``step_rewards``; the rows with a NaN or an infinity."""
    if not message.keys() & {"steps", "step_rewards"}:
        return set()
    steps, rewards = array_or_none(message.get("steps")), array_or_none(message.get("step_rewards"))
    fits = steps.dtype.kind in "iu" and steps.shape == (rows,)
    fits = fits and bool(1 <= steps.min() <= steps.max() <= horizon)
    need(fits, "bad-chunk-steps", f"steps is {describe(steps)}; expected {rows} of 1 to {horizon}")
    fits = rewards.dtype.kind == "f" and rewards.shape == (steps.max(), rows)
    need(fits, "bad-chunk-steps", f"step_rewards is {describe(rewards)}, not float [K, {rows}]")
    padding = np.arange(len(rewards))[:, None] >= steps
    need(not rewards[padding].any(), "bad-chunk-steps", "step_rewards goes on after the last step")
    return non_finite_rows(rewards, 1)


def read_executed(message: dict[str, Any], rows: int, horizon: int, dim: int) -> set[int]:
    """Check ``actions`` and ``overridden``; the rows with a NaN or an infinity."""
    if not message.keys() & {"actions", "overridden"}:
        return set()
    actions, flags = array_or_none(message.get("actions")), array_or_none(message.get("overridden"))
    longest = int(message["steps"].max()) if "steps" in message else min(len(actions), horizon)
    fits = actions.dtype.kind in "buif" and actions.shape == (max(longest, 1), rows, dim)
    need(fits, "bad-executed-actions", f"actions is {describe(actions)}, not [K, {rows}, {dim}]")
    fits = flags.dtype.kind == "b" and flags.shape == (rows,)
    need(fits, "bad-executed-actions", f"overridden is {describe(flags)}, not bool [{rows}]")
    return non_finite_rows(actions, 1)


def array_or_none(value: Any) -> Array:
    """An array, or for anything else one that fits nowhere."""
    return value if isinstance(value, np.ndarray) and value.ndim else np.array([None])


# --------------------------------------------------------------------- one connection (SPEC 5)


class Connection:
    """The exchange with one client; all that the server knows of it dies with it."""

    def __init__(self, server: ReferenceServer, socket: ServerConnection) -> None:
        self.server, self.socket, self.bug = server, socket, server.bug
        self.holding: set[int] = set()  # envs with an action that no feedback has answered
        # The layout of each env's last feedback; None where it may not be reused (SPEC 9.2).
        self.last: dict[int, Layout | None] = server.last if "forget" in self.bug.never else {}
        self.declared: Layout = frozenset()
        self.envs: list[int] = []  # of the last infer
        self.first: dict[str, Any] = {}  # the first infer
        self.evaluating = False
        self.asking = False

    async def exchange(self) -> None:
        """Metadata once, then infer, action and feedback in turn until the connection closes."""
        self.bug.on_connect(self.socket)
        for frame in self.bug.greeting(self.server.metadata()):
            await self.socket.send(frame)
        while True:
            await self.take_infer()
            await self.take_feedback()

    async def take_infer(self) -> None:
        """Wait for an infer and answer it."""
        frame = await self.receive(hurry=self.bug.hurries_idle)
        try:
            envs = self.read_infer(open_frame(frame, "infer", self.bug))
        except Malformed as error:
            if not self.bug.forgives(error.kind, "infer"):
                raise
            if error.kind == "two-feedbacks":
                await self.take_infer()
                return
            envs = [0]
        await self.answer(envs)

    async def take_feedback(self) -> None:
        """Wait for the feedback that is due after an action, and count its rows."""
        frame = await self.receive(hurry="feedback-timeout" not in self.bug.never)
        try:
            self.read_feedback(open_frame(frame, "feedback", self.bug))
        except Malformed as error:
            if not self.bug.forgives(error.kind, "feedback"):
                raise
            if error.kind == "two-infers":
                await self.answer([0])
                await self.take_feedback()
        for thanks in self.bug.thanks:
            await self.socket.send(thanks)

    async def receive(self, hurry: bool) -> str | bytes:
        """The next frame; in a ``hurry``, within the feedback timeout (SPEC 8.8)."""
        try:
            async with asyncio.timeout(self.server.options.feedback_timeout if hurry else None):
                return await self.socket.recv()
        except TimeoutError:
            raise Silent from None

    def read_infer(self, message: dict[str, Any]) -> list[int]:
        """Validate an infer (SPEC 6.3); the envs that it asks for."""
        read_keys(message, {"data", "env_indices", "step_ids"}, "infer", exact=False)
        envs = read_envs(message["env_indices"])
        read_rows(message["step_ids"], "iu", 1, len(envs), "step_ids")
        misfit = self.take_spaces(message["spaces"]) if "spaces" in message else None
        layouts = self.read_reuse(message, envs)
        layout, bad = read_observation(message["data"], len(envs) - len(layouts), "data")
        need(not bad, "non-finite", f"an infer with a NaN or an infinity in rows {sorted(bad)[:9]}")
        if len(layouts) < len(envs):
            layouts.append(layout)
        need(len(set(layouts)) == 1, "reuse-mismatch", "reused and sent rows differ in their keys")
        need(self.declared <= layouts[0], "other-layout", "the observation is not as declared")
        self.first = self.first or message
        need(not self.bug.refuses_infer(self, message, envs), "wrong-type", self.bug.what)
        if misfit is not None:
            raise Refused(*misfit)
        return envs

    def read_reuse(self, message: dict[str, Any], envs: list[int]) -> list[Layout]:
        """The layouts of the rows that the server is to remember (SPEC 9.2)."""
        layouts = []
        if "reuse" in message:
            flags = read_rows(message["reuse"], "b", 1, len(envs), "reuse")
            for env in np.array(envs)[flags].tolist():
                need(env in self.last, "reuse-without-feedback", f"env {env} sent nothing to reuse")
                layout = self.last[env]
                if layout is None:
                    raise Malformed(
                        "reuse-after-end", f"env {env} ended its episode, or sent a NaN"
                    )
                layouts.append(layout)
        return layouts

    def take_spaces(self, value: Any) -> tuple[int, str] | None:
        """Learn from a declaration (SPEC 9.3); code and reason of a refusal, or None."""
        need(not self.first, "late-spaces", "spaces belong in the first infer alone")
        spaces = read_spaces(value)
        self.declared = declared_layout(spaces["observation"])
        self.evaluating = spaces.get("mode") == "eval"
        action, dim = spaces["action"], self.server.options.action_dim
        read_space(action, "spaces.action")
        theirs = str(action["type"])
        if theirs == "Box":
            theirs = f"Box{tuple(action['shape'])}"
            if action["shape"] == [dim]:
                return None
        sentence = f"reference server sends Box({dim},) actions, env has {theirs[:60]}"
        return self.bug.misfit(sentence)

    def read_feedback(self, message: dict[str, Any]) -> None:
        """Validate a feedback (SPEC 6.5) and count the rows that answer an action."""
        read_keys(message, {"data", "env_indices", "step_ids"}, "feedback", exact=False)
        envs, options = read_envs(message["env_indices"]), self.server.options
        rows = len(envs)
        read_rows(message["step_ids"], "iu", 1, rows, "step_ids")
        keys = {"obs", "rewards", "terminated", "truncated", "info"}
        data = read_keys(message["data"], keys, "data")
        layout, unseen = read_observation(data["obs"], rows, "data.obs")
        need(self.declared <= layout, "other-layout", "the observation is not as declared")
        bad = unseen | non_finite_rows(read_rows(data["rewards"], "f", 1, rows, "rewards"), 0)
        ended = read_rows(data["terminated"], "b", 1, rows, "terminated")
        ended = ended | read_rows(data["truncated"], "b", 1, rows, "truncated")
        array = first_array(read_keys(data["info"], set(), "info", exact=False))
        splits = rows == 1 or not data["info"] or (array is not None and array.shape[:1] == (rows,))
        need(splits, "unsplittable-info", f"info cannot be split into {rows} parts")
        bad |= read_chunk_steps(message, rows, options.horizon)
        bad |= read_executed(message, rows, options.horizon, options.action_dim)
        need(not self.bug.refuses_feedback(self, message, envs), "wrong-type", self.bug.what)
        for row, env in enumerate(envs):
            self.last[env] = None if ended[row] or row in unseen else layout
            self.count(env, row in bad)
        if "overridden" in message:
            self.server.overridden += int(message["overridden"].sum())
        self.server.strikes.pop(self.address, None)

    def count(self, env: int, bad: bool) -> None:
        """Count the feedback of one env, or drop it with a word (SPEC 6.5.25, 6.5.26)."""
        if env not in self.holding:
            say(f"dropped the feedback of env {env}, which holds no action on this connection")
        elif bad:
            say(f"dropped the feedback of env {env}: it holds a NaN or an infinity")
        elif not self.evaluating:
            self.server.count()
        self.holding.discard(env)

    async def answer(self, envs: list[int]) -> None:
        """Send the chunk for ``envs``."""
        self.envs, self.asking = envs, True
        if "answer-alone" in self.bug.never:
            await self.server.everybody_asks(self)
        self.asking = False
        message = self.action(self.bug.rows(self, envs))
        for frame in self.bug.answer(message, pack(message, self.bug.array)):
            await self.socket.send(frame)
        self.holding.update(envs)

    def action(self, envs: list[int]) -> dict[str, Any]:
        """A random chunk [H, n, da]; the same each time for a client that evaluates."""
        options, fixed = self.server.options, self.evaluating and "exploit" not in self.bug.never
        rng = np.random.default_rng(0) if fixed else self.server.rng
        chunk = rng.uniform(-1, 1, (options.horizon, len(envs), options.action_dim))
        ids, chunk = np.array(envs), chunk.astype(np.float32)
        data = {"env_ids": ids, "action": chunk, **self.bug.action(ids, chunk)}
        return {"message_type": "action", "data": data}

    @property
    def address(self) -> str:
        """Where the client comes from."""
        return str((self.socket.remote_address or ["?"])[0])


# ---------------------------------------------------------------------- the server (SPEC 7, 8)


class ReferenceServer:
    """All connections, the count of their feedback rows, and the end of the run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.bug: Bug = options.bug or Bug()
        self.rng = np.random.default_rng(0)
        self.connections: set[Connection] = set()
        self.rows = self.overridden = 0
        self.strikes: Counter[str] = Counter()  # errors of each address since its last feedback
        self.last: dict[int, Layout | None] = {}
        self.listening, self.done = asyncio.Event(), asyncio.Event()
        self.closing, self.status = self.bug.stop, 0

    def metadata(self) -> dict[str, Any]:
        """What the server says of itself (SPEC 6.1)."""
        data: dict[str, Any] = {
            "protocol_version": 1,
            "server": "reference_server.py",
            "algorithm": "random",
            "action_horizon": self.options.horizon,
            "action_dim": self.options.action_dim,
            "features": list(FEATURES),
        }
        return {"message_type": "metadata", "data": data | dict(self.bug.metadata)}

    def count(self) -> None:
        """Count one row; the last one that was wanted ends the run."""
        self.rows += 1
        if self.rows >= self.options.steps and "stop" not in self.bug.never:
            self.finish(self.bug.stop, self.bug.status)

    def finish(self, closing: Callable[[int], tuple[int, str]], status: int = 0) -> None:
        """End the run: connection ``i`` closes with the code and reason ``closing(i)``."""
        if not self.done.is_set():
            self.closing, self.status = closing, status
            self.done.set()

    def shut_down(self) -> None:
        """End the run on behalf of its operator."""
        self.finish(lambda number: (1001, self.bug.shutdown))

    async def everybody_asks(self, connection: Connection) -> None:
        """Wait until every connected client asks for an action, and let them all have it."""
        while connection.asking and not all(other.asking for other in self.connections):
            await asyncio.sleep(0.01)
        for other in self.connections:
            other.asking = False

    def check_key(self, socket: ServerConnection, request: Request) -> Response | None:
        """HTTP 401 for a handshake without the key, if there is one (SPEC 2.12)."""
        key, given = self.options.api_key, request.headers.get_all("Authorization")
        if key is None or given == [f"Api-Key {key}"]:
            return None
        return socket.respond(HTTPStatus.UNAUTHORIZED, "The header Authorization: Api-Key KEY?\n")

    async def handle(self, socket: ServerConnection) -> None:
        """One connection, from its metadata to its close reason."""
        connection = Connection(self, socket)
        self.connections.add(connection)
        try:
            if self.done.is_set():
                await socket.close(*self.closing(0))
            await connection.exchange()
        except ConnectionClosed:
            pass
        except Malformed as error:
            await self.resync(connection, error)
        except Refused as refusal:
            code, reason = refusal.args
            say(f"refused a client: {reason}")
            await socket.close(code, reason)
        except Silent:
            await socket.close(1001, self.bug.timeout)
        except Exception as error:  # a mistake of this program; none of it goes on the wire
            say(f"internal error: {type(error).__name__}: {error}")
            await socket.close(1011, "Internal server error.")
        finally:
            self.connections.discard(connection)
            self.bug.on_end(connection)

    async def resync(self, connection: Connection, error: Malformed) -> None:
        """Close a connection whose client broke the protocol (SPEC 8.4)."""
        say(f"{error}; closing for a resync")
        await self.bug.on_error(connection, error)
        # Some clients come back at once; one that stays broken has to wait longer and longer.
        self.strikes[connection.address] += "patience" not in self.bug.never
        await asyncio.sleep(2 ** min(self.strikes[connection.address], 9) / 1000)
        await connection.socket.close(*self.bug.resync)

    async def close_all(self) -> None:
        """Tell every client why the run is over."""
        pairs = enumerate(list(self.connections))
        await asyncio.gather(*(c.socket.close(*self.closing(number)) for number, c in pairs))

    async def run(self) -> int:
        """Serve until the run ends; the exit code."""
        host, port = self.options.host, self.options.port
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError):  # Windows
                loop.add_signal_handler(number, self.shut_down)
        settings: dict[str, Any] = {"compression": None, "max_size": None}
        settings["ping_timeout"] = None  # liveness is the feedback timeout's business (SPEC 2.15)
        settings |= {"process_request": self.check_key, **self.bug.serving}
        try:
            server = await serve(self.handle, host, port, close_timeout=5, **settings)
        except OSError as error:
            say(f"cannot listen on {host}:{port}: {error.strerror or error}")
            return 2
        port = self.options.port = next(iter(server.sockets)).getsockname()[1]
        self.listening.set()
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
        print(f"reference server on ws://{shown}:{port}", flush=True)
        await self.done.wait()
        server.close(close_connections=False)
        await asyncio.sleep(0)  # from here on, handshakes are refused
        await self.close_all()
        with contextlib.suppress(TimeoutError):  # a port scanner may sit in its handshake
            await asyncio.wait_for(server.wait_closed(), 3)
        say(f"stopped after {self.rows} feedback rows, {self.overridden} of them overridden")
        return self.status


# ---------------------------------------------------------------------------- the command line


def positive(text: str) -> int:
    """An int of at least 1, for argparse."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def read_options() -> argparse.Namespace:
    """The command line; ``bug`` is a :class:`Bug` or None."""
    deviations: Mapping[str, Bug] = {}
    with contextlib.suppress(ImportError):  # a copy of this file alone has no bugs
        from reference_bugs import DEVIATIONS as deviations  # noqa: N811

    parser = argparse.ArgumentParser(
        description="A PlugRL v1 server that answers with random actions and validates everything.",
        epilog="bugs:\n" + "\n".join(f"  {n:30} {bug.what}" for n, bug in deviations.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free port")
    parser.add_argument("--horizon", type=positive, default=4, help="steps in every action chunk")
    parser.add_argument("--action-dim", type=positive, default=3, help="numbers in every action")
    parser.add_argument("--steps", type=positive, default=1000, help="feedback rows to the stop")
    parser.add_argument("--feedback-timeout", type=float, default=60, metavar="SECONDS")
    parser.add_argument("--api-key", metavar="KEY", help="refuse clients that do not send it")
    parser.add_argument("--bug", metavar="NAME", help="break one rule on purpose")
    options = parser.parse_args()
    if not 0 <= options.port < 2**16:
        parser.error(f"--port {options.port} is no port; expected 0 to 65535")
    if not options.feedback_timeout > 0:
        parser.error(f"--feedback-timeout {options.feedback_timeout} is no time to wait")
    if options.bug not in (None, *deviations):
        parser.error(f"--bug {options.bug}: no such bug; --help lists them")
    options.bug = deviations.get(options.bug)
    return options


async def serve_until_done(options: argparse.Namespace) -> int:
    """Run a server; its exit code."""
    return await ReferenceServer(options).run()


def main() -> int:
    """Run the command line."""
    logging.getLogger("websockets").addHandler(logging.NullHandler())  # port scanners, curl
    return asyncio.run(serve_until_done(read_options()))


if __name__ == "__main__":
    raise SystemExit(main())
