"""The exchange as data: which message may come in which state (SPEC 5)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

__all__ = ["SENDER", "TRANSITIONS", "MessageType", "Role", "State"]


class Role(StrEnum):
    """The two ends of a connection."""

    CLIENT = "client"
    SERVER = "server"


class MessageType(StrEnum):
    """The four messages of version 1."""

    METADATA = "metadata"
    INFER = "infer"
    ACTION = "action"
    FEEDBACK = "feedback"


class State(StrEnum):
    """Where a connection stands; the same on both ends once a message has arrived."""

    GREETING = "greeting"
    IDLE = "idle"
    DECIDING = "deciding"
    ACTING = "acting"
    CLOSED = "closed"


SENDER: Final[Mapping[MessageType, Role]] = {
    MessageType.METADATA: Role.SERVER,
    MessageType.INFER: Role.CLIENT,
    MessageType.ACTION: Role.SERVER,
    MessageType.FEEDBACK: Role.CLIENT,
}

# A pair that is absent is a protocol error. A close leads from every state to CLOSED.
TRANSITIONS: Final[Mapping[tuple[State, MessageType], State]] = {
    (State.GREETING, MessageType.METADATA): State.IDLE,
    (State.IDLE, MessageType.INFER): State.DECIDING,
    (State.DECIDING, MessageType.ACTION): State.ACTING,
    (State.ACTING, MessageType.FEEDBACK): State.IDLE,
}
