"""A scripted server that watches a probe client break rules (SPEC 5, 6, 8, 9, 10).

It serves one connection after another as its script says and writes down every rule that the
client breaks. It shares nothing with plugrl_gym.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgpack
import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from tests.servers.wire import array_map, decode, encode

STOP = (1001, "plugrl-server-stop")
RESYNC = (1001, "plugrl-server-resync")
MANY = 50  # connections at a time


class Violation(Exception):
    """The client broke a rule."""


def need(condition: Any, rule: str) -> None:
    """Raise :class:`Violation` unless ``condition`` holds."""
    if not condition:
        raise Violation(rule)


@dataclass
class End:
    """How a connection ends: at which exchange, at which point of it, and what happens there.

    ``how`` is a close (code, reason), "drop", or frames to send where an action is due.
    """

    how: Any = STOP
    exchange: int = 6
    at: str = "infer"  # before the answer; "action": after it; "greeting": in place of metadata


@dataclass
class Script:
    """What the server does."""

    ends: list[End] = field(default_factory=lambda: [End()])
    horizon: int = 3
    shape: tuple[int, ...] = (2,)
    dtype: str = "<f8"
    features: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    env_ids: bool = True
    run: int | None = None
    pings: bool = False
    leaves: bool = False  # whether the client is to be done of its own accord
    status: HTTPStatus | None = None  # answered to every handshake
    quiet: float = 0.1  # seconds before the metadata, in which the client says nothing
    patience: float = 5.0  # with the client, in seconds


class Watch:
    """What is known of one client's envs on one connection."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.holding: dict[int, tuple[float, Any, int]] = {}  # env -> t, its chunk, step id
        self.last: dict[int, tuple[float, Any, int, bool]] = {}  # env -> t, a, step id, ended
        self.infers = 0

    def read(self, frame: Any, kind: str) -> dict[str, Any]:
        """A message of ``kind``, its envs checked."""
        try:
            message = decode(frame)
        except AssertionError as error:
            raise Violation(f"undecodable {kind}: {error}") from None
        need(message.get("message_type") == kind, f"expected {kind}")
        need(message.keys() >= {"data", "env_indices", "step_ids"}, f"{kind} lacks a key")
        envs = message["env_indices"]
        need(isinstance(envs, np.ndarray) and envs.dtype == np.int64 and envs.ndim == 1, "indices")
        need(len(envs) > 0 and envs.min() >= 0 and len(set(envs.tolist())) == len(envs), "indices")
        ids = message["step_ids"]
        need(isinstance(ids, np.ndarray) and ids.dtype == np.int64, "step_ids")
        need(ids.shape == envs.shape, "step_ids")
        return message

    def observation(self, value: Any, rows: int) -> tuple[Any, Any]:
        """The states t and a of an observation."""
        need(
            isinstance(value, dict) and value.keys() == {"images", "states", "text"}, "observation"
        )
        need(value["images"] == {}, "images")
        need(isinstance(value["states"], dict) and value["states"].keys() == {"t", "a"}, "states")
        for state in value["states"].values():
            need(isinstance(state, np.ndarray) and state.dtype == np.float64, "state dtype")
            need(state.ndim == 2 and len(state) == rows and np.isfinite(state).all(), "state shape")
        text = value["text"]
        need(isinstance(text, np.ndarray) and text.dtype.kind == "U", "text")
        need(text.shape == (rows,) and not any(text.tolist()), "text")
        return value["states"]["t"][:, 0], value["states"]["a"]

    def infer(self, frame: Any) -> list[int]:
        """Check an infer; its envs."""
        message = self.read(frame, "infer")
        envs, features = message["env_indices"].tolist(), self.script.features
        allowed = {"message_type", "data", "env_indices", "step_ids"}
        allowed |= {"reuse"} if "reuse-feedback-obs" in features else set()
        allowed |= {"spaces"} if "gym-spaces" in features and self.infers == 0 else set()
        need(message.keys() <= allowed, "a key that is not offered")
        need(not set(envs) & self.holding.keys(), "an infer for an env that holds an action")
        reuse = message.get("reuse", np.zeros(len(envs), bool))
        need(isinstance(reuse, np.ndarray) and reuse.dtype == bool, "reuse")
        need(reuse.shape == (len(envs),), "reuse")
        t, a = self.observation(message["data"], int((~reuse).sum()))
        fresh = iter(zip(t, a, strict=True))
        for env, reused, step_id in zip(envs, reuse, message["step_ids"], strict=True):
            before = self.last.get(env)
            if reused:
                need(before is not None and not before[3], "reuse of what is not there")
                assert before is not None
                t_now = before[0]
            else:
                t_now, a_now = next(fresh)
                need(0 <= t_now < 3 + 2 * (env % 3), "an infer with a terminal observation")
                if before is not None and before[3]:
                    need(t_now == 0, "no reset after the end")
                elif before is not None:
                    need((t_now, *a_now) == (before[0], *before[1]), "another observation")
            if before is not None:
                need(step_id == (0 if before[3] else before[2] + 1), "step id")
            self.holding[env] = (t_now, None, int(step_id))
        if "spaces" in message:
            self.spaces(message["spaces"], len(message["data"]["states"]["a"][0]))
        self.infers += 1
        return [int(env) for env in envs]

    def spaces(self, value: Any, width: int) -> None:
        """Check a declaration of the probe env."""
        need(isinstance(value, dict), "spaces")
        need(value.keys() >= {"env_id", "num_envs", "autoreset", "observation", "action"}, "spaces")
        need(value["autoreset"] in ("next-step", "same-step", "disabled"), "autoreset")
        leaves = value["observation"].get("spaces", {})
        need(leaves.keys() == {"t", "a"}, "names of the declared states")
        for space, size in ((value["action"], width), (leaves["a"], width), (leaves["t"], 1)):
            need(space.get("type") == "Box" and space.get("shape") == [size], "declared shape")
            for bound in ("low", "high"):
                array = space.get(bound)
                need(isinstance(array, np.ndarray) and array.shape == (size,), "declared bounds")

    def answer(self, envs: list[int]) -> dict[str, Any]:
        """The action of SPEC 10.9, remembered."""
        script = self.script
        chunk = np.zeros((script.horizon, len(envs), *script.shape))
        flat = chunk.reshape(script.horizon, len(envs), -1)
        for k in range(script.horizon):
            for row, env in enumerate(envs):
                flat[k, row] = 10000 * k + 10 * env + np.arange(flat.shape[2])
        for row, env in enumerate(envs):
            t, _, step_id = self.holding[env]
            self.holding[env] = (t, flat[:, row], step_id)
        data = {"env_ids": np.array(envs), "action": chunk.astype(script.dtype)}
        if not script.env_ids:
            del data["env_ids"]
        return {"message_type": "action", "data": data}

    def feedback(self, frame: Any) -> None:
        """Check a feedback against what was sent."""
        message = self.read(frame, "feedback")
        envs, data, features = (
            message["env_indices"].tolist(),
            message["data"],
            self.script.features,
        )
        allowed = {"message_type", "data", "env_indices", "step_ids"}
        allowed |= {"steps", "step_rewards"} if "gym-chunk-steps" in features else set()
        allowed |= {"actions", "overridden"} if "gym-executed-actions" in features else set()
        need(message.keys() <= allowed, "a key that is not offered")
        need(set(envs) <= self.holding.keys(), "feedback for an env without an action")
        keys = {"obs", "rewards", "terminated", "truncated", "info"}
        need(isinstance(data, dict) and data.keys() == keys, "keys of data")
        t, a = self.observation(data["obs"], len(envs))
        for key, dtype in (("rewards", "float32"), ("terminated", "bool"), ("truncated", "bool")):
            array = data[key]
            need(isinstance(array, np.ndarray) and array.dtype == dtype, key)
            need(array.shape == (len(envs),), key)
        steps = []
        for row, env in enumerate(envs):
            t_before, chunk, step_id = self.holding.pop(env)
            steps.append(int(t[row] - t_before))
            length = 3 + 2 * (env % 3)
            ended = t[row] == length
            whole = min(self.script.run or self.script.horizon, self.script.horizon)
            need(1 <= steps[-1] <= whole and t[row] <= length, "steps of a chunk")
            need(ended or steps[-1] == whole, "steps of a chunk")
            need((a[row] == chunk[steps[-1] - 1]).all(), "the action that ran last")
            need(data["rewards"][row] == steps[-1], "summed reward")
            need(data["terminated"][row] == ended and not data["truncated"][row], "flags")
            need(message["step_ids"][row] == step_id, "step id of a feedback")
            self.last[env] = (t[row], a[row], step_id, bool(ended))
            steps[-1] = (steps[-1], chunk)
        self.info(data["info"], t, data["terminated"])
        self.feature_keys(message, steps)

    def info(self, info: Any, t: Any, ended: Any) -> None:
        """Check the statistics of finished episodes."""
        need(isinstance(info, dict), "info")
        if not info:
            return
        episode = info.get("episode")
        need(isinstance(episode, dict), "episode")
        for key, kind in (("r", "f"), ("l", "i"), ("s", "b"), ("mask", "b")):
            array = episode.get(key, ended if key == "mask" and ended.all() else None)
            need(isinstance(array, np.ndarray) and array.dtype.kind == kind, f"episode {key}")
            need(array.shape == ended.shape, f"episode {key}")
        need((episode["r"] == t * ended).all() and (episode["l"] == t * ended).all(), "episode")
        need((episode.get("mask", ended) == ended).all(), "episode mask")

    def feature_keys(self, message: dict[str, Any], steps: list[Any]) -> None:
        """Check what features add to a feedback."""
        counts, longest = [count for count, _ in steps], max(count for count, _ in steps)
        need(("steps" in message) == ("step_rewards" in message), "steps alone")
        need(("actions" in message) == ("overridden" in message), "actions alone")
        if "steps" in message:
            need(message["steps"].tolist() == counts, "steps")
            ones = np.arange(longest)[:, None] < np.array(counts)
            rewards = message["step_rewards"]
            need(rewards.dtype == np.float32 and rewards.shape == ones.shape, "step_rewards")
            need((rewards == ones).all(), "step_rewards")
        if "actions" in message:
            actions, width = message["actions"], steps[0][1].shape[1]
            need(actions.shape == (longest, len(steps), width), "actions")
            for row, (count, chunk) in enumerate(steps):
                need((actions[:count, row] == chunk[:count]).all(), "actions")
                need(not actions[count:, row].any(), "actions after the last step")
            need(not message["overridden"].any(), "overridden")


