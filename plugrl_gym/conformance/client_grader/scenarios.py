"""What the grading server does to a client, as data.

A scenario is one or more runs; a run is one start of the client's command, and a plan for each
of its connections. :mod:`~plugrl_gym.conformance.client_grader.run` carries them out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from plugrl_gym.conformance.client_grader.faults import FAULTS
from plugrl_gym.conformance.client_grader.features import FEATURES
from plugrl_gym.errors import UsageError
from plugrl_gym.protocol.close import (
    REASON_FEEDBACK_TIMEOUT,
    REASON_INTERNAL,
    REASON_RESYNC,
    REASON_SHUTDOWN,
    REASON_STOP,
    CloseCode,
)
from plugrl_gym.protocol.features import (
    CHUNK_STEPS,
    EXECUTED_ACTIONS,
    GYM_SPACES,
    REUSE_FEEDBACK_OBS,
)

__all__ = ["SCENARIOS", "Ending", "Plan", "Run", "choose"]

When: TypeAlias = Literal["handshake", "greeting", "infer", "action", "feedback"]
Kind: TypeAlias = Literal[
    "resync", "internal", "other", "stop", "refusal", "unauthorized", "text", "fault"
]


@dataclass(frozen=True)
class Ending:
    """How a connection ends.

    Attributes:
        kind: What it means to the client.
        when: In place of the handshake's acceptance, of the metadata, or of an action; or right
            after an action, or after a feedback.
        code, reason: Of the close frame; code 0 drops the TCP connection.
        fault: Name in :data:`~plugrl_gym.conformance.client_grader.faults.FAULTS`.
    """

    kind: Kind
    when: When
    code: int = 0
    reason: str = ""
    fault: str = ""

    @property
    def words(self) -> str:
        """What the grader does, to complete "sent"."""
        place = {
            "handshake": "in answer to the handshake",
            "greeting": "in place of the metadata",
            "infer": "in place of an action",
            "action": "right after an action",
            "feedback": "after a feedback",
        }[self.when]
        what = f"a close with {self.code} {self.reason!r}" if self.code else "a lost connection"
        special = {"text": "a text frame", "unauthorized": "HTTP status 401"}
        what = FAULTS[self.fault].words if self.fault else special.get(self.kind, what)
        return f"{what}, {place}"


@dataclass(frozen=True)
class Plan:
    """What happens on one connection.

    Attributes:
        ending: How it ends.
        exchanges: After how many (infer, action, feedback) at the earliest; a fraction is one of
            the exchanges of a full run.
        greeting: Name in :data:`~plugrl_gym.conformance.client_grader.sending.GREETINGS`.
        features: What the metadata offers.
        varied: Whether answers that are legal but rare come after the first two exchanges.
        slow: Whether the server takes its time, and pings.
    """

    ending: Ending
    exchanges: float | int = 3
    greeting: str = "plain"
    features: tuple[str, ...] = ()
    varied: bool = False
    slow: bool = False


@dataclass(frozen=True)
class Run:
    """One start of the client.

    Attributes:
        name: Within its scenario; empty for the scenario itself.
        plans: One for each connection.
        needs: ``"integers"``: only for clients that declared such an action space.
        scenario: Filled in by :data:`SCENARIOS`.
    """

    name: str
    plans: tuple[Plan, ...]
    needs: str = ""
    scenario: str = ""

    @property
    def title(self) -> str:
        """As shown in reports."""
        return f"{self.scenario}/{self.name}" if self.name else self.scenario

    @property
    def full_name(self) -> str:
        """By which it is chosen; a slash at the end means the scenario's first run alone."""
        return f"{self.scenario}/{self.name}"


def _close(kind: Kind, when: When, code: CloseCode, reason: str) -> Ending:
    return Ending(kind, when, int(code), reason)


def _stop(when: When) -> Ending:
    return _close("stop", when, CloseCode.GOING_AWAY, REASON_STOP)


_STOP: Final = _stop("infer")
_REFUSAL: Final = _close(
    "refusal",
    "infer",
    CloseCode.POLICY_VIOLATION,
    "grader needs Discrete(7) actions, this env has others",
)


def _resync(when: When) -> Ending:
    return _close("resync", when, CloseCode.GOING_AWAY, REASON_RESYNC)


def _come_back(name: str, kind: Kind, code: int, reason: str) -> Run:
    """A close after which a client comes back, and drops what it held."""
    ending = Ending(kind, "action", code, reason)
    return Run(name, (Plan(ending, 2), Plan(_STOP, 4)))


