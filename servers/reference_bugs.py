"""The deliberate mistakes of reference_server.py: each breaks one rule of SPEC.md and no other.

A conformance suite that passes the server as it is must find fault with it under every one of
these. Each is one line of behaviour, a field of :class:`reference_server.Bug`.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

import conduct_bugs
import encoding_bugs
import msgpack
import numpy as np
from reference_server import (
    ARRAY_KEYS,
    FEATURES,
    RESYNC,
    STOP,
    Bug,
    Connection,
    Malformed,
    first_array,
    pack,
)
from websockets.asyncio.server import ServerConnection
from websockets.frames import Opcode
from websockets.http11 import Request, Response

TOP_LEVEL: Final = ("message_type", "data", "env_indices", "step_ids", "reuse", "spaces")


MALFORMED: Final = {  # every kind of Malformed
    "text": "a text frame",
    "undecodable": "bytes that are no single msgpack value",
    "extension": "a msgpack extension type",
    "odd-key": "a map key that is no str, or that comes twice",
    "msgpack-numpy": "an array in the encoding of the PyPI package msgpack-numpy",
    "str-keys": "an array whose keys are msgpack str",
    "forbidden-dtype": "an array of a kind that never travels",
    "short-data": "an array whose data does not fill its shape",
    "bad-array": "an array or scalar that breaks another rule",
    "wrong-message-type": "a message type that no client sends",
    "two-infers": "an infer where a feedback is due",
    "two-feedbacks": "a feedback where an infer is due",
    "missing-key": "a map without one of its keys",
    "extra-key": "an observation or a feedback with a key too many",
    "wrong-type": "a value of the wrong type, dtype or number of dimensions",
    "duplicate-index": "an env named twice in one message",
    "negative-index": "a negative env index",
    "empty-set": "a message that names no env",
    "row-mismatch": "arrays with more or fewer rows than env_indices",
    "unsplittable-info": "an info that cannot be split per env",
    "non-finite": "an infer with a NaN or an infinity",
    "reuse-without-feedback": "the reuse of an observation that never came",
    "reuse-after-end": "the reuse of a terminal observation",
    "reuse-mismatch": "reused and sent rows that do not fit together",
    "bad-spaces": "an incomplete declaration of spaces",
    "late-spaces": "a declaration of spaces after the first infer",
    "other-layout": "an observation that is not as declared",
    "bad-chunk-steps": "steps and step_rewards that do not fit",
    "bad-executed-actions": "actions and overridden that do not fit",
}


def mute_pongs(socket: ServerConnection) -> None:
    """Swallow every pong."""
    protocol: Any = socket.protocol
    send = protocol.send_frame
    protocol.send_frame = lambda frame: None if frame.opcode is Opcode.PONG else send(frame)


def refuse_keys(socket: ServerConnection, request: Request) -> Response | None:
    """HTTP 401 for a handshake with a key."""
    keyed = "Authorization" in request.headers
    return socket.respond(HTTPStatus.UNAUTHORIZED, "no keys here\n") if keyed else None


async def end_server(connection: Connection, error: Malformed) -> None:
    """Take everybody down."""
    connection.server.shut_down()


async def crash(connection: Connection, error: Malformed) -> None:
    """Take everybody down because of an info."""
    if error.kind == "unsplittable-info":
        await connection.socket.close(1011, "Internal server error.")
        connection.server.finish(lambda number: (1011, "Internal server error."), 1)


async def close_others(connection: Connection, error: Malformed) -> None:
    """Close every connection."""
    for other in list(connection.server.connections):
        await other.socket.close(1001, RESYNC)


async def complain(connection: Connection, error: Malformed) -> None:
    """Say on the wire what was wrong."""
    await connection.socket.send(pack({"message_type": "error", "data": str(error)}))


async def drop(connection: Connection, error: Malformed) -> None:
    """Leave without a close frame."""
    connection.socket.transport.abort()


def renamed(typestr: str) -> Any:
    """An array's map with another typestr for float32."""
    return lambda pairs: {k: typestr if v == "<f4" else v for k, v in pairs}


def first_states(connection: Connection) -> dict[str, Any]:
    """The states of the connection's first infer."""
    states: dict[str, Any] = connection.first["data"]["states"]
    return states


