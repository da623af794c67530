"""The deliberate mistakes of raw_client.py: each breaks one rule of SPEC.md and no other.

A mistake is a sentence and the methods of :class:`raw_client.Client` that it overrides. Those
about features show only with ``--features all``.
"""

from __future__ import annotations

import os
import time
from typing import Final

import msgpack
from raw_client import Array, Client, column
from raw_client_overrides import (
    NAN,
    Overrides,
    answer_text,
    arrays,
    as_row,
    asks,
    batched,
    begin_early,
    begin_with_old_feedback,
    both,
    close_with,
    connects,
    demand,
    demand_ids,
    dies_on,
    end_late,
    feedback,
    flipped,
    forget_all_but_reuse,
    forgive_nan,
    hold_feedback,
    if_there,
    ignore_text,
    image_of,
    infer,
    informs,
    longer,
    missing,
    missing_result,
    mute,
    observed,
    reading,
    recast,
    refuse_integers,
    refuse_unknown,
    renamed,
    reset_but_count_on,
    reset_everything,
    reset_terminal,
    result,
    reuse_infer,
    reuses,
    send_no_feedback,
    send_twice,
    send_unless_early,
    shows,
    spaces,
    spaces_in,
    uses,
    without,
)

CONNECTION: Final[dict[str, tuple[str, Overrides]]] = {
    "offers-compression": ("offers permessage-deflate", connects(compression="deflate")),
    "caps-size": ("takes no frame above 1 MiB", connects(max_size=2**20)),
    "no-pong": ("never answers a ping", {"begin": mute}),
    "speaks-first": (
        "sends its infer before it has read the metadata",
        {"begin": begin_early, "send": send_unless_early},
    ),
    "needs-metadata": (
        "wants keys in the metadata",
        demand("action_horizon", "action_dim", "protocol_version"),
    ),
    "refuses-unknown-metadata": ("fails on unknown metadata", {"read_metadata": refuse_unknown}),
    "any-metadata": (
        "takes metadata of any type and any protocol version",
        {"read_metadata": lambda self, data: without(data, "features")},
    ),
    "text-frames": ("sends text frames", {"pack": lambda self, message: str(message)[:200]}),
    "trailing-bytes": (
        "sends a byte too many after every message",
        {"pack": lambda self, message: Client.pack(self, message) + b"\xc0"},  # type: ignore[operator]
    ),
    "bin-keys": (
        "packs the keys of its messages as bin",
        {
            "pack": lambda self, message: Client.pack(
                self, {k.encode(): v for k, v in message.items()}
            )
        },
    ),
    "leaves-abruptly": (
        "is done without a close frame",
        {"leave": lambda self, websocket: os._exit(0)},
    ),
    "leave-code": (
        "is done with close code 1001",
        {"leave": lambda self, websocket: websocket.close(1001)},
    ),
    "retries-at-once": ("does not wait before it reconnects", {"pause": lambda self: None}),
}

CLOSING: Final[dict[str, tuple[str, Overrides]]] = {
    "dies-on-resync": ("does not reconnect after a resync", dies_on("plugrl-server-resync")),
    "dies-on-timeout": ("does not reconnect after Feedback timeout", dies_on("Feedback timeout")),
    "dies-on-shutdown": ("does not reconnect after Server shutdown", dies_on("Server shutdown")),
    "dies-on-1011": ("does not reconnect after 1011", dies_on("1011")),
    "dies-on-loss": ("does not reconnect after a lost connection", dies_on("1006")),
    "returns-after-stop": ("reconnects after the stop", {"meet_stop": lambda self: None}),
    "stop-exit-code": ("exits with 1 after the stop", {"meet_stop": lambda self: 1}),
    "lingers-after-stop": (
        "does not exit after the stop",
        {"meet_stop": lambda self: time.sleep(3600)},
    ),
    "returns-after-refusal": (
        "reconnects after 1008 or HTTP 401",
        {"meet_refusal": lambda self, sentence: None},
    ),
    "refusal-exit-code": ("exits with 0 after 1008", {"meet_refusal": lambda self, sentence: 0}),
    "refusal-unsaid": (
        "does not report why it was refused",
        {"meet_refusal": lambda self, sentence: 1},
    ),
    "ignores-text": ("waits on after a text frame", {"receive": ignore_text}),
    "answers-text": ("sends another infer after a text frame", {"meet_text": answer_text}),
    "returns-after-text": ("reconnects after a text frame", {"meet_text": close_with(1002, None)}),
    "text-exit-code": ("exits with 0 after a text frame", {"meet_text": close_with(1002, 0)}),
    "returns-after-error": (
        "reconnects after a malformed message",
        {"meet_error": close_with(1002, None)},
    ),
    "error-exit-code": (
        "exits with 0 after a malformed message",
        {"meet_error": close_with(1002, 0)},
    ),
    "error-close-code": (
        "closes with 1000 after a malformed message",
        {"meet_error": close_with(1000, 1)},
    ),
    "keeps-feedback": (
        "sends the last feedback again on the next connection",
        {"begin": begin_with_old_feedback, "feedback": hold_feedback},
    ),
    "keeps-chunks": (
        "runs old chunks on after a reconnect",
        {"forget": lambda self: [self.go_on(env) for env in self.envs]},
    ),
    "keeps-ended-episodes": (
        "does not reset an episode whose end a close swallowed",
        {"forget": lambda self: [self.drop_chunk(env) for env in self.envs]},
    ),
    "resets-on-close": ("resets every env after a close", {"forget": reset_everything}),
}