def _fault(name: str) -> Run:
    when: When = "greeting" if FAULTS[name].greeting else "infer"
    ending = Ending("fault", when, fault=name)
    needs = "integers" if name == "fraction" else ""
    return Run(name, (Plan(ending, 0 if when == "greeting" else 2),), needs)


def _greetings(name: str, *kinds: str) -> Run:
    """One connection for each kind of metadata; a resync leads to the next."""
    plans = [Plan(_resync("infer"), 2, kind) for kind in kinds[:-1]]
    return Run(name, (*plans, Plan(_STOP, 2, kinds[-1])))


_BASIC: Final = (
    Run("", (Plan(_STOP, 1.0, "padded"),)),
    Run("varied answers", (Plan(_stop("action"), 3, varied=True),)),
    _greetings("bare metadata", "unversioned", "empty", "typed"),
    _greetings("rich metadata", "unheard-of", "reordered", "extended"),
)

_RESYNC: Final = (
    Run("", (Plan(_resync("action"), 0.5, "padded"), Plan(_STOP, 0.5))),
    Run("in place of an action", (Plan(_resync("infer"), 3), Plan(_STOP, 4))),
    Run("after a feedback", (Plan(_resync("feedback"), 4), Plan(_STOP, 4))),
    Run(
        "again and again",
        (*(Plan(_resync("greeting"), 0) for _ in range(3)), Plan(_STOP, 2)),
    ),
)

_TEXT: Final = (
    Run("", (Plan(Ending("text", "infer"), 3),)),
    Run("in place of metadata", (Plan(Ending("text", "greeting"), 0),)),
)

_RECONNECT: Final = (
    _come_back("lost", "other", 0, ""),
    _come_back("shutdown", "other", int(CloseCode.GOING_AWAY), REASON_SHUTDOWN),
    _come_back("feedback timeout", "other", int(CloseCode.GOING_AWAY), REASON_FEEDBACK_TIMEOUT),
    _come_back("internal error", "internal", int(CloseCode.INTERNAL_ERROR), REASON_INTERNAL),
    _come_back("a close without a name", "other", 1012, "service restart"),
    Run("refused", (Plan(_REFUSAL, 0, features=(GYM_SPACES,)),)),
    Run("wrong key", (Plan(Ending("unauthorized", "handshake"), 0),)),
)


def _feature(name: str, *features: str) -> Run:
    """Offered on two connections, then not."""
    return Run(
        name,
        (
            Plan(_resync("action"), 0.5, features=features),
            Plan(_resync("infer"), 4, features=features),
            Plan(_STOP, 3),
        ),
    )


_ALL: Final = tuple(FEATURES)

_SCENARIOS: Final[Mapping[str, tuple[Run, ...]]] = {
    "spaces": (
        _feature("", GYM_SPACES),
        Run("varied answers", (Plan(_STOP, 3, features=(GYM_SPACES,), varied=True),), "integers"),
    ),
    "basic": _BASIC,
    "resync": _RESYNC,
    "text": _TEXT,
    "reconnect": _RECONNECT,
    "reuse": (_feature("", REUSE_FEEDBACK_OBS),),
    "features": (
        _feature("", CHUNK_STEPS, EXECUTED_ACTIONS),
        Run("executed actions alone", (Plan(_STOP, 6, features=(EXECUTED_ACTIONS,)),)),
        Run("all", (Plan(_STOP, 8, features=_ALL),)),
    ),
    "slow": (Run("", (Plan(_STOP, 4, slow=True),)),),
    "errors": tuple(_fault(name) for name in FAULTS),
}

#: Name -> runs. A client that declares its spaces is asked to do so first: what it declares
#: tells which actions its envs take.
SCENARIOS: Final[Mapping[str, tuple[Run, ...]]] = {
    scenario: tuple(Run(run.name, run.plans, run.needs, scenario) for run in runs)
    for scenario, runs in _SCENARIOS.items()
}


def choose(scenarios: str | Iterable[str]) -> list[Run]:
    """The runs of the named scenarios.

    Args:
        scenarios: ``"all"``, the name of a scenario, or of a run as in a report
            (``"reconnect/lost"``), or several of them; in one str they are joined by commas.

    Raises:
        UsageError: There is no such scenario.
    """
    names = scenarios.split(",") if isinstance(scenarios, str) else list(scenarios)
    every = [run for runs in SCENARIOS.values() for run in runs]
    chosen: list[Run] = []
    for name in names:
        found = [run for run in every if name.strip() in (run.scenario, run.full_name, "all")]
        if not found:
            known = ", ".join([*SCENARIOS, "all"])
            raise UsageError(f"no scenario {name!r}; there are {known}")
        chosen += [run for run in found if run not in chosen]
    return chosen
