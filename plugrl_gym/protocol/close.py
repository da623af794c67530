"""Close codes and reasons (SPEC 8)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = [
    "CLOSE_REASON_BYTES",
    "REASON_FEEDBACK_TIMEOUT",
    "REASON_INTERNAL",
    "REASON_RESYNC",
    "REASON_SHUTDOWN",
    "REASON_STOP",
    "CloseCode",
    "fit_reason",
]

REASON_STOP: Final = "plugrl-server-stop"
REASON_RESYNC: Final = "plugrl-server-resync"
REASON_FEEDBACK_TIMEOUT: Final = "Feedback timeout"
REASON_INTERNAL: Final = "Internal server error."
REASON_SHUTDOWN: Final = "Server shutdown"
CLOSE_REASON_BYTES: Final = 123


class CloseCode(IntEnum):
    """The WebSocket close codes that PlugRL uses."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    POLICY_VIOLATION = 1008
    INTERNAL_ERROR = 1011
    TRY_AGAIN_LATER = 1013


def fit_reason(sentence: str) -> str:
    """``sentence`` cut at a character so that it fits a close frame (RFC 6455, 5.5.1)."""
    return sentence.encode(errors="replace")[:CLOSE_REASON_BYTES].decode(errors="ignore")
