"""What all cases of one grading share: options, facts about the server, and the report."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

from plugrl_gym.conformance.report import Report
from plugrl_gym.conformance.server_grader.peer import Peer, open_peer
from plugrl_gym.conformance.server_grader.scene import Scene
from plugrl_gym.protocol.features.gym_spaces import SpaceSpec

__all__ = [
    "PONG_SECONDS",
    "WAITS_FOR_ALL",
    "CannotGrade",
    "CaseOver",
    "Facts",
    "Grading",
    "Options",
    "RunOver",
]

#: After so many seconds without a pong, peers with customary settings give up (SPEC 2.14).
PONG_SECONDS: Final = 20.0

#: Why some clauses have no occasion.
WAITS_FOR_ALL: Final = "the server answers nobody while one client does not ask (SPEC 7.3)"

_MOST_SILENCES: Final = 3


class CaseOver(Exception):
    """The case cannot go on; what went wrong is in the report."""


class CannotGrade(Exception):
    """Nothing more can be graded, for a reason that the report shall say."""


class RunOver(Exception):
    """The server has ended the run, as it may at any time (SPEC 8.3), or was shut down."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the grader was told; see ``grade_server``."""

    url: str
    scene: Scene
    api_key: str | None = None
    trust: ssl.SSLContext | None = None
    action_dim: int = 3
    timeout: float = 30.0
    feedback_timeout: float | None = None
    stop_timeout: float = 600.0
    until_stop: bool = False
    until_shutdown: bool = False


@dataclass(slots=True)
class Facts:
    """What is known of the server.

    Attributes:
        metadata: ``metadata.data`` of the first connection.
        features: What it offers.
        knows_features: Whether that is certain; broken metadata leave it open.
        action_space: What to declare; None where nothing is to be declared.
        serves_undeclared: Whether it serves clients that declare nothing.
        waits_for_all: Whether an infer is left unanswered while another client does not ask.
        answers_pings: False once a ping has gone unanswered: no more are sent.
        extras: How many frames too many come after each kind of message.
    """

    metadata: dict[str, Any] = field(default_factory=dict)
    features: frozenset[str] = frozenset()
    knows_features: bool = False
    action_space: SpaceSpec | None = None
    serves_undeclared: bool = True
    waits_for_all: bool = False
    answers_pings: bool = True
    extras: dict[str, int] = field(default_factory=dict)


class Grading:
    """One run of the grader.

    Attributes:
        scenario: The phase and case that is under way.
        ending: The clause by which the server is expected to end: 8.1, 8.14 or none yet.
        peers: All open connections.
        progress: Told what is going on.
    """

    def __init__(
        self,
        options: Options,
        report: Report,
        progress: Callable[[str], None] = lambda scenario: None,
    ) -> None:
        self.options = options
        self.report = report
        self.progress = progress
        self.facts = Facts()
        self.scenario = ""
        self.ending = ""
        self.peers: list[Peer] = []
        self._silences = 0

    @property
    def scene(self) -> Scene:
        """The observation that the server's policy reads."""
        return self.options.scene

    @property
    def timeout(self) -> float:
        """Seconds to wait for one reply."""
        return self.options.timeout

    def observe(
        self,
        clause: str,
        ok: bool,
        *,
        sent: object = None,
        came: object = None,
        expected: object = None,
        got: object = None,
    ) -> bool:
        """As :meth:`Report.observe`, in the present scenario."""
        return self.report.observe(
            clause,
            ok,
            sent=sent,
            came=came,
            expected=expected,
            got=got,
            scenario=self.scenario,
        )

    def connect(self, *, compression: bool = False) -> AbstractContextManager[Peer]:
        """Open a connection.

        Raises:
            Unreachable: On entering.
        """
        return open_peer(
            self.options.url,
            self.timeout,
            api_key=self.options.api_key,
            trust=self.options.trust,
            compression=compression,
        )

    def silence(self, sent: object, clause: str) -> None:
        """A valid infer was not answered in time, which breaks ``clause``.

        Raises:
            CannotGrade: It happens too often: what is left would only wait.
            CaseOver: Otherwise.
        """
        expected = f"an action, or a close, within {self.timeout:g} s"
        self.observe(clause, False, sent=sent, expected=expected, got="silence")
        self._silences += clause == "5.7"
        if self._silences >= _MOST_SILENCES:
            raise CannotGrade("the server leaves infers unanswered; the other checks were given up")
        raise CaseOver
