"""Further deliberate mistakes of raw_client.py: in what it takes, and in what it seldom sends.

Those about messages that no server may send show that a client has to look: each tampers with
the received frame so that :mod:`raw_client` finds nothing wrong with it.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgpack
from raw_client import KEYS, Array, Client, Env, ServerError, array_map, column
from raw_client_overrides import (
    NAN,
    Message,
    Overrides,
    arrays,
    asks,
    both,
    connects,
    demand,
    feedback,
    if_there,
    infer,
    observed,
    recast,
    result,
    shows,
    spaces,
)

# ------------------------------------------------------------------- received frames (no bugs)


class Tampered:
    """A connection whose frames are looked at, or changed, before the client sees them."""

    def __init__(self, websocket: Any, change: Callable[[Any], Any]) -> None:
        self._websocket = websocket
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._websocket, name)

    def recv(self, timeout: float | None = None) -> Any:
        """The next frame, changed."""
        frame = self._websocket.recv(timeout=timeout)
        return self._change(frame) if isinstance(frame, bytes) else frame


def receives(change: Callable[[bytes], bytes]) -> Overrides:
    """Other bytes than those that came."""
    return {"converse": lambda self, ws: Client.converse(self, Tampered(ws, change))}  # type: ignore[arg-type]


def mends(change: Callable[[Any], Any]) -> Overrides:
    """Every map of every received message is changed; arrays are maps with bin keys."""

    def mend(value: Any) -> Any:
        if isinstance(value, dict):
            changed = change({key: mend(item) for key, item in value.items()})
            return changed
        return value

    def override(frame: bytes) -> bytes:
        try:
            message = msgpack.unpackb(frame, strict_map_key=False)
        except ValueError:
            return frame
        whole: bytes = msgpack.packb(mend(message))
        return whole

    return receives(override)


def refuses(what: Callable[[Message], Any]) -> Overrides:
    """Messages that are said to be malformed."""

    def override(frame: bytes) -> bytes:
        try:
            message = msgpack.unpackb(frame, strict_map_key=False)
        except ValueError:
            return frame
        if isinstance(message, dict) and what(message):
            raise ServerError("a message of an unexpected kind")
        return frame

    return receives(override)


def maps(value: Any) -> Iterator[dict[Any, Any]]:
    """All maps of a message, the innermost last."""
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from maps(item)


def refuses_array(what: Callable[[dict[Any, Any]], bool]) -> Overrides:
    """Messages with an array of some kind."""
    return refuses(lambda m: any(b"__ndarray__" in part and what(part) for part in maps(m)))


def is_action(part: dict[Any, Any]) -> bool:
    """Whether a map is the array of an action, or what stands for one."""
    names = {key if isinstance(key, str) else bytes(key).decode() for key in part}
    return {"shape", "data"} <= names


def real_part(part: dict[Any, Any]) -> dict[Any, Any]:
    """Complex numbers without their imaginary parts, objects as zeros."""
    data = part.get(b"data", b"")
    if part.get(b"dtype") == "<c16":
        halves = b"".join(data[i : i + 8] for i in range(0, len(data), 16))
        return part | {b"dtype": "<f8", b"data": halves}
    return part | ({b"dtype": "<f8"} if part.get(b"dtype") == "|O" else {})


def whole_array(part: dict[Any, Any]) -> dict[Any, Any]:
    """An array with the bytes that its shape asks for, and with its four keys alone."""
    part = {key: item for key, item in part.items() if key != b"order"}
    size = 8 if str(part.get(b"dtype", ""))[1:] in ("f8", "i8") else 0
    for extent in part.get(b"shape", []):
        size *= extent
    return part | ({b"data": part[b"data"].ljust(size, b"\0")} if size else {})


def from_msgpack_numpy(part: dict[Any, Any]) -> dict[Any, Any]:
    """An array of the package msgpack-numpy."""
    if b"nd" not in part:
        return part
    return dict(zip(KEYS, (True, part[b"data"], part[b"type"], part[b"shape"]), strict=True))


def with_bin_keys(part: dict[Any, Any]) -> dict[Any, Any]:
    """An array whose keys are str."""
    return {k.encode(): v for k, v in part.items()} if "__ndarray__" in part else part


def crash(frame: bytes) -> bytes:
    """What a client in C might do."""
    try:
        msgpack.unpackb(frame, strict_map_key=False)
    except ValueError:
        os.kill(os.getpid(), signal.SIGKILL)
    return frame


def any_greeting(message: dict[Any, Any]) -> dict[Any, Any]:
    """The first message is metadata, whatever it says."""
    if message.get("message_type") == "action" and b"\1" not in message:
        ids = message["data"].get("env_ids", {}).get(b"data")
        if ids == bytes(8) and message["data"]["action"][b"shape"] == [1, 1, 1]:
            return {"message_type": "metadata", "data": {}}
    return message


# ------------------------------------------------------------------------- sending (no bugs)


def extra(value: Any) -> Overrides:
    """Another top-level key in every feedback."""
    return feedback(lambda message: {"x_extra": value})


def scalar(data: Any, dtype: str, **more: Any) -> dict[bytes, Any]:
    """A typed scalar."""
    keys = {name.encode(): value for name, value in more.items()}
    return {b"__npgeneric__": True, b"data": data, b"dtype": dtype} | keys


def nested(depth: int) -> Any:
    """Maps within maps."""
    value: Any = {}
    for _ in range(depth):
        value = {"deeper": value}
    return value


def packed(change: Callable[[bytes], bytes]) -> Overrides:
    """Other bytes than those that were packed."""
    return {"pack": lambda self, message: change(Client.pack(self, message))}  # type: ignore[arg-type]


def repeat_key(frame: bytes) -> bytes:
    """The first map with one more entry, of a key that it has."""
    return bytes([frame[0] + 1]) + frame[1:] + msgpack.packb("step_ids") + b"\x90"


def not_utf8(self: Client, message: Message) -> bytes:
    """A str that is not UTF-8."""
    frame: bytes = msgpack.packb(
        message | {"x_note": "\udcff"}, default=self.array_map, unicode_errors="surrogateescape"
    )
    return frame


def columns_first(self: Client, array: Array) -> dict[Any, Any]:
    """The elements of a matrix in Fortran's order."""
    if len(array.shape) != 2:
        return array_map(array)
    height, width = array.shape
    turned = [array.values[row * width + c] for c in range(width) for row in range(height)]
    return array_map(Array(array.dtype, array.shape, turned))


