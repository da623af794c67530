"""One connection with the client, by plan: the grading server's side of SPEC 5."""

from __future__ import annotations

import itertools
import time
from typing import Any, Final, NoReturn

import numpy as np

from plugrl_gym.conformance.client_grader.answers import Answers
from plugrl_gym.conformance.client_grader.features import (
    FEATURES,
    see_chunk_steps,
    see_executed_actions,
    see_use,
    used_features,
)
from plugrl_gym.conformance.client_grader.ledger import Ledger
from plugrl_gym.conformance.client_grader.link import Arrival, Closing, Link
from plugrl_gym.conformance.client_grader.messages import (
    FeedbackSeen,
    InferSeen,
    read_feedback,
    read_infer,
    see_info,
)
from plugrl_gym.conformance.client_grader.pings import Pinger
from plugrl_gym.conformance.client_grader.scenarios import Plan, When
from plugrl_gym.conformance.client_grader.sending import (
    GREETINGS,
    Message,
    pack,
)
from plugrl_gym.conformance.client_grader.spaces import (
    read_declaration,
    see_layout,
)
from plugrl_gym.conformance.client_grader.stage import RunOver, Stage
from plugrl_gym.conformance.client_grader.witness import Witness
from plugrl_gym.conformance.inspection import Broken, inspect, observe_frame
from plugrl_gym.protocol.close import CloseCode
from plugrl_gym.protocol.features import CHUNK_STEPS, EXECUTED_ACTIONS, GYM_SPACES

__all__ = ["Conversation"]

_TRACEBACK: Final = "Traceback (most recent call last): the grader says that its model failed"
_NAMED: Final = (".images", ".states")
_PATIENCE: Final = 8
_DOUBLE: Final = 0.05