ACTION: Final[dict[str, tuple[str, Overrides]]] = {
    "reads-float32": ("takes every action for float32", reading(lambda array: "<f4")),
    "reads-little-endian": (
        "takes every action for little-endian",
        reading(lambda array: "<" + array.dtype[1:]),
    ),
    "refuses-integers": ("fails on integer actions", {"check_action": refuse_integers}),
    "needs-env-ids": ("fails on an action without env_ids", {"check_ids": demand_ids}),
    "ignores-env-ids": (
        "takes an action for other envs",
        {"check_ids": lambda self, data, asked: None},
    ),
    "accepts-nan": ("runs an action with a NaN", {"check_action": forgive_nan}),
    "accepts-other-shapes": (
        "runs an action for more envs than it asked for",
        {"check_action": lambda self, action, n: action},
    ),
    "fixed-order": (
        "takes column i for env i whatever it asked for",
        {"column_of": lambda self, env, row, n: env.index % n},
    ),
    "env-major": (
        "reads the action as [n, H, da]",
        {"pick": lambda self, a, k, row: Client.pick(self, flipped(a), row, k)},
    ),
    "backwards": (
        "runs the chunk from its end",
        {"pick": lambda self, a, k, row: Client.pick(self, a, a.shape[0] - 1 - k, row)},
    ),
    "repeats-first": (
        "runs the first step again and again",
        {"pick": lambda self, a, k, row: Client.pick(self, a, 0, row)},
    ),
    "skips-first": (
        "begins with the second step",
        {"pick": lambda self, a, k, row: Client.pick(self, a, (k + 1) % a.shape[0], row)},
    ),
    "runs-past-horizon": (
        "runs H + 1 steps",
        {
            "chunk_length": lambda self, a: a.shape[0] + 1,
            "pick": lambda self, a, k, row: Client.pick(self, a, k % a.shape[0], row),
        },
    ),
    "runs-past-end": ("runs a chunk on after the episode's end", {"end_chunk": end_late}),
}

MESSAGES: Final[dict[str, tuple[str, Overrides]]] = {
    "no-step-ids": ("sends an infer without step_ids", missing("infer", "step_ids")),
    "no-feedback-step-ids": ("sends feedback without step_ids", missing("feedback", "step_ids")),
    "no-env-indices": ("sends an infer without env_indices", missing("infer", "env_indices")),
    "wrong-message-type": (
        "calls its request inference",
        infer(lambda m: {"message_type": "inference"}),
    ),
    "float-indices": (
        "sends env_indices as float64",
        both(lambda m: {"env_indices": recast(m["env_indices"], "<f8")}),
    ),
    "list-indices": (
        "sends env_indices as a list",
        both(lambda m: {"env_indices": list(m["env_indices"].values)}),
    ),
    "negative-index": (
        "numbers its envs from -1 down",
        both(lambda m: {"env_indices": column("<i8", [-1 - i for i in m["env_indices"].values])}),
    ),
    "duplicate-index": (
        "names every env as 0",
        both(lambda m: {"env_indices": column("<i8", [0] * len(m["env_indices"].values))}),
    ),
    "empty-infer": (
        "asks for no env at all",
        {"due": lambda self: []},
    ),
    "infers-held": (
        "asks for envs that still hold a chunk",
        {"due": lambda self: list(self.envs)},
    ),
    "float-step-ids": (
        "sends step_ids as float64",
        infer(lambda m: {"step_ids": recast(m["step_ids"], "<f8")}),
    ),
    "step-ids-run-on": ("never sets its step ids back", {"go_on": reset_but_count_on}),
    "array-str-keys": (
        "packs arrays with str keys",
        arrays(lambda value, a: {k.decode(): v for k, v in value.items()}),
    ),
    "array-msgpack-numpy": (
        "packs arrays in the encoding of the package msgpack-numpy",
        arrays(
            lambda value, a: {
                b"nd": True,
                b"type": a.dtype,
                b"kind": b"",
                b"shape": a.shape,
                b"data": value[b"data"],
            }
        ),
    ),
    "array-object": (
        "packs float64 arrays as objects",
        arrays(lambda value, a: value | ({b"dtype": "|O"} if a.dtype == "<f8" else {})),
    ),
    "array-short": (
        "packs arrays with their last byte missing",
        arrays(lambda value, a: value | {b"data": value[b"data"][:-1]}),
    ),
    "array-bare-order": (
        "packs float64 in the order |",
        arrays(lambda value, a: value | ({b"dtype": "|f8"} if a.dtype == "<f8" else {})),
    ),
    "array-extra-key": (
        "packs arrays with a key too many",
        arrays(lambda value, a: value | {b"n": 1}),
    ),
    "sends-extension": (
        "sends a msgpack timestamp",
        feedback(lambda m: {"sent": msgpack.Timestamp(0)}),
    ),
}