def big_endian(value: dict[Any, Any], array: Array) -> dict[Any, Any]:
    """The same numbers, the most significant byte first."""
    if array.dtype not in ("<i8", "<f8"):
        return value
    data = value[b"data"]
    turned = b"".join(data[i : i + 8][::-1] for i in range(0, len(data), 8))
    return value | {b"data": turned, b"dtype": ">" + array.dtype[1:]}


def twice_the_infer(self: Client, websocket: Any, message: Message) -> None:
    """Every infer goes out twice."""
    for _ in range(1 + (message["message_type"] == "infer")):
        Client.send(self, websocket, message)


def ask_again(self: Client, websocket: Any) -> Any:
    """After a moment the question is put once more."""
    try:
        return websocket.recv(timeout=0.3)
    except TimeoutError:
        self.send(websocket, self.infer(self.due()))
        return websocket.recv()


def lose_patience(self: Client, websocket: Any) -> Any:
    """After a moment the connection is closed."""
    try:
        return websocket.recv(timeout=0.3)
    except TimeoutError:
        websocket.close(1000)
        raise ServerError("too slow") from None


def envs(*indices: int) -> Overrides:
    """Other envs."""

    def override(self: Client) -> int:
        self.envs = [Env(index) for index in indices]
        return Client.run(self)

    return {"run": override}


def run_nothing(self: Client) -> list[Env]:
    """Every chunk ends before its first step."""
    holding = [env for env in self.envs if env.chunk]
    for env in holding:
        env.chunk, env.chunks_done = [], env.chunks_done + 1
    return holding


def take_with_leftovers(self: Any, message: Message, due: list[Env]) -> None:
    """What was left of the old chunk comes first."""
    Client.take_action(self, message, due)
    for env in due:
        left = self.__dict__.setdefault("left", {}).pop(env.index, [])
        env.chunk = [*left, *env.chunk][: len(env.chunk)]


def keep_leftovers(self: Any, env: Env) -> None:
    """Steps that were not run are kept for the next connection."""
    if env.chunk:
        self.__dict__.setdefault("left", {})[env.index] = env.chunk
    Client.drop_chunk(self, env)


