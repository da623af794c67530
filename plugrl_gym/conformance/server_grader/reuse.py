"""Phase *reuse*: the feature ``reuse-feedback-obs`` (SPEC 9.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from plugrl_gym.conformance.server_grader.additions import add_reuse
from plugrl_gym.conformance.server_grader.cases import Case, Phase
from plugrl_gym.conformance.server_grader.grading import Grading
from plugrl_gym.conformance.server_grader.provoke import Offence, provoke
from plugrl_gym.conformance.server_grader.visitor import Visitor, visit
from plugrl_gym.protocol import REUSE_FEEDBACK_OBS

__all__ = ["REUSE"]


def _fed_back(visitor: Visitor, ended: Sequence[int] = ()) -> None:
    """Bring envs 0 and 1 to where their observations may be reused, but for those that ended."""
    visitor.ask([0, 1])
    visitor.tell([0, 1], ended=ended)


def _all_rows(grading: Grading) -> None:
    with visit(grading) as visitor:
        _fed_back(visitor)
        visitor.ask([0, 1], "9.2.4", message=add_reuse(visitor.infer([0, 1]), [True, True]))
        visitor.tell([0, 1])
        infer = add_reuse(visitor.infer([0, 1]), [True, True])
        infer["data"] |= {"images": {}, "states": {}, "text": []}
        visitor.ask([0, 1], "9.2.4", message=infer)


def _some_rows(grading: Grading) -> None:
    envs = [0, 1, 2, 3]
    with visit(grading) as visitor:
        visitor.ask(envs)
        visitor.tell(envs, ended=[0])
        for reuse in ([False, True, True, False], [False] * 4, [True, False, False, True]):
            visitor.ask(envs, "9.2.4", message=add_reuse(visitor.infer(envs), reuse))
            visitor.tell(envs)
        visitor.ask(envs, "9.2.10")
    with visit(grading) as visitor:
        envs = [2, 1, 3, 0]
        visitor.ask(envs, "5.18")
        visitor.tell(envs)
        infer = add_reuse(visitor.infer(envs), [False, True, False, True])
        visitor.ask(envs, "9.2.4", message=infer)


def _off_and_on(grading: Grading) -> None:
    with visit(grading) as visitor:
        _fed_back(visitor)
        visitor.ask([0, 1], "9.2.4", message=add_reuse(visitor.infer([0, 1]), [True, True]))
        visitor.tell([0, 1])
        visitor.ask([0, 1], "9.2.10")
        visitor.tell([0, 1])
        visitor.ask([0, 1], "9.2.4", message=add_reuse(visitor.infer([0, 1]), [True, True]))


def _text_that_merges(grading: Grading) -> None:
    with visit(grading) as visitor:
        _fed_back(visitor)
        visitor.ask([0, 1])
        feedback = visitor.feedback([0, 1])
        feedback["data"]["obs"]["text"] = np.array(["", ""], dtype="<U9")
        visitor.tell([0, 1], message=feedback)
        infer = add_reuse(visitor.infer([0, 1]), [True, False])
        infer["data"]["text"] = [""]
        visitor.ask([0, 1], "9.2.9", message=infer)


def _offence(
    prepare: Callable[[Visitor], dict[str, Any]], *clauses: str
) -> Callable[[Grading], None]:
    return lambda grading: provoke(grading, lambda visitor: Offence(prepare(visitor), clauses))


def _too_early(visitor: Visitor) -> dict[str, Any]:
    return add_reuse(visitor.infer([0, 1]), [True, True])


def _never_fed_back(visitor: Visitor) -> dict[str, Any]:
    _fed_back(visitor)
    return add_reuse(visitor.infer([0, 2]), [True, True])


def _after_the_end(visitor: Visitor) -> dict[str, Any]:
    _fed_back(visitor, ended=[1])
    return add_reuse(visitor.infer([0, 1]), [True, True])


def _other_names(visitor: Visitor) -> dict[str, Any]:
    _fed_back(visitor)
    infer = add_reuse(visitor.infer([0, 1]), [True, False])
    infer["data"]["states"]["unread"] = np.zeros((1, 2))
    return infer


def _other_dtype(visitor: Visitor) -> dict[str, Any]:
    visitor.ask([0, 1])
    feedback = visitor.feedback([0, 1])
    feedback["data"]["obs"]["states"]["unread"] = np.zeros((2, 2), dtype="<f8")
    visitor.tell([0, 1], message=feedback)
    infer = add_reuse(visitor.infer([0, 1]), [False, True])
    infer["data"]["states"]["unread"] = np.zeros((1, 2), dtype="<f4")
    return infer


def _not_finite(visitor: Visitor) -> dict[str, Any]:
    visitor.ask([0, 1])
    feedback = visitor.feedback([0, 1])
    states = feedback["data"]["obs"]["states"]
    states["unread"] = np.zeros((2, 2))
    for array in states.values():
        array[1] = np.nan
    visitor.tell([0, 1], "6.5.25", message=feedback)
    infer = add_reuse(visitor.infer([0, 1]), [True, True])
    infer["data"]["states"]["unread"] = np.zeros((0, 2))
    return infer


def _flags(value: Any) -> Callable[[Visitor], dict[str, Any]]:
    def prepare(visitor: Visitor) -> dict[str, Any]:
        _fed_back(visitor)
        return {**add_reuse(visitor.infer([0, 1]), [True, True]), "reuse": value}

    return prepare


def _rows_all_the_same(visitor: Visitor) -> dict[str, Any]:
    _fed_back(visitor)
    return {**visitor.infer([0, 1]), "reuse": np.array([True, False])}


def _another_connection(grading: Grading) -> None:
    """What an earlier connection, or another, fed back is nothing to reuse here."""
    with visit(grading) as earlier:
        _fed_back(earlier)
        earlier.settle()
        earlier.give_up()
    provoke(grading, lambda visitor: Offence(_too_early(visitor), ("8.38", "9.2.7")))


REUSE: Final = Phase(
    "reuse",
    (
        Case("all rows", _all_rows),
        Case("some rows", _some_rows),
        Case("now and then", _off_and_on),
        Case("texts that merge", _text_that_merges),
        Case("before any feedback", _offence(_too_early, "9.2.7")),
        Case("an env that never fed back", _offence(_never_fed_back, "9.2.7")),
        Case("an env whose episode ended", _offence(_after_the_end, "9.2.7")),
        Case("rows with different names", _offence(_other_names, "9.2.9")),
        Case("rows with different dtypes", _offence(_other_dtype, "9.2.9")),
        Case("a row that is not finite", _offence(_not_finite, "6.3.8")),
        Case("flags that are int", _offence(_flags(np.array([1, 1])), "9.1.6")),
        Case("flags that are a list", _offence(_flags([True, True]), "9.1.6")),
        Case("too few flags", _offence(_flags(np.array([True])), "9.1.6")),
        Case("rows in spite of reuse", _offence(_rows_all_the_same, "9.1.6")),
        Case("what another connection fed back", _another_connection),
    ),
    absent=lambda grading: (
        ""
        if REUSE_FEEDBACK_OBS in grading.facts.features
        else f"the server does not offer {REUSE_FEEDBACK_OBS}"
    ),
    clauses=("9.2.4", "9.2.7", "9.2.9", "9.2.10"),
)