GREETING: Final = {
    "no-metadata": Bug(
        what="waits for the client instead of speaking first",
        greeting=lambda message: [],
    ),
    "metadata-twice": Bug(
        what="sends its metadata twice",
        greeting=lambda message: [pack(message)] * 2,
    ),
    "text-metadata": Bug(
        what="sends its metadata as a text frame",
        greeting=lambda message: [str(message)],
    ),
    "metadata-list": Bug(
        what="sends the metadata's data as a list",
        greeting=lambda message: [pack(message | {"data": []})],
    ),
    "bad-features": Bug(
        what="declares its features as one str",
        metadata={"features": " ".join(FEATURES)},
    ),
    "nil-metadata": Bug(
        what="sends nil for what it does not know",
        metadata={"server_version": None},
    ),
    "bad-utf8": Bug(what="sends a str that is no UTF-8", metadata={"policy": "\udcff"}),
    "sends-extension": Bug(
        what="sends a msgpack timestamp",
        metadata={"started": msgpack.Timestamp(0)},
    ),
    "sends-bin-key": Bug(what="sends a map key that is bin", metadata={b"policy": "random"}),
    "compression": Bug(
        what="negotiates permessage-deflate with clients that offer it",
        serving={"compression": "deflate"},
    ),
    "refuses-keys": Bug(
        what="needs no API key and refuses a client that sends one",
        serving={"process_request": refuse_keys},
    ),
}

ACTION: Final = {
    "env-major": Bug(
        what="sends the action as [n, H, da]",
        action=lambda ids, chunk: {"action": chunk.swapaxes(0, 1)},
    ),
    "no-env-ids": Bug(
        what="leaves env_ids out of the action",
        answer=lambda m, frame: [pack(m | {"data": {"action": m["data"]["action"]}})],
    ),
    "no-action": Bug(
        what="leaves the action out of the action",
        answer=lambda m, frame: [pack(m | {"data": {"env_ids": m["data"]["env_ids"]}})],
    ),
    "wrong-env-ids": Bug(
        what="names every env one too high",
        action=lambda ids, chunk: {"env_ids": ids + 1},
    ),
    "float-env-ids": Bug(
        what="sends env_ids as float64",
        action=lambda ids, chunk: {"env_ids": ids * 1.0},
    ),
    "list-env-ids": Bug(
        what="sends env_ids as a list",
        action=lambda ids, chunk: {"env_ids": ids.tolist()},
    ),
    "sorted-order": Bug(
        what="answers in sorted order instead of the infer's",
        action=lambda ids, chunk: {"env_ids": np.sort(ids), "action": chunk[:, np.argsort(ids)]},
    ),
    "extra-row": Bug(
        what="answers with one env too many",
        action=lambda ids, chunk: {
            "env_ids": np.append(ids, max(ids) + 1),
            "action": np.append(chunk, chunk[:, :1], 1),
        },
    ),
    "wrong-horizon": Bug(
        what="declares H and sends H + 1 steps",
        action=lambda ids, chunk: {"action": np.append(chunk, chunk[:1], 0)},
    ),
    "empty-horizon": Bug(
        what="sends chunks of no steps",
        action=lambda ids, chunk: {"action": chunk[:0]},
    ),
    "wrong-dim": Bug(
        what="declares a dimension and sends one number more",
        action=lambda ids, chunk: {"action": np.append(chunk, chunk[:, :, :1], 2)},
    ),
    "non-finite": Bug(
        what="sends a NaN in every action",
        action=lambda ids, chunk: {"action": chunk * np.nan},
    ),
    "text-numbers": Bug(
        what="sends the action as text",
        action=lambda ids, chunk: {"action": chunk.astype("<U8")},
    ),
    "array-str-keys": Bug(
        what="packs arrays with str keys",
        array=lambda pairs: {key.decode(): value for key, value in pairs},
    ),
    "array-msgpack-numpy": Bug(
        what="packs arrays in the encoding of the package msgpack-numpy",
        array=lambda pairs: dict(
            zip((b"nd", b"data", b"type", b"shape"), dict(pairs).values(), strict=True)
        ),
    ),
    "array-complex": Bug(what="packs actions as complex numbers", array=renamed("<c4")),
    "array-bare-order": Bug(what="packs actions in the order |", array=renamed("|f4")),
    "array-short": Bug(
        what="packs arrays with their last byte missing",
        array=lambda pairs: {k: v[:-1] if isinstance(v, bytes) else v for k, v in pairs},
    ),
    "array-extra-key": Bug(
        what="packs arrays with a key too many",
        array=lambda pairs: {**dict(pairs), b"n": 1},
    ),
    "text-action": Bug(
        what="sends its actions as text frames",
        answer=lambda message, frame: [str(message)],
    ),
    "action-twice": Bug(
        what="sends every action twice",
        answer=lambda message, frame: [frame, frame],
    ),
    "trailing-bytes": Bug(
        what="sends a byte too many after every action",
        answer=lambda message, frame: [frame + b"\xc0"],
    ),
    "wrong-action-type": Bug(
        what="calls its answer actions",
        answer=lambda message, frame: [pack(message | {"message_type": "actions"})],
    ),
    "no-reply": Bug(what="never answers an infer", answer=lambda message, frame: []),
    "replies-to-feedback": Bug(
        what="answers every feedback",
        thanks=(pack({"message_type": "action", "data": {}}),),
    ),
    "eval-random": Bug(
        what="sends random actions to a client in eval mode",
        never=frozenset({"exploit"}),
    ),
}

