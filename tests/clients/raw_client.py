"""A PlugRL v1 client over the probe environment (SPEC 10), from SPEC.md, msgpack and websockets.

It uses neither numpy nor plugrl_gym: arrays are packed and read with struct. Every env runs its
chunk at its own pace; an env whose chunk ended is fed back at once and asked for alone::

    python raw_client.py 127.0.0.1 8000 --num-envs 3 --features all

``--bug NAME`` breaks one client rule on purpose (``--help`` lists them): raw_client_bugs.py
overrides one method of :class:`Client` for each.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidMessage,
    InvalidStatus,
)
from websockets.sync.client import ClientConnection, connect

FEATURES: Final = ("reuse-feedback-obs", "gym-spaces", "gym-chunk-steps", "gym-executed-actions")
STOP: Final = (1001, "plugrl-server-stop")


class ServerError(Exception):
    """The server broke SPEC.md; this client closes with 1002 and fails."""


class TextFrame(ServerError):
    """The server sent a text frame: it has failed for good (SPEC 8.25)."""


# --------------------------------------------------------------------------- arrays (SPEC 4)

TYPESTR: Final = re.compile(r"[<>|][biu]1|[<>]([iu][248]|f[248]|U(0|[1-9]\d{0,7}))")
LETTERS: Final = {
    "b1": "?",
    **dict(zip(("u1", "u2", "u4", "u8"), "BHIQ", strict=True)),
    **dict(zip(("i1", "i2", "i4", "i8"), "bhiq", strict=True)),
    **dict(zip(("f2", "f4", "f8"), "efd", strict=True)),
}
KEYS: Final = (b"__ndarray__", b"data", b"dtype", b"shape")


@dataclass
class Array:
    """A typestr, a shape and the elements in C order."""

    dtype: str
    shape: list[int]
    values: Sequence[Any]


def column(dtype: str, values: Sequence[Any]) -> Array:
    """A one-dimensional array."""
    return Array(dtype, [len(values)], values)


def table(dtype: str, rows: Sequence[Sequence[Any]], width: int) -> Array:
    """A two-dimensional array."""
    return Array(dtype, [len(rows), width], [value for row in rows for value in row])


def array_map(array: Array) -> dict[Any, Any]:
    """The map that stands for an array on the wire."""
    if array.dtype[1] == "U":
        width = int(array.dtype[2:])
        data = "".join(text.ljust(width, "\0") for text in array.values).encode("utf-32-le")
    else:
        data = struct.pack(f"<{len(array.values)}{LETTERS[array.dtype[1:]]}", *array.values)
    return dict(zip(KEYS, (True, data, array.dtype, array.shape), strict=True))


def read_array(value: dict[Any, Any]) -> Array:
    """The array of a map with bin keys."""
    if set(value) != set(KEYS) or value[b"__ndarray__"] is not True:
        raise ServerError("an array needs exactly __ndarray__ (true), data, dtype and shape")
    _, data, dtype, shape = (value[key] for key in KEYS)
    if not (isinstance(dtype, str) and TYPESTR.fullmatch(dtype)):
        raise ServerError(f"the dtype {dtype!r:.20} may not travel")
    if not (isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)):
        raise ServerError("the shape of an array is no list of non-negative ints")
    size = 4 * int(dtype[2:]) if dtype[1] == "U" else int(dtype[2:])
    if not isinstance(data, bytes) or len(data) != math.prod(shape) * size:
        raise ServerError(f"an array of shape {shape} and dtype {dtype} has the wrong data")
    if dtype[1] == "U":
        return Array(dtype, shape, [])  # no action or index is text
    order = dtype[0].replace("|", "<")
    return Array(
        dtype, shape, struct.unpack(f"{order}{math.prod(shape)}{LETTERS[dtype[1:]]}", data)
    )


def read_map(pairs: list[tuple[Any, Any]]) -> Any:
    """A plain map, or what a map with bin keys stands for."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ServerError("a map names one key twice")
    if b"nd" in value or "__ndarray__" in value:
        raise ServerError("an array with str keys, or in the encoding of the package msgpack-numpy")
    if b"__ndarray__" in value:
        return read_array(value)
    if b"__npgeneric__" in value:
        return value.get(b"data")
    for key, part in pairs:
        if not isinstance(key, str):
            raise ServerError(f"the map key {key!r:.40} is no str")
        if isinstance(part, msgpack.Timestamp | msgpack.ExtType):
            raise ServerError("a msgpack extension type")
    return value


