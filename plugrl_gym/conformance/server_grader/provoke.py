"""Sends something malformed and checks what follows for everybody (SPEC 8.4, 8.6, 8.7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

from plugrl_gym.conformance.inspection import inspect
from plugrl_gym.conformance.server_grader.grading import (
    WAITS_FOR_ALL,
    CannotGrade,
    CaseOver,
    Grading,
)
from plugrl_gym.conformance.server_grader.peer import Closed, Received, Unreachable
from plugrl_gym.conformance.server_grader.visitor import Visitor, look_at_close, visit
from plugrl_gym.protocol.codec import encode
from plugrl_gym.protocol.features.gym_spaces import SpaceDeclaration

__all__ = ["Offence", "provoke"]

#: Seconds after which a server that has not closed is probed for what it made of the message.
_PROBE_AFTER: Final = 1.0


@dataclass(frozen=True, slots=True)
class Offence:
    """Something that no client may send.

    Attributes:
        frame: What is sent: a message, or bytes or a str that are none.
        clauses: What obliges the server to take it for a protocol error, 8.4 apart.
        legal: Whether the server may also take it for a valid message.
        stray: What came before the close.
    """

    frame: dict[str, Any] | bytes | str
    clauses: Sequence[str] = ()
    legal: bool = False
    stray: bytes | str | None = None


def provoke(
    grading: Grading,
    prepare: Callable[[Visitor], Offence],
    *,
    declare: bool | SpaceDeclaration = True,
) -> None:
    """Let one connection offend while another is in mid exchange, then open a third.

    Args:
        prepare: Takes the offender, fresh from its greeting, to where the offence is one.
        declare: What the offender declares.
    """
    with ExitStack() as stack:
        bystander = None
        if grading.facts.waits_for_all:
            grading.report.skip(WAITS_FOR_ALL, "8.6")
        else:
            bystander = stack.enter_context(visit(grading))
            bystander.ask([0])
        reply, offence = _offend(grading, prepare, declare, probe=True)
        if reply is None:  # it did close, but perhaps over the probe
            reply, offence = _offend(grading, prepare, declare, probe=False)
        _judge(grading, reply, offence)
        _look_after_others(grading, bystander, offence)
    if bystander is None:  # whose feedback would have appeased a server that counts errors
        with visit(grading) as visitor:
            visitor.ask([0])
            visitor.tell([0])


def _offend(
    grading: Grading,
    prepare: Callable[[Visitor], Offence],
    declare: bool | SpaceDeclaration,
    probe: bool,
) -> tuple[Received, Offence]:
    """What comes of an offence; with ``probe``, None means that nobody can tell yet."""
    with visit(grading, declare=declare) as offender:
        offence = prepare(offender)
        frame = offence.frame
        offender.peer.send(encode(frame) if isinstance(frame, dict) else frame)
        patience = min(_PROBE_AFTER, grading.timeout) if probe else grading.timeout
        reply = offender.peer.receive(patience)
        if reply is None and probe:
            # A server that swallowed a bad feedback waits for an infer, and would answer it.
            offender.peer.send(encode(offender.infer([0])))
            reply = offender.peer.receive(grading.timeout)
            if isinstance(reply, Closed) and reply.resync:
                reply = None
        reply, stray = _skip_strays(grading, offender, reply)
        offender.give_up()
        offender.lost = reply if isinstance(reply, Closed) else None
        if isinstance(reply, Closed) and not (offender.declared or _declares(frame)):
            expected = "no close 1008, for nothing was declared"
            grading.observe("8.18", reply.code != 1008, sent=frame, expected=expected, got=reply)
        if isinstance(reply, Closed):
            look_at_close(grading, offender.peer, reply)
    return reply, replace(offence, stray=stray)


def _skip_strays(
    grading: Grading, offender: Visitor, reply: Received
) -> tuple[Received, bytes | str | None]:
    """A message that is no answer may come before the close; it must not, but it can be told."""
    if isinstance(reply, str) or (
        isinstance(reply, bytes) and inspect(reply).message_type != "action"
    ):
        offender.see_stray(reply)
        return offender.peer.receive(grading.timeout), reply
    return reply, None


def _declares(frame: object) -> bool:
    return isinstance(frame, dict) and "spaces" in frame


def _judge(grading: Grading, reply: Received, offence: Offence) -> None:
    closed = reply if isinstance(reply, Closed) else None
    accepted = isinstance(reply, bytes | str)
    resync = closed is not None and closed.resync and offence.stray is None
    # Closing in some other way is still to have noticed; 1011 owns up to a crash.
    noticed = closed is not None and closed.code != 1011
    got: object = closed or f"neither an answer nor a close within {grading.timeout:g} s"
    if accepted:
        got = "an answer"
    elif offence.stray is not None:
        got = f"a message, then {got}"
    shown = reply if isinstance(reply, bytes) else offence.stray
    came = inspect(shown).value if isinstance(shown, bytes) else shown
    if offence.legal and accepted:
        resync = noticed = True
    expected = "the close 1001 with the reason 'plugrl-server-resync'"
    for clause in offence.clauses:
        grading.observe(clause, noticed, sent=offence.frame, came=came, expected=expected, got=got)
    grading.observe("8.4", resync, sent=offence.frame, came=came, expected=expected, got=got)


def _look_after_others(grading: Grading, bystander: Visitor | None, offence: Offence) -> None:
    """Whether a client in mid exchange was left in peace, and new ones are welcome.

    Raises:
        CannotGrade: There is no server any more.
        RunOver: The run has just ended, which is nobody's fault.
    """
    trouble = None if bystander is None else _trouble_of(bystander)
    welcome = _knock(grading)
    if bystander is not None:
        trouble = trouble or _late_trouble_of(grading, bystander)
        _judge_trouble(grading, trouble, offence)
    if trouble is not None and not isinstance(welcome, Unreachable):
        welcome = _knock(grading)  # it may be on its way down
    expected, sent = "new connections are accepted and greeted", offence.frame
    greeted = isinstance(welcome, bytes | str)
    got = welcome or f"silence for {grading.timeout:g} s"
    grading.observe("8.7", greeted, sent=sent, expected=expected, got=got)
    if isinstance(welcome, Unreachable):
        raise CannotGrade(f"the server has gone after a protocol error: {welcome}")


def _knock(grading: Grading) -> Received | Unreachable:
    """What a new connection meets with."""
    try:
        with grading.connect() as peer:
            return peer.receive(grading.timeout)
    except Unreachable as error:
        return error


def _trouble_of(bystander: Visitor) -> Closed | str | None:
    """What a client in mid exchange had to suffer; None if it was left in peace."""
    bystander.blame = False
    try:
        bystander.tell([0])
        bystander.ask([0])
    except CaseOver:
        trouble = bystander.lost or "silence"
        bystander.give_up()
        return trouble
    return None


def _late_trouble_of(grading: Grading, bystander: Visitor) -> Closed | None:
    """The same a moment later: harm to others may follow the offender's close."""
    if grading.facts.answers_pings:
        bystander.peer.ping().answered(grading.timeout)
    reply = bystander.peer.receive(0)
    if isinstance(reply, Closed):
        bystander.give_up()
        look_at_close(grading, bystander.peer, reply)
        return reply
    return None


def _judge_trouble(grading: Grading, trouble: Closed | str | None, offence: Offence) -> None:
    if isinstance(trouble, Closed) and trouble.feedback_timeout:
        return  # the offender's case took longer than that
    expected = "another connection goes on undisturbed"
    sent = offence.frame
    grading.observe("8.6", trouble is None, sent=sent, expected=expected, got=trouble)
