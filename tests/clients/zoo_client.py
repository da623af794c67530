"""raw_client.py over an env that has every kind of space, and with more deliberate mistakes.

::

    python zoo_client.py 127.0.0.1 8000 --zoo discrete --features all

Without ``--zoo`` it is the raw client over the probe environment, with the bugs of rare_bugs.py
beside its own.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, Final

import raw_client
import raw_client_bugs
from rare_bugs import LEGAL, RARE
from raw_client import Array, Client, Env, ServerError, column, table
from raw_client_overrides import Message, Overrides, without

CHARSET: Final = "abcdefghijklmnopqrstuvwxyz "


def box(dtype: str, shape: list[int], low: float, high: float) -> dict[str, Any]:
    """The description of a Box."""
    count = math.prod(shape)
    bounds = {
        "low": Array(dtype, shape, [low] * count),
        "high": Array(dtype, shape, [high] * count),
    }
    return {"type": "Box", "shape": shape, "dtype": dtype, **bounds}


def discrete(n: int, start: int = 0) -> dict[str, Any]:
    """The description of a Discrete."""
    return {"type": "Discrete", "n": n, "start": start, "dtype": "<i8"}


def text(longest: int) -> dict[str, Any]:
    """The description of a Text."""
    return {"type": "Text", "min_length": 0, "max_length": longest, "charset": CHARSET}


def multi(nvec: list[int]) -> dict[str, Any]:
    """The description of a MultiDiscrete."""
    arrays = {"nvec": column("<i8", nvec), "start": column("<i8", [0] * len(nvec))}
    return {"type": "MultiDiscrete", **arrays, "dtype": "<i8"}


OBSERVATION: Final[dict[str, Any]] = {
    "gray": box("|u1", [4, 6], 0, 255),
    "first": box("|u1", [3, 8, 9], 0, 255),
    "last": box("|u1", [5, 6, 4], 0, 255),
    "stack": box("|u1", [2, 3, 6, 7], 0, 255),
    "ram": box("|u1", [5], 0, 255),
    "speed": box("<f4", [2, 2], -1, 1),
    "flag": box("|b1", [2], 0, 1),
    "a/b~c": box("<f8", [], -1, 1),
    "mode": discrete(3, 1),
    "parts": {"type": "Tuple", "spaces": [discrete(2), {"type": "MultiBinary", "shape": [2]}]},
    "grid": multi([2, 3]),
    "say": text(8),
    "note": text(5),
}
ACTIONS: Final[dict[str, Any]] = {
    "box": box("<f4", [2, 2], -1, 1),
    "discrete": discrete(3, 5),
    "multi": multi([2, 4]),
}


class ZooClient(Client):
    """The raw client with other observations and actions."""

    kind = "box"

    def choose_features(self, offered: Any) -> set[str]:
        """Declares its spaces whatever the metadata says."""
        return set(self.options.features) & set(offered)

    def spaces(self) -> dict[str, Any]:
        """The zoo's spaces."""
        observation = {"type": "Dict", "spaces": dict(OBSERVATION)}
        action = ACTIONS[self.kind]
        return super().spaces() | {"observation": observation, "action": action}

    def observation(self, envs: list[Env]) -> dict[str, Any]:
        """The same in every step, but for one number."""
        rows = len(envs)

        def image(*shape: int) -> Array:
            return Array("|u1", [rows, *shape], [7] * (rows * math.prod(shape)))

        def state(dtype: str, *values: float) -> Array:
            return table(dtype, [values] * rows, len(values))

        images = {"gray": image(4, 6, 1), "first": image(8, 9, 3), "last": image(5, 6, 4)}
        images["stack"] = image(6, 7, 6)
        states = {
            "ram": state("|u1", 1, 2, 3, 4, 5),
            "speed": state("<f4", 0.5, 0.25, 0.0, 1.0),
            "flag": state("|u1", 0, 1),
            "a~1b~0c": table("<f8", [[env.t / 16] for env in envs], 1),
            "mode": state("<i8", 2),
            "parts/0": state("<i8", 1),
            "parts/1": state("|i1", 0, 1),
            "grid": state("<i8", 1, 2),
            "note": state("<u4", *map(ord, "two"), 0, 0),
        }
        return {"images": images, "states": states, "text": column("<U8", ["one way"] * rows)}

    def check_action(self, action: Any, n: int) -> Array:
        """The action of a space of integers is whole numbers."""
        checked = super().check_action(action, n)
        inner = [] if self.kind == "discrete" else ACTIONS[self.kind].get("shape", [2])
        if checked.shape[2:] not in (inner, inner or [1]):
            raise ServerError(f"an action of shape {checked.shape} for a {self.kind} space")
        if self.kind != "box" and any(value != int(value) for value in checked.values):
            raise ServerError("a fractional action for a space of integers")
        return checked

    def width(self) -> int:
        """Numbers in an action."""
        return {"box": 4, "discrete": 1, "multi": 2}[self.kind]

    def executed(self, finished: list[Env], longest: int) -> Array:
        """In the shape of the space."""
        flat = super().executed(finished, longest)
        shape = {"box": [2, 2], "discrete": [], "multi": [2]}[self.kind]
        return Array(flat.dtype, [*flat.shape[:2], *shape], flat.values)


