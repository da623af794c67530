"""First contact: is this a PlugRL server, what does it offer, and how does it want to be asked?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np

from plugrl_gym.conformance.server_grader.additions import add_chunk_steps, add_executed, add_reuse
from plugrl_gym.conformance.server_grader.grading import CannotGrade, CaseOver, Grading
from plugrl_gym.conformance.server_grader.peer import Closed, Unreachable
from plugrl_gym.conformance.server_grader.scene import box, declaration, discrete
from plugrl_gym.conformance.server_grader.visitor import Visitor, visit
from plugrl_gym.protocol import CHUNK_STEPS, EXECUTED_ACTIONS, GYM_SPACES, REUSE_FEEDBACK_OBS
from plugrl_gym.protocol.features.gym_spaces import SpaceSpec

__all__ = ["first_contact"]

#: Seconds in which a server that is awake must send a frame that nobody asked for, or it goes
#: unnoticed.
_QUIET: Final = 0.2


def first_contact(grading: Grading) -> None:
    """Fill ``grading.facts``, or give up.

    Raises:
        CannotGrade: With a sentence on what was found instead.
        RunOver: The run is over already.
    """
    grading.scenario = "first contact"
    _read_metadata(grading)
    _choose_declaration(grading)
    _look_for_extras(grading)
    _look_for_waits(grading)


def _read_metadata(grading: Grading) -> None:
    facts = grading.facts
    try:
        with grading.connect() as peer:
            visitor = Visitor(grading, peer, None)
            facts.metadata = visitor.greet(first=True)
            extras = _count_extras(grading, visitor, "metadata")
    except Unreachable as error:
        raise CannotGrade(str(error)) from None
    grading.observe(
        "5.4", not extras, expected="metadata once", got=f"{extras} more frames unasked"
    )
    version = facts.metadata.get("protocol_version", 1)
    if version != 1:
        raise CannotGrade(
            f"the server speaks version {version} of the protocol, this grader version 1"
        )
    facts.features = frozenset(facts.metadata.get("features", ()))


def _count_extras(grading: Grading, visitor: Visitor, after: str) -> int:
    extras = visitor.extras(_QUIET)
    grading.facts.extras[after] = extras
    got = f"{extras} more frames"
    grading.observe("5.1", not extras, expected=f"nothing more after the {after}", got=got)
    return extras


def _choose_declaration(grading: Grading) -> None:
    """Find out with which declaration, and whether without one, the server serves us."""
    facts = grading.facts
    refusals: list[Closed] = []
    if GYM_SPACES in facts.features:
        dim = int(facts.metadata.get("action_dim", grading.options.action_dim))
        for action in (box((dim,)), discrete(grading.options.action_dim)):
            closed = _plain_exchange(grading, action)
            if closed is None:
                facts.action_space = action
                break
            refusals.append(closed)
            refused = closed.code == 1008
            expected = "an action, or the close 1008 with a sentence"
            sent = declaration(grading.scene.space(), action).to_wire()
            grading.observe("9.3.13", refused, sent=sent, expected=expected, got=closed)
            if not refused:
                break
    closed = _plain_exchange(grading, None)
    facts.serves_undeclared = closed is None
    if closed is not None:
        _judge_undeclared(grading, closed, [*refusals, closed])


def _judge_undeclared(grading: Grading, closed: Closed, refusals: list[Closed]) -> None:
    facts = grading.facts
    expected = "an action, or the close 1001 with the reason 'plugrl-server-resync'"
    grading.observe("8.18", closed.code != 1008, expected=expected, got=closed)
    if facts.action_space is None:
        raise CannotGrade(
            f"the server does not go on after plain messages with {grading.scene}, but answers "
            f"with {' or '.join(dict.fromkeys(map(str, refusals)))}; pass the --state-dim, "
            "--state-key, --image-key and --action-dim that it was started for"
        )
    if "action_dim" in facts.metadata:
        # It knows its actions without being told, and served the same observation declared.
        expected = "an action for a client that declares no spaces"
        grading.observe("9.1.5", False, expected=expected, got=closed)


def _plain_exchange(grading: Grading, action: SpaceSpec | None) -> Closed | None:
    """Two exchanges without any other feature; the close, if it comes to one.

    Raises:
        CannotGrade: The server leaves them unanswered, or wants features to be used.
    """
    with _stranger(grading, action) as visitor:
        try:
            chunk = visitor.ask([0])
            visitor.tell([0])
        except CaseOver:
            return _closed(visitor)
        try:
            visitor.ask([0])
        except CaseOver:
            closed = _closed(visitor)
        else:
            return None
    for clause, what, dress in (
        ("9.1.5", "the use of its optional features", _with_features),
        ("6.5.20", "an entry in info", _with_info),
    ):
        if chunk is not None and _dressed_exchange(grading, action, dress):
            expected = f"exchanges without {what}"
            got = f"{closed}, while a client is served that adds it"
            grading.observe(clause, False, expected=expected, got=got)
            raise CannotGrade(f"the server demands {what}; grading ends here")
    return closed


_Dress: TypeAlias = Callable[[Grading, dict[str, Any], Any], dict[str, Any]]


def _with_features(grading: Grading, message: dict[str, Any], chunk: Any) -> dict[str, Any]:
    """``message`` with every feature that is offered."""
    features = grading.facts.features
    if message["message_type"] == "infer":
        return add_reuse(message, [True]) if REUSE_FEEDBACK_OBS in features else message
    if CHUNK_STEPS in features:
        add_chunk_steps(message, [1])
    if EXECUTED_ACTIONS in features:
        add_executed(message, chunk[:1], [False])
    return message


def _with_info(grading: Grading, message: dict[str, Any], chunk: Any) -> dict[str, Any]:
    """``message`` with an info that is not empty."""
    if message["message_type"] == "feedback":
        message["data"]["info"] = {"rows": np.zeros(1)}
    return message


def _dressed_exchange(grading: Grading, action: SpaceSpec | None, dress: _Dress) -> bool:
    """Whether two exchanges work whose messages have more than they need."""
    with _stranger(grading, action) as visitor:
        try:
            chunk = visitor.ask([0])
            if chunk is None:
                return False
            visitor.tell([0], message=dress(grading, visitor.feedback([0]), chunk))
            visitor.ask([0], message=dress(grading, visitor.infer([0]), chunk))
        except CaseOver:
            return False
    return True


@contextlib.contextmanager
def _stranger(grading: Grading, action: SpaceSpec | None) -> Iterator[Visitor]:
    """A visitor that blames nobody: whether its messages suit the server is the question."""
    spaces = None if action is None else declaration(grading.scene.space(), action)
    with visit(grading, declare=spaces or False) as visitor:
        visitor.blame = False
        yield visitor
        visitor.give_up()


def _closed(visitor: Visitor) -> Closed:
    if visitor.lost is None:
        raise CannotGrade("the server answers no infer; the other checks were given up")
    return visitor.lost


def _look_for_extras(grading: Grading) -> None:
    """Whether more comes than was asked for, after an action and after a feedback."""
    with visit(grading) as visitor:
        visitor.ask([0])
        if extras := _count_extras(grading, visitor, "action"):
            got = f"{1 + extras} frames"
            grading.observe("5.7", False, expected="exactly one action", got=got)
        visitor.tell([0])
        extras = _count_extras(grading, visitor, "feedback")
        got = f"{extras} frames"
        grading.observe("5.9", not extras, expected="no answer to a feedback", got=got)


def _look_for_waits(grading: Grading) -> None:
    """Whether a client that asks for nothing holds the others up (SPEC 7.3)."""
    with visit(grading) as visitor:
        visitor.ask([0])
        visitor.tell([0])
        with visit(grading):
            visitor.silence_clause = "7.3"
            try:
                visitor.ask([0])
            except CaseOver:
                grading.facts.waits_for_all = visitor.lost is None
                visitor.give_up()
            else:
                grading.observe("7.3", True)