def reset_late(self: Client, env: Env) -> None:
    """The next chunk's first step resets the env."""
    if env.ended:
        env.chunks_done = 0


def take_after_reset(self: Client, message: Message, due: list[Env]) -> None:
    """A step of the chunk goes into the reset."""
    over = [env for env in due if env.ended]
    Client.take_action(self, message, due)
    for env in over:
        env.reset()
        env.chunk = env.chunk[1:] or env.chunk


def leave_silently_on_1011(self: Client, closed: Any) -> int | None:
    """Gives up without a word."""
    if closed.rcvd and closed.rcvd.code == 1011:
        return 1
    return Client.judge_close(self, closed)


def speak_tcp(self: Client) -> int:
    """Send a message without a handshake."""
    with socket.create_connection((self.options.host, self.options.port)) as connection:
        connection.sendall(msgpack.packb({"message_type": "infer"}) + b"\r\n\r\n")
        connection.settimeout(5)
        connection.recv(100)
    return self.fail("no answer")


def break_framing(self: Client, websocket: Any, message: Message) -> None:
    """A frame with a reserved opcode."""
    websocket.socket.sendall(b"\x83\x80\0\0\0\0")
    time.sleep(0.2)


def refuse_combination(self: Client, offered: list[str]) -> set[str]:
    """Too many features at a time."""
    if len(offered) >= 4:
        raise ServerError("more features than this client can combine")
    return Client.choose_features(self, offered)


def refuse_features(self: Client, offered: list[str]) -> set[str]:
    """Only well-known features."""
    if any(name not in self.options.features for name in offered):
        raise ServerError("a feature that this client does not know")
    return Client.choose_features(self, offered)


def absent_is_zero(self: Client, action: Any, n: int) -> Array:
    """Without an action_horizon there is nothing to run."""
    if action.shape[0] > self.metadata.get("action_horizon", 0):
        raise ServerError("an action of more steps than action_horizon")
    return Client.check_action(self, action, n)


def infer_row_too_many(self: Client, due: list[Env]) -> Message:
    """One more row than indices."""
    return Client.infer(self, due) | {"data": self.observation([*due, self.envs[0]])}


def feedback_row_too_many(self: Client, finished: list[Env]) -> Message:
    """One more row than indices."""
    return self.observation([*finished, self.envs[0]])