def unpack(frame: str | bytes) -> dict[str, Any]:
    """The message in a frame."""
    if isinstance(frame, str):
        raise TextFrame(f"the server sent a text frame: {frame[:80]!r}")
    try:
        message = msgpack.unpackb(frame, object_pairs_hook=read_map, strict_map_key=False)
    except (ValueError, TypeError) as error:
        raise ServerError(f"undecodable bytes ({error})") from None
    if not isinstance(message, dict):
        raise ServerError("a message that is no map")
    return message


# ------------------------------------------------------------ the probe environment (SPEC 10)


@dataclass
class Env:
    """One probe env, and how far it is in its chunk."""

    index: int
    t: int = 0
    a: list[float] = field(default_factory=list)
    chunks_done: int = 0  # in this episode: the step id
    chunk: list[list[float]] = field(default_factory=list)  # steps yet to run
    ran: list[list[float]] = field(default_factory=list)  # steps that ran
    rewards: list[float] = field(default_factory=list)  # of the steps that ran

    @property
    def length(self) -> int:
        """Steps in an episode."""
        return 3 + 2 * (self.index % 3)

    @property
    def ended(self) -> bool:
        """Whether the episode is over."""
        return self.t >= self.length

    def step(self) -> None:
        """Run the next step of the chunk."""
        self.a = self.chunk.pop(0)
        self.t += 1
        self.ran.append(self.a)
        self.rewards.append(1.0)

    def reset(self) -> None:
        """Begin a new episode."""
        self.t, self.chunks_done = 0, 0
        self.a = [0.0] * len(self.a)


