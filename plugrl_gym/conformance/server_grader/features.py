"""Phase *features*: ``gym-chunk-steps``, ``gym-executed-actions``, and all features together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from plugrl_gym.conformance.server_grader.additions import add_chunk_steps, add_executed, add_reuse
from plugrl_gym.conformance.server_grader.cases import Case, Phase
from plugrl_gym.conformance.server_grader.grading import CaseOver, Grading
from plugrl_gym.conformance.server_grader.provoke import Offence, provoke
from plugrl_gym.conformance.server_grader.visitor import Visitor, visit
from plugrl_gym.protocol import CHUNK_STEPS, EXECUTED_ACTIONS, REUSE_FEEDBACK_OBS

__all__ = ["FEATURES"]

Prepare = Callable[[Visitor], dict[str, Any]]


def _chunk(visitor: Visitor) -> np.ndarray[Any, Any]:
    """An action [H, 2, *da] for envs 0 and 1."""
    chunk = visitor.ask([0, 1])
    if chunk is None:
        raise CaseOver  # what is wrong with it has been said
    return chunk


def _counts(horizon: int) -> list[int]:
    """Two different numbers of steps, where the chunk is long enough."""
    return [horizon, max(1, horizon - 1)]


def _steps_told(grading: Grading) -> None:
    with visit(grading) as visitor:
        for _ in range(2):
            counts = _counts(len(_chunk(visitor)))
            feedback = add_chunk_steps(visitor.feedback([0, 1], ended=[1]), counts)
            visitor.tell([0, 1], "9.1.7", message=feedback)


def _steps_not_finite(grading: Grading) -> None:
    with visit(grading) as visitor:
        counts = _counts(len(_chunk(visitor)))
        feedback = add_chunk_steps(visitor.feedback([0, 1]), counts)
        feedback["step_rewards"][0, 0] = np.nan
        visitor.tell([0, 1], "9.4.7", message=feedback)


def _executed_told(grading: Grading) -> None:
    with visit(grading) as visitor:
        for overridden in ([False, False], [True, False]):
            chunk = _chunk(visitor)
            feedback = add_executed(visitor.feedback([0, 1]), chunk, overridden)
            visitor.tell([0, 1], "9.1.7", message=feedback)
        chunk = _chunk(visitor)
        feedback = add_executed(visitor.feedback([0, 1]), chunk[:1], [False, False])
        visitor.tell([0, 1], "9.1.7", message=feedback)


def _executed_not_finite(grading: Grading) -> None:
    with visit(grading) as visitor:
        chunk = _chunk(visitor).astype("<f4")
        chunk[0, 0] = np.inf
        feedback = add_executed(visitor.feedback([0, 1]), chunk, [False, False])
        feedback["overridden"][0] = True
        visitor.tell([0, 1], "9.5.6", message=feedback)


def _all_together(grading: Grading) -> None:
    features = grading.facts.features
    with visit(grading) as visitor:
        chunk = _chunk(visitor)
        for _ in range(2):
            counts = _counts(len(chunk))
            feedback = visitor.feedback([0, 1])
            if CHUNK_STEPS in features:
                add_chunk_steps(feedback, counts)
            if EXECUTED_ACTIONS in features:
                chunk = chunk.copy()
                chunk[counts[1] :, 1] = 0
                add_executed(feedback, chunk, [False, False])
            visitor.tell([0, 1], "9.1.7", message=feedback)
            infer = visitor.infer([0, 1])
            if REUSE_FEEDBACK_OBS in features:
                add_reuse(infer, [False, True])
            answer = visitor.ask([0, 1], "9.1.7", message=infer)
            if answer is None:
                raise CaseOver  # as in _chunk
            chunk = answer


def _none(grading: Grading) -> None:
    """Nothing of what is offered, the declaration apart where the server cannot do without."""
    with visit(grading, declare=not grading.facts.serves_undeclared) as visitor:
        for _ in range(2):
            visitor.ask([0, 1], "9.1.5")
            visitor.tell([0, 1], "9.1.5")


def _wrong(feature: str, prepare: Prepare) -> Callable[[Grading], None]:
    def run(grading: Grading) -> None:
        if feature in grading.facts.features:
            provoke(grading, lambda visitor: Offence(prepare(visitor), ("9.1.6",)))

    return run


def _with(feature: str, run: Callable[[Grading], None], *clauses: str) -> Callable[[Grading], None]:
    def run_if_offered(grading: Grading) -> None:
        if feature in grading.facts.features:
            run(grading)
        else:
            grading.report.skip(f"the server does not offer {feature}", *clauses)

    return run_if_offered


def _steps(change: Callable[[dict[str, Any], int], Any]) -> Prepare:
    """A feedback with steps that ``change``, told the horizon, spoils."""

    def prepare(visitor: Visitor) -> dict[str, Any]:
        horizon = len(_chunk(visitor))
        feedback = add_chunk_steps(visitor.feedback([0, 1]), [1, horizon])
        change(feedback, horizon)
        return feedback

    return prepare


def _set(key: str, value: Callable[[np.ndarray[Any, Any], int], Any]) -> Callable[..., None]:
    def change(feedback: dict[str, Any], horizon: int) -> None:
        feedback[key] = value(feedback[key], horizon)

    return change


def _beyond(feedback: dict[str, Any], horizon: int) -> None:
    add_chunk_steps(feedback, [1, horizon + 1])


def _zero_steps(feedback: dict[str, Any], horizon: int) -> None:
    feedback["steps"][0] = 0
    feedback["step_rewards"][:, 0] = 0


def _not_zero_after(feedback: dict[str, Any], horizon: int) -> None:
    add_chunk_steps(feedback, [1, max(horizon, 1)])
    rewards = np.vstack([feedback["step_rewards"], np.ones((1, 2), dtype=np.float32)])
    # With H = 1 no row can be shorter than another: then K itself is wrong.
    feedback["step_rewards"] = rewards[:horizon] if horizon > 1 else rewards
    feedback["step_rewards"][-1, 0] = 1.0


def _executed(change: Callable[[dict[str, Any], int], Any]) -> Prepare:
    def prepare(visitor: Visitor) -> dict[str, Any]:
        chunk = _chunk(visitor)
        feedback = add_executed(visitor.feedback([0, 1]), chunk, [True, False])
        change(feedback, len(chunk))
        return feedback

    return prepare


def _wider(actions: np.ndarray[Any, Any], horizon: int) -> np.ndarray[Any, Any]:
    return (
        np.concatenate([actions, actions], axis=-1)
        if actions.ndim > 2
        else actions[..., None, None]
    )


def _without(key: str) -> Callable[[dict[str, Any], int], Any]:
    return lambda feedback, horizon: feedback.pop(key)


_WRONG_STEPS: Final[Sequence[tuple[str, Callable[[dict[str, Any], int], Any]]]] = (
    ("steps without step_rewards", _without("step_rewards")),
    ("step_rewards without steps", _without("steps")),
    ("steps beyond the horizon", _beyond),
    ("no step at all", _zero_steps),
    ("steps that are float", _set("steps", lambda a, h: a.astype("<f8"))),
    ("steps of another length", _set("steps", lambda a, h: np.append(a, a[:1]))),
    ("step_rewards that are int", _set("step_rewards", lambda a, h: a.astype("<i4"))),
    ("step_rewards with a step too many", _set("step_rewards", lambda a, h: np.vstack([a, a[:1]]))),
    (
        "step_rewards with a row too many",
        _set("step_rewards", lambda a, h: np.hstack([a, a[:, :1]])),
    ),
    ("step_rewards after the last step", _not_zero_after),
)
_WRONG_EXECUTED: Final[Sequence[tuple[str, Callable[[dict[str, Any], int], Any]]]] = (
    ("actions without overridden", _without("overridden")),
    ("overridden without actions", _without("actions")),
    ("actions of a wider shape", _set("actions", _wider)),
    ("actions with a row too many", _set("actions", lambda a, h: np.concatenate([a, a[:, :1]], 1))),
    ("actions beyond the horizon", _set("actions", lambda a, h: np.concatenate([a, a[:1]]))),
    ("actions of no step", _set("actions", lambda a, h: a[:0])),
    ("actions that are text", _set("actions", lambda a, h: a.astype("<U8"))),
    ("overridden that is int", _set("overridden", lambda a, h: a.astype("<i8"))),
    ("overridden of another length", _set("overridden", lambda a, h: a[:1])),
)

FEATURES: Final = Phase(
    "features",
    (
        Case("steps", _with(CHUNK_STEPS, _steps_told)),
        Case("step_rewards that are not finite", _with(CHUNK_STEPS, _steps_not_finite, "9.4.7")),
        Case("actions", _with(EXECUTED_ACTIONS, _executed_told)),
        Case("actions that are not finite", _with(EXECUTED_ACTIONS, _executed_not_finite, "9.5.6")),
        Case("all at once", _all_together),
        Case("none at all", _none),
        *(Case(name, _wrong(CHUNK_STEPS, _steps(change))) for name, change in _WRONG_STEPS),
        *(Case(name, _wrong(EXECUTED_ACTIONS, _executed(c))) for name, c in _WRONG_EXECUTED),
    ),
    absent=lambda grading: (
        "" if grading.facts.features else "the server offers no optional feature"
    ),
    clauses=("9.1.5", "9.1.6", "9.1.7", "9.4.7", "9.5.6"),
)
