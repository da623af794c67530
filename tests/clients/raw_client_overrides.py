"""Ways to override one method of raw_client.Client; raw_client_bugs.py puts them to use."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, Final

from raw_client import LETTERS, Array, Client, Env, ServerError, column
from websockets.frames import Opcode

Message = dict[str, Any]
Overrides = dict[str, Callable[..., Any]]
NAN: Final = math.nan


def infer(change: Callable[[Message], Message]) -> Overrides:
    """Changed top-level keys of every infer."""

    def override(self: Client, due: list[Env]) -> Message:
        message = Client.infer(self, due)
        return message | change(message)

    return {"infer": override}


def feedback(change: Callable[[Message], Message]) -> Overrides:
    """Changed top-level keys of every feedback."""

    def override(self: Client, finished: list[Env]) -> Message:
        message = Client.feedback(self, finished)
        return message | change(message)

    return {"feedback": override}


def result(change: Callable[[Message], Message]) -> Overrides:
    """Changed keys of every feedback's data."""
    return feedback(lambda message: {"data": message["data"] | change(message["data"])})


def observed(change: Callable[[Message], Message]) -> Overrides:
    """Changed keys of every observation."""

    def override(self: Client, envs: list[Env]) -> Message:
        seen = Client.observation(self, envs)
        return seen | change(seen)

    return {"observation": override}


def shows(change: Callable[[Array], Any]) -> Overrides:
    """Something else in the place of the state t, in every observation."""
    return observed(lambda seen: {"states": seen["states"] | {"t": change(seen["states"]["t"])}})


def asks(change: Callable[[float], float]) -> Overrides:
    """Other numbers in the state t, in every infer."""

    def override(message: Message) -> Message:
        states = message["data"]["states"]
        t = Array("<f8", states["t"].shape, [change(value) for value in states["t"].values])
        return {"data": message["data"] | {"states": states | {"t": t}}}

    return infer(override)


def informs(change: Callable[[Message], Message]) -> Overrides:
    """Changed statistics of the episodes that ended."""

    def override(self: Client, finished: list[Env]) -> Message:
        info = Client.info(self, finished)
        return {key: change(episode) for key, episode in info.items()}

    return {"info": override}


def both(change: Callable[[Message], Message]) -> Overrides:
    """Changed top-level keys of every message."""
    return infer(change) | feedback(change)


def arrays(change: Callable[[dict[Any, Any], Array], Any]) -> Overrides:
    """Changed maps of every array."""

    def override(self: Client, array: Array) -> Any:
        value = Client.array_map(self, array)
        return change(value, array)

    return {"array_map": override}


def spaces(change: Callable[[Message], Message]) -> Overrides:
    """Changed keys of the declaration."""

    def override(self: Client) -> Message:
        declared = Client.spaces(self)
        return declared | change(declared)

    return {"spaces": override}


def without(message: Message, key: str) -> Message:
    """A map that lacks a key."""
    return {k: v for k, v in message.items() if k != key}


def missing(method: str, key: str) -> Overrides:
    """A message without one of its keys."""
    original = getattr(Client, method)
    return {method: lambda self, envs: without(original(self, envs), key)}


def missing_result(key: str) -> Overrides:
    """A feedback whose data lacks a key."""
    return feedback(lambda message: {"data": without(message["data"], key)})


def recast(array: Array, dtype: str) -> Array:
    """The same numbers as another dtype."""
    cast = float if dtype[1] == "f" else int
    return Array(dtype, array.shape, [cast(value) for value in array.values])


def longer(array: Array) -> Array:
    """One element more."""
    return column(array.dtype, [*array.values, array.values[-1]])


def as_row(array: Array) -> Array:
    """The vector as a matrix of one row."""
    return Array(array.dtype, [1, *array.shape], array.values)


def flipped(array: Array) -> Array:
    """The first two axes of the shape in the wrong order."""
    return Array(array.dtype, [array.shape[1], array.shape[0], *array.shape[2:]], array.values)


def misread(array: Array, dtype: str) -> Array:
    """An array's bytes read as another dtype."""
    order, letter = array.dtype[0].replace("|", "<"), LETTERS[array.dtype[1:]]
    data = struct.pack(f"{order}{len(array.values)}{letter}", *array.values)
    size = int(dtype[2:])
    data = data.ljust(size * len(array.values), b"\0")[: size * len(array.values)]
    values = struct.unpack(f"<{len(array.values)}{LETTERS[dtype[1:]]}", data)
    return Array(dtype, array.shape, [v if math.isfinite(v) else 0.0 for v in values])


def reading(dtype: Callable[[Array], str]) -> Overrides:
    """A client that takes every action for another dtype."""

    def override(self: Client, action: Array, n: int) -> Array:
        return Client.check_action(self, misread(action, dtype(action)), n)

    return {"check_action": override}


def mute(self: Client, websocket: Any) -> None:
    """Swallow every pong, then begin."""
    send = websocket.protocol.send_frame
    websocket.protocol.send_frame = lambda f: None if f.opcode is Opcode.PONG else send(f)
    Client.begin(self, websocket)


def begin_early(self: Any, websocket: Any) -> None:
    """Send the first infer before the metadata has come."""
    Client.send(self, websocket, self.infer(self.envs))
    Client.begin(self, websocket)
    self.early = True


def send_unless_early(self: Any, websocket: Any, message: Message) -> None:
    """Skip the infer that was already sent."""
    if not self.__dict__.pop("early", False):
        Client.send(self, websocket, message)


def begin_with_old_feedback(self: Any, websocket: Any) -> None:
    """Send what the last connection did not get."""
    Client.begin(self, websocket)
    if hasattr(self, "held"):
        self.send(websocket, self.held)


