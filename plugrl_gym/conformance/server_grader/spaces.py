"""Phase *spaces*: the feature ``gym-spaces`` (SPEC 9.3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from plugrl_gym.conformance.server_grader.cases import Case, Phase
from plugrl_gym.conformance.server_grader.grading import CaseOver, Grading
from plugrl_gym.conformance.server_grader.peer import Closed
from plugrl_gym.conformance.server_grader.provoke import Offence, provoke
from plugrl_gym.conformance.server_grader.scene import box, declaration, discrete
from plugrl_gym.conformance.server_grader.visitor import Visitor, visit
from plugrl_gym.protocol import GYM_SPACES
from plugrl_gym.protocol.features.gym_spaces import (
    BoxSpec,
    DictSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpaceSpec,
    TextSpec,
    TupleSpec,
)

__all__ = ["SPACES"]

_KINDS: Final = ("Box", "MultiDiscrete", "MultiBinary", "Discrete")
_ODD: Final = 97  # a size that no server has of itself


def _more_keys(grading: Grading) -> None:
    with visit(grading) as visitor:
        infer = visitor.infer([0, 1])
        infer["spaces"] |= {"render_mode": "human", "wrappers": [{"name": "TimeLimit"}]}
        visitor.ask([0, 1], "9.3.4", message=infer)
    with visit(grading) as visitor:
        infer = visitor.infer([0, 1])
        infer["spaces"] |= {"num_envs": np.int64(2), "env_id": "Grader-v0", "mode": "train"}
        visitor.ask([0, 1], "4.34", message=infer)


def _evaluation(grading: Grading) -> None:
    """The same observations, twice on each of two connections."""
    action_space = grading.facts.action_space
    assert action_space is not None  # else the phase is absent
    spaces = declaration(grading.scene.space(), action_space, "eval")
    seen: list[Any] = []
    data: dict[str, Any] | None = None
    for _ in range(2):
        with visit(grading, declare=spaces) as visitor:
            for _ in range(2):
                infer = visitor.infer([0, 1])
                data = data or infer["data"]
                action = visitor.ask([0, 1], message={**infer, "data": data})
                if action is None:
                    raise CaseOver
                seen.append(action)
                visitor.tell([0, 1], ended=[0, 1])
    same = all(np.array_equal(seen[0], other) for other in seen[1:])
    expected = "the same action each time for a client in eval mode that shows the same"
    grading.observe("9.3.11", same, expected=expected, got=[seen[0], *seen[1:]])


def _misfit(action: SpaceSpec) -> Callable[[Grading], None]:
    """An action space that the server can serve by that space's rules or must refuse."""

    def run(grading: Grading) -> None:
        spaces = declaration(grading.scene.space(), action)
        with visit(grading, declare=spaces) as visitor:
            visitor.blame = False
            sent = visitor.infer([0])
            try:
                visitor.ask([0], message=sent)
            except CaseOver:
                if visitor.lost is not None:
                    _judge_refusal(grading, visitor.lost, action, sent)
                return
            finally:
                visitor.give_up()
            suits = visitor.answer.suits
            if suits is not None:
                expected = "an action of the declared space, or the close 1008 with a sentence"
                got = "an action of another space"
                grading.observe("9.3.13", suits, sent=sent, expected=expected, got=got)

    return run


def _judge_refusal(grading: Grading, closed: Closed, action: SpaceSpec, sent: object) -> None:
    expected = "an action of the declared space, or the close 1008 with a sentence"
    if not grading.observe("9.3.13", closed.code == 1008, sent=sent, expected=expected, got=closed):
        return
    expected = f"a sentence that names what the env has ({_short(action)}) and what is needed"
    both = _names_both(closed.reason, action)
    grading.observe("8.17", both, sent=sent, expected=expected, got=closed)


def _names_both(reason: str, action: SpaceSpec) -> bool:
    """Whether a sentence names our action space and at least one other."""
    named = set(re.findall(rf"(?:{'|'.join(_KINDS)})(?:\s*\([^)]*\))?|\d+", reason))
    kind = type(action).__name__.removesuffix("Spec")
    return len(named) > 1 and any(kind in name or str(_ODD) in name for name in named)


def _short(action: SpaceSpec) -> str:
    shape = action.low.shape if isinstance(action, BoxSpec) else ""
    return f"{type(action).__name__.removesuffix('Spec')}{shape}"