class Grader:
    """A server in a thread, its script and what it saw."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.violations: list[str] = []
        self.connections = 0
        self.exchanges = 0
        self.shown: dict[int, float] = {}  # t that each env must show first on the next connection
        self.active = threading.Semaphore(MANY)
        self.server: Server | None = None

    @property
    def port(self) -> int:
        assert self.server is not None
        port: int = self.server.socket.getsockname()[1]
        return port

    def handle(self, websocket: ServerConnection) -> None:
        """One connection."""
        self.connections += 1
        self.active.acquire()
        try:
            need(self.connections <= len(self.script.ends), "came back")
            self.serve(websocket, self.script.ends[self.connections - 1])
        except Violation as violation:
            self.violations.append(str(violation))
            websocket.close(1001, "plugrl-server-stop")
        except ConnectionClosed as closed:
            code = closed.rcvd.code if closed.rcvd else None
            if not (self.script.leaves and code == 1000):
                self.violations.append(f"left with {code}")
        finally:
            self.active.release()

    def settle(self) -> None:
        """Wait until no connection is open."""
        for _ in range(MANY):
            assert self.active.acquire(timeout=10), "a connection stays open"
        self.active.release(MANY)

    def serve(self, websocket: ServerConnection, end: End) -> None:
        """Greet, exchange, and end as scripted."""
        assert websocket.request is not None
        need("Sec-WebSocket-Extensions" not in websocket.request.headers, "compression")
        with contextlib.suppress(TimeoutError):
            websocket.recv(timeout=self.script.quiet)
            raise Violation("spoke first")
        if end.at == "greeting":
            self.finish(websocket, end)
            return
        websocket.send(encode({"message_type": "metadata", "data": self.metadata()}))
        watch = Watch(self.script)
        for exchange in range(1, end.exchange + 1):
            frame = self.receive(websocket)
            envs = watch.infer(frame)
            self.check_shown(watch)
            if exchange == end.exchange and end.at == "infer":
                break
            websocket.send(encode(watch.answer(envs)))
            self.exchanges += 1
            if exchange == end.exchange:
                self.predict(watch, envs)
                break
            if self.script.pings:
                need(websocket.ping().wait(self.script.patience), "no pong")
            watch.feedback(self.receive(websocket))
        self.finish(websocket, end)

    def receive(self, websocket: ServerConnection) -> Any:
        try:
            return websocket.recv(timeout=self.script.patience)
        except TimeoutError:
            raise Violation("silence") from None

    def metadata(self) -> dict[str, Any]:
        data = {
            "protocol_version": 1,
            "action_horizon": self.script.horizon,
            "action_dim": int(np.prod(self.script.shape)),
            "features": [*self.script.features, "feature-of-the-future"],
            "padding": "x" * 2**21,
        }
        data |= self.script.metadata
        return {key: value for key, value in data.items() if value is not ...}

    def predict(self, watch: Watch, envs: list[int]) -> None:
        """With a horizon of 1, what every env shows after the close that comes now."""
        if self.script.horizon == 1:
            for env in envs:
                t = watch.holding[env][0] + 1
                self.shown[env] = 0 if t >= 3 + 2 * (env % 3) else t

    def check_shown(self, watch: Watch) -> None:
        """An env goes on where it was, and is reset where its episode had ended."""
        for env, t in self.shown.items():
            if env in watch.holding:
                need(watch.holding[env][0] == t, "the first observation after a close")
        self.shown = {}

    def finish(self, websocket: ServerConnection, end: End) -> None:
        """The scripted end; after a bad frame, the client has to close with 1002."""
        if end.how == "drop":
            websocket.socket.shutdown(2)
        elif isinstance(end.how, tuple):
            websocket.close(*end.how)
        else:
            for frame in end.how:
                websocket.send(frame if isinstance(frame, str | bytes) else encode(frame))
            try:
                websocket.recv(timeout=self.script.patience)
                raise Violation("a message after an error")
            except TimeoutError:
                raise Violation("no close after an error") from None
            except ConnectionClosed as closed:
                code = closed.rcvd.code if closed.rcvd else None
                need(code == 1002, f"left with {code} after an error")

    def refuse(self, websocket: ServerConnection, request: Any) -> Any:
        """HTTP instead of WebSocket, if the script says so."""
        if self.script.status is None:
            return None
        self.connections += 1
        if self.connections > 1:
            self.violations.append("came back")
        return websocket.respond(self.script.status, "no\n")


@contextlib.contextmanager
def grading(script: Script) -> Iterator[Grader]:
    """A running grader."""
    grader = Grader(script)
    settings: dict[str, Any] = {"compression": None, "max_size": None, "ping_interval": None}
    with serve(
        grader.handle, "127.0.0.1", 0, process_request=grader.refuse, close_timeout=1, **settings
    ) as server:
        grader.server = server
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield grader
        finally:
            server.shutdown()
            thread.join()


def bad_action(**changes: Any) -> Callable[[], list[Any]]:
    """A frame with an action for one env that breaks a rule."""
    data = {"env_ids": np.zeros(1, np.int64), "action": np.zeros((1, 1, 2))} | changes
    data = {key: value for key, value in data.items() if value is not ...}
    return lambda: [{"message_type": "action", "data": data}]


BAD_ANSWERS: dict[str, list[Any]] = {
    "nan": bad_action(action=np.full((1, 1, 2), np.nan))(),
    "infinity": bad_action(action=np.full((1, 1, 2), -np.inf, ">f2"))(),
    "no action": bad_action(action=...)(),
    "list": bad_action(action=[[[0.0, 0.0]]])(),
    "no steps": bad_action(action=np.zeros((0, 1, 2)))(),
    "two columns": bad_action(action=np.zeros((1, 2, 2)))(),
    "one dimension": bad_action(action=np.zeros(2))(),
    "text": bad_action(action=np.array([["x"]]))(),
    "wrong ids": bad_action(env_ids=np.array([1]))(),
    "two ids": bad_action(env_ids=np.array([0, 0]))(),
    "float ids": bad_action(env_ids=np.zeros(1))(),
    "another type": [{"message_type": "metadata", "data": {}}],
    "no type": [{"data": {}}],
    "no map": [[]],
    "undecodable": [b"\xc1"],
    "short": [encode(bad_action()()[0])[:-1]],
    "long": [encode(bad_action()()[0]) + b"\xc0"],
    "extension": bad_action(now=msgpack.ExtType(1, b""))(),
    "str keys": bad_action(
        action={"__ndarray__": True, "data": bytes(16), "dtype": "<f8", "shape": [1, 1, 2]}
    )(),
    "msgpack-numpy": bad_action(
        action={b"nd": True, b"type": "<f8", b"kind": b"", b"shape": [1, 1, 2], b"data": bytes(16)}
    )(),
    **{
        f"dtype {dtype}": bad_action(
            action=array_map(np.zeros((1, 1, 2))) | {b"dtype": dtype, b"data": bytes(size)}
        )()
        for dtype, size in (("|O", 16), ("<c16", 32), ("|f8", 16), ("f8", 16), ("<f16", 32))
    },
    "short data": bad_action(action=array_map(np.zeros((1, 1, 2))) | {b"data": bytes(15)})(),
    "huge shape": bad_action(action=array_map(np.zeros((1, 1, 2))) | {b"shape": [2**62, 1, 2]})(),
    "negative shape": bad_action(action=array_map(np.zeros((1, 1, 2))) | {b"shape": [-1, 1, -2]})(),
}