RECEIVING: Final[dict[str, tuple[str, Overrides]]] = {
    "speaks-tcp": ("sends its messages without WebSocket", {"run": speak_tcp}),
    "breaks-framing": ("sends a frame that RFC 6455 does not know", {"send": break_framing}),
    "own-keepalive": (
        "gives up where a pong is late",
        connects(ping_interval=0.05, ping_timeout=0.2),
    ),
    "asks-again": ("repeats its infer where the answer is late", {"receive": ask_again}),
    "loses-patience": ("leaves where the answer is late", {"receive": lose_patience}),
    "crashes": ("dies of undecodable bytes", receives(crash)),
    "takes-other-keys": (
        "ignores keys that are no str",
        mends(lambda m: m if is_action(m) else {k: v for k, v in m.items() if k != b"x"}),
    ),
    "takes-extensions": (
        "ignores msgpack extension types",
        mends(
            lambda m: {
                k: v for k, v in m.items() if not isinstance(v, msgpack.Timestamp | msgpack.ExtType)
            }
        ),
    ),
    "takes-other-dtypes": ("reads complex numbers and objects", mends(real_part)),
    "takes-short-arrays": ("fills arrays that are too short", mends(whole_array)),
    "takes-str-keys": ("reads arrays with str keys", mends(with_bin_keys)),
    "takes-msgpack-numpy": ("reads arrays of msgpack-numpy", mends(from_msgpack_numpy)),
    "takes-any-greeting": ("takes an action for the metadata", mends(any_greeting)),
    "takes-any-text": (
        "takes metadata without message_type",
        mends(lambda m: m if "server" not in m else m | {"message_type": "metadata", "data": {}}),
    ),
    "vague-errors": (
        "does not say what is wrong with a message",
        {"fail": lambda self, sentence: Client.fail(self, "failed")},
    ),
    "silent-errors": ("says nothing at all", {"say": lambda self, sentence: None}),
    "needs-order": (
        "wants message_type to come first",
        refuses(lambda m: next(iter(m)) != "message_type"),
    ),
    "needs-known-keys": (
        "refuses unknown top-level keys",
        refuses(lambda m: set(m) - {"message_type", "data"}),
    ),
    "needs-array-order": (
        "wants the keys of arrays in order",
        refuses_array(lambda part: list(part) != list(KEYS)),
    ),
    "refuses-no-dimensions": (
        "refuses arrays of no dimensions",
        refuses_array(lambda part: part[b"shape"] == []),
    ),
    "refuses-zero-size": (
        "refuses arrays without elements",
        refuses_array(lambda part: 0 in part[b"shape"]),
    ),
    "refuses-empty-text": (
        "refuses <U0",
        refuses_array(lambda part: part[b"dtype"] == "<U0"),
    ),
    "refuses-byte-order": (
        "wants | with types of one byte",
        refuses_array(lambda part: part[b"dtype"] in ("<u1", ">i1")),
    ),
    "refuses-scalars": (
        "refuses typed scalars",
        refuses(lambda m: any(b"__npgeneric__" in part for part in maps(m))),
    ),
    "reads-one-as-true": (
        "takes a bool byte of 2 for false",
        mends(
            lambda m: (
                m | {b"data": m[b"data"].replace(b"\2", b"\0")} if m.get(b"dtype") == "|b1" else m
            )
        ),
    ),
    "needs-server": ("wants the server's name", demand("server")),
    "absent-is-zero": ("takes no action_horizon for 0", {"check_action": absent_is_zero}),
    "needs-known-data": (
        "refuses unknown keys of data",
        refuses(lambda m: m["message_type"] == "action" and set(m["data"]) - {"env_ids", "action"}),
    ),
    "needs-int64-ids": (
        "refuses env_ids of other types than int64",
        refuses(lambda m: m["data"].get("env_ids", {}).get(b"dtype", "<i8") != "<i8"),
    ),
    "needs-known-features": ("refuses unknown features", {"choose_features": refuse_features}),
    "refuses-combination": (
        "refuses four features at a time",
        {"choose_features": refuse_combination},
    ),
    "leaves-on-1011": ("gives up on 1011 without a word", {"judge_close": leave_silently_on_1011}),
}