class Conversation:
    """One connection.

    Args:
        stage: The run that it belongs to.
        link: The connection, after its handshake.
        plan: What happens on it.
        number: Of the connection, from 0.
    """

    def __init__(self, stage: Stage, link: Link, plan: Plan, number: int) -> None:
        self._stage = stage
        self._link = link
        self._plan = plan
        self._number = number
        self._settings = stage.settings
        self._ledger = Ledger(stage.history)
        self._offered = frozenset(plan.features)
        self._sent = "the handshake's answer"
        self._pending: tuple[str, ...] = ()
        self._answers = Answers(stage.settings, stage.subject, plan)
        self._pinger = Pinger(link, stage.settings.pace) if plan.slow else None

    def hold(self) -> Closing | None:
        """Go through the plan.

        Returns:
            How the client ended the connection, or answered the grader's close; None if it did
            not.

        Raises:
            RunOver: The client did something after which the plan makes no sense.
        """
        try:
            self._greet()
            if self._is_over("greeting", 0):
                return self._end(None)
            for number in itertools.count():
                infer = self._receive_infer()
                if self._is_over("infer", number):
                    return self._end(infer)
                if self._answer(infer, number):
                    return self._end(infer)
                self._receive_feedback()
                if self._is_over("feedback", number + 1):
                    return self._end(infer)
        finally:
            self._ledger.close()
            if self._stage.oracle is not None:
                self._stage.oracle.close(self._ledger.holding)
        raise AssertionError("count() does not end")

    @property
    def named(self) -> set[int]:
        """Every env that the client named."""
        return self._ledger.named

    @property
    def sent(self) -> str:
        """What the grader sent last."""
        return self._sent

    # -- the plan

    def _is_over(self, when: When, number: int) -> bool:
        if self._plan.ending.when != when or number < self._due:
            return False
        oracle, holding = self._stage.oracle, self._ledger.holding
        comes_back = self._plan.ending.kind in ("resync", "internal", "other")
        if oracle is None or not comes_back or when == "greeting":
            return True
        if number >= self._due + _PATIENCE:
            return True
        # Best where an episode may end in a chunk whose feedback the close swallows, or where an
        # env that holds none is in mid-episode and has to go on with it.
        return oracle.near_end(holding) if when == "action" else oracle.mid_episode(holding)

    @property
    def _due(self) -> int:
        exchanges = self._plan.exchanges
        if isinstance(exchanges, float):
            return max(1, round(exchanges * self._settings.steps))
        return exchanges + self._answers.rare

    def _end(self, infer: InferSeen | None) -> Closing | None:
        ending, listener = self._plan.ending, self._stage.listener
        if self._pinger is not None:
            self._pinger.finish(self._stage)
        self._sent = ending.words
        if ending.kind == "text":
            self._link.send(_TRACEBACK)
        elif ending.fault:
            self._link.send(self._answers.faulty([0] if infer is None else infer.envs))
        elif ending.code == 0:
            self._link.drop()
            return Closing()
        else:
            return listener.close_link(ending.code, ending.reason)
        return None

    # -- metadata

    def _greet(self) -> None:
        pace = self._settings.pace
        event = self._stage.listener.wait(self._link.next_event, pace.greeting)
        if isinstance(event, Closing):
            self._gone(event)
        witness = self._stage.witness("nothing yet", "a message" if event else None)
        quiet = event is None
        witness.see("5.5", quiet, f"nothing for the first {pace.greeting:g} s", "a message")
        witness.see("5.1", quiet, "to read the metadata first", "a message")
        witness.tell()
        if not quiet:
            raise RunOver
        if self._plan.ending.when == "greeting":
            return
        greeting = GREETINGS[self._plan.greeting]
        self._sent, self._pending = greeting.words, greeting.clauses
        if set(FEATURES) <= self._offered:
            self._pending += ("9.1.7",)
        self._link.send(pack(greeting.build(self._answers.metadata())))

    # -- receiving

    def _await(self) -> Arrival:
        """The client's next frame."""

        def ready() -> Arrival | Closing | None:
            if self._pinger is not None:
                self._pinger.tick()
            return self._link.next_event()

        event = self._stage.listener.wait(ready, self._settings.timeout)
        return event if isinstance(event, Arrival) else self._gone(event)

    def _gone(self, closing: Closing | None) -> NoReturn:
        """The client left, or does nothing any more."""
        stage = self._stage
        what = str(closing or f"did nothing for {self._settings.timeout:g} s")
        if closing is not None and closing.broken:
            stage.observe("2.1", False, self._sent, "RFC 6455", what)
            raise RunOver
        if closing is not None and closing.code == 1009:
            stage.observe("2.8", False, self._sent, "no limit by default", what)
            raise RunOver
        self._link.discard()
        # A client may end when it likes; one that goes just now and fails could not read this.
        status = stage.listener.wait(stage.process.poll, 2.0) if closing is not None else None
        if closing is not None and status == 0:
            stage.observe("8.36", closing.code == 1000, self._sent, "a close with 1000", what)
            stage.problem(
                f"the client ended by itself after {self._ledger.infers} requests, before the "
                "grader was through; let it run until the server stops it"
            )
        blamed = [clause for clause in self._pending if clause != "2.8"]  # 1009 is its sign
        refused = closing is not None and closing.code == CloseCode.PROTOCOL_ERROR
        if not refused and not stage.subject.greeted:
            blamed = []  # it may be anything that keeps the client from its first infer
        for clause in blamed:
            stage.observe(clause, False, self._sent, "the client goes on", f"it {what}")
        if blamed:
            raise RunOver
        ended = "" if status is None else f" and exited with status {status}"
        stage.problem(f"after {self._sent} the client {what}{ended}")

    def _read(self, expected: str) -> tuple[Witness, Message]:
        """The client's next message, if it is of the type that is due."""
        arrival = self._await()
        witness = self._stage.witness(self._sent, f"a text frame: {arrival.data[:80]!r}")
        for clause in ("2.4", "2.5"):
            witness.see(clause, not arrival.text, "a binary frame", "a text frame")
        witness.tell()
        if arrival.text:
            raise RunOver
        inspection = inspect(arrival.data)
        observe_frame(self._stage.report, inspection, scenario=self._stage.run.title)
        kind, message = inspection.message_type, inspection.value
        if kind is None or _has_broken(message):
            raise RunOver
        if _largest(message) > len(arrival.data):
            self._stage.problem(f"the client's {kind} claims more elements than it has bytes")
        witness = self._stage.witness(self._sent, message)
        if not self._see_state(witness, kind, expected):
            witness.tell()
            raise RunOver
        odd = [f for f in inspection.faults if f.clause == "3.4" and f.where.endswith(_NAMED)]
        witness.see("6.2.11", not odd, "str names of images and states", [f.got for f in odd])
        see_use(witness, message, self._offered)
        self._stage.used.update(used_features(message).values())
        return witness, message

    def _see_state(self, witness: Witness, kind: str, expected: str) -> bool:
        """Check a message against the table of states (SPEC 5)."""
        if expected == "infer" and self._ledger.infers == 0:
            witness.see("8.42", kind == "infer", "an infer first", kind)
            if self._number and any(past.swallowed for past in self._stage.history.envs.values()):
                for clause in ("8.39", "8.40"):
                    witness.see(clause, kind != "feedback", "an infer first", kind)
        elif kind in ("infer", "feedback"):
            witness.see("5.8", kind == expected, f"one {expected}", f"another {kind}")
        return witness.see("5.1", kind == expected, expected, kind)

    def _receive_infer(self) -> InferSeen:
        witness, message = self._read("infer")
        infer = read_infer(witness, message)
        if infer is None:
            witness.tell()
            raise RunOver
        self._stage.subject.greeted = True
        self._see_silence(witness, first=self._ledger.infers == 0)
        if not self._ledger.see_free(witness, infer):
            witness.tell()
            raise RunOver
        self._see_spaces(witness, infer)
        restarted: dict[int, bool] = {}
        if self._stage.oracle is not None:
            first = self._ledger.unheard(infer.envs)
            known = "action_dim" in self._answers.metadata() and self._plan.greeting != "empty"
            restarted = self._stage.oracle.see_infer(witness, infer, first, known)
        self._ledger.see_infer(witness, infer, restarted)
        self._settle(witness)
        return infer

    def _see_silence(self, witness: Witness, first: bool) -> None:
        """After an infer the client has nothing to say until it is answered (5.6)."""
        link = self._link
        self._stage.listener.wait(lambda: link.arrivals or None, _DOUBLE if first else 0.0)
        quiet = not link.arrivals
        witness.see("5.6", quiet, "to wait for the action", "another message")
        if not quiet:
            witness.see("5.1", False, "to wait for the action", "another message")
            witness.tell()
            raise RunOver

    def _settle(self, witness: Witness) -> None:
        """The client understood what was sent last; what this message shows goes out."""
        for clause in self._pending:
            witness.see(clause, True)
        self._pending = ()
        # From here on nobody can tell what the client is about.
        confused = witness.broken("4.9", "5.21", "6.5.13", "9.2.5", "9.2.6", "9.2.8", "6.2.15")
        witness.tell()
        if confused:
            raise RunOver

    def _see_spaces(self, witness: Witness, infer: InferSeen) -> None:
        """Check the declaration, and what is sent against it (SPEC 9.3)."""
        present = "spaces" in infer.message
        if GYM_SPACES in self._offered:
            if self._ledger.infers > 0:
                witness.see("9.3.2", not present, "spaces in the first infer alone", "again")
            elif present or GYM_SPACES in self._stage.used:
                witness.see("9.3.1", present, "spaces, as on the connection before", "none")
        if present and self._ledger.infers == 0:
            declared = read_declaration(witness, infer.message["spaces"])
            if declared is None:
                witness.tell()
                raise RunOver  # a server that cannot read the declaration has no actions
            self._answers.declared = declared
            self._stage.subject.action_space = declared.action
        if self._answers.declared is not None and infer.reuse.count(False):
            see_layout(witness, self._answers.declared, infer.observation)

    def _receive_feedback(self) -> FeedbackSeen:
        witness, message = self._read("feedback")
        feedback = read_feedback(witness, message)
        if feedback is None:
            witness.tell()
            raise RunOver
        holding, oracle, later = self._ledger.holding, self._stage.oracle, self._number > 0
        steps: list[int] | None = None
        ended: list[bool | None] = [feedback.ended(row) for row in range(len(feedback.envs))]
        self._ledger.see_feedback(witness, feedback, later)
        if oracle is not None:
            steps, ended = oracle.see_feedback(witness, feedback, holding, later)
        see_info(witness, feedback, ended)
        if oracle is not None:
            oracle.see_episodes(witness, feedback, ended)
        if self._answers.declared is not None:
            see_layout(witness, self._answers.declared, feedback.observation)
        used = set(used_features(message).values()) & self._offered
        if CHUNK_STEPS in used:
            steps = self._see_steps(witness, feedback, steps)
        if EXECUTED_ACTIONS in used:
            probe = self._settings.probe
            see_executed_actions(witness, feedback, holding, steps, probe)
        self._ledger.settle(feedback, ended)
        self._settle(witness)
        return feedback

    def _see_steps(
        self, witness: Witness, feedback: FeedbackSeen, ran: list[int] | None
    ) -> list[int] | None:
        told = see_chunk_steps(witness, feedback, self._ledger.holding)
        if told is None or ran is None:
            return told
        if witness.see("9.4.2", told == ran, f"steps as t shows: {ran}", told):
            rewards: Any = feedback.message["step_rewards"]
            if not witness.broken("9.4.3", "9.4.4", "9.4.6"):
                paid = [rewards[:count, row] for row, count in enumerate(ran)]
                ok = all(bool((part == 1).all()) for part in paid)
                witness.see("10.6", ok, "1 for every step", rewards)
        return ran

    # -- answering

    def _answer(self, infer: InferSeen, number: int) -> bool:
        """Send an action; returns whether the connection ends right after it."""
        if self._pinger is not None:
            self._dawdle(number)
        sent, frame = self._answers.answer(infer.envs, number)
        self._sent, self._pending = sent.words, sent.clauses
        self._ledger.give(infer, sent)
        over = self._is_over("action", number)
        # In one piece with the close: the client finds it when it wants to feed back.
        self._link.corked = over
        self._link.send(frame)
        return over

    def _dawdle(self, number: int) -> None:
        """Be a slow server: first one that answers pings, then one that does not."""
        assert self._pinger is not None
        pinger = self._pinger
        pace, link, listener = self._settings.pace, self._link, self._stage.listener
        if number == 0:
            self._sent = f"nothing for {pace.late:g} s in answer to an infer, but pongs"

            def ready() -> bool | None:
                pinger.tick()
                return True if link.arrivals or link.closing else None

            listener.wait(ready, pace.late)
            witness = self._stage.witness(self._sent)
            patient = link.closing is None
            witness.see("7.5", patient, "the client waits", link.closing)
            for clause in ("5.11", "5.6", "5.1") if link.arrivals else ("5.11",):
                witness.see(clause, not link.arrivals, "to wait or to close", "another message")
            witness.tell()
            if not patient or link.arrivals:
                raise RunOver
        elif number == 1:
            self._sent = f"nothing for {pace.stall:g} s, not even pongs, as a server that computes"
            pinger.rest(listener)  # a pong that waits to be read would seem to be late
            link.deaf = True
            time.sleep(pace.stall)
            link.deaf = False
            listener.wait(lambda: link.closing, 2 * _DOUBLE)
            stays = link.closing is None
            self._stage.observe("2.15", stays, self._sent, "the client waits", link.closing)
            if not stays:
                raise RunOver


def _largest(value: object) -> int:
    """Elements of the largest array; those of <U0 take no bytes and cost nothing to claim."""
    if isinstance(value, np.ndarray):
        return value.size
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max(map(_largest, items), default=0)


def _has_broken(value: object) -> bool:
    if isinstance(value, dict):
        return any(_has_broken(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_broken(item) for item in value)
    return isinstance(value, Broken)