OBSERVATION: Final[dict[str, tuple[str, Overrides]]] = {
    "text-bytes": ("sends text as bin", observed(lambda seen: {"text": b""})),
    "text-nil": ("sends nil for text", observed(lambda seen: {"text": None})),
    "text-long": (
        "sends a text too many",
        observed(lambda seen: {"text": column("<U1", [""] * 99)}),
    ),
    "no-images": (
        "leaves images out",
        {"observation": lambda self, envs: without(Client.observation(self, envs), "images")},
    ),
    "extra-observation-key": ("sends sounds as well", observed(lambda seen: {"sounds": {}})),
    "float-images": (
        "sends t as an image of float64",
        observed(lambda seen: {"images": {"t": image_of(seen["states"]["t"])}}),
    ),
    "flat-states": (
        "sends a state without its second dimension",
        shows(lambda t: column("<f8", t.values)),
    ),
    "list-states": ("sends a state as a list", shows(lambda t: list(t.values))),
    "extra-row": (
        "sends a row too many in one state",
        shows(lambda t: Array("<f8", [len(t.values) + 1, 1], [*t.values, 0.0])),
    ),
    "nan-observation": ("sends a NaN in its infers", asks(lambda t: NAN)),
    "other-observation": (
        "asks with another observation than it fed back",
        asks(lambda t: t + 0.5 if t else t),
    ),
    "reset-observation": (
        "feeds back the next episode's first observation",
        {"last_observation": reset_terminal},
    ),
    "never-resets": ("goes on after an episode's end", {"go_on": lambda self, env: None}),
}

FEEDBACK: Final[dict[str, tuple[str, Overrides]]] = {
    "last-reward": (
        "sends the reward of the last step",
        {"reward": lambda self, env: env.rewards[-1]},
    ),
    "mean-reward": (
        "sends the mean of the rewards",
        {"reward": lambda self, env: sum(env.rewards) / len(env.rewards)},
    ),
    "episode-reward": ("sends the return so far", {"reward": lambda self, env: float(env.t)}),
    "nan-reward": ("sends a NaN for every reward", {"reward": lambda self, env: NAN}),
    "flag-early": (
        "says terminated one step early",
        {"terminated": lambda self, env: env.t >= env.length - 1},
    ),
    "flag-late": (
        "says terminated again in the chunk after",
        {"terminated": lambda self, env: env.ended or self.fed.get(env.index, False)},
    ),
    "flag-never": ("never says terminated", {"terminated": lambda self, env: False}),
    "truncates": (
        "says truncated instead of terminated",
        result(lambda d: {"terminated": d["truncated"], "truncated": d["terminated"]}),
    ),
    "feedback-twice": ("sends every feedback twice", {"send": send_twice}),
    "no-feedback": ("sends no feedback", {"send": send_no_feedback}),
    "foreign-feedback": (
        "feeds back envs that hold no action",
        feedback(
            lambda m: {"env_indices": column("<i8", [500 + i for i in m["env_indices"].values])}
        ),
    ),
    "no-terminated": ("leaves terminated out", missing_result("terminated")),
    "no-info": ("leaves info out", missing_result("info")),
    "extra-feedback-key": ("sends a key too many in data", result(lambda d: {"reward": 1.0})),
    "integer-rewards": (
        "sends rewards as int64",
        result(lambda d: {"rewards": recast(d["rewards"], "<i8")}),
    ),
    "list-rewards": (
        "sends rewards as a list",
        result(lambda d: {"rewards": list(d["rewards"].values)}),
    ),
    "matrix-rewards": (
        "sends rewards as [1, m]",
        result(lambda d: {"rewards": as_row(d["rewards"])}),
    ),
    "long-rewards": (
        "sends a reward too many",
        result(lambda d: {"rewards": longer(d["rewards"])}),
    ),
    "integer-flags": (
        "sends terminated as uint8",
        result(lambda d: {"terminated": recast(d["terminated"], "|u1")}),
    ),
    "list-info": ("sends info as a list", result(lambda d: {"info": []})),
    "unsplittable-info": (
        "sends an info that cannot be split",
        result(lambda d: {"info": {"note": longer(d["rewards"])}}),
    ),
    "bad-episode": (
        "sends a plain number as the return",
        informs(lambda episode: {"l": episode["l"], "r": 1.0, "s": True}),
    ),
    "no-mask": (
        "sends episode statistics without their mask",
        informs(lambda episode: without(episode, "mask")),
    ),
    "wrong-episode": (
        "sends a return of 0 for every episode",
        informs(lambda episode: episode | {"r": column("<f8", [0.0] * len(episode["r"].values))}),
    ),
}

