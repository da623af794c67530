"""What no server may send: each fault takes the place of a metadata or an action message.

A client closes with 1002 (SPEC 8.28), and steps no env with any part of it (8.30).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import numpy as np
import numpy.typing as npt

from plugrl_gym.conformance.client_grader.sending import Message, RawArray, action_message, pack

__all__ = ["FAULTS", "OTHER_VERSION", "Fault"]

Array = npt.NDArray[Any]

#: A protocol version that nobody speaks.
OTHER_VERSION: Final = 937


@dataclass(frozen=True)
class Fault:
    """A malformed message.

    Attributes:
        words: What is wrong with it.
        clauses: What a client breaks that takes it for a message.
        build: (metadata's data, envs, action) -> the frame; a str is a text frame.
        greeting: Whether it comes in place of the metadata.
        says: What the client's report should mention.
    """

    words: str
    clauses: tuple[str, ...]
    build: Callable[[Message, list[int], Array], bytes | str]
    greeting: bool = False
    says: tuple[str, ...] = ()


def _greet(**changes: object) -> Callable[[Message, list[int], Array], bytes]:
    return lambda data, envs, action: pack(
        {"message_type": "metadata", "data": {**data, **changes}}
    )


def _no_envelope(data: Message, envs: list[int], action: Array) -> bytes:
    return pack(data)


def _answer(
    change: Callable[[Message], Message],
) -> Callable[[Message, list[int], Array], bytes]:
    return lambda data, envs, action: pack(change(action_message(envs, action)))


def _action_of(
    change: Callable[[Array], Array | RawArray],
) -> Callable[[Message, list[int], Array], bytes]:
    return lambda data, envs, action: pack(action_message(envs, change(action)))


def _bytes_of(
    change: Callable[[bytes], bytes],
) -> Callable[[Message, list[int], Array], bytes]:
    return lambda data, envs, action: change(pack(action_message(envs, action)))


def _map_of(
    change: Callable[[dict[bytes, Any]], dict[Any, Any]],
) -> Callable[[Message, list[int], Array], bytes]:
    """The action with another map for its array."""

    def build(data: Message, envs: list[int], action: Array) -> bytes:
        array = {
            b"__ndarray__": True,
            b"data": action.tobytes(),
            b"dtype": action.dtype.str,
            b"shape": list(action.shape),
        }
        message = action_message(envs, action)
        message["data"]["action"] = change(array)
        return pack(message)

    return build


def _other_ids(message: Message) -> Message:
    ids = message["data"]["env_ids"]
    other = ids[::-1] if len(ids) > 1 else ids + 1
    return {**message, "data": {**message["data"], "env_ids": np.ascontiguousarray(other)}}


def _with_nan(action: Array) -> Array:
    floats = action.astype("<f8")
    floats.flat[-1] = np.nan
    return floats


def _wide(action: Array) -> Array:
    """One number more for each env, whatever the metadata declares."""
    flat = action.reshape(*action.shape[:2], -1)
    return np.concatenate([flat, flat[:, :, :1]], axis=2)


def _add_bin_key(message: Message) -> Message:
    bin_key: Any = b"x"
    return {**message, bin_key: 1}


def _as_msgpack_numpy(array: dict[bytes, Any]) -> dict[Any, Any]:
    return {
        b"nd": True,
        b"type": array[b"dtype"],
        b"kind": b"",
        b"shape": array[b"shape"],
        b"data": array[b"data"],
    }


def _short(action: Array) -> RawArray:
    return RawArray(action.dtype.str, action.shape, action.tobytes()[:-1])


FAULTS: Final[Mapping[str, Fault]] = {
    "version": Fault(
        f"metadata of protocol version {OTHER_VERSION}",
        ("12.3",),
        _greet(protocol_version=OTHER_VERSION),
        greeting=True,
        says=(str(OTHER_VERSION), "1"),
    ),
    "horizon-type": Fault(
        "metadata whose action_horizon is a str", ("6.1.5",), _greet(action_horizon="4"), True
    ),
    "features-type": Fault(
        "metadata whose features is a str", ("6.1.5",), _greet(features="gym-spaces"), True
    ),
    "no-envelope": Fault(
        "a first message without message_type", ("8.28",), _no_envelope, True, ("openpi",)
    ),
    "action-first": Fault(
        "an action in place of the metadata",
        ("5.2",),
        lambda data, envs, action: pack(action_message([0], np.zeros((1, 1, 1)))),
        greeting=True,
    ),
    "metadata-again": Fault("metadata in place of an action", ("5.2",), _greet()),
    "undecodable": Fault(
        "bytes that are no msgpack", ("3.15",), lambda data, envs, action: b"\xc1\xff\x00plugrl"
    ),
    "truncated": Fault("half a message", ("3.15",), _bytes_of(lambda f: f[: len(f) // 2])),
    "huge-claim": Fault(
        "a map that announces 4294967295 entries",
        ("3.15",),
        lambda data, envs, action: b"\xdf\xff\xff\xff\xff\xa1x",
    ),
    "nested": Fault(
        "maps nested 100000 deep", ("3.15",), lambda data, envs, action: b"\x81\xa1x" * 100_000
    ),
    "trailing": Fault("bytes after the message", ("8.28",), _bytes_of(lambda f: f + b"\x00")),
    "bin-key": Fault("a key of type bin", ("3.5",), _answer(_add_bin_key)),
    "timestamp": Fault(
        "a timestamp, which is a msgpack extension type",
        ("3.12",),
        _answer(lambda m: {**m, "x_time": msgpack.Timestamp(1, 0)}),
    ),
    "extension": Fault(
        "a msgpack extension type",
        ("3.12",),
        _answer(lambda m: {**m, "x_ext": msgpack.ExtType(7, b"x")}),
    ),
    "complex": Fault(
        "an action of complex numbers",
        ("4.20",),
        _action_of(lambda a: RawArray("<c16", a.shape, a.astype("<c16").tobytes())),
    ),
    "object": Fault(
        "an action of dtype |O",
        ("4.20",),
        _action_of(lambda a: RawArray("|O", a.shape, b"\0" * 8 * a.size)),
    ),
    "short-data": Fault("an action whose data lacks a byte", ("4.35",), _action_of(_short)),
    "extra-key": Fault(
        "an array with a fifth key", ("4.35",), _map_of(lambda a: {**a, b"order": "C"})
    ),
    "str-keys": Fault(
        "an array with str keys",
        ("4.37",),
        _map_of(lambda a: {key.decode(): value for key, value in a.items()}),
        says=("str",),
    ),
    "msgpack-numpy": Fault(
        "an array in the encoding of the package msgpack-numpy",
        ("4.38",),
        _map_of(_as_msgpack_numpy),
        says=("msgpack-numpy", "msgpack_numpy"),
    ),
    "no-action": Fault(
        "an action message without action",
        ("8.28",),
        _answer(lambda m: {**m, "data": {"env_ids": m["data"]["env_ids"]}}),
    ),
    "text-action": Fault(
        "an action of text",
        ("8.28",),
        _action_of(lambda a: RawArray("<U1", a.shape, "1".encode("utf-32-le") * a.size)),
    ),
    "other-ids": Fault("env_ids other than the infer's", ("6.4.6",), _answer(_other_ids)),
    "no-steps": Fault("an action with H = 0", ("6.4.15",), _action_of(lambda a: a[:0])),
    "rows": Fault(
        "an action with a row too many",
        ("6.4.15",),
        _action_of(lambda a: np.concatenate([a, a[:, :1]], axis=1)),
    ),
    "other-horizon": Fault(
        "an action of more steps than the declared action_horizon",
        ("6.4.15",),
        _action_of(lambda a: np.concatenate([a, a[:1]])),
    ),
    "wide": Fault("an action wider than the declared action_dim", ("6.4.15",), _action_of(_wide)),
    "nan": Fault("an action with a NaN", ("6.4.19",), _action_of(_with_nan)),
    "infinity": Fault(
        "an action with an infinity", ("6.4.19",), _action_of(lambda a: a.astype("<f8") + np.inf)
    ),
    "fraction": Fault(
        "a fractional action for a space of integers",
        ("6.4.17",),
        _action_of(lambda a: a.astype("<f8") + 0.5),
    ),
}
