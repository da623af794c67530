"""What all parts of one run share: the client's process, the sockets, and what is known of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from plugrl_gym.conformance.client_grader.ledger import History
from plugrl_gym.conformance.client_grader.link import Link, Listener
from plugrl_gym.conformance.client_grader.probe import ProbeOracle
from plugrl_gym.conformance.client_grader.probe_rows import Reading
from plugrl_gym.conformance.client_grader.process import ClientProcess
from plugrl_gym.conformance.client_grader.scenarios import Run
from plugrl_gym.conformance.client_grader.spaces import Space
from plugrl_gym.conformance.client_grader.witness import Witness
from plugrl_gym.conformance.report import Report

__all__ = ["Pace", "RunOver", "Settings", "Stage", "Subject", "Unusable"]


class RunOver(Exception):
    """This run cannot go on; what was seen has been reported."""


class Unusable(RunOver):
    """No run can: the client does not even connect."""


@dataclass(frozen=True)
class Pace:
    """How long the grading server does what it does, in seconds.

    Attributes:
        greeting: Between the handshake and the metadata (SPEC 10.10).
        late: A slow server takes this long for an action, and answers pings meanwhile.
        stall: A slow server computes this long without answering pings.
        ping: Between two pings of a slow server.
        pong: A client takes at most this long to answer a ping.
        hurry: A client that comes back three times within this did not wait.
    """

    greeting: float = 0.3
    late: float = 3.0
    stall: float = 2.0
    ping: float = 0.2
    pong: float = 5.0
    hurry: float = 0.03


@dataclass(frozen=True)
class Settings:
    """What is graded, and how.

    Attributes:
        command: Starts the client.
        probe: Whether it runs the probe environment.
        horizon: H of the actions.
        dim, typestr: Numbers in an action, and their type, unless the client declares its spaces.
        steps: Exchanges of a full run.
        timeout: The longest silence, in seconds.
        pace: The grading server's own times.
    """

    command: str | Sequence[str]
    probe: bool
    horizon: int
    dim: int
    typestr: str
    steps: int
    timeout: float
    pace: Pace


@dataclass
class Subject:
    """What was learned of the client over all runs.

    Attributes:
        action_space: That it declared; None before it did.
        problems: Runs that could not be finished.
        reading: How it reads actions.
        greeted: It was seen to get through a server's metadata.
    """

    action_space: Space | None = None
    problems: int = 0
    reading: Reading = field(default_factory=Reading)
    greeted: bool = False


@dataclass
class Stage:
    """One run."""

    report: Report
    settings: Settings
    subject: Subject
    run: Run
    listener: Listener
    process: ClientProcess
    history: History = field(default_factory=History)
    oracle: ProbeOracle | None = None
    connections: int = 0
    used: set[str] = field(default_factory=set)
    strangers: list[str] = field(default_factory=list)

    def witness(self, sent: object = None, came: object = None) -> Witness:
        """For what is seen next."""
        return Witness(self.report, self.run.title, sent, came)

    def observe(self, clause: str, ok: bool, sent: object, expected: object, got: object) -> bool:
        """Report one verdict."""
        witness = self.witness(sent)
        witness.see(clause, ok, expected, got)
        witness.tell()
        return ok

    def problem(self, sentence: str) -> NoReturn:
        """The run cannot be finished: say why, with the client's last words."""
        self.subject.problems += 1
        self.report.problem(f"{self.run.title}: {sentence}{self.process.last_words()}")
        raise RunOver

    def next_link(self, refuse: Callable[[Link], bool] | None = None) -> Link | int | None:
        """The client's next connection.

        Args:
            refuse: Answers the handshake itself; returns whether it did.

        Returns:
            The connection after its handshake; the exit status of a client that ended instead;
            None after a silence of the timeout.
        """
        deadline = time.monotonic() + self.settings.timeout
        while (left := deadline - time.monotonic()) > 0:
            found: Link | int | None = self.listener.wait(self._connection_or_exit, left)
            if not isinstance(found, Link):
                return found
            self.listener.link = found
            self.listener.wait(found.first_event, min(left, 5.0))
            if found.request is not None:
                if refuse is not None and refuse(found):
                    return found
                if found.accept():
                    self.connections += 1
                    return found
            if found.request is not None or found.spoke:
                self.strangers.append("bytes that are no WebSocket handshake")
            found.discard()
        return None

    def _connection_or_exit(self) -> Link | int | None:
        # In this order: a client that connected and ended at once was there.
        status = self.process.poll()
        link = self.listener.accept()
        return status if link is None else link
