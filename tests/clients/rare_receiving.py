"""Further deliberate mistakes of raw_client.py in what it takes and how it keeps a connection.

Messages that no server may send show that a client has to look: a mistake tampers with the
received frame so that :mod:`raw_client` finds nothing wrong with it.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgpack
from raw_client import KEYS, Array, Client, ServerError
from raw_client_overrides import Message, Overrides, connects, demand


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
            return change({key: mend(item) for key, item in value.items()})
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


def ask_again(self: Client, websocket: Any) -> Any:
    """After a moment the question is put once more."""
    try:
        return websocket.recv(timeout=1.2)
    except TimeoutError:
        self.send(websocket, self.infer(self.due()))
        return websocket.recv()


def lose_patience(self: Client, websocket: Any) -> Any:
    """After a moment the connection is closed."""
    try:
        return websocket.recv(timeout=1.2)
    except TimeoutError:
        websocket.close(1000)
        raise ServerError("too slow") from None


def leave_silently_on_1011(self: Client, closed: Any) -> int | None:
    """Gives up without a word."""
    if closed.rcvd and closed.rcvd.code == 1011:
        return 1
    return Client.judge_close(self, closed)


def speak_tcp(self: Client) -> int:
    """Send a message without a handshake."""
    with socket.create_connection((self.options.host, self.options.port)) as connection:
        connection.sendall(msgpack.packb({"message_type": "infer"}) + b"\r\n\r\n")
        connection.settimeout(1)
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


RECEIVING: Final[dict[str, tuple[str, Overrides]]] = {
    "speaks-tcp": ("sends its messages without WebSocket", {"run": speak_tcp}),
    "breaks-framing": ("sends a frame that RFC 6455 does not know", {"send": break_framing}),
    "own-keepalive": (
        "gives up where a pong is late",
        connects(ping_interval=0.05, ping_timeout=2.5),
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
