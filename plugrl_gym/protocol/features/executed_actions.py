"""``gym-executed-actions``: a feedback tells what the env really did (SPEC 9.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plugrl_gym.errors import RemoteProtocolError
from plugrl_gym.protocol.fields import bool_vector, describe

__all__ = ["ExecutedActions"]


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedActions:
    """The actions that the envs ran, whoever chose them.

    Attributes:
        actions: [K, m, *da], in the unit of the action message; zero after a row's last step.
        overridden: bool [m], true where any step of the row differs from what the server sent.
    """

    actions: npt.NDArray[Any]
    overridden: npt.NDArray[np.bool_]

    def select(self, rows: npt.NDArray[np.intp], steps: int | None) -> ExecutedActions:
        """The given rows (copies), and of each the first ``steps``; None keeps all."""
        return ExecutedActions(self.actions[:steps, rows], self.overridden[rows])

    def to_wire(self) -> dict[str, Any]:
        """The keys that the feedback gains at its top level."""
        return {"actions": self.actions, "overridden": self.overridden}

    @classmethod
    def from_wire(cls, message: dict[str, Any], rows: int) -> ExecutedActions | None:
        """Validate the keys of a received feedback; None where it has neither.

        An action may be NaN or infinite: that spoils its row, not the message (SPEC 9.5.5).

        Raises:
            RemoteProtocolError: One key without the other, or a wrong shape or value.
        """
        if "actions" not in message and "overridden" not in message:
            return None
        actions = message.get("actions")
        if (
            not isinstance(actions, np.ndarray)
            or actions.dtype.kind not in "buif"
            or actions.ndim < 2
            or actions.shape[0] < 1
            or actions.shape[1] != rows
        ):
            raise RemoteProtocolError(
                f"feedback.actions: expected numeric [K, {rows}, ...], got {describe(actions)}"
            )
        return cls(actions, bool_vector(message.get("overridden"), "feedback.overridden", rows))
