"""Phase *scoping*: several connections, which are nothing to each other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from plugrl_gym.conformance.server_grader.cases import Case, Phase
from plugrl_gym.conformance.server_grader.grading import WAITS_FOR_ALL, CaseOver, Grading
from plugrl_gym.conformance.server_grader.visitor import Visitor, visit

__all__ = ["SCOPING"]


def _same_indices(grading: Grading) -> None:
    with visit(grading) as one, visit(grading) as other:
        for _ in range(2):
            one.ask_only([0, 1], "5.16")
            other.ask_only([0, 1], "5.16")
            one.hear()
            other.hear()
            one.tell([0, 1])
            other.tell([0, 1])
        one.ask_only([0, 1], "5.16")
        other.ask_only([0, 1], "5.16")
        one.hear()
        other.hear()


def _at_the_same_time(grading: Grading) -> None:
    """Infers that a server may answer with one forward pass."""
    sets = [[0], [10, 11], [20, 21, 22]]
    with ExitStack() as stack:
        visitors = [stack.enter_context(visit(grading)) for _ in sets]
        for _ in range(3):
            _ask_all(visitors, sets)
            for visitor, envs in zip(visitors, sets, strict=True):
                heard = visitor.answer.env_ids
                if heard is not None:
                    others = {env for other in sets if other is not envs for env in other}
                    sent = f"infers of three connections at once, this one for {envs}"
                    expected = f"no row of {sorted(others)}"
                    mixed = bool(others.intersection(heard))
                    grading.observe("7.2", not mixed, sent=sent, expected=expected, got=heard)
                visitor.tell(envs)
        _ask_all(visitors, sets)


def _ask_all(visitors: Sequence[Visitor], sets: Sequence[list[int]]) -> None:
    for visitor, envs in zip(visitors, sets, strict=True):
        visitor.ask_only(envs, "5.18")
    for visitor in visitors:
        visitor.hear()


def _departure_in_a_wait(grading: Grading) -> None:
    """Connections that break while an infer waits for them."""
    with visit(grading) as visitor:
        visitor.ask([0])
        visitor.tell([0])
        with visit(grading) as silent, visit(grading) as lost:
            lost.ask_only([30])
            visitor.ask_only([0])
            for leaving in (lost, silent):
                leaving.peer.abort()
                leaving.give_up()
            for _ in range(3):  # the first answer may have been on its way
                _survives(grading, visitor, "7.4", "other connections broke")
                visitor.tell([0])
                visitor.ask_only([0])
            visitor.hear()


def _departures(grading: Grading) -> None:
    """Clients that leave in mid exchange, with and without a close frame."""
    if grading.facts.waits_for_all:
        grading.report.skip(WAITS_FOR_ALL, "8.6", "8.15")
        return
    with visit(grading) as visitor:
        visitor.ask([0])
        for envs, abruptly in (([40, 41], False), ([42, 43], True)):
            with visit(grading) as leaving:
                leaving.ask(envs, "5.18")
                leaving.give_up()
                if abruptly:
                    leaving.peer.abort()
            for _ in range(2):
                visitor.tell([0])
                visitor.ask_only([0])
                _survives(grading, visitor, "8.6", "another client left in mid exchange")
    with visit(grading) as returning:
        for _ in range(2):
            returning.ask([40, 41, 42, 43], "8.15")
            returning.tell([40, 41, 42, 43])


def _survives(grading: Grading, visitor: Visitor, clause: str, event: str) -> None:
    visitor.blame = False
    expected = f"an action, as if nothing had happened when {event}"
    try:
        visitor.hear()
    except CaseOver:
        grading.observe(clause, False, expected=expected, got=visitor.lost or "silence")
        raise
    grading.observe(clause, True)
    visitor.blame = True


def _nothing_left(grading: Grading) -> None:
    """What a connection held is forgotten when it ends: here, an action."""
    with visit(grading) as earlier:
        earlier.ask([0, 1])
        earlier.give_up()
    with visit(grading) as later:
        later.ask([0])
        later.tell([0, 1], "6.5.26")  # 1 holds an action of the earlier connection only
        later.ask([0])


SCOPING: Final = Phase(
    "scoping",
    (
        Case("two clients with the same indices", _same_indices),
        Case("infers at the same time", _at_the_same_time),
        Case("a connection that breaks while others wait", _departure_in_a_wait),
        Case("clients that leave", _departures),
        Case("a connection after another", _nothing_left),
    ),
)
