"""A well-behaved client that checks all that it is told."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plugrl_gym.conformance.inspection import Inspection, inspect, observe_frame
from plugrl_gym.conformance.server_grader.answers import Answer, check_action, check_metadata
from plugrl_gym.conformance.server_grader.grading import (
    PONG_SECONDS,
    CannotGrade,
    CaseOver,
    Grading,
    RunOver,
)
from plugrl_gym.conformance.server_grader.peer import Closed, Peer, Received, Unreachable
from plugrl_gym.conformance.server_grader.scene import declaration
from plugrl_gym.protocol.close import REASON_INTERNAL, REASON_SHUTDOWN, REASON_STOP
from plugrl_gym.protocol.codec import encode
from plugrl_gym.protocol.features.gym_spaces import SpaceDeclaration, SpaceSpec

__all__ = ["Visitor", "look_at_close", "still_serves", "visit"]

_INTERNALS: Final = re.compile(r"Traceback|File \"|line \d+, in |0x[0-9a-f]{8,}")

_ROUND_TRIPS: Final = 4
_MOST_EXTRAS: Final = 8  # a server may babble for ever
#: Seconds to wait for a frame that came too much before, and for a server to answer pings.
_EXTRA_SECONDS: Final = 5.0
_AWAKE_SECONDS: Final = 5.0

_ticks = itertools.count(1)


@dataclass(slots=True)
class Env:
    """One env of a visitor.

    Attributes:
        tick: What its present observation shows.
        step_id: Chunks completed in this episode.
    """

    tick: int
    step_id: int = 0


class Visitor:
    """One connection of a client that follows the spec to the letter.

    Args:
        grading: Where observations go.
        peer: The open connection.
        spaces: What it declares in its first infer.

    Attributes:
        peer: The open connection.
        dtype: Of the states that it sends.
        lost: Set once the connection has ended.
        blame: Whether the end of the connection, where none was due, goes into the report.
        silence_clause: What an infer without an answer breaks.
        answer: What was read of the last answer.
    """

    def __init__(self, grading: Grading, peer: Peer, spaces: SpaceDeclaration | None) -> None:
        self.peer = peer
        self.dtype = "<f8" if spaces is None else "<f4"
        self.lost: Closed | None = None
        self.blame = True
        self.silence_clause = "5.7"
        self.answer = Answer()
        self._grading = grading
        self._to_declare = spaces  # until the first infer
        self._space: SpaceSpec | None = None if spaces is None else spaces.action
        self._envs: dict[int, Env] = {}
        self._asked: tuple[list[int], object] | None = None
        self._pending: list[tuple[str, object]] = []  # feedback that no answer has confirmed yet
        self._told: list[int] = []  # by the last message, if that was a feedback
        self._has_told = False

    # -- building messages

    def observation(self, envs: Sequence[int]) -> dict[str, Any]:
        """What ``envs`` show now."""
        for env in envs:
            self._envs.setdefault(env, Env(next(_ticks)))
        return self._grading.scene.observation([self._envs[e].tick for e in envs], self.dtype)

    def infer(self, envs: Sequence[int]) -> dict[str, Any]:
        """The infer that is due for ``envs``."""
        data = self.observation(envs)
        message = {
            "message_type": "infer",
            "data": data,
            "env_indices": np.array(envs, dtype=np.int64),
            "step_ids": np.array([self._envs[env].step_id for env in envs], dtype=np.int64),
        }
        if self._to_declare is not None:
            message["spaces"] = self._to_declare.to_wire()
        return message

    def feedback(self, envs: Sequence[int], ended: Sequence[int] = ()) -> dict[str, Any]:
        """The feedback of one chunk for each of ``envs``, which go on to where it leads."""
        ids = [self._envs.setdefault(env, Env(next(_ticks))).step_id for env in envs]
        for env in envs:
            self._envs[env].tick = next(_ticks)
        message = {
            "message_type": "feedback",
            "env_indices": np.array(envs, dtype=np.int64),
            "step_ids": np.array(ids, dtype=np.int64),
            "data": {
                "obs": self.observation(envs),
                "rewards": np.linspace(0.5, 1.0, len(envs), dtype=np.float32),
                "terminated": np.array([env in ended for env in envs]),
                "truncated": np.zeros(len(envs), dtype=np.bool_),
                "info": {},
            },
        }
        for env in envs:  # an ended episode is followed by the first observation of the next
            self._envs[env] = (
                Env(next(_ticks))
                if env in ended
                else Env(self._envs[env].tick, self._envs[env].step_id + 1)
            )
        return message

    # -- the exchange

    def greet(self, first: bool = False) -> dict[str, Any]:
        """Read the metadata; ``first`` for the first connection of all."""
        grading, reply = self._grading, self.peer.receive(self._grading.timeout)
        url, expected = grading.options.url, "metadata, without being asked"
        if reply is None:
            got = f"silence for {grading.timeout:g} s"
            grading.observe("5.3", False, expected=expected, got=got)
            text = f"{url} accepts a WebSocket connection and then sends nothing for "
            text += f"{grading.timeout:g} s; a PlugRL server speaks first (SPEC 5.3)"
            raise CannotGrade(text) if first else CaseOver
        if isinstance(reply, Closed):
            self.lost = reply
            look_at_close(grading, self.peer, reply)
            if first:
                raise CannotGrade(f"{url} answers a connection with {reply} before any metadata")
            grading.observe("5.3", False, expected=expected, got=reply)
            raise CaseOver
        known: dict[str, Any] = {}
        grading.observe("2.1", True)
        if isinstance(reply, bytes):
            inspection = inspect(reply)
            if first:
                self._look_for_strangers(inspection)
            self._observe_frame(inspection)
            if self._is(inspection, "metadata"):
                grading.observe("5.3", True)
                known = check_metadata(grading, inspection.value)
                if first:
                    data = inspection.value["data"]
                    names = data.get("features", []) if isinstance(data, dict) else None
                    grading.facts.knows_features = names == known.get("features", [])
        else:
            self.see_text(reply, expected)
        self._skip_extras("metadata")
        return known

    def _look_for_strangers(self, inspection: Inspection) -> None:
        value, url = inspection.value, self._grading.options.url
        if isinstance(value, dict) and "message_type" not in value:
            raise CannotGrade(
                f"{url} seems to speak openpi's protocol, not PlugRL: its first frame is a map "
                f"without message_type, with the keys {', '.join(sorted(value)[:6]) or '(none)'}"
            )
        if not isinstance(value, dict):
            raise CannotGrade(f"{url} is no PlugRL server: its first frame is no msgpack map")

    def ask(
        self, envs: Sequence[int], *clauses: str, message: dict[str, Any] | None = None
    ) -> npt.NDArray[Any] | None:
        """Send an infer and check its answer.

        Args:
            envs: Whom it is for.
            clauses: What obliges the server to accept it, if anything does in particular.
            message: The infer, if it is not to be the plain one.

        Returns:
            ``action`` [H, n, *da]; None where the answer cannot be used.

        Raises:
            CaseOver: There was none.
            RunOver: The run is over.
        """
        self.ask_only(envs, *clauses, message=message)
        return self.hear()

    def ask_only(
        self, envs: Sequence[int], *clauses: str, message: dict[str, Any] | None = None
    ) -> None:
        """Send an infer; :meth:`hear` takes its answer."""
        message = self.infer(envs) if message is None else message
        self._to_declare = None
        self._asked = (list(envs), message)
        self._pending += [(clause, message) for clause in clauses]
        self._told = []
        self.peer.send(encode(message))

    def hear(self) -> npt.NDArray[Any] | None:
        """Take the answer to the last infer, as :meth:`ask` says."""
        assert self._asked is not None
        grading, (envs, sent) = self._grading, self._asked
        ping = self.peer.ping() if grading.facts.answers_pings else None
        reply = self.peer.receive(grading.timeout)
        if reply is None:
            grading.silence(sent, self.silence_clause)
        if isinstance(reply, Closed):
            self._lose(reply, sent, "an action")
        if ping is not None:
            limit = min(PONG_SECONDS, grading.timeout)
            grading.facts.answers_pings = ping.answered(limit)
            got = f"none within {limit:g} s"
            expected = "a pong, also while an infer waits for its action"
            grading.observe("2.14", grading.facts.answers_pings, expected=expected, got=got)
        self.answer = self._read(reply, envs, sent)
        for clause, _ in self._pending:
            grading.observe(clause, True)
        self._pending.clear()
        self._skip_extras("action")
        return self.answer.action

    def _read(self, reply: Received, envs: Sequence[int], sent: object) -> Answer:
        grading = self._grading
        if isinstance(reply, str):
            self.see_text(reply, "an action")
            return Answer()
        assert isinstance(reply, bytes)
        inspection = inspect(reply)
        self._observe_frame(inspection)
        if not self._is(inspection, "action"):
            return Answer()
        grading.observe("5.7", True)
        return check_action(grading, inspection.value, envs, self._space, sent)

    def see_stray(self, frame: bytes | str) -> None:
        """Check a frame that came where none was due, for what it is."""
        if isinstance(frame, str):
            self.see_text(frame, "nothing")
        else:
            self._observe_frame(inspect(frame))

    def _observe_frame(self, inspection: Inspection) -> None:
        grading = self._grading
        grading.observe("2.4", True)
        grading.observe("2.5", True)
        observe_frame(grading.report, inspection, scenario=grading.scenario)

    def _is(self, inspection: Inspection, kind: str) -> bool:
        """Whether it is the message that may come now; one of no known type was reported."""
        if inspection.readable:
            got = f"the message type {inspection.message_type}"
            return self._grading.observe(
                "5.1",
                inspection.message_type == kind,
                came=inspection.value,
                expected=kind,
                got=got,
            )
        return False

    def see_text(self, text: str, expected: str) -> None:
        """Record a text frame where ``expected`` was due."""
        grading = self._grading
        grading.observe(
            "2.4", False, came=text, expected=f"{expected} in a binary frame", got="text"
        )
        grading.observe("2.5", False, came=text, expected="no text frame", got="a text frame")
        look_for_internals(grading, text)

    def tell(
        self,
        envs: Sequence[int],
        *clauses: str,
        ended: Sequence[int] = (),
        message: dict[str, Any] | None = None,
    ) -> None:
        """Send a feedback; the next :meth:`ask` shows whether it was accepted."""
        message = self.feedback(envs, ended) if message is None else message
        self._pending += [(clause, message) for clause in clauses]
        self._told, self._has_told = [env for env in envs if env in self._envs], True
        self.peer.send(encode(message))
        self._skip_extras("feedback")

    def confirm(self) -> None:
        """A plain exchange after a feedback, so that the next clause is not mixed up with it."""
        envs = self._told
        self.ask(envs)
        self.tell(envs)

    def settle(self) -> None:
        """After a feedback, ask once more: only that shows what the server made of it."""
        if self._told and self.lost is None:
            self.ask(self._told)

    def leave(self) -> None:
        """Close the connection, and listen for an end of the run that our feedback brought about.

        A server may answer the infer after that feedback before it closes: a few round trips
        give it the time.
        """
        self.settle()
        if self._has_told and self.lost is None:
            for _ in range(_ROUND_TRIPS if self._grading.facts.answers_pings else 0):
                self.peer.ping().answered(min(PONG_SECONDS, self._grading.timeout))
            reply = self.peer.receive(0)
            closed = reply if isinstance(reply, Closed) else self.peer.close()
            if closed.stop:
                look_at_close(self._grading, self.peer, closed)

    @property
    def declared(self) -> bool:
        """Whether it has declared its spaces by now."""
        return self._space is not None and self._to_declare is None

    def give_up(self) -> None:
        """Leave with things undone: nothing is settled at the end."""
        self._told = []

    def extras(self, seconds: float) -> int:
        """How many frames come of themselves within ``seconds`` of each other.

        The seconds of a server that is awake: its process may stall just now, and so may ours.
        """
        count = 0
        while count < _MOST_EXTRAS and (reply := self._next_extra(seconds)) is not None:
            if isinstance(reply, Closed):
                self._lose(reply, self._asked and self._asked[1], "no close")
            count += 1
        return count

    def _next_extra(self, seconds: float) -> Received:
        reply = self.peer.receive(0)
        if reply is None and self._is_awake(_ROUND_TRIPS):
            reply = self.peer.receive(seconds)
            if reply is None and self._is_awake(1):
                reply = self.peer.receive(0)  # what it sent before that pong is here
            return reply
        return self.peer.receive(seconds) if reply is None else reply

    def _is_awake(self, round_trips: int) -> bool:
        """Whether the server answers pings just now; nobody is blamed if it does not."""
        limit = min(_AWAKE_SECONDS, self._grading.timeout)
        return self._grading.facts.answers_pings and all(
            self.peer.ping().answered(limit) for _ in range(round_trips)
        )

    def _skip_extras(self, after: str) -> None:
        # A server that was found to send too much is graded as if it did not: once is enough.
        for _ in range(self._grading.facts.extras.get(after, 0)):
            if self.peer.receive(_EXTRA_SECONDS) is None:
                break

    def _lose(self, closed: Closed, sent: object, expected: str) -> None:
        self.lost = closed
        grading = self._grading
        look_at_close(grading, self.peer, closed)
        blamed = (self._pending or [("8.4", sent)]) if self.blame else ()
        for clause, message in blamed:
            grading.observe(clause, False, sent=message, expected=expected, got=closed)
        raise CaseOver

    def is_served(self) -> bool:
        """Whether a first infer is read by a server at work; none of this is reported."""
        timeout = self._grading.timeout
        if not isinstance(self.peer.receive(timeout), bytes):
            return False
        self.peer.send(encode(self.infer([0])))
        reply = self.peer.receive(timeout)
        return isinstance(reply, bytes) or (isinstance(reply, Closed) and reply.resync)


@contextlib.contextmanager
def visit(grading: Grading, *, declare: bool | SpaceDeclaration = True) -> Iterator[Visitor]:
    """A visitor that has read its metadata, and leaves properly unless it has given up.

    Args:
        declare: Whether to declare the usual spaces, where they are asked for, or what else.

    Raises:
        CannotGrade: The server cannot be reached any more.
    """
    try:
        with grading.connect() as peer:
            visitor = Visitor(grading, peer, _declared(grading, declare))
            grading.peers.append(peer)
            try:
                visitor.greet()
                yield visitor
                visitor.leave()
            finally:
                grading.peers.remove(peer)
    except Unreachable as error:
        for peer in grading.peers[:1]:  # a connection that is open has been told why
            end = _end_of(peer, grading.timeout)
            if end is not None:
                look_at_close(grading, peer, end)
        raise CannotGrade(
            f"the server has gone between two connections ({error}); if its run was over, start it "
            "for more steps"
        ) from None


def _declared(grading: Grading, declare: bool | SpaceDeclaration) -> SpaceDeclaration | None:
    if isinstance(declare, SpaceDeclaration):
        return declare
    action = grading.facts.action_space
    return declaration(grading.scene.space(), action) if declare and action is not None else None


# -- closes


def look_at_close(grading: Grading, peer: Peer, closed: Closed) -> None:
    """Check what holds for every close, and find out whether it was the end of the run.

    Raises:
        RunOver: It was; what the other connections were told is checked as well.
    """
    if closed.complaint:
        grading.observe("2.1", False, expected="WebSocket frames (RFC 6455)", got=closed)
    if closed.code == 1011 and not peer.muted:  # else it may be a keepalive's close
        expected = f"the reason {REASON_INTERNAL!r}"
        grading.observe("8.12", closed.reason == REASON_INTERNAL, expected=expected, got=closed)
    look_for_internals(grading, closed.reason)
    # A shutdown that nobody asked for may be a server that an error of ours has ended.
    clause = "8.1" if closed.stop else grading.ending
    if grading.ending and (closed.code, closed.reason) == (1001, REASON_SHUTDOWN):
        clause = "8.14"
    if not clause:
        return
    serving = still_serves(grading)
    if closed.stop:
        expected = "the end of the run, after which no infer is answered"
        grading.observe("8.2", not serving, expected=expected, got="a new connection is served")
    if serving:
        return
    reason = REASON_SHUTDOWN if clause == "8.14" else REASON_STOP
    for other in dict.fromkeys((peer, *(peer for peer in grading.peers if not peer.aborted))):
        end = closed if other is peer else _end_of(other, grading.timeout)
        grading.observe(
            clause,
            isinstance(end, Closed) and (end.code, end.reason) == (1001, reason),
            expected=f"the close 1001 with the reason {reason!r}, on every connection",
            got=end or f"no close within {grading.timeout:g} s",
        )
    raise RunOver


def _end_of(peer: Peer, seconds: float) -> Closed | None:
    reply = peer.receive(seconds)
    while isinstance(reply, bytes | str):
        reply = peer.receive(seconds)
    return reply


def look_for_internals(grading: Grading, text: str) -> None:
    """Check that a text for people tells nothing of the server's insides (SPEC 8.13)."""
    leaked = _INTERNALS.search(text) is not None
    if text:
        grading.observe("8.13", not leaked, came=text, expected="no traceback", got="a traceback")


def still_serves(grading: Grading) -> bool:
    """Whether a new connection's infer is dealt with: then the run has not ended."""
    try:
        with grading.connect() as peer:
            return Visitor(grading, peer, _declared(grading, True)).is_served()
    except Unreachable:
        return False
