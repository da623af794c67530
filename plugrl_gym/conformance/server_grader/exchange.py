"""Phase *exchange*: legal messages of every kind, which a server has to accept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from plugrl_gym.conformance.server_grader.cases import Case, Phase
from plugrl_gym.conformance.server_grader.grading import CaseOver, Grading
from plugrl_gym.conformance.server_grader.handshake import HANDSHAKE_CASES
from plugrl_gym.conformance.server_grader.visitor import visit
from plugrl_gym.protocol.arrays import array_to_wire, scalar_to_wire

__all__ = ["EXCHANGE"]

_BIG: Final = 3 << 20
_BIG_ANSWER: Final = 5 << 18  # 1.25 MiB
_MANY: Final = 1 << 12  # more envs than that, a server may well take minutes for


def _env_sets(grading: Grading) -> None:
    """Whom infers and feedbacks name; all other cases name the same envs throughout.

    A visit ends where the server falls out, so that a server that wants the same envs in every
    infer is not blamed for what it would make of their feedback.
    """
    with visit(grading) as visitor:
        for envs in ([0, 1], [0], [1], [0, 1]):
            visitor.ask(envs, "5.19")
            visitor.tell(envs)
    for first in ([5, 3], [2**31]):
        with visit(grading) as visitor:
            for envs in (first, [1, 0], [1, 4, 2], [2**63 - 1]):
                visitor.ask(envs, "5.18")
                visitor.tell(envs)
    _walk_through(grading)


def _walk_through(grading: Grading) -> None:
    """The connection that section 1 of SPEC.md shows."""
    with visit(grading) as visitor:
        visitor.ask([0, 1])
        visitor.tell([0, 1])
        visitor.ask([0, 1])
        visitor.tell([0], "5.24", ended=[0])
        visitor.ask([0])
        visitor.tell([1], "5.24")
        visitor.ask([1])
        visitor.tell([1, 0], "5.24", ended=[1])
        visitor.ask([0, 1])


def _integer_types(grading: Grading) -> None:
    with visit(grading) as visitor:
        for dtype in ("|u1", "<i4", ">i8", "<u8", ">i2", "|i1"):
            infer = visitor.infer([0, 1])
            _retype(infer, ("env_indices", "step_ids"), dtype)
            visitor.ask([0, 1], "6.3.6", message=infer)
            feedback = visitor.feedback([0, 1])
            _retype(feedback, ("step_ids", "env_indices"), dtype)
            visitor.tell([0, 1], "6.3.6", message=feedback)


def _retype(message: dict[str, Any], keys: Iterable[str], dtype: str) -> None:
    for key in keys:
        message[key] = message[key].astype(dtype)


def _step_ids(grading: Grading) -> None:
    with visit(grading) as visitor:
        for value in (7, 0, 2**40, -1):
            infer = visitor.infer([0])
            infer["step_ids"] = np.array([value])
            visitor.ask([0], "6.3.7", message=infer)
            feedback = visitor.feedback([0])
            feedback["step_ids"] = np.array([3 - value])
            visitor.tell([0], "6.3.7", message=feedback)


def _key_order(grading: Grading) -> None:
    with visit(grading) as visitor:
        visitor.ask([0, 1], "3.7", message=_reversed(visitor.infer([0, 1])))
        visitor.tell([0, 1], "3.7", message=_reversed(visitor.feedback([0, 1])))
    with visit(grading) as visitor:
        visitor.ask([0, 1], "4.4", message=_reversed_arrays(visitor.infer([0, 1])))
        feedback = visitor.feedback([0, 1])
        for key in ("obs", "rewards", "truncated"):
            feedback["data"][key] = _reversed_arrays(feedback["data"][key])
        visitor.tell([0, 1], "4.4", message=feedback)


def _reversed(value: Any) -> Any:
    """Maps with their keys in reverse; what spaces declare has an order that means something."""
    if not isinstance(value, dict):
        return value
    items = reversed(value.items())
    return {key: item if key == "spaces" else _reversed(item) for key, item in items}


def _reversed_arrays(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return dict(reversed(array_to_wire(value).items()))
    return {k: _reversed_arrays(v) for k, v in value.items()} if isinstance(value, dict) else value


def _unknown_keys(grading: Grading) -> None:
    extra = {
        "grader": {"nested": [1, None, {"deeper": np.arange(3)}]},
        "note": "a key that nobody knows",
        "weights": np.ones((2, 3), dtype=np.float32),
    }
    foreign = _foreign_keys(grading)
    with visit(grading) as visitor:
        visitor.ask([0, 1], "3.9", message={**visitor.infer([0, 1]), **extra})
        feedback = visitor.feedback([0, 1])
        visitor.tell([0, 1], "3.9", message={**feedback, **extra, **foreign["feedback"]})
        visitor.ask([0, 1], "3.9", message={**visitor.infer([0, 1]), **foreign["infer"]})


def _foreign_keys(grading: Grading) -> dict[str, dict[str, Any]]:
    """Nonsense under the keys of features that are not offered, unknown to this server (9.1)."""
    if not grading.facts.knows_features:
        return {"infer": {}, "feedback": {}}
    offered = grading.facts.features
    keys = {
        "infer": {"reuse-feedback-obs": "reuse", "gym-spaces": "spaces"},
        "feedback": {"gym-chunk-steps": "steps", "gym-executed-actions": "actions"},
    }
    return {
        kind: {key: "nonsense" for feature, key in features.items() if feature not in offered}
        for kind, features in keys.items()
    }


def _text_forms(grading: Grading) -> None:
    # Declared spaces without a Text leaf leave nothing but empty strings to send (SPEC 9.3.26).
    words = ["pick the red cube", "ß→😀"] if grading.facts.serves_undeclared else ["", ""]
    forms = (
        ({**array_to_wire(np.zeros(2, dtype="<U1")), b"data": b"", b"dtype": "<U0"}, "4.27"),
        (np.array(["", ""], dtype="<U1"), "6.2.8"),
        (["", ""], "6.2.8"),
        (np.array(words, dtype="<U17"), "6.2.8"),
        (np.array(words, dtype=">U20"), "4.17"),
        (list(words), "6.2.8"),
    )
    with visit(grading, declare=not grading.facts.serves_undeclared) as visitor:
        for text, clause in forms:
            infer = visitor.infer([0, 1])
            infer["data"]["text"] = text
            visitor.ask([0, 1], clause, message=infer)
            feedback = visitor.feedback([0, 1])
            feedback["data"]["obs"]["text"] = text
            visitor.tell([0, 1], clause, message=feedback)
            visitor.confirm()


def _empty_observation(grading: Grading) -> None:
    if grading.scene.reads or not grading.facts.serves_undeclared:
        grading.report.skip("the server's policy reads an observation", "6.2.9")
        return
    with visit(grading, declare=False) as visitor:
        infer, feedback = visitor.infer([0]), visitor.feedback([0])
        infer["data"]["states"] = feedback["data"]["obs"]["states"] = {}
        visitor.ask([0], "6.2.9", message=infer)
        visitor.tell([0], "6.2.9", message=feedback)
        visitor.ask([0], "6.2.9", message=infer)


def _unread_names(grading: Grading) -> None:
    """Names that stay, then names that come and go."""
    stays = [(True, True)] * 2
    changes = [(False, False), (True, False), (True, True), (False, True), (False, False)]
    for clause, steps in (("6.2.12", stays), ("6.2.13", changes)):
        with visit(grading) as visitor:
            for state, image in steps:
                infer = visitor.infer([0])
                _add_unread(infer["data"], state, image)
                visitor.ask([0], clause, message=infer)
                feedback = visitor.feedback([0])
                _add_unread(feedback["data"]["obs"], state, image)
                visitor.tell([0], clause, message=feedback)
            infer = visitor.infer([0])
            _add_unread(infer["data"], *steps[-1])
            visitor.ask([0], clause, message=infer)


def _add_unread(observation: dict[str, Any], state: bool, image: bool) -> None:
    if state:
        observation["states"]["unread_by_any_policy"] = np.ones((1, 2))
    if image:
        observation["images"]["unread_by_any_policy"] = np.zeros((1, 2, 3, 3), dtype=np.uint8)


def _every_dtype(grading: Grading) -> None:
    kinds = ("b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
    usual = [(f"{'|' if k[1] == '1' else order}{k}", k) for k in kinds for order in "<>"]
    unusual = [(f"{order}{kind}", kind) for kind in ("b1", "u1", "i1") for order in "<>"]
    for clause, typestrs in (("4.17", usual), ("4.16", unusual)):
        with visit(grading) as visitor:
            infer = visitor.infer([0])
            for typestr, kind in typestrs:
                order = typestr[0] if typestr[0] != "|" else "="
                array = array_to_wire(np.ones((1, 3), dtype=np.dtype(f"{order}{kind}")))
                infer["data"]["states"][f"unread_{typestr}"] = {**array, b"dtype": typestr}
            visitor.ask([0], clause, message=infer)


def _read_dtypes(grading: Grading) -> None:
    if not grading.facts.serves_undeclared or grading.scene.state_dim is None:
        return  # a declared state has one dtype (SPEC 9.3.23)
    with visit(grading, declare=False) as visitor:
        for dtype in ("<f4", ">f8", "<f2", ">f4", "<f8"):
            visitor.dtype = dtype
            visitor.ask([0], "4.17")
            visitor.tell([0], "4.17")


def _bool_bytes(grading: Grading) -> None:
    with visit(grading) as visitor:
        visitor.ask([0, 1])
        feedback = visitor.feedback([0, 1], ended=[0])
        flags = {**array_to_wire(feedback["data"]["terminated"]), b"data": b"\xff\x00"}
        feedback["data"]["truncated"] = flags
        visitor.tell([0, 1], "4.23", message=feedback)
        visitor.ask([0, 1])


def _odd_shapes(grading: Grading) -> None:
    with visit(grading) as visitor:
        infer = visitor.infer([0, 1])
        infer["data"]["states"]["unread_empty"] = np.zeros((2, 0))
        visitor.ask([0, 1], "4.12", message=infer)
    with visit(grading) as visitor:
        visitor.ask([0, 1])
        feedback = visitor.feedback([0, 1])
        feedback["data"]["info"] = {"rows": np.arange(2.0), "total": np.array(3.5)}
        visitor.tell([0, 1], "4.11", message=feedback)


def _scalars(grading: Grading) -> None:
    scalars = {
        "plain": [True, 3, -2.5],
        "typed": [np.bool_(True), np.int32(3), np.float32(-2.5), np.uint8(255), np.float16(1)],
        "text_in_typed_form": {b"__npgeneric__": True, b"data": "a", b"dtype": "<U1"},
        "int_for_a_float": {**scalar_to_wire(np.float32(2)), b"data": 2},
    }
    with visit(grading) as visitor:
        visitor.ask([0, 1])
        feedback = visitor.feedback([0, 1])
        feedback["data"]["info"] = {"rows": np.arange(2.0), **scalars}
        visitor.tell([0, 1], "4.34", message=feedback)


def _reward_types(grading: Grading) -> None:
    with visit(grading) as visitor:
        for dtype in ("<f4", "<f8", "<f2", ">f4"):
            visitor.ask([0])
            feedback = visitor.feedback([0])
            feedback["data"]["rewards"] = feedback["data"]["rewards"].astype(dtype)
            visitor.tell([0], "6.5.8", message=feedback)


def _infos(grading: Grading) -> None:
    returns, lengths, won = np.array([3.5, 0.0]), np.array([4, 0]), np.array([True, False])
    mask = np.array([True, False])
    nested = {"name": "for logs", "list": [1, "a", None], "deep": {"er": {"est": np.arange(5)}}}
    infos: tuple[tuple[dict[str, Any], list[int], tuple[str, ...]], ...] = (
        ({"episode": {"r": returns, "l": lengths, "s": won, "mask": mask}}, [0], ()),
        ({"episode": {"r": returns, "l": lengths, "s": won}}, [0, 1], ("6.5.23",)),
        ({"rows": np.arange(2.0), **nested}, [], ()),
        ({"name": "first", "one_level": {"rows": np.zeros((2, 7))}, "later": np.ones(9)}, [], ()),
    )
    with visit(grading) as visitor:
        for info, ended, clauses in infos:
            visitor.ask([0, 1])
            feedback = visitor.feedback([0, 1], ended)
            feedback["data"]["info"] = info
            visitor.tell([0, 1], *clauses, message=feedback)
        visitor.ask([0, 1])
        visitor.tell([0, 1], "6.5.20", ended=[0, 1])
    with visit(grading) as visitor:
        visitor.ask([0])
        feedback = visitor.feedback([0])
        feedback["data"]["info"] = {"name": "one row needs no array"}
        visitor.tell([0], message=feedback)


def _non_finite_feedback(grading: Grading) -> None:
    with visit(grading) as visitor:
        for value in (np.nan, np.inf):
            visitor.ask([0, 1])
            feedback = visitor.feedback([0, 1], ended=[1])
            feedback["data"]["rewards"][1] = value
            visitor.tell([0, 1], "6.5.25", message=feedback)
        visitor.ask([0, 1])
        feedback = visitor.feedback([0, 1], ended=[1])
        for state in feedback["data"]["obs"]["states"].values():
            state[1] = np.nan
        visitor.tell([0, 1], "6.5.25", message=feedback)
        visitor.ask([0, 1])


def _stale_feedback(grading: Grading) -> None:
    with visit(grading) as visitor:
        visitor.ask([0, 1])
        visitor.tell([0, 8, 1], "6.5.26")
        visitor.ask([0, 1])


def _asked_while_holding(grading: Grading) -> None:
    """A breach of 5.22, to which 5.23 leaves the server two answers."""
    with visit(grading) as visitor:
        visitor.blame = False
        visitor.ask([0, 1])
        visitor.tell([0])
        try:
            visitor.ask([0, 1])
            visitor.tell([1, 0])
            visitor.ask([0])
        except CaseOver:
            closed = visitor.lost
            if closed is not None:
                expected = "a new action, or the close 1001 'plugrl-server-resync'"
                grading.observe("5.23", closed.resync, expected=expected, got=closed)
        else:
            grading.observe("5.23", True)


def _big_frames(grading: Grading) -> None:
    with visit(grading) as visitor:
        infer = visitor.infer([0])
        infer["data"]["states"]["unread_big"] = np.zeros((1, _BIG // 8))
        visitor.ask([0], "2.8", message=infer)
    with visit(grading) as visitor:
        action = visitor.ask([0])
        feedback = visitor.feedback([0])
        feedback["data"]["obs"]["states"]["unread_big"] = np.zeros((1, _BIG // 8))
        visitor.tell([0], "2.8", message=feedback)
    if action is not None and grading.scene.image_key is None:
        rows = min(_MANY, -(-_BIG_ANSWER // action.nbytes))
        with visit(grading) as visitor:  # an answer that is big too, where chunks are not tiny
            visitor.ask(list(range(rows)), "5.18")


def _cases(*runs: tuple[str, Callable[[Grading], None]]) -> tuple[Case, ...]:
    return tuple(Case(name, run) for name, run in runs)


EXCHANGE: Final = Phase(
    "exchange",
    HANDSHAKE_CASES
    + _cases(
        ("any set of envs", _env_sets),
        ("indices and step ids of every integer type", _integer_types),
        ("any step ids", _step_ids),
        ("keys in another order", _key_order),
        ("keys that nobody knows", _unknown_keys),
        ("every form of text", _text_forms),
        ("an observation of nothing", _empty_observation),
        ("names that come and go", _unread_names),
        ("every dtype", _every_dtype),
        ("states of another float type", _read_dtypes),
        ("bools that are not 0 or 1", _bool_bytes),
        ("arrays of no dimensions and of size 0", _odd_shapes),
        ("typed and plain scalars", _scalars),
        ("rewards of every float type", _reward_types),
        ("infos", _infos),
        ("feedback that is not finite", _non_finite_feedback),
        ("feedback of envs without an action", _stale_feedback),
        ("an infer for an env that holds an action", _asked_while_holding),
        ("frames of several MiB", _big_frames),
    ),
)