FEATURE_USE: Final[dict[str, tuple[str, Overrides]]] = {
    "reuse-unoffered": ("reuses observations unasked", uses("reuse-feedback-obs")),
    "spaces-unoffered": ("declares its spaces unasked", uses("gym-spaces")),
    "chunk-steps-unoffered": ("sends steps unasked", uses("gym-chunk-steps")),
    "executed-unoffered": ("sends executed actions unasked", uses("gym-executed-actions")),
    "reuse-without-feedback": (
        "reuses an observation that it never sent",
        reuses(lambda self, env: not self.fed.get(env.index)),
    ),
    "reuse-after-end": (
        "reuses a terminal observation",
        reuses(lambda self, env: env.index in self.fed),
    ),
    "reuse-across-connections": (
        "reuses what it fed back on an earlier connection",
        {"forget": forget_all_but_reuse},
    ),
    "reuse-sends-all": ("sends the reused rows too", reuse_infer(lambda self, due: due)),
    "reuse-wrong-rows": (
        "sends the reused rows instead of the others",
        reuse_infer(lambda self, due: [env for env in due if self.may_reuse(env)]),
    ),
    "reuse-list": (
        "sends reuse as a list",
        infer(lambda m: {"reuse": list(m["reuse"].values)} if "reuse" in m else {}),
    ),
    "spaces-always": ("declares its spaces in every infer", spaces_in(lambda infers: True)),
    "spaces-late": (
        "declares its spaces in the second infer",
        spaces_in(lambda infers: infers == 1),
    ),
    "spaces-incomplete": (
        "leaves the action space out",
        {"spaces": lambda self: without(Client.spaces(self), "action")},
    ),
    "spaces-autoreset": (
        "declares an unknown autoreset mode",
        spaces(lambda s: {"autoreset": "never"}),
    ),
    "spaces-batched": ("declares the batched action space", spaces(batched)),
    "spaces-bounds": (
        "declares bounds as numbers",
        spaces(lambda s: {"action": s["action"] | {"low": -1.0, "high": 1.0}}),
    ),
    "spaces-names": (
        "declares other state names than it sends",
        spaces(
            lambda declared: {"observation": {"type": "Dict", "spaces": {}} | renamed(declared)}
        ),
    ),
    "steps-wrong": (
        "counts a step too few where it can",
        if_there("steps", lambda a: column("<i8", [max(1, v - 1) for v in a.values])),
    ),
    "steps-zero": (
        "counts no steps",
        if_there("steps", lambda a: column("<i8", [0] * len(a.values))),
    ),
    "steps-alone": ("sends steps without step_rewards", missing("feedback", "step_rewards")),
    "step-rewards-wrong": (
        "sends 0.5 for every step that ran",
        if_there("step_rewards", lambda a: Array("<f4", a.shape, [v / 2 for v in a.values])),
    ),
    "step-rewards-unpadded": (
        "sends rewards after a row's last step",
        if_there("step_rewards", lambda a: Array("<f4", a.shape, [1.0] * len(a.values))),
    ),
    "step-rewards-env-major": ("sends step_rewards as [m, K]", if_there("step_rewards", flipped)),
    "executed-wrong": (
        "sends executed actions one too high",
        if_there("actions", lambda a: Array("<f8", a.shape, [v + 1 for v in a.values])),
    ),
    "executed-env-major": ("sends executed actions as [m, K, da]", if_there("actions", flipped)),
    "executed-alone": ("sends actions without overridden", missing("feedback", "overridden")),
    "overridden-wrong": (
        "says overridden when nothing was",
        if_there("overridden", lambda a: column("|b1", [True] * len(a.values))),
    ),
}

DEVIATIONS: Final[dict[str, tuple[str, Overrides]]] = {
    **CONNECTION,
    **CLOSING,
    **ACTION,
    **MESSAGES,
    **OBSERVATION,
    **FEEDBACK,
    **FEATURE_USE,
}
BUGS: Final[dict[str, str]] = {name: what for name, (what, _) in DEVIATIONS.items()}