REFUSES_LEGAL: Final = {
    "max-size": Bug(what="caps incoming frames at 1 MiB", serving={"max_size": 2**20}),
    "needs-array-order": Bug(
        what="refuses arrays with their keys in another order",
        refuses_array=lambda value, array: tuple(value) != ARRAY_KEYS,
    ),
    "needs-little-endian": Bug(
        what="refuses big-endian arrays",
        refuses_array=lambda value, array: value[b"dtype"][0] == ">",
    ),
    "needs-no-order": Bug(
        what="refuses <b1, <u1 and the like",
        refuses_array=lambda value, array: value[b"dtype"][0] != "|" and array.dtype.itemsize == 1,
    ),
    "needs-dimensions": Bug(
        what="refuses arrays of no dimensions",
        refuses_array=lambda value, array: array.ndim == 0,
    ),
    "needs-elements": Bug(
        what="refuses arrays of no elements",
        refuses_array=lambda value, array: array.size == 0,
    ),
    "needs-characters": Bug(
        what="refuses <U0",
        refuses_array=lambda value, array: value[b"dtype"] == "<U0",
    ),
    "needs-key-order": Bug(
        what="refuses an infer with its keys in another order",
        refuses_infer=lambda c, m, envs: tuple(m)[:4] != TOP_LEVEL[:4],
    ),
    "refuses-unknown-keys": Bug(
        what="refuses an infer with an unknown top-level key",
        refuses_infer=lambda c, m, envs: not m.keys() <= set(TOP_LEVEL),
    ),
    "needs-same-keys": Bug(
        what="refuses an infer whose state keys are not those of the first",
        refuses_infer=lambda c, m, envs: m["data"]["states"].keys() != first_states(c).keys(),
    ),
    "dies-on-new-key": Bug(
        what="closes with 1011 when a state key appears",
        refuses_infer=lambda c, m, envs: (
            None in [first_states(c)[key].shape for key in m["data"]["states"]]
        ),
    ),
    "needs-same-count": Bug(
        what="refuses an infer for more or fewer envs than the first",
        refuses_infer=lambda c, m, envs: len(envs) != len(c.first["env_indices"]),
    ),
    "needs-known-envs": Bug(
        what="refuses an env that the first infer did not name",
        refuses_infer=lambda c, m, envs: not set(envs) <= set(c.first["env_indices"].tolist()),
    ),
    "needs-sorted-envs": Bug(
        what="refuses indices out of order",
        refuses_infer=lambda c, m, envs: envs != sorted(envs),
    ),
    "needs-dense-envs": Bug(
        what="refuses a first infer whose indices have gaps",
        refuses_infer=lambda c, m, envs: c.first is m and max(envs) >= len(envs),
    ),
    "needs-state": Bug(
        what="refuses an infer without states",
        refuses_infer=lambda c, m, envs: not m["data"]["states"],
    ),
    "needs-float64": Bug(
        what="refuses states of any other dtype",
        refuses_infer=lambda c, m, envs: any(
            state.dtype.str[1:] != "f8" for state in m["data"]["states"].values()
        ),
    ),
    "needs-text-array": Bug(
        what="refuses text as a list",
        refuses_infer=lambda c, m, envs: isinstance(m["data"]["text"], list),
    ),
    "needs-int64": Bug(
        what="refuses env_indices of another integer type",
        refuses_infer=lambda c, m, envs: m["env_indices"].dtype.str[1:] != "i8",
    ),
    "reads-step-ids": Bug(
        what="refuses step ids below 0 or above 10000",
        refuses_infer=lambda c, m, envs: not all(0 <= i <= 10000 for i in m["step_ids"].tolist()),
    ),
    "needs-lockstep": Bug(
        what="refuses a feedback for other envs than the last infer",
        refuses_feedback=lambda c, m, envs: envs != c.envs,
    ),
    "needs-float32": Bug(
        what="refuses rewards that are not float32",
        refuses_feedback=lambda c, m, envs: m["data"]["rewards"].dtype.str[1:] != "f4",
    ),
    "refuses-info": Bug(
        what="refuses an info that is not empty",
        refuses_feedback=lambda c, m, envs: bool(m["data"]["info"]),
    ),
    "requires-info": Bug(
        what="refuses an empty info",
        refuses_feedback=lambda c, m, envs: not m["data"]["info"],
    ),
    "needs-info-array": Bug(
        what="refuses an info of one row that holds no array",
        refuses_feedback=lambda c, m, envs: (
            bool(m["data"]["info"]) and first_array(m["data"]["info"]) is None
        ),
    ),
    "closes-on-nan": Bug(
        what="closes on a reward that is NaN instead of dropping its row",
        refuses_feedback=lambda c, m, envs: not np.isfinite(m["data"]["rewards"]).all(),
    ),
    "closes-on-stale": Bug(
        what="closes on feedback for an env without an action",
        refuses_feedback=lambda c, m, envs: not c.holding.issuperset(envs),
    ),
    "shared-indices": Bug(
        what="refuses an index that another connection uses",
        refuses_infer=lambda c, m, envs: any(
            set(envs) & set(other.envs) for other in c.server.connections - {c}
        ),
    ),
}