def _another_observation(space: SpaceSpec, make: Callable[[int], dict[str, Any]]) -> Any:
    """An observation space of another form, sent as 9.3.14 to 9.3.26 say."""

    def run(grading: Grading) -> None:
        action = grading.facts.action_space
        assert action is not None
        with visit(grading, declare=declaration(space, action)) as visitor:
            visitor.blame = False
            try:
                for _ in range(2):
                    infer, feedback = visitor.infer([0, 1]), visitor.feedback([0, 1])
                    infer["data"], feedback["data"]["obs"] = make(2), make(2)
                    visitor.ask([0, 1], message=infer)
                    visitor.tell([0, 1], message=feedback)
            except CaseOver:
                closed = visitor.lost
                if closed is not None:
                    expected = "actions, or the close 1008 with a sentence"
                    refused = closed.code == 1008
                    grading.observe("9.3.27", refused, sent=infer, expected=expected, got=closed)
            else:
                grading.observe("9.3.27", True)
            finally:
                visitor.give_up()

    return run


def _bytes_box(*shape: int) -> BoxSpec:
    low = np.zeros(shape, dtype=np.uint8)
    return BoxSpec(low, low + np.uint8(255))


_RICH: Final = DictSpec(
    {
        "camera": DictSpec({"front/left": _bytes_box(3, 12, 16), "grey": _bytes_box(12, 16)}),
        "stack": _bytes_box(4, 12, 16, 3),
        "ram": _bytes_box(128),
        "joints": box((2, 3), np.inf),
        "door": discrete(4, 1),
        "lamps": MultiBinarySpec((2, 2)),
        "pair": TupleSpec(
            (box((), 1.0), MultiDiscreteSpec(np.array([3, 4]), np.array([0, 1]), "<i8"))
        ),
        "task": TextSpec(0, 9, "abcdefgh "),
        "hint": TextSpec(0, 5, "abcdefgh "),
    }
)


def _rich(rows: int) -> dict[str, Any]:
    """What ``_RICH`` looks like on the wire."""
    hint = np.zeros((rows, 5), dtype="<u4")
    hint[:, :2] = [ord("a"), ord("b")]
    return {
        "images": {
            "camera/front~1left": np.ones((rows, 12, 16, 3), dtype="|u1"),
            "camera/grey": np.ones((rows, 12, 16, 1), dtype="|u1"),
            "stack": np.ones((rows, 12, 16, 12), dtype="|u1"),
        },
        "states": {
            "ram": np.ones((rows, 128), dtype="|u1"),
            "joints": np.ones((rows, 6), dtype="<f4"),
            "door": np.ones((rows, 1), dtype="<i8"),
            "lamps": np.ones((rows, 4), dtype="|i1"),
            "pair/0": np.ones((rows, 1), dtype="<f4"),
            "pair/1": np.ones((rows, 2), dtype="<i8"),
            "hint": hint,
        },
        "text": np.array(["head"] * rows),
    }


def _image(rows: int) -> dict[str, Any]:
    image = np.ones((rows, 64, 48, 1), dtype="|u1")
    return {"images": {"obs": image}, "states": {}, "text": np.array([""] * rows)}


def _flags(rows: int) -> dict[str, Any]:
    states = {"obs": np.ones((rows, 3), dtype="|u1")}
    return {"images": {}, "states": states, "text": np.array([""] * rows)}


def _deviation(change: Callable[[dict[str, Any], str], Any]) -> Callable[[Grading], None]:
    """A declared observation that is sent in another way (SPEC 9.3.28)."""

    def run(grading: Grading) -> None:
        scene = grading.scene
        group = "states" if scene.state_dim is not None else "images"
        name = scene.state_key if group == "states" else str(scene.image_key)

        def in_infer(visitor: Visitor) -> Offence:
            message = visitor.infer([0, 1])
            change(message["data"][group], name)
            return Offence(message, ("9.3.28",))

        def in_feedback(visitor: Visitor) -> Offence:
            visitor.ask([0, 1])
            message = visitor.feedback([0, 1])
            change(message["data"]["obs"][group], name)
            return Offence(message, ("9.3.28",))

        provoke(grading, in_infer)
        provoke(grading, in_feedback)

    return run


def _change(convert: Callable[[np.ndarray[Any, Any]], Any]) -> Callable[[dict[str, Any], str], Any]:
    def change(group: dict[str, Any], name: str) -> None:
        group[name] = convert(group[name])

    return change


