"""The ledger of a client (pure): what became of every chunk received and of every env step run.

Each term is counted by itself, so that what is lost on the way shows. For each connection, and for
all of them together::

    chunks received = chunks fed back + chunks dropped + chunks open
    env steps       = steps fed back + steps dropped + steps of open chunks

Once a connection has ended, nothing of it is open. NEXT_STEP's ignored steps, steps of envs that
mask themselves, and a step that failed count nowhere.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from plugrl_gym.errors import (
    ConnectionLost,
    LocalProtocolError,
    RemoteProtocolError,
    ReplyTimeout,
    RunFinished,
    ServerRefused,
)
from plugrl_gym.ledger import Account, imbalance

__all__ = ["Books", "drop_reason"]

_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (RunFinished, "run over"),
    (ServerRefused, "refused"),
    (ReplyTimeout, "no answer"),
    (RemoteProtocolError, "protocol error"),
    (LocalProtocolError, "not sent"),
    (KeyboardInterrupt, "interrupted"),
)


def drop_reason(error: BaseException) -> str:
    """Why chunks were dropped when ``error`` ended their connection."""
    if isinstance(error, ConnectionLost):
        return error.why
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "env failed")


@dataclass(slots=True)
class Books(Account):
    """One account; all counts are since its beginning.

    Attributes:
        env_steps: Steps that envs executed.
        chunks_received: Chunks, one for each env of an action message.
        chunks_fed_back: Of these, chunks whose feedback was handed to the network. What is lost
            there only the server knows (its chunks abandoned).
        chunks_dropped: Reason -> chunks that were not: their connection ended first.
        chunks_open: Chunks that run, or whose row is held until its turn.
        steps_fed_back, steps_dropped, steps_open: Env steps of these three.
    """

    env_steps: int = 0
    chunks_received: int = 0
    chunks_fed_back: int = 0
    chunks_dropped: Counter[str] = field(default_factory=Counter)
    chunks_open: int = 0
    steps_fed_back: int = 0
    steps_dropped: Counter[str] = field(default_factory=Counter)
    steps_open: int = 0

    def feed_back(self, chunks: int, steps: int) -> None:
        """A feedback went out."""
        self.chunks_fed_back += chunks
        self.steps_fed_back += steps

    def drop(self, chunks: int, steps: int, reason: str) -> None:
        """Chunks, of which ``steps`` had been run, will not be fed back."""
        if chunks:
            self.chunks_dropped[reason] += chunks
            self.steps_dropped[reason] += steps

    def settle(self, reason: str) -> None:
        """Enter what Ctrl-C left between two of these counts; nothing is open any more.

        What was received or run, and is in no account, was dropped; what is in an account was
        received or run, though the count of that had not come yet.
        """
        chunks = self.chunks_fed_back + self.chunks_dropped.total()
        steps = self.steps_fed_back + self.steps_dropped.total()
        self.chunks_received = max(self.chunks_received, chunks)
        self.env_steps = max(self.env_steps, steps)
        missing = self.chunks_received - chunks, self.env_steps - steps
        if any(missing):
            self.chunks_dropped[reason] += missing[0]
            self.steps_dropped[reason] += missing[1]

    def errors(self, closed: bool = False) -> tuple[str, ...]:
        """One sentence for each account that does not balance; empty where all do.

        Args:
            closed: The connections have ended.
        """
        chunks = {
            "fed back": self.chunks_fed_back,
            "dropped": sum(self.chunks_dropped.values()),
            "open": self.chunks_open,
        }
        steps = {
            "fed back": self.steps_fed_back,
            "dropped": sum(self.steps_dropped.values()),
            "open": self.steps_open,
        }
        found = [
            *imbalance("chunks received", self.chunks_received, chunks),
            *imbalance("env steps", self.env_steps, steps),
            *self.negative(),
        ]
        if closed and (self.chunks_open or self.steps_open):
            found.append(
                f"at the end {self.chunks_open} chunks of {self.steps_open} steps are open"
            )
        return tuple(found)