class Client:
    """The client's side of the exchange (SPEC 5), over as many connections as it takes."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.envs = [Env(index) for index in range(options.num_envs)]
        self.steps = 0
        self.failures = 0  # since the last action
        self.features: set[str] = set()
        self.metadata: dict[str, Any] = {}
        self.infers = 0  # on this connection
        self.fed: dict[int, bool] = {}  # env -> whether its last feedback ended its episode

    # ---- connections (SPEC 2, 8)

    def run(self) -> int:
        """Connect until the run is over; the exit code."""
        url = f"ws://{self.options.host}:{self.options.port}"
        for _ in range(self.options.reconnects + 1):
            try:
                with connect(url, **self.connection_settings()) as websocket:
                    code = self.converse(websocket)
            except (InvalidHandshake, OSError) as error:
                code = self.judge_failure(error)
            if code is not None:
                return code
            self.failures += 1
            self.pause()
        return self.fail(f"gave up on {url} after {self.options.reconnects} reconnects")

    def pause(self) -> None:
        """Wait before the next attempt, longer each time."""
        time.sleep(min(0.05 * 2 ** min(self.failures, 9), 2))

    def connection_settings(self) -> dict[str, Any]:
        """No compression, no size limit, no ping timeout, no proxy."""
        return {
            "compression": None,
            "max_size": None,
            "ping_timeout": None,
            "proxy": None,
            "open_timeout": self.options.timeout,
        }

    def converse(self, websocket: ClientConnection) -> int | None:
        """One connection; the exit code, or None to reconnect."""
        try:
            self.begin(websocket)
            while self.steps < self.options.max_steps:
                self.turn(websocket)
        except ConnectionClosed as closed:
            return self.judge_close(closed)
        except TextFrame as error:
            return self.meet_text(websocket, error)
        except ServerError as error:
            return self.meet_error(websocket, error)
        finally:
            self.forget()
        self.leave(websocket)
        return 0

    def leave(self, websocket: ClientConnection) -> None:
        """Say goodbye."""
        websocket.close(1000)

    def meet_text(self, websocket: ClientConnection, error: TextFrame) -> int | None:
        """A text frame is the end."""
        websocket.close(1002)
        return self.fail(str(error))

    def meet_error(self, websocket: ClientConnection, error: ServerError) -> int | None:
        """So is a message that breaks the protocol."""
        websocket.close(1002)
        return self.fail(str(error))

    def judge_close(self, closed: ConnectionClosed) -> int | None:
        """What a close by the server means: an exit code, or None to reconnect."""
        code, reason = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")
        if (code, reason) == STOP:
            return self.meet_stop()
        if code == 1008:
            return self.meet_refusal(f"the server refused this client: {reason}")
        what = f"closed with {code} {reason}" if closed.rcvd else "broke"
        self.say(f"the connection {what}; reconnecting")
        return self.meet_other_close(code, reason)

    def meet_stop(self) -> int | None:
        """The run is over."""
        self.say(f"the server ended the run after {self.steps} steps")
        return 0

    def meet_refusal(self, sentence: str) -> int | None:
        """The server will not serve this client."""
        return self.fail(sentence)

    def meet_other_close(self, code: int, reason: str) -> int | None:
        """Anything else is worth another try."""
        return None

    def judge_failure(self, error: Exception) -> int | None:
        """What a handshake that failed means: an exit code, or None to try again."""
        status = error.response.status_code if isinstance(error, InvalidStatus) else None
        if status == 401:
            return self.meet_refusal("the server wants an API key, or another one (HTTP 401)")
        if status == 503 or isinstance(error, OSError | InvalidMessage):
            self.say(f"no connection ({error}); trying again")
            return None
        return self.fail(f"this is no PlugRL server: {error}")

    def forget(self) -> None:
        """After a connection: nothing of it is kept (SPEC 8.38 to 8.44)."""
        self.infers, self.fed = 0, {}
        for env in self.envs:
            self.drop_chunk(env)
            self.go_on(env)

    def drop_chunk(self, env: Env) -> None:
        """Steps that did not run, and feedback that was not sent, are void."""
        env.chunk, env.ran, env.rewards = [], [], []

    def go_on(self, env: Env) -> None:
        """An episode that is over is reset before the next infer; others go on."""
        if env.ended:
            env.reset()

    def fail(self, sentence: str) -> int:
        """Report an error; the exit code."""
        self.say(sentence)
        return 1

    def say(self, sentence: str) -> None:
        """A word for the user."""
        print(f"raw_client: {sentence}", file=sys.stderr, flush=True)

    # ---- the exchange (SPEC 5)

    def begin(self, websocket: ClientConnection) -> None:
        """Read the metadata before anything is sent."""
        try:
            message = unpack(websocket.recv(timeout=self.options.timeout))
        except TimeoutError:
            raise ServerError(f"no metadata within {self.options.timeout:g} s") from None
        if "message_type" not in message:
            raise ServerError("no message_type: the server seems to speak openpi's protocol")
        if message["message_type"] != "metadata" or not isinstance(message.get("data"), dict):
            raise ServerError(f"expected metadata, got {message['message_type']!r:.40}")
        self.metadata = self.read_metadata(message["data"])
        self.features = self.choose_features(self.metadata.get("features", []))
        self.say(f"connected to {self.metadata.get('server', 'a server')!r:.60}")

    def turn(self, websocket: ClientConnection) -> None:
        """Infer, action, steps until some chunk ends, and its feedback."""
        due = self.due()
        self.send(websocket, self.infer(due))
        self.infers += 1
        self.take_action(unpack(self.receive(websocket)), due)
        self.failures = 0
        finished = self.run_chunks()
        self.send(websocket, self.feedback(finished))
        for env in finished:
            self.fed[env.index] = env.ended
            self.drop_chunk(env)
            self.go_on(env)

    def due(self) -> list[Env]:
        """The envs to ask for."""
        return [env for env in self.envs if not env.chunk]

    def run_chunks(self) -> list[Env]:
        """Step the envs that hold a chunk until at least one has used it up."""
        holding = [env for env in self.envs if env.chunk]
        while all(env.chunk for env in holding):
            time.sleep(self.options.slow_step)
            for env in holding:
                env.step()
                self.end_chunk(env)
            self.steps += len(holding)
        return [env for env in holding if not env.chunk]

    def end_chunk(self, env: Env) -> None:
        """A chunk ends with its last step, and with the episode."""
        if env.ended:
            env.chunk = []
        if not env.chunk:
            env.chunks_done += 1

    def receive(self, websocket: ClientConnection) -> str | bytes:
        """The next frame; a server that answers pings may take its time (SPEC 7.5)."""
        while True:
            try:
                return websocket.recv(timeout=self.options.timeout)
            except TimeoutError:
                if not websocket.ping().wait(self.options.timeout):
                    websocket.close(1000)
                    raise ConnectionError("the server answers neither infer nor ping") from None

    def send(self, websocket: ClientConnection, message: dict[str, Any]) -> None:
        """Send one message."""
        websocket.send(self.pack(message))

    def pack(self, message: dict[str, Any]) -> bytes | str:
        """One message as a frame."""
        frame: bytes = msgpack.packb(message, default=self.array_map)
        return frame

    def array_map(self, array: Array) -> dict[Any, Any]:
        """An array as it travels."""
        return array_map(array)

    # ---- messages (SPEC 6)

    def read_metadata(self, data: dict[str, Any]) -> dict[str, Any]:
        """Check what the server says of itself; unknown keys are nobody's business."""
        version = data.get("protocol_version", 1)
        if type(version) is int and version != 1:
            raise ServerError(f"the server speaks PlugRL version {version}, this client version 1")
        for key in ("protocol_version", "action_horizon", "action_dim"):
            if key in data and not (type(data[key]) is int and data[key] >= 1):
                raise ServerError(f"metadata: {key} is {data[key]!r:.40}, not a positive int")
        for key in ("server", "server_version", "algorithm", "policy"):
            if key in data and not isinstance(data[key], str):
                raise ServerError(f"metadata: {key} is {data[key]!r:.40}, not a str")
        names = data.get("features", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ServerError(f"metadata: features is {names!r:.40}, not a list of str")
        return data

    def choose_features(self, offered: Sequence[str]) -> set[str]:
        """The features to use on this connection."""
        features = set(self.options.features) & set(offered)
        if not self.action_dim():
            features.discard("gym-spaces")  # the probe env takes any action: nothing to declare
        return features

    def infer(self, due: list[Env]) -> dict[str, Any]:
        """The request for the envs that hold no chunk."""
        reused = [self.may_reuse(env) for env in due]
        message: dict[str, Any] = {
            "message_type": "infer",
            "data": self.observation([e for e, held in zip(due, reused, strict=True) if not held]),
            "env_indices": column("<i8", [env.index for env in due]),
            "step_ids": column("<i8", [env.chunks_done for env in due]),
        }
        if "reuse-feedback-obs" in self.features:
            message["reuse"] = column("|b1", reused)
        if "gym-spaces" in self.features and self.infers == 0:
            message["spaces"] = self.spaces()
        return message

    def may_reuse(self, env: Env) -> bool:
        """Whether the server knows what this env shows: from a feedback that ended nothing."""
        return "reuse-feedback-obs" in self.features and self.fed.get(env.index) is False

    def observation(self, envs: list[Env]) -> dict[str, Any]:
        """What the envs show."""
        width = self.width()
        shown = [(env.a + [0.0] * width)[:width] for env in envs]
        return {
            "images": {},
            "states": {
                "t": table("<f8", [[float(env.t)] for env in envs], 1),
                "a": table("<f8", shown, width),
            },
            "text": column("<U1", [""] * len(envs)),
        }

    def width(self) -> int:
        """Numbers in an action, as far as that is known."""
        known = [len(env.a) for env in self.envs if env.a]
        return known[0] if known else self.action_dim() or 1

    def action_dim(self) -> int:
        """Numbers in an action by declaration, the server's or this client's; 0: not known."""
        return int(self.metadata.get("action_dim", self.options.action_dim))

    def spaces(self) -> dict[str, Any]:
        """The probe env's spaces."""

        def box(low: float, high: float, width: int) -> dict[str, Any]:
            bounds = {"low": column("<f8", [low] * width), "high": column("<f8", [high] * width)}
            return {"type": "Box", "shape": [width], "dtype": "<f8", **bounds}

        actions = box(-1e6, 1e6, self.width())
        return {
            "env_id": None,
            "num_envs": len(self.envs),
            "autoreset": "same-step",
            "observation": {"type": "Dict", "spaces": {"t": box(0.0, 7.0, 1), "a": actions}},
            "action": actions,
        }

    def take_action(self, message: dict[str, Any], due: list[Env]) -> None:
        """Give each env its chunk: column i of the time-major array is for the env of row i."""
        data = message.get("data")
        if message.get("message_type") != "action" or not isinstance(data, dict):
            raise ServerError(f"expected an action, got {message.get('message_type')!r:.40}")
        self.check_ids(data, [env.index for env in due])
        action = self.check_action(data.get("action"), len(due))
        for row, env in enumerate(due):
            column = self.column_of(env, row, len(due))
            env.chunk = [self.pick(action, k, column) for k in range(self.chunk_length(action))]

    def check_action(self, action: Any, n: int) -> Array:
        """``action`` as a finite numeric array for n envs."""
        if not isinstance(action, Array) or len(action.shape) < 2 or action.dtype[1] == "U":
            raise ServerError("the action is no numeric array [H, n, ...]")
        if action.shape[0] < 1 or action.shape[1] != n or math.prod(action.shape) == 0:
            raise ServerError(f"an action of shape {action.shape} for {n} envs")
        sizes = {"action_horizon": action.shape[0], "action_dim": math.prod(action.shape[2:])}
        for key, size in sizes.items():
            if self.metadata.get(key, size) != size:
                raise ServerError(f"an action of shape {action.shape}, not as {key} declares")
        if not all(math.isfinite(value) for value in action.values):
            raise ServerError("the action holds a NaN or an infinity")
        return action

    def column_of(self, env: Env, row: int, n: int) -> int:
        """The place along the action's second axis of the env in a row of the infer."""
        return row

    def check_ids(self, data: dict[str, Any], asked: list[int]) -> None:
        """``env_ids``, where the server sends them, repeat the infer's envs."""
        ids = data.get("env_ids", column("<i8", asked))
        if not isinstance(ids, Array) or ids.dtype[1] not in "iu" or len(ids.shape) != 1:
            raise ServerError("env_ids is no integer array [n]")
        if list(ids.values) != asked:
            raise ServerError(f"env_ids {list(ids.values)[:9]} in answer to envs {asked[:9]}")

    def chunk_length(self, action: Array) -> int:
        """Steps to run of each chunk."""
        return min(action.shape[0], self.options.run or action.shape[0])

    def pick(self, action: Array, k: int, row: int) -> list[float]:
        """The action of one env in step ``k``."""
        width = math.prod(action.shape[2:])
        start = (k * action.shape[1] + row) * width
        return [float(value) for value in action.values[start : start + width]]

    def feedback(self, finished: list[Env]) -> dict[str, Any]:
        """What came of the chunks that ended."""
        rewards = [self.reward(env) for env in finished]
        message: dict[str, Any] = {
            "message_type": "feedback",
            "env_indices": column("<i8", [env.index for env in finished]),
            "step_ids": column("<i8", [env.chunks_done - 1 for env in finished]),
            "data": {
                "obs": self.last_observation(finished),
                "rewards": column("<f4", rewards),
                "terminated": column("|b1", [self.terminated(env) for env in finished]),
                "truncated": column("|b1", [False] * len(finished)),
                "info": self.info(finished),
            },
        }
        longest = max(len(env.rewards) for env in finished)
        if "gym-chunk-steps" in self.features:
            padded = [[*env.rewards, *[0.0] * (longest - len(env.rewards))] for env in finished]
            message["steps"] = column("<i8", [len(env.rewards) for env in finished])
            message["step_rewards"] = table("<f4", list(zip(*padded, strict=True)), len(finished))
        if "gym-executed-actions" in self.features:
            message["actions"] = self.executed(finished, longest)
            message["overridden"] = column("|b1", [False] * len(finished))
        return message

    def last_observation(self, finished: list[Env]) -> dict[str, Any]:
        """What the envs show after their last step, before any reset."""
        return self.observation(finished)

    def reward(self, env: Env) -> float:
        """The sum over the steps of the chunk."""
        return sum(env.rewards)

    def terminated(self, env: Env) -> bool:
        """The flag of the chunk's last step."""
        return env.ended

    def info(self, finished: list[Env]) -> dict[str, Any]:
        """Statistics of the episodes that ended."""
        ended = [env.ended for env in finished]
        if not any(ended):
            return {}
        lengths = [env.t if env.ended else 0 for env in finished]
        return {
            "episode": {
                "r": column("<f8", [float(length) for length in lengths]),
                "l": column("<i8", lengths),
                "s": column("|b1", ended),
                "mask": column("|b1", ended),
            }
        }

    def executed(self, finished: list[Env], longest: int) -> Array:
        """The actions that ran, zero after a row's last step."""
        width = self.width()
        rows = [[*env.ran, *[[0.0] * width] * (longest - len(env.ran))] for env in finished]
        values = [value for k in range(longest) for row in rows for value in row[k]]
        return Array("<f8", [longest, len(finished), width], values)


def main() -> int:
    """Run the command line."""
    bugs: dict[str, Any] = {}
    with contextlib.suppress(ImportError):  # a copy of this file alone has no bugs
        from raw_client_bugs import DEVIATIONS as bugs  # noqa: N811

    parser = argparse.ArgumentParser(
        description="A PlugRL v1 client over the probe environment.",
        epilog="bugs:\n" + "\n".join(f"  {name:28} {what}" for name, (what, _) in bugs.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--num-envs", type=int, default=3)
    parser.add_argument("--features", default="none", help="none, all, or names joined by commas")
    parser.add_argument(
        "--action-dim", type=int, default=0, help="declared where the server does not say"
    )
    parser.add_argument("--run", type=int, metavar="N", help="run at most N steps of each chunk")
    parser.add_argument("--max-steps", type=float, default=math.inf, help="env steps to run")
    parser.add_argument("--slow-step", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--reconnects", type=int, default=20, help="attempts after the first")
    parser.add_argument("--timeout", type=float, default=20, metavar="SECONDS")
    parser.add_argument("--bug", metavar="NAME", help="break one rule on purpose")
    options = parser.parse_args()
    named = {"none": (), "all": FEATURES}.get(options.features, options.features.split(","))
    options.features = tuple(name for name in named if name)
    if unknown := set(options.features) - set(FEATURES):
        parser.error(f"--features: {', '.join(sorted(unknown))} is no feature; expected {FEATURES}")
    if not 1 <= options.num_envs <= 1000 or (options.run is not None and options.run < 1):
        parser.error("--num-envs takes 1 to 1000, --run at least 1")
    if not 0 < options.port < 2**16:
        parser.error(f"{options.port} is no port")
    if options.bug not in (None, *bugs):
        parser.error(f"--bug {options.bug}: no such bug; --help lists them")
    overrides = bugs[options.bug][1] if options.bug else {}
    return int(type("ThisClient", (Client,), overrides)(options).run())


if __name__ == "__main__":
    import raw_client  # the copy of this module that raw_client_bugs sees

    raise SystemExit(raw_client.main())
