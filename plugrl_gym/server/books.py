"""The ledger of a server (pure): what became of every chunk given and of every row received.

Each term is counted by itself, so that what is lost on the way shows. For each connection, and for
all of them together::

    chunks given  = rows answered + chunks abandoned + chunks open
    rows received = rows answered + rows discarded as stale
    rows received = rows stored + rows discarded + rows waiting

Once a connection has ended, nothing of it is open or waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from plugrl_gym.ledger import Account, imbalance

__all__ = ["FAILED", "NON_FINITE", "RUN_OVER", "STALE", "UNFIT", "Books"]

#: The reasons for which a server itself discards rows; an agent may have more.
STALE: Final = "stale"
NON_FINITE: Final = "non-finite"
UNFIT: Final = "unfit"
RUN_OVER: Final = "run over"
FAILED: Final = "failed"


@dataclass(slots=True)
class Books(Account):
    """One account; all counts are since its beginning.

    Attributes:
        chunks_given: Chunks that were sent, one for each env of an action message.
        chunks_abandoned: Of these, chunks whose connection ended, or whose env asked for another,
            before their feedback.
        chunks_open: Of these, chunks whose feedback may still come.
        rows_received: Rows of feedback messages, whatever became of them.
        rows_answered: Of these, rows of envs that held a chunk.
        rows_stored: Of these, rows that the agent kept.
        rows_discarded: Reason -> rows that were not kept: ``stale`` (their env held no chunk),
            ``non-finite`` (a NaN or an infinity), ``unfit`` (not of the policy's spaces), ``run
            over`` (they came too late), ``failed`` (the agent did), or a reason of the agent's.
        rows_waiting: Rows that wait for the agent, which learns.
        env_steps: Env steps of the rows that were passed on to the agent, as their client reports
            them; the chunk's horizon where it does not.
    """

    chunks_given: int = 0
    chunks_abandoned: int = 0
    chunks_open: int = 0
    rows_received: int = 0
    rows_answered: int = 0
    rows_stored: int = 0
    rows_discarded: Counter[str] = field(default_factory=Counter)
    rows_waiting: int = 0
    env_steps: int = 0

    def receive(self, rows: int, answered: int, discarded: Mapping[str, int]) -> None:
        """A feedback message came.

        Args:
            rows: As many as it has.
            answered: Those of envs that held a chunk.
            discarded: Reason -> rows that the agent will not see.
        """
        self.rows_received += rows
        self.rows_answered += answered
        self.rows_discarded.update(discarded)

    def keep(self, rows: int, not_kept: Mapping[str, int]) -> None:
        """The agent took ``rows``, and kept all but ``not_kept``, by reason."""
        self.rows_stored += rows - sum(not_kept.values())
        self.rows_discarded.update(not_kept)

    def errors(self, closed: bool = False) -> tuple[str, ...]:
        """One sentence for each account that does not balance; empty where all do.

        Args:
            closed: The connections have ended.
        """
        answered, stale = self.rows_answered, self.rows_discarded[STALE]
        ways = {"answered": answered, "abandoned": self.chunks_abandoned, "open": self.chunks_open}
        ends = {
            "stored": self.rows_stored,
            "discarded": sum(self.rows_discarded.values()),
            "waiting": self.rows_waiting,
        }
        found = [
            *imbalance("chunks given", self.chunks_given, ways),
            *imbalance("rows received", self.rows_received, {"answered": answered, "stale": stale}),
            *imbalance("rows received", self.rows_received, ends),
            *self.negative(),
        ]
        if closed and (self.chunks_open or self.rows_waiting):
            found.append(
                f"at the end {self.chunks_open} chunks are open and {self.rows_waiting} rows wait"
            )
        return tuple(found)
