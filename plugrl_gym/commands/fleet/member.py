"""One client process of several."""

from __future__ import annotations

import os
import signal
from typing import Any

from plugrl_gym.commands.children import describe_end
from plugrl_gym.commands.entry import EXIT_INTERRUPTED, EXIT_USAGE
from plugrl_gym.commands.reports import ReportingChild
from plugrl_gym.display import Reading

__all__ = ["Member"]


class Member:
    """One process, from its start to how it ended.

    Args:
        number: From 1 up.
        child: The process.
        prog: The name that begins its one line about an error.

    Attributes:
        told: Whether the user knows of its end.
    """

    def __init__(self, number: int, child: ReportingChild, prog: str) -> None:
        self.number = number
        self.child = child
        self.told = False
        self._prog = prog
        self._let_go = False
        self._heard_out = False

    @property
    def running(self) -> bool:
        return self.child.code is None

    @property
    def finished(self) -> bool:
        """Whether the server has told it that the run is over."""
        return self.child.code == 0 and bool((self.child.result or {}).get("finished"))

    def let_go_if_away(self) -> None:
        """The run is over: end it where it has no server, for it would look for one."""
        if self.running and not self._let_go and (not self.reading.steps or self.reading.pause):
            self._let_go = True
            self.child.release()

    def hear_out(self) -> None:
        """It has ended: wait once, for a bounded time, for its last words."""
        if not self._heard_out:
            self._heard_out = True
            self.child.hear_out()

    @property
    def died(self) -> bool:
        """Whether it ended, and not well; to be interrupted is no death."""
        return self.child.code not in (None, 0, EXIT_INTERRUPTED)

    @property
    def reading(self) -> Reading:
        return self.child.reading or Reading()

    @property
    def complaint(self) -> str:
        """Its one sentence about an error; empty where it made none."""
        said, name = self.child.said, f"{self._prog}: "
        return said.removeprefix(name) if said.startswith(name) else ""

    @property
    def refused(self) -> bool:
        """Whether it ended with a user's mistake, or had no server."""
        return self.child.code == EXIT_USAGE and bool(self.complaint)

    def end(self) -> str:
        """How it ended, in a few words; what it does now where it did not."""
        code = self.child.code
        if code is None:
            return self.reading.pause
        if code == 0:
            return "the server ended the run" if self.finished else "done"
        if code == EXIT_INTERRUPTED:
            return "was away when the run ended" if self._let_go else "interrupted"
        return f"died: {self._why(code)}"

    def _why(self, code: int) -> str:
        if code < 0 and os.name == "posix":
            return f"killed by {_signal_name(-code)}"
        reason = self.complaint or self.child.said
        return f"{reason} (exit code {code})" if reason else describe_end(code)

    def counts(self) -> dict[str, Any]:
        """What it did: its result, or what it last told."""
        if self.child.result is not None:
            # What was let go, because the run is over, calls itself interrupted.
            finished = self._let_go or self.child.result.get("finished", False)
            return {**self.child.result, "finished": finished}
        reading = self.reading
        return {
            "env_steps": reading.steps or 0,
            "episodes": reading.episodes,
            "mean_return": reading.mean_return,
            "finished": self._let_go,
        }


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
