"""The client's side of one connection, without a socket (SPEC 5).

Frames in, messages out; messages in, frames out. What breaks the exchange raises before it
is sent, or as soon as it is received.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from plugrl_gym.errors import LocalProtocolError, RemoteProtocolError
from plugrl_gym.protocol.codec import encode
from plugrl_gym.protocol.features import (
    CHUNK_STEPS,
    EXECUTED_ACTIONS,
    GYM_SPACES,
    REUSE_FEEDBACK_OBS,
)
from plugrl_gym.protocol.feedback import chunk_shape
from plugrl_gym.protocol.messages import (
    PROTOCOL_VERSION,
    Action,
    Feedback,
    Infer,
    Metadata,
    checked_wire,
    read_message,
)
from plugrl_gym.protocol.state import TRANSITIONS, MessageType, State

__all__ = ["ClientProtocol"]


class ClientProtocol:
    """One connection as its client sees it; a new connection takes a new object.

    Attributes:
        state: Where the exchange stands.
        metadata: The server's, once it has come.
    """

    def __init__(self) -> None:
        self.state = State.GREETING
        self.metadata = Metadata()
        self._asked: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._asked_before = False
        self._held: dict[int, tuple[int, ...]] = {}  # env -> (H, *da) of its chunk
        self._reusable: set[int] = set()

    @property
    def holding(self) -> set[int]:
        """Envs with an action that no feedback has answered yet."""
        return set(self._held)

    def receive_metadata(self, frame: bytes | str) -> Metadata:
        """Read the server's first message.

        Raises:
            RemoteProtocolError: It is something else, or of another protocol version.
        """
        following = self._following(MessageType.METADATA, RemoteProtocolError)
        message = read_message(frame, MessageType.METADATA)
        assert isinstance(message, Metadata)
        version = message.protocol_version
        if version not in (None, PROTOCOL_VERSION):
            raise RemoteProtocolError(
                f"the server speaks PlugRL version {version}; this client speaks {PROTOCOL_VERSION}"
            )
        self.metadata = message
        self.state = following
        return message

    def send_infer(self, infer: Infer) -> bytes:
        """The frame of a request, if one may be sent now.

        Raises:
            LocalProtocolError: A feedback is due first, or the server would not take it.
        """
        following = self._following(MessageType.INFER, LocalProtocolError)
        wire = checked_wire(infer)
        envs = infer.env_indices.tolist()
        self._check_infer(infer, envs)
        frame = encode(wire)
        self._asked = np.array(infer.env_indices, dtype=np.int64)  # the caller may reuse his
        self._asked_before = True
        self.state = following
        return frame

    def _check_infer(self, infer: Infer, envs: list[int]) -> None:
        busy = self._held.keys() & envs
        if busy:
            raise LocalProtocolError(
                f"infer for envs {sorted(busy)[:16]}, which hold an action; feed it back first "
                "(SPEC 5.21)"
            )
        if infer.spaces is not None:
            self._require(GYM_SPACES)
            if self._asked_before:
                raise LocalProtocolError("only a connection's first infer has spaces (SPEC 9.3.2)")
        sent = envs
        if infer.reuse is not None:
            self._require(REUSE_FEEDBACK_OBS)
            sent = [
                env for env, reused in zip(envs, infer.reuse.tolist(), strict=True) if not reused
            ]
            unknown = set(envs).difference(sent, self._reusable)
            if unknown:
                raise LocalProtocolError(
                    f"reuse for envs {sorted(unknown)[:16]}, which have fed back no observation "
                    "to go on from (SPEC 9.2.5, 9.2.6)"
                )
        bad = infer.observation.first_non_finite()
        if bad is not None:
            raise LocalProtocolError(
                f"infer.data.states.{bad[0]}: not finite for env {sent[bad[1]]}"
            )

    def receive_action(self, frame: bytes | str) -> Action:
        """Read the answer to the last infer and compare it with what was asked and declared.

        Raises:
            RemoteProtocolError: Naming the expected and the received shape.
        """
        following = self._following(MessageType.ACTION, RemoteProtocolError)
        message = read_message(frame, MessageType.ACTION)
        assert isinstance(message, Action)
        message.check(self._asked, self.metadata)
        self._held.update(dict.fromkeys(self._asked.tolist(), chunk_shape(message.action)))
        self.state = following
        return message

    def send_feedback(self, feedback: Feedback) -> bytes:
        """The frame of a feedback, if one may be sent now.

        Raises:
            LocalProtocolError: No action was received, an env holds none, or the server would
                not take it.
        """
        following = self._following(MessageType.FEEDBACK, LocalProtocolError)
        wire = checked_wire(feedback)
        envs = feedback.env_indices.tolist()
        self._check_feedback(feedback, envs)
        frame = encode(wire)
        for env, ended in zip(envs, feedback.ended.tolist(), strict=True):
            del self._held[env]
            (self._reusable.discard if ended else self._reusable.add)(env)
        self.state = following
        return frame

    def _check_feedback(self, feedback: Feedback, envs: list[int]) -> None:
        stale = [env for env in envs if env not in self._held]
        if stale:
            raise LocalProtocolError(f"feedback for envs {stale[:16]}, which hold no action")
        if feedback.chunk_steps is not None:
            self._require(CHUNK_STEPS)
        if feedback.executed is not None:
            self._require(EXECUTED_ACTIONS)
        try:
            feedback.check(self._held)
        except RemoteProtocolError as error:
            raise LocalProtocolError(str(error)) from None
        bad = feedback.non_finite_rows()
        if bad:
            row, place = next(iter(bad.items()))
            raise LocalProtocolError(f"feedback.{place}: not finite for env {envs[row]}")

    def _require(self, feature: str) -> None:
        if feature not in self.metadata.features:
            raise LocalProtocolError(f"the server does not offer {feature} (SPEC 9.1.2)")

    def _following(self, kind: MessageType, blame: type[Exception]) -> State:
        following = TRANSITIONS.get((self.state, kind))
        if following is None:
            raise blame(f"{kind} in the state {self.state} (SPEC 5.1)")
        return following