SENDING: Final[dict[str, tuple[str, Overrides]]] = {
    "other-order": (
        "sends the keys of an infer in reverse",
        {"infer": lambda self, due: dict(reversed(Client.infer(self, due).items()))},
    ),
    "repeats-key": ("names a key twice", packed(repeat_key)),
    "not-utf8": ("sends a str that is not UTF-8", {"pack": not_utf8}),
    "nests": ("nests maps 80 deep", extra(nested(80))),
    "array-order": (
        "packs the keys of arrays in reverse",
        arrays(lambda value, a: dict(reversed(value.items()))),
    ),
    "array-tag": ("packs 1 for true", arrays(lambda value, a: value | {b"__ndarray__": 1})),
    "array-data": (
        "packs the bytes of arrays as ints",
        arrays(lambda value, a: value | {b"data": list(value[b"data"])}),
    ),
    "array-dtype": (
        "packs dtypes as bin",
        arrays(lambda value, a: value | {b"dtype": a.dtype.encode()}),
    ),
    "array-shape": (
        "packs shapes as floats",
        arrays(lambda value, a: value | {b"shape": [float(size) for size in a.shape]}),
    ),
    "array-columns": ("packs matrices column by column", {"array_map": columns_first}),
    "array-big-endian": ("packs arrays in big-endian", arrays(big_endian)),
    "bool-bytes": (
        "packs true as 255",
        arrays(
            lambda value, a: (
                value
                | ({b"data": value[b"data"].replace(b"\1", b"\xff")} if a.dtype == "|b1" else {})
            )
        ),
    ),
    "surrogates": (
        "packs half a character",
        arrays(
            lambda value, a: (
                value | ({b"data": b"\0\xd8\0\0" * len(a.values)} if a.dtype == "<U1" else {})
            )
        ),
    ),
    "scalar-keys": ("packs a scalar with a key too many", extra(scalar(1, "<i4", unit="s"))),
    "scalar-range": ("packs 300 as uint8", extra(scalar(300, "|u1"))),
    "scalar-float64": ("packs a float64 as a typed scalar", extra(scalar(1.0, "<f8"))),
    "infer-twice": ("sends every infer twice", {"send": twice_the_infer}),
    "sparse-indices": ("numbers its envs 0, 3 and 7", envs(0, 3, 7)),
    "far-indices": ("has an env 1001", envs(0, 1, 1001)),
    "wide-index": (
        "names an env by a number of 64 bits",
        both(
            lambda m: {
                "env_indices": column("<u8", [2**64 - 1 - i for i in m["env_indices"].values])
            }
        ),
    ),
    "text-state": (
        "sends a state of text",
        shows(lambda t: Array("<U1", t.shape, ["x"] * len(t.values))),
    ),
    "text-list": (
        "sends text as a msgpack array",
        observed(lambda seen: {"text": [""] * len(seen["text"].values)}),
    ),
    "numbered-states": (
        "names its states by numbers",
        observed(lambda seen: {"states": dict(enumerate(seen["states"].values()))}),
    ),
    "infer-row": ("asks with a row too many", {"infer": infer_row_too_many}),
    "feedback-row": ("feeds back a row too many", {"last_observation": feedback_row_too_many}),
    "runs-nothing": ("feeds a chunk back before its first step", {"run_chunks": run_nothing}),
    "float-feedback-step-ids": (
        "sends a feedback's step_ids as float64",
        feedback(lambda m: {"step_ids": recast(m["step_ids"], "<f8")}),
    ),
    "other-step-ids": (
        "counts a feedback's step ids from 1",
        feedback(lambda m: {"step_ids": column("<i8", [v + 1 for v in m["step_ids"].values])}),
    ),
    "float64-rewards": (
        "sends rewards as float64",
        result(lambda d: {"rewards": recast(d["rewards"], "<f8")}),
    ),
    "earlier-observation": (
        "feeds back a t of before the chunk",
        {
            "last_observation": lambda self, finished: self.observation(
                [Env(e.index, e.t - len(e.ran) - 1, e.a) for e in finished]
            )
        },
    ),
    "resets-late": (
        "resets an env by the first step of its next chunk",
        {"go_on": reset_late, "take_action": take_after_reset},
    ),
    "resets-often": (
        "resets an env after every chunk",
        {"go_on": lambda self, env: env.reset()},
    ),
    "keeps-leftovers": (
        "runs what was left of a chunk before the next one",
        {"drop_chunk": keep_leftovers, "take_action": take_with_leftovers},
    ),
    "mixed-layout": (
        "sends rows beside reused ones as another dtype",
        infer(
            lambda m: (
                {
                    "data": m["data"]
                    | {
                        "states": m["data"]["states"]
                        | {"t": recast(m["data"]["states"]["t"], "<f4")}
                    }
                }
                if "reuse" in m
                else {}
            )
        ),
    ),
    "step-rewards-nan": (
        "sends a NaN among the rewards of steps",
        if_there("step_rewards", lambda a: Array("<f4", a.shape, [NAN] * len(a.values))),
    ),
    "executed-nan": (
        "sends a NaN among executed actions",
        if_there("actions", lambda a: Array("<f8", a.shape, [NAN] * len(a.values))),
    ),
    "executed-unpadded": (
        "sends actions after a row's last step",
        if_there("actions", lambda a: Array("<f8", a.shape, [v or 5.0 for v in a.values])),
    ),
    "spaces-unknown": (
        "describes its action space by another name",
        spaces(lambda s: {"action": s["action"] | {"type": "box"}}),
    ),
    "spaces-dict-action": (
        "declares an action space of several parts",
        spaces(lambda s: {"action": {"type": "Dict", "spaces": {"one": s["action"]}}}),
    ),
    "says-hello": (
        "sends text without a text space",
        observed(lambda seen: {"text": column("<U5", ["hello"] * len(seen["text"].values))}),
    ),
    "more-states": (
        "sends a third state",
        observed(lambda seen: {"states": seen["states"] | {"b": seen["states"]["t"]}}),
    ),
    "float32-action": (
        "sends the state a as float32",
        observed(
            lambda seen: {"states": seen["states"] | {"a": recast(seen["states"]["a"], "<f4")}}
        ),
    ),
    "float32-time": ("sends the state t as float32", shows(lambda t: recast(t, "<f4"))),
    "asks-in-halves": ("asks with half a step more", asks(lambda t: t + 0.5)),
}

RARE: Final[dict[str, tuple[str, Overrides]]] = {**RECEIVING, **SENDING}