FEATURES_WRONG: Final = {
    "requires-spaces": Bug(
        what="refuses a client that declares no spaces",
        refuses_infer=lambda c, m, envs: "spaces" not in c.first,
    ),
    "requires-reuse": Bug(
        what="refuses an infer that could have reused and did not",
        refuses_infer=lambda c, m, envs: "reuse" not in m and any(c.last.get(e) for e in envs),
    ),
    "requires-chunk-steps": Bug(
        what="refuses a feedback without steps",
        refuses_feedback=lambda c, m, envs: "steps" not in m,
    ),
    "requires-executed-actions": Bug(
        what="refuses a feedback without actions",
        refuses_feedback=lambda c, m, envs: "actions" not in m,
    ),
    "refuses-spaces": Bug(
        what="offers gym-spaces and refuses it",
        refuses_infer=lambda c, m, envs: "spaces" in m,
    ),
    "refuses-more-spaces": Bug(
        what="refuses a declaration with an unknown key",
        refuses_infer=lambda c, m, envs: (
            not m.get("spaces", {}).keys()
            <= {"env_id", "num_envs", "autoreset", "observation", "action", "mode"}
        ),
    ),
    "needs-reused-names": Bug(
        what="refuses to reuse all rows where data has no states",
        refuses_infer=lambda c, m, envs: "reuse" in m and not m["data"]["states"],
    ),
    "refuses-reuse": Bug(
        what="offers reuse-feedback-obs and refuses it",
        refuses_infer=lambda c, m, envs: "reuse" in m,
    ),
    "refuses-chunk-steps": Bug(
        what="offers gym-chunk-steps and refuses it",
        refuses_feedback=lambda c, m, envs: "steps" in m,
    ),
    "refuses-executed-actions": Bug(
        what="offers gym-executed-actions and refuses it",
        refuses_feedback=lambda c, m, envs: "actions" in m,
    ),
    "refuses-two-features": Bug(
        what="refuses a feedback that uses two features at once",
        refuses_feedback=lambda c, m, envs: "actions" in m and "steps" in m,
    ),
    "shared-reuse": Bug(
        what="reuses observations of other connections",
        never=frozenset({"forget"}),
    ),
    "lenient-reuse": Bug(
        what="answers an infer that reuses an observation it does not hold",
        forgives=lambda kind, expected: kind.startswith("reuse"),
    ),
    "accepts-misfit": Bug(
        what="serves a client whose declared action does not fit",
        misfit=lambda sentence: None,
    ),
    "refusal-code": Bug(
        what="refuses a misfit with a resync",
        misfit=lambda sentence: (1001, RESYNC),
    ),
    "refusal-silent": Bug(
        what="refuses a misfit without a reason",
        misfit=lambda sentence: (1008, ""),
    ),
    "refusal-one-sided": Bug(
        what="refuses a misfit and names only its own side",
        misfit=lambda sentence: (1008, sentence.partition(",) ")[0]),
    ),
}

