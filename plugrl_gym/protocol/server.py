"""The server's side of one connection, without a socket (SPEC 5)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from plugrl_gym.errors import LocalProtocolError, RemoteProtocolError
from plugrl_gym.protocol.codec import encode
from plugrl_gym.protocol.features import REUSE_FEEDBACK_OBS
from plugrl_gym.protocol.features.gym_spaces import SpaceDeclaration
from plugrl_gym.protocol.features.reuse import ObservationCache
from plugrl_gym.protocol.feedback import chunk_shape
from plugrl_gym.protocol.fields import first_non_finite, shown
from plugrl_gym.protocol.messages import (
    Action,
    Feedback,
    Infer,
    Metadata,
    checked_wire,
    read_message,
)
from plugrl_gym.protocol.state import TRANSITIONS, MessageType, State

__all__ = ["BadRow", "ReceivedFeedback", "ServerProtocol"]


class BadRow(NamedTuple):
    """A row of a feedback that is not finite.

    Attributes:
        step_id: Of its chunk.
        place: Where in the row, as ``"states.speed"`` or ``"rewards"``.
    """

    env: int
    step_id: int
    place: str


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedFeedback:
    """A feedback, and what had to be left out of it.

    Attributes:
        feedback: The rows that may be learned from; None where none is left.
        rows: As many as the message had.
        stale: Envs that held no action on this connection (SPEC 6.5.26).
        non_finite: Rows with a NaN or infinity (SPEC 6.5.25), the stale ones not among them.
    """

    feedback: Feedback | None
    rows: int
    stale: tuple[int, ...] = ()
    non_finite: tuple[BadRow, ...] = ()


class ServerProtocol:
    """One connection as its server sees it; only the features that its metadata lists exist.

    Attributes:
        state: Where the exchange stands.
        declaration: The client's spaces, once it has declared them.
    """

    def __init__(self) -> None:
        self.state = State.GREETING
        self.declaration: SpaceDeclaration | None = None
        self._metadata = Metadata()
        self._asked: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._asked_before = False
        self._held: dict[int, tuple[int, ...]] = {}  # env -> (H, *da) of its chunk
        self._cache = ObservationCache()

    @property
    def holding(self) -> set[int]:
        """Envs with an action that no feedback has answered yet."""
        return set(self._held)

    def send_metadata(self, metadata: Metadata) -> bytes:
        """The frame that opens the exchange.

        Raises:
            LocalProtocolError: A value that no client would take.
        """
        following = self._following(MessageType.METADATA)
        frame = encode(checked_wire(metadata))
        self._metadata = metadata
        self.state = following
        return frame

    def receive(self, frame: bytes | str) -> Infer | ReceivedFeedback:
        """Read what the client sends next; an infer comes back with its reused rows filled in.

        Raises:
            RemoteProtocolError: The connection closes for a resync.
        """
        if self.state is State.IDLE:
            return self._receive_infer(frame)
        if self.state is State.ACTING:
            return self._receive_feedback(frame)
        raise RemoteProtocolError(f"a message in the state {self.state} (SPEC 5.1)")

    def _receive_infer(self, frame: bytes | str) -> Infer:
        infer = read_message(frame, MessageType.INFER, self._metadata.features)
        assert isinstance(infer, Infer)
        if infer.spaces is not None and self._asked_before:
            raise RemoteProtocolError("infer.spaces: only a connection's first infer has it")
        if infer.reuse is not None:
            complete = self._cache.complete(infer.env_indices, infer.observation, infer.reuse)
            infer = replace(infer, observation=complete, reuse=None)
        bad = infer.observation.first_non_finite()
        if bad is not None:
            raise RemoteProtocolError(
                f"infer.data.states.{shown(bad[0])}: not finite for env "
                f"{infer.env_indices[bad[1]]}, step {infer.step_ids[bad[1]]}"
            )
        if infer.spaces is not None:
            self.declaration = infer.spaces
        self._asked = infer.env_indices
        self._asked_before = True
        self.state = TRANSITIONS[self.state, MessageType.INFER]
        return infer

    def _receive_feedback(self, frame: bytes | str) -> ReceivedFeedback:
        feedback = read_message(frame, MessageType.FEEDBACK, self._metadata.features)
        assert isinstance(feedback, Feedback)
        envs = feedback.env_indices.tolist()
        feedback.check(self._held)
        stale = tuple(env for env in envs if self._held.pop(env, None) is None)
        if REUSE_FEEDBACK_OBS in self._metadata.features:
            self._cache.store(feedback.env_indices, feedback.observation, feedback.ended)
        bad = feedback.non_finite_rows()
        self.state = TRANSITIONS[self.state, MessageType.FEEDBACK]
        if not stale and not bad:
            return ReceivedFeedback(feedback, len(envs))
        dropped = set(stale)
        kept = [row for row, env in enumerate(envs) if env not in dropped and row not in bad]
        return ReceivedFeedback(
            feedback.select(kept) if kept else None,
            len(envs),
            stale,
            tuple(
                BadRow(envs[row], int(feedback.step_ids[row]), place)
                for row, place in bad.items()
                if envs[row] not in dropped
            ),
        )

    def send_action(self, action: npt.NDArray[np.generic]) -> bytes:
        """The frame of an answer to the last infer.

        Args:
            action: [H, n, *da], rows in the order of the infer.

        Raises:
            LocalProtocolError: Wrong number of rows, not what the metadata declares, or a number
                that is not finite.
        """
        following = self._following(MessageType.ACTION)
        envs = self._asked.tolist()
        message = Action(action, self._asked)
        if isinstance(action, np.ndarray) and action.shape[1:2] == (len(envs),):
            bad = first_non_finite(action)
            if bad is not None:
                raise LocalProtocolError(
                    f"the policy chose {action[bad]} for env {envs[bad[1]]}, step {bad[0]}"
                )
        wire = checked_wire(message)
        try:
            message.check(self._asked, self._metadata)
        except RemoteProtocolError as error:
            raise LocalProtocolError(str(error)) from None
        frame = encode(wire)
        self._held.update(dict.fromkeys(envs, chunk_shape(action)))
        self.state = following
        return frame

    def _following(self, kind: MessageType) -> State:
        following = TRANSITIONS.get((self.state, kind))
        if following is None:
            raise LocalProtocolError(f"{kind} in the state {self.state} (SPEC 5.1)")
        return following
