"""How this server closes connections (SPEC 8)."""

from __future__ import annotations

from typing import Final, NamedTuple

from plugrl_gym.protocol.close import (
    REASON_FEEDBACK_TIMEOUT,
    REASON_INTERNAL,
    REASON_RESYNC,
    REASON_SHUTDOWN,
    REASON_STOP,
    CloseCode,
    fit_reason,
)

__all__ = ["INTERNAL", "RESYNC", "SHUTDOWN", "SILENT", "STOP", "TIMEOUT", "Closing"]


class Closing(NamedTuple):
    """A close frame.

    Attributes:
        code: As in RFC 6455, 7.4.
        reason: At most 123 bytes.
        kind: What the server's own books call it.
    """

    code: int
    reason: str
    kind: str

    @classmethod
    def refusal(cls, sentence: str) -> Closing:
        """This client can never be served (SPEC 8.17)."""
        return cls(CloseCode.POLICY_VIOLATION, fit_reason(sentence), "refused")

    @classmethod
    def full(cls, sentence: str) -> Closing:
        """There is no room now (SPEC 8.45)."""
        return cls(CloseCode.TRY_AGAIN_LATER, fit_reason(sentence), "full")


STOP: Final = Closing(CloseCode.GOING_AWAY, REASON_STOP, "stop")
RESYNC: Final = Closing(CloseCode.GOING_AWAY, REASON_RESYNC, "resync")
TIMEOUT: Final = Closing(CloseCode.GOING_AWAY, REASON_FEEDBACK_TIMEOUT, "feedback timeout")
SHUTDOWN: Final = Closing(CloseCode.GOING_AWAY, REASON_SHUTDOWN, "shutdown")
INTERNAL: Final = Closing(CloseCode.INTERNAL_ERROR, REASON_INTERNAL, "internal error")
# Named by no clause: a client comes back (SPEC 8.34).
SILENT: Final = Closing(CloseCode.GOING_AWAY, "No sign of life", "silent")
