"""Phase *errors*: every kind of malformed message, and what it does to everybody else."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Final

from plugrl_gym.conformance.server_grader.cases import Case, Phase
from plugrl_gym.conformance.server_grader.grading import CaseOver, Grading
from plugrl_gym.conformance.server_grader.malformed import MALFORMED, Malformed
from plugrl_gym.conformance.server_grader.peer import Closed
from plugrl_gym.conformance.server_grader.provoke import Offence, provoke
from plugrl_gym.conformance.server_grader.visitor import Visitor, visit

__all__ = ["ERRORS", "delays_grow"]

_MOST_STRIKES: Final = 12
# Seconds by which delays may differ for no reason.
_CHANCE: Final = 0.1


def _malformed(kind: Malformed) -> Callable[[Grading], None]:
    def prepare(visitor: Visitor) -> Offence:
        if kind.instead_of == "infer":
            message = visitor.infer([0, 1])
        else:
            visitor.ask([0, 1])
            message = visitor.feedback([0, 1])
        return Offence(kind.make(message), kind.clauses, kind.legal)

    return lambda grading: provoke(grading, prepare)


def _misfit(grading: Grading) -> None:
    """Observations that the policy cannot read, if it reads any (SPEC 6.2.14, 8.18)."""
    scene = grading.scene
    if not scene.reads or not grading.facts.serves_undeclared:
        return
    group = "states" if scene.state_dim is not None else "images"
    name = scene.state_key if group == "states" else str(scene.image_key)

    def without(visitor: Visitor) -> Offence:
        message = visitor.infer([0])
        del message["data"][group][name]
        return Offence(message, ("6.2.14",), legal=True)

    def wider(visitor: Visitor) -> Offence:
        message = visitor.infer([0])
        array = message["data"][group][name]
        message["data"][group][name] = array.repeat(2, axis=1)
        return Offence(message, ("6.2.14",), legal=True)

    for prepare in (without, wider):
        provoke(grading, prepare, declare=False)


def _patience(grading: Grading) -> None:
    """Whether closes take longer and longer for a peer that stays broken (SPEC 8.5)."""
    delays: list[float] = []
    grows = False
    while not grows and len(delays) < _MOST_STRIKES:
        with grading.connect() as peer:
            peer.receive(grading.timeout)
            peer.send(b"\xc1")
            start = time.monotonic()
            reply = peer.receive(grading.timeout)
            if not isinstance(reply, Closed) or not reply.resync:
                return  # the other cases say what they think of that
            delays.append(time.monotonic() - start)
        grows = delays_grow(delays)
    shown = ", ".join(f"{delay:.3f}" for delay in delays)
    grading.observe(
        "8.5",
        grows,
        sent=f"an undecodable frame, on {len(delays)} connections in a row",
        expected="closes that take longer and longer",
        got=f"closes after {shown} s",
    )
    with visit(grading) as visitor:  # what it holds against this host is forgiven
        visitor.ask([0])
        visitor.tell([0])


def delays_grow(delays: list[float]) -> bool:
    """Whether delays in seconds grow more than chance makes them.

    Either the last three grow by half or more each, and twice, for one hiccup is no growth; or,
    where the machines are too busy for such order, the last three are twice as long as the first
    three. The least or the median of these, for a hiccup may be the first delay too.
    """
    if len(delays) < 3:
        return False
    first, second, third = delays[-3:]
    if (
        third >= 1.5 * second >= 2.25 * first
        and min(third - second, second - first) > 0.4 * _CHANCE
        and third > min(delays[:3]) + _CHANCE
    ):
        return True
    early, late = median(delays[:3]), median(delays[-3:])
    return len(delays) >= 6 and late > 2 * early + _CHANCE


def _needless(grading: Grading) -> None:
    """Departures of all kinds are no errors either."""
    with visit(grading) as visitor:
        visitor.ask([0])
        for code in (1000, 1002, 1011):
            with grading.connect() as peer:
                peer.receive(grading.timeout)
                peer.close(code)
        visitor.blame = False
        try:
            visitor.tell([0])
            visitor.ask([0])
        except CaseOver:
            expected = "another connection goes on undisturbed"
            grading.observe("8.6", False, expected=expected, got=visitor.lost or "silence")
        else:
            grading.observe("8.6", True)


ERRORS: Final = Phase(
    "errors",
    (
        *(Case(kind.name, _malformed(kind)) for kind in MALFORMED),
        Case("an observation that does not fit the policy", _misfit),
        Case("closes with every code", _needless),
        Case("a peer that stays broken", _patience),
    ),
)
