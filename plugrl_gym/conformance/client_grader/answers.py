"""What the grading server declares and answers, for the client at hand."""

from __future__ import annotations

from typing import Final

import numpy as np

from plugrl_gym.conformance.client_grader.faults import FAULTS
from plugrl_gym.conformance.client_grader.ledger import SentAction
from plugrl_gym.conformance.client_grader.probe import pattern
from plugrl_gym.conformance.client_grader.scenarios import Plan
from plugrl_gym.conformance.client_grader.sending import (
    VARIATIONS,
    Array,
    Message,
    Variation,
    reshaped,
)
from plugrl_gym.conformance.client_grader.spaces import Declaration, Space
from plugrl_gym.conformance.client_grader.stage import Settings, Subject
from plugrl_gym.protocol.features import GYM_SPACES

__all__ = ["Answers"]

_ORDINARY: Final = Variation("an action", ())
#: Exchanges before the first answer that is out of the ordinary.
_BEFORE: Final = 2


class Answers:
    """The messages of one connection.

    Args:
        settings: What the user says of the client.
        subject: What is known of it from other connections.
        plan: Of this connection.

    Attributes:
        declared: The client's spaces, once it has declared them on this connection.
    """

    def __init__(self, settings: Settings, subject: Subject, plan: Plan) -> None:
        self._settings = settings
        self._subject = subject
        self._plan = plan
        self.declared: Declaration | None = None
        self._variations = [v for v in VARIATIONS if self._is_legal(v)] if plan.varied else []

    @property
    def rare(self) -> int:
        """How many answers are out of the ordinary."""
        return len(self._variations)

    def _is_legal(self, variation: Variation) -> bool:
        """Whether a rare answer is one that this client has to take."""
        space = self._action_space
        if not variation.needs:
            return True
        if variation.needs == "integers":
            return space is not None and space.is_discrete
        return space is not None and space.kind == "Discrete"

    def metadata(self) -> Message:
        """What there is to declare."""
        data: Message = {
            "protocol_version": 1,
            "server": "plugrl-conformance",
            "algorithm": "none",
            "action_horizon": self._settings.horizon,
            "action_dim": self._settings.dim,
            "features": list(self._plan.features),
        }
        space = self._action_space
        if space is not None:
            data["action_dim"] = int(np.prod(space.shape, dtype=np.int64))
        elif not self._settings.probe and GYM_SPACES in self._plan.features:
            del data["action_dim"]  # the client is about to declare it
        return data

    def answer(self, envs: list[int], number: int) -> tuple[SentAction, bytes]:
        """The action for an infer, and its frame; ``number`` counts the infers from 0."""
        index = number - _BEFORE
        variation = self._variations[index] if 0 <= index < self.rare else _ORDINARY
        action = self._action(variation, envs)
        if variation.typestr and action.dtype != np.dtype(variation.typestr):
            variation = _ORDINARY  # that type cannot hold what the client's space asks for
        action = reshaped(variation, action)
        clauses, space = variation.clauses, self._action_space
        if space is not None and space.is_discrete and action.dtype.kind == "f":
            clauses = ("6.4.16",)
        if self._plan.greeting == "empty" and number == 0:
            clauses = ("6.1.6",)
        words = f"{variation.words}: {action.dtype.str} {list(action.shape)} for {envs[:16]}"
        return SentAction(envs, action, clauses, words), variation.frame(envs, action)

    def faulty(self, envs: list[int]) -> bytes | str:
        """The malformed message that ends the connection."""
        build = FAULTS[self._plan.ending.fault].build
        return build(self.metadata(), envs, self._action(_ORDINARY, envs))

    @property
    def _action_space(self) -> Space | None:
        """Of one env, as declared on this connection or before; a probe env takes any action."""
        if self._settings.probe:
            return None
        return self._subject.action_space if self.declared is None else self.declared.action

    def _action(self, variation: Variation, envs: list[int]) -> Array:
        """[H, n, *da] in the dtype that a variation asks for, or in the usual one."""
        settings, space = self._settings, self._action_space
        typestr = variation.typestr or settings.typestr
        if settings.probe:
            action = pattern(envs, settings.horizon, settings.dim, typestr)
            return action.reshape(*action.shape[:2], *self._probe_shape())
        if space is None:
            return np.zeros((settings.horizon, len(envs), settings.dim)).astype(typestr)
        action = space.chunk(len(envs), settings.horizon)
        if variation.typestr:
            converted = action.astype(variation.typestr)
            if np.array_equal(converted, action):
                return converted
        return action

    def _probe_shape(self) -> tuple[int, ...]:
        """da of a probe client: as it declares it, if its actions have as many numbers."""
        shape = self.declared.action.shape if self.declared is not None else ()
        fits = shape != () and int(np.prod(shape, dtype=np.int64)) == self._settings.dim
        return shape if fits else (self._settings.dim,)