LIFE_AND_DEATH: Final = {
    "lenient": Bug(
        what="answers every malformed infer instead of closing for a resync",
        forgives=lambda kind, expected: expected == "infer",
    ),
    "crash-on-info": Bug(
        what="an info that cannot be split ends the whole server with 1011",
        on_error=crash,
    ),
    "resync-code": Bug(what="closes for a resync with 1002", resync=(1002, RESYNC)),
    "resync-reason": Bug(what="closes for a resync without the reason", resync=(1001, "")),
    "resync-as-stop": Bug(what="closes for a resync as for a stop", resync=(1001, STOP)),
    "resync-as-refusal": Bug(what="closes for a resync with 1008", resync=(1008, "go away")),
    "resync-abrupt": Bug(what="drops the connection where a resync is due", on_error=drop),
    "complains-first": Bug(what="sends a message before it closes for a resync", on_error=complain),
    "closes-others": Bug(what="one client's error closes every connection", on_error=close_others),
    "stops-on-error": Bug(what="one client's error ends the server", on_error=end_server),
    "stalls-on-silent": Bug(
        what="answers nobody while a connected client does not ask",
        never=frozenset({"answer-alone"}),
    ),
    "ignores-pings": Bug(what="never answers a ping", on_connect=mute_pongs),
    "no-feedback-timeout": Bug(
        what="waits for a feedback for ever",
        never=frozenset({"feedback-timeout"}),
    ),
    "timeout-reason": Bug(what="closes on the feedback timeout without its reason", timeout=""),
    "idle-timeout": Bug(what="closes an idle connection as well", hurries_idle=True),
    "plain-stop": Bug(what="ends the run with 1000 and no reason", stop=lambda number: (1000, "")),
    "stop-code": Bug(what="ends the run with 1000", stop=lambda number: (1000, STOP)),
    "plain-stop-once": Bug(
        what="leaves the reason out on one connection of the stop",
        stop=lambda number: (1001, STOP if number else ""),
    ),
    "never-stops": Bug(what="goes on after --steps rows", never=frozenset({"stop"})),
    "exit-code": Bug(what="exits with 3 after the stop", status=3),
    "plain-shutdown": Bug(what="gives no reason when its operator stops it", shutdown=""),
}


def accepts(kind: str, what: str) -> Bug:
    """The bug of overlooking one kind of malformed message."""
    return Bug(what=f"goes on after {what}", forgives=lambda found, expected: found == kind)


DEVIATIONS: Final[dict[str, Bug]] = {
    **encoding_bugs.BUGS,
    **conduct_bugs.BUGS,
    **GREETING,
    **ACTION,
    **REFUSES_LEGAL,
    **FEATURES_WRONG,
    **LIFE_AND_DEATH,
    **{f"accepts-{kind}": accepts(kind, what) for kind, what in MALFORMED.items()},
}
BUGS: Final[dict[str, str]] = {name: bug.what for name, bug in DEVIATIONS.items()}
