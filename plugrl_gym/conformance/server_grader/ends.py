"""Phases *liveness*, *stop* and *shutdown*: how connections end without anybody's fault."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from plugrl_gym.conformance.server_grader.cases import Case, Phase
from plugrl_gym.conformance.server_grader.grading import (
    WAITS_FOR_ALL,
    CannotGrade,
    CaseOver,
    Grading,
)
from plugrl_gym.conformance.server_grader.peer import Closed
from plugrl_gym.conformance.server_grader.visitor import Visitor, look_at_close, visit

__all__ = ["LIVENESS", "SHUTDOWN", "STOP"]

_ENVS: Final = [0, 1, 2, 3, 4, 5, 6, 7]


def _no_feedback(grading: Grading) -> None:
    """A client that is silent after its action, while others are silent before an infer."""
    limit = grading.options.feedback_timeout
    assert limit is not None  # else the phase is absent
    with ExitStack() as stack:
        others: list[tuple[Visitor, str, str]] = []
        if grading.facts.waits_for_all:
            grading.report.skip(WAITS_FOR_ALL, "2.15", "8.11")
        else:
            for clause, event in (
                ("8.11", "an idle connection that answers pings"),
                ("2.15", "an idle connection that is too busy to answer pings"),
            ):
                visitor = stack.enter_context(visit(grading))
                visitor.ask([0])
                visitor.tell([0])
                others.append((visitor, clause, event))
            others[1][0].peer.mute()
        silent = stack.enter_context(visit(grading))
        # The server counts from its action; this end would otherwise count from when it has it.
        start = time.monotonic()
        silent.ask([0])
        _judge_timeout(grading, silent, limit, start)
        for visitor, clause, event in others:
            _still_there(grading, visitor, clause, f"{event} lives on for {limit:g} s and more")


def _judge_timeout(grading: Grading, silent: Visitor, limit: float, start: float) -> None:
    reply = silent.peer.receive(limit + grading.timeout)
    elapsed = time.monotonic() - start
    silent.give_up()
    if isinstance(reply, Closed):
        look_at_close(grading, silent.peer, reply)
        got = f"{reply} after {elapsed:.1f} s"
    else:
        got = f"{'no close' if reply is None else 'a message'} within {limit + grading.timeout:g} s"
    # Clocks differ; a close that comes far too soon is another matter.
    timely = isinstance(reply, Closed) and reply.feedback_timeout and elapsed > 0.9 * limit
    expected = f"the close 1001 with the reason 'Feedback timeout' {limit:g} s after the action"
    grading.observe("8.8", timely, sent="an infer, and no feedback", expected=expected, got=got)


def _still_there(grading: Grading, visitor: Visitor, clause: str, expected: str) -> None:
    visitor.blame = False
    try:
        visitor.ask([0])
    except CaseOver:
        visitor.give_up()
        grading.observe(clause, False, expected=expected, got=visitor.lost or "silence")
    else:
        grading.observe(clause, True)


def _to_the_end(clause: str, what: str) -> Callable[[Grading], None]:
    """Exchange until the server ends; ``look_at_close`` judges how it does."""

    def run(grading: Grading) -> None:
        grading.ending = clause
        limit = grading.options.stop_timeout
        deadline = time.monotonic() + limit
        with ExitStack() as stack:
            visitors = [stack.enter_context(visit(grading)) for _ in range(2)]
            if not grading.facts.waits_for_all:
                stack.enter_context(visit(grading))  # it is idle, and is told all the same
            while time.monotonic() < deadline:
                for visitor in visitors:
                    visitor.ask_only(_ENVS)
                for visitor in visitors:
                    visitor.hear()
                grading.progress(f"{grading.scenario}; exchanging")
                for visitor in visitors:
                    visitor.tell(_ENVS, ended=_ENVS[:1])
        raise CannotGrade(f"{what} within {limit:g} s of exchanges (--stop-timeout)")

    return run


LIVENESS: Final = Phase(
    "liveness",
    (Case("a client that does not feed back", _no_feedback),),
    absent=lambda grading: (
        ""
        if grading.options.feedback_timeout is not None
        else "needs --feedback-timeout, the limit that the server was started with"
    ),
    clauses=("8.8", "8.11", "2.15"),
)
STOP: Final = Phase(
    "stop",
    (Case("until the run is over", _to_the_end("8.1", "the server did not end the run")),),
    absent=lambda grading: "" if grading.options.until_stop else "needs --until-stop",
    clauses=("8.1", "8.2"),
)
SHUTDOWN: Final = Phase(
    "shutdown",
    (Case("until the operator stops it", _to_the_end("8.14", "nobody stopped the server")),),
    absent=lambda grading: "" if grading.options.until_shutdown else "needs --until-shutdown",
    clauses=("8.14",),
)
