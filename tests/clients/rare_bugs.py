"""Further deliberate mistakes of raw_client.py in what it sends, and ways to do that are none."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import msgpack
from rare_receiving import RECEIVING
from raw_client import Array, Client, Env, array_map, column
from raw_client_overrides import (
    NAN,
    Message,
    Overrides,
    arrays,
    asks,
    both,
    connects,
    feedback,
    if_there,
    infer,
    observed,
    recast,
    result,
    shows,
    spaces,
)


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
    """The message with a key of its own, twice."""
    return bytes([frame[0] + 2]) + frame[1:] + 2 * b"\xa1x\x01"


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


def run_all(self: Client) -> list[Env]:
    """All envs run their chunks to the end."""
    holding = [env for env in self.envs if env.chunk]
    for env in holding:
        while env.chunk:
            env.step()
            self.end_chunk(env)
            self.steps += 1
    return holding


def end_at_random(self: Client, env: Env) -> None:
    """Any step may be a chunk's last."""
    if random.random() < 0.4:
        env.chunk = []
    Client.end_chunk(self, env)


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


def infer_row_too_many(self: Client, due: list[Env]) -> Message:
    """One more row than indices."""
    return Client.infer(self, due) | {"data": self.observation([*due, self.envs[0]])}


def feedback_row_too_many(self: Client, finished: list[Env]) -> Message:
    """One more row than indices."""
    return self.observation([*finished, self.envs[0]])


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
    "env-1001": ("has an env 1001", envs(0, 1, 1001)),
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
    "long-episodes": (
        "ends its episodes two steps late",
        {
            "run": lambda self: (
                setattr(Env, "length", property(lambda env: 5 + 2 * (env.index % 3))),
                Client.run(self),
            )[1]
        },
    ),
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
        "feeds back t as it was a step earlier",
        {
            "last_observation": lambda self, finished: self.observation(
                [Env(e.index, e.t - (len(e.ran) > 1), e.a) for e in finished]
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
        if_there(
            "actions",
            lambda a: Array(
                "<f8", a.shape, [v or 5.0 * (at >= a.shape[1]) for at, v in enumerate(a.values)]
            ),
        ),
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


#: No mistakes: other ways to keep SPEC.md.
LEGAL: Final[dict[str, tuple[str, Overrides]]] = {
    "lockstep": ("feeds all envs back together", {"run_chunks": run_all}),
    "piecemeal": ("asks for one env at a time", {"due": lambda self: Client.due(self)[:1]}),
    "backward-order": (
        "names its envs in descending order",
        {"due": lambda self: Client.due(self)[::-1]},
    ),
    "early-feedback": ("ends chunks at random", {"end_chunk": end_at_random}),
    "far-indices": ("numbers its envs at will", envs(5, 2**40, 0)),
    "no-text-width": (
        "sends text as <U0",
        {
            "array_map": lambda self, a: (
                array_map(a) | ({b"dtype": "<U0", b"data": b""} if a.dtype == "<U1" else {})
            )
        },
    ),
    "more-keys": ("sends keys that no server knows", both(lambda m: {"x_note": [1, None, "two"]})),
    "stays-in-touch": ("pings the server", connects(ping_interval=0.02, ping_timeout=20)),
}