def hold_feedback(self: Any, finished: list[Env]) -> Message:
    """Remember the last feedback."""
    self.held = Client.feedback(self, finished)
    return dict(self.held)


def send_twice(self: Client, websocket: Any, message: Message) -> None:
    """Every feedback goes out twice."""
    for _ in range(1 + (message["message_type"] == "feedback")):
        Client.send(self, websocket, message)


def send_no_feedback(self: Client, websocket: Any, message: Message) -> None:
    """No feedback goes out."""
    if message["message_type"] != "feedback":
        Client.send(self, websocket, message)


def ignore_text(self: Client, websocket: Any) -> Any:
    """Wait for a better frame."""
    while isinstance(frame := Client.receive(self, websocket), str):
        pass
    return frame


def answer_text(self: Client, websocket: Any, error: Exception) -> Any:
    """Send another infer before leaving."""
    self.send(websocket, self.infer(self.envs))
    return Client.meet_text(self, websocket, error)  # type: ignore[arg-type]


def close_with(code: int, outcome: int | None) -> Callable[..., int | None]:
    """Close with a code and take an outcome: an exit code, or None to reconnect."""

    def override(self: Client, websocket: Any, error: Exception) -> int | None:
        websocket.close(code)
        self.say(str(error))
        return outcome

    return override


def dies_on(what: str) -> Overrides:
    """No reconnect after one kind of close, named by its code or reason."""
    return {"meet_other_close": lambda self, code, why: 1 if what in (str(code), why) else None}


def forgive_nan(self: Client, action: Array, n: int) -> Array:
    """A NaN is a zero."""
    values = [value if math.isfinite(value) else 0.0 for value in action.values]
    return Client.check_action(self, Array(action.dtype, action.shape, values), n)


def connects(**settings: Any) -> Overrides:
    """Other settings for every connection."""
    return {"connection_settings": lambda self: Client.connection_settings(self) | settings}


def reset_but_count_on(self: Client, env: Env) -> None:
    """A reset that leaves the step id alone."""
    if env.ended:
        env.t, env.a = 0, [0.0] * len(env.a)


def end_late(self: Client, env: Env) -> None:
    """A chunk ends with its last step alone."""
    if not env.chunk:
        env.chunks_done += 1


def image_of(t: Array) -> Array:
    """Images of one pixel."""
    return Array("<f8", [len(t.values), 1, 1, 1], t.values)


def reuses(when: Callable[[Client, Env], bool]) -> Overrides:
    """Reuse at other times, where it is offered."""
    return {
        "may_reuse": lambda self, env: "reuse-feedback-obs" in self.features and when(self, env)
    }


def batched(declared: Message) -> Message:
    """The action space with a batch dimension."""
    box = declared["action"]
    bounds = {key: as_row(box[key]) for key in ("low", "high")}
    return {"action": box | bounds | {"shape": [1, *box["shape"]]}}


def renamed(declared: Message) -> Message:
    """The observation's spaces under other names."""
    return {"spaces": {f"my-{k}": v for k, v in declared["observation"]["spaces"].items()}}


def refuse_integers(self: Client, action: Array, n: int) -> Array:
    """Floats or nothing."""
    if action.dtype[1] != "f":
        raise ServerError("the action holds integers")
    return Client.check_action(self, action, n)


def demand(*keys: str) -> Overrides:
    """Metadata must have these keys."""

    def override(self: Client, data: Message) -> Message:
        if absent := [key for key in keys if key not in data]:
            raise ServerError(f"metadata without {absent}")
        return Client.read_metadata(self, data)

    return {"read_metadata": override}


def refuse_unknown(self: Client, data: Message) -> Message:
    """Metadata may have no other keys."""
    known = {"protocol_version", "server", "server_version", "algorithm", "policy"}
    if more := data.keys() - known - {"action_horizon", "action_dim", "features"}:
        raise ServerError(f"metadata with {sorted(more)[:3]}")
    return Client.read_metadata(self, data)


def demand_ids(self: Client, data: Message, asked: list[int]) -> None:
    """Older servers are not served."""
    if "env_ids" not in data:
        raise ServerError("an action without env_ids")
    Client.check_ids(self, data, asked)


def forget_all_but_reuse(self: Client) -> None:
    """Keep what the server once knew."""
    fed = self.fed
    Client.forget(self)
    self.fed = fed


def reset_everything(self: Client) -> None:
    """Forget more than was asked for."""
    Client.forget(self)
    for env in self.envs:
        env.reset()


def reset_terminal(self: Client, finished: list[Env]) -> Message:
    """The first observation of the next episode where the episode ended."""
    shown = [Env(e.index, 0, [0.0] * len(e.a)) if e.ended else e for e in finished]
    return self.observation(shown)


def uses(feature: str) -> Overrides:
    """A feature in use, offered or not."""
    choose = Client.choose_features
    return {"choose_features": lambda self, offered: choose(self, offered) | {feature}}


def spaces_in(when: Callable[[int], bool]) -> Overrides:
    """The declaration in other infers than the first."""

    def override(self: Client, due: list[Env]) -> Message:
        message = without(Client.infer(self, due), "spaces")
        declared = "gym-spaces" in self.features and when(self.infers)
        return message | ({"spaces": self.spaces()} if declared else {})

    return {"infer": override}


def reuse_infer(rows: Callable[[Client, list[Env]], list[Env]]) -> Overrides:
    """Other rows than the fresh ones in ``data``."""

    def override(self: Client, due: list[Env]) -> Message:
        message = Client.infer(self, due)
        return message | ({"data": self.observation(rows(self, due))} if "reuse" in message else {})

    return {"infer": override}


def if_there(key: str, change: Callable[[Any], Any]) -> Overrides:
    """A changed key of those feedbacks that have it."""
    return feedback(lambda message: {key: change(message[key])} if key in message else {})
