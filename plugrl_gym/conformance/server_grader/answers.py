"""What a server says, against SPEC 6.1 and 6.4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plugrl_gym.conformance.inspection import Broken
from plugrl_gym.conformance.server_grader.grading import Grading
from plugrl_gym.protocol.features.gym_spaces import (
    BoxSpec,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpaceSpec,
)

__all__ = ["Answer", "check_action", "check_metadata"]

_TYPES: Final = {
    "protocol_version": "an int",
    "server": "a str",
    "server_version": "a str",
    "algorithm": "a str",
    "policy": "a str",
    "action_horizon": "an int of at least 1",
    "action_dim": "an int of at least 1",
    "features": "an array of str",
}


def check_metadata(grading: Grading, message: dict[str, Any]) -> dict[str, Any]:
    """Check ``message`` and give back its known keys, as far as they can be used."""
    data = message.get("data")
    if not grading.observe(
        "6.1.1", isinstance(data, dict), came=message, expected="data is a map", got=data
    ):
        return {}
    assert isinstance(data, dict)
    known = {}
    for key in _TYPES.keys() & data.keys():
        value = data[key]
        unknown = value is None or (type(value) in (int, str) and not value)
        grading.observe("6.1.7", not unknown, came=message, expected=f"no {key}", got={key: value})
        if unknown:
            continue
        fits = _fits(key, value)
        grading.observe(
            "6.1.4", fits, came=message, expected=f"{key} is {_TYPES[key]}", got={key: value}
        )
        if fits:
            known[key] = value
    grading.observe(
        "12.1",
        known.get("protocol_version") == 1,
        came=message,
        expected="protocol_version is 1",
        got={"protocol_version": data["protocol_version"]}
        if "protocol_version" in data
        else "no protocol_version",
    )
    return known


def _fits(key: str, value: object) -> bool:
    if key == "features":
        return isinstance(value, list) and all(isinstance(name, str) for name in value)
    if _TYPES[key] == "a str":
        return isinstance(value, str)
    integer = isinstance(value, int | np.integer) and not isinstance(value, bool)  # SPEC 4.34
    return integer and (key == "protocol_version" or int(value) >= 1)  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True)
class Answer:
    """What can be used of an action message.

    Attributes:
        env_ids: As they came; None where they are unreadable.
        action: [H, n, *da] where nothing is wrong with it; else None.
        suits: Whether it suits the declared action space; None where that cannot be said.
    """

    env_ids: list[Any] | None = None
    action: npt.NDArray[Any] | None = None
    suits: bool | None = None


def check_action(
    grading: Grading,
    message: dict[str, Any],
    envs: Sequence[int],
    space: SpaceSpec | None,
    sent: object,
) -> Answer:
    """Check the answer to an infer for ``envs``.

    Args:
        grading: Where observations go.
        message: The answer.
        envs: Whom the infer named.
        space: The declared action space; None where none was declared.
        sent: The infer.
    """
    data = message.get("data")
    whole = isinstance(data, dict) and "env_ids" in data and "action" in data
    got = list(data) if isinstance(data, dict) else data
    expected = "data is a map with the keys env_ids and action"
    grading.observe("6.4.1", whole, sent=sent, came=message, expected=expected, got=got)
    if not isinstance(data, dict):
        return Answer()
    ids, action = data.get("env_ids"), data.get("action")
    if "env_ids" in data and not isinstance(ids, Broken):
        _check_env_ids(grading, ids, message, envs, sent)
    answer = Answer(ids.tolist() if isinstance(ids, np.ndarray) else None)
    if "action" not in data or isinstance(action, Broken):
        return answer  # the clauses of its frame have said it
    if not _check_shape(grading, action, message, len(envs), sent):
        return answer
    assert isinstance(action, np.ndarray)
    declared = _check_declared(grading, action, message)
    suits = _check_space(grading, action, message, space)
    finite = action.dtype.kind != "f" or bool(np.isfinite(action).all())
    grading.observe("6.4.18", finite, came=message, expected="finite numbers", got=action)
    return replace(answer, action=action if declared and suits and finite else None, suits=suits)


def _check_env_ids(
    grading: Grading, ids: object, message: object, envs: Sequence[int], sent: object
) -> None:
    right = (
        isinstance(ids, np.ndarray)
        and ids.dtype.str[1:] == "i8"
        and ids.ndim == 1
        and ids.tolist() == list(envs)
    )
    grading.observe(
        "6.4.3", right, sent=sent, came=message, expected=f"int64 {list(envs)}", got=ids
    )
    named = not isinstance(ids, np.ndarray) or ids.size > 0
    grading.observe("5.12", named, sent=sent, came=message, expected="at least one env", got=ids)


def _check_shape(
    grading: Grading, action: object, message: object, rows: int, sent: object
) -> bool:
    numbers = isinstance(action, np.ndarray) and action.dtype.kind in "buif"
    if isinstance(action, np.ndarray):
        expected = "a dtype of kind b, u, i or f"
        grading.observe("6.4.8", numbers, came=message, expected=expected, got=action)
    fits = (
        isinstance(action, np.ndarray)
        and action.ndim >= 2
        and action.shape[0] >= 1
        and action.shape[1] == rows
    )
    grading.observe(
        "6.4.7",
        fits,
        sent=sent,
        came=message,
        expected=f"an array of shape [H, {rows}, ...], H at least 1",
        got=action,
    )
    return numbers and fits


def _check_declared(grading: Grading, action: npt.NDArray[Any], message: object) -> bool:
    """Whether the action is as the metadata say."""
    horizon = grading.facts.metadata.get("action_horizon", len(action))
    size = int(np.prod(action.shape[2:]))
    dim = grading.facts.metadata.get("action_dim", size)
    if "action_horizon" in grading.facts.metadata:
        got = f"{len(action)} steps: {list(action.shape)}"
        expected = f"{horizon} steps, as declared"
        grading.observe("6.1.8", len(action) == horizon, came=message, expected=expected, got=got)
    if "action_dim" in grading.facts.metadata:
        got = f"{size}: {list(action.shape)}"
        expected = f"{dim} elements per env and step, as declared"
        grading.observe("6.1.9", size == dim, came=message, expected=expected, got=got)
    return bool(len(action) == horizon and size == dim)


def _check_space(
    grading: Grading, action: npt.NDArray[Any], message: object, space: SpaceSpec | None
) -> bool:
    """Whether the action suits the declared action space."""
    da, whole = action.shape[2:], bool(action.dtype.kind in "iu")

    match space:
        case BoxSpec(low, _):
            clause, fits = "6.4.10", bool(da == low.shape)
            expected = f"da is the shape of the Box, {list(low.shape)}"
        case DiscreteSpec():
            clause, fits = "6.4.11", whole and not da
            expected = "integers of shape [H, n] for a Discrete action"
        case MultiDiscreteSpec() | MultiBinarySpec():
            shape = space.nvec.shape if isinstance(space, MultiDiscreteSpec) else space.shape
            clause, fits = "6.4.14", whole and bool(da == shape)
            expected = f"integers, da is the shape of the space, {list(shape)}"
        case _:
            return True
    grading.observe(clause, fits, came=message, expected=expected, got=action)
    if isinstance(space, DiscreteSpec) and whole:
        first, last = space.start, space.start + space.n - 1
        fits = bool(((action >= first) & (action <= last)).all())
        expected = f"values from {first} to {last}"
        grading.observe("6.4.12", fits, came=message, expected=expected, got=action)
    return fits