def shows(part: str, change: Callable[[Message], Message]) -> Overrides:
    """Changed images, states or text of every observation."""

    def override(self: ZooClient, envs: list[Env]) -> Message:
        seen = ZooClient.observation(self, envs)
        return seen | {part: change(seen[part])}

    return {"observation": override}


def reshaped(name: str, *shape: int) -> Overrides:
    """An image in another shape."""
    return shows(
        "images",
        lambda seen: seen | {name: Array("|u1", [seen[name].shape[0], *shape], seen[name].values)},
    )


def renamed(old: str, new: str) -> Overrides:
    """A state under another name."""
    return shows("states", lambda seen: without(seen, old) | {new: seen[old]})


def state(name: str, change: Callable[[Array], Array]) -> Overrides:
    """A changed state."""
    return shows("states", lambda seen: seen | {name: change(seen[name])})


def declares(change: Callable[[Message], Message]) -> Overrides:
    """Other parts of the observation space."""

    def override(self: ZooClient) -> Message:
        declared = ZooClient.spaces(self)
        spaces = declared["observation"]["spaces"]
        return declared | {"observation": {"type": "Dict", "spaces": spaces | change(spaces)}}

    return {"spaces": override}


def image_as_state(self: ZooClient, envs: list[Env]) -> Message:
    """The gray image as numbers."""
    seen = ZooClient.observation(self, envs)
    gray = seen["images"]["gray"]
    flat = Array("|u1", [gray.shape[0], 24], gray.values)
    images = without(seen["images"], "gray")
    return seen | {"images": images, "states": seen["states"] | {"gray": flat}}


def text_as_state(self: ZooClient, envs: list[Env]) -> Message:
    """The first text as code points."""
    seen = ZooClient.observation(self, envs)
    rows = [[*map(ord, "one way"), 0]] * len(envs)
    states = seen["states"] | {"say": table("<u4", rows, 8)}
    return seen | {"states": states, "text": column("<U1", [""] * len(envs))}


def narrow(array: Array) -> Array:
    """A state without its last number."""
    rows, width = array.shape
    kept = [array.values[row * width : row * width + width - 1] for row in range(rows)]
    return table(array.dtype, kept, width - 1)


def refuse_column(self: ZooClient, action: Any, n: int) -> Array:
    """No third dimension."""
    if len(action.shape) > 2:
        raise ServerError("an action of shape [H, n, 1]")
    return ZooClient.check_action(self, action, n)


def refuse_floats(self: ZooClient, action: Any, n: int) -> Array:
    """Integers alone."""
    if action.dtype[1] == "f":
        raise ServerError("floats for a space of integers")
    return ZooClient.check_action(self, action, n)


def round_down(self: ZooClient, action: Any, n: int) -> Array:
    """Any number will do."""
    whole = [int(value) for value in action.values]
    return ZooClient.check_action(self, Array(action.dtype, action.shape, whole), n)


def batched(spaces: Message) -> Message:
    """The space of three envs."""
    return {"speed": box("<f4", [3, 2, 2], -1, 1)}


ZOO: Final[dict[str, tuple[str, Overrides]]] = {
    "zoo-batched": ("declares the space of all its envs", declares(batched)),
    "zoo-nvec": (
        "declares a start of another shape than nvec",
        declares(lambda s: {"grid": s["grid"] | {"start": column("<i8", [0])}}),
    ),
    "zoo-name": ("names a state otherwise", renamed("speed", "velocity")),
    "zoo-escapes": ("does not escape names", renamed("a~1b~0c", "a/b~c")),
    "zoo-tuple": ("numbers a tuple from 1", renamed("parts/0", "parts/2")),
    "zoo-image": ("sends an image as a state", {"observation": image_as_state}),
    "zoo-gray": ("sends an image as [n, 1, h, w]", reshaped("gray", 1, 4, 6)),
    "zoo-turned": ("turns an image whose channels come last", reshaped("last", 6, 4, 5)),
    "zoo-unturned": ("does not turn an image", reshaped("first", 3, 8, 9)),
    "zoo-stack": ("joins a stack along its width", reshaped("stack", 6, 14, 3)),
    "zoo-narrow": ("leaves a number out of a state", state("speed", narrow)),
    "zoo-float64": (
        "sends every state as float64",
        state("speed", lambda a: Array("<f8", a.shape, a.values)),
    ),
    "zoo-text": ("sends its first text as a state", {"observation": text_as_state}),
    "zoo-note": (
        "sends its second text as int64",
        state("note", lambda a: Array("<i8", a.shape, a.values)),
    ),
    "zoo-column": ("refuses [H, n, 1]", {"check_action": refuse_column}),
    "zoo-floats": ("refuses whole floats", {"check_action": refuse_floats}),
    "zoo-fraction": ("rounds fractions", {"check_action": round_down}),
}


def main() -> int:
    """raw_client's command line, and ``--zoo box|discrete|multi``."""
    raw_client_bugs.DEVIATIONS.update(RARE | LEGAL)
    if "--zoo" in sys.argv:
        at = sys.argv.index("--zoo")
        ZooClient.kind = sys.argv[at + 1]
        del sys.argv[at : at + 2]
        raw_client_bugs.DEVIATIONS.update(ZOO)
        raw_client.Client = ZooClient  # type: ignore[misc]
    return raw_client.main()


if __name__ == "__main__":
    raise SystemExit(main())