def _wrong(change: Callable[[dict[str, Any]], Any]) -> Callable[[Grading], None]:
    """A declaration that is none."""

    def prepare(visitor: Visitor) -> Offence:
        message = visitor.infer([0, 1])
        change(message["spaces"])
        return Offence(message, ("9.1.6",))

    return lambda grading: provoke(grading, prepare)


def _set(key: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda spaces: spaces.update({key: value})


def _second_time(grading: Grading) -> None:
    def prepare(visitor: Visitor) -> Offence:
        spaces = visitor.infer([0, 1])["spaces"]
        visitor.ask([0, 1])
        visitor.tell([0, 1])
        return Offence({**visitor.infer([0, 1]), "spaces": spaces}, ("9.1.6",))

    provoke(grading, prepare)


def _not_a_map(grading: Grading) -> None:
    def prepare(visitor: Visitor) -> Offence:
        return Offence({**visitor.infer([0, 1]), "spaces": "Box(3,)"}, ("9.1.6",))

    provoke(grading, prepare)


_BOX: Final[dict[str, Any]] = {"type": "Box", "shape": [2], "dtype": "<f4"}
_ONES: Final = np.ones(2, dtype="<f4")
_DEVIATIONS: Final[Sequence[tuple[str, Callable[[dict[str, Any], str], Any]]]] = (
    ("a declared name that is absent", lambda group, name: group.pop(name)),
    ("a number too large for its dtype", _change(lambda a: np.full(a.shape, 1e300))),
    ("a declared name with another shape", _change(lambda a: a.repeat(2, axis=1))),
)
_WRONG: Final[Sequence[tuple[str, Callable[[dict[str, Any]], Any]]]] = (
    *(
        (f"a declaration without {key}", lambda spaces, key=key: spaces.pop(key))
        for key in ("env_id", "num_envs", "autoreset", "observation", "action")
    ),
    ("an env_id that is an int", _set("env_id", 7)),
    ("num_envs that is a str", _set("num_envs", "2")),
    ("an unknown autoreset mode", _set("autoreset", "sometimes")),
    ("an unknown mode", _set("mode", "test")),
    ("a space that is no map", _set("observation", "Box")),
    ("a space without a type", _set("action", {"n": 3})),
    ("a space that has no description", _set("observation", {"type": "Sequence", "spaces": []})),
    ("a Box without its bounds", _set("observation", _BOX)),
    (
        "a Box with bounds of another shape",
        _set("observation", {**_BOX, "low": -_ONES, "high": np.ones(3, dtype="<f4")}),
    ),
    (
        "a Box with bounds of another dtype",
        _set("observation", {**_BOX, "low": -_ONES, "high": _ONES.astype("<f8")}),
    ),
    ("a Discrete without n", _set("action", {"type": "Discrete", "start": 0, "dtype": "<i8"})),
    ("a Dict whose spaces are a list", _set("observation", {"type": "Dict", "spaces": []})),
)

SPACES: Final = Phase(
    "spaces",
    (
        Case("keys that nobody knows", _more_keys),
        Case("evaluation", _evaluation),
        Case("a Box of an odd size", _misfit(box((_ODD,)))),
        Case("a Box of two dimensions", _misfit(box((1, 3)))),
        Case("a Discrete action", _misfit(discrete(_ODD, 5))),
        Case(
            "a MultiDiscrete action",
            _misfit(MultiDiscreteSpec(np.array([3, 4, _ODD]), np.array([0, 1, 0]), "<i8")),
        ),
        Case("a MultiBinary action", _misfit(MultiBinarySpec((_ODD,)))),
        Case("an observation of many parts", _another_observation(_RICH, _rich)),
        Case("an image alone", _another_observation(_bytes_box(64, 48), _image)),
        Case(
            "bools",
            _another_observation(
                BoxSpec(np.zeros(3, dtype=np.bool_), np.ones(3, dtype=np.bool_)), _flags
            ),
        ),
        *(Case(name, _deviation(change)) for name, change in _DEVIATIONS),
        *(Case(name, _wrong(change)) for name, change in _WRONG),
        Case("a declaration that is no map", _not_a_map),
        Case("a second declaration", _second_time),
    ),
    absent=lambda grading: (
        f"the server does not offer {GYM_SPACES}"
        if GYM_SPACES not in grading.facts.features
        else ""
        if grading.facts.action_space is not None
        else "the server serves no declaration of ours"
    ),
    clauses=(
        "9.3.4",
        "9.3.11",
        "9.3.13",
        "9.3.27",
        "9.3.28",
        "8.17",
        "6.4.10",
        "6.4.11",
        "6.4.12",
        "6.4.14",
    ),
)
