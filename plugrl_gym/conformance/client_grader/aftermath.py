"""What a client does once the grading server is through with it: report, exit, stay away."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from plugrl_gym.conformance.client_grader.faults import FAULTS, Fault
from plugrl_gym.conformance.client_grader.link import Arrival, Closing, Link
from plugrl_gym.conformance.client_grader.scenarios import Ending, Kind
from plugrl_gym.conformance.client_grader.stage import RunOver, Stage
from plugrl_gym.protocol.close import CloseCode

__all__ = ["answer_to_fault", "answer_to_text", "expect_end", "expect_return"]

#: Kind of ending -> the clause that asks for a reconnect.
_RETURNS: Final[Mapping[Kind, str]] = {"resync": "8.32", "internal": "8.33", "other": "8.34"}
#: Kind of ending -> the clause that forbids one.
_STAYS: Final[Mapping[Kind, str]] = {
    "stop": "8.20",
    "refusal": "8.22",
    "unauthorized": "8.24",
    "text": "8.26",
    "fault": "8.31",
}
_GRACE: Final = 2.0


def expect_return(stage: Stage, ending: Ending) -> Link:
    """The client's next connection after a close that it should come back from.

    Raises:
        RunOver: It ended, or does nothing.
    """
    clause = _RETURNS[ending.kind]
    found = stage.next_link()
    if isinstance(found, Link):
        stage.observe(clause, True, ending.words, None, None)
        return found
    if found is None:
        stage.problem(
            f"the client neither came back nor ended within {stage.settings.timeout:g} s after "
            f"{ending.words}"
        )
    # Giving up with the reason is the other thing that 8.33 allows.
    excused = clause == "8.33" and found != 0 and ending.reason in stage.process.output()
    got = f"exited with status {found}{stage.process.last_words()}"
    stage.observe(clause, excused, ending.words, "the client comes back", got)
    raise RunOver


# ---------------------------------------------------------------- on the same connection


def _next_event(stage: Stage, link: Link) -> Arrival | Closing | None:
    return stage.listener.wait(link.next_event, stage.settings.timeout)


def answer_to_text(stage: Stage, link: Link, ending: Ending) -> None:
    """After a text frame: the client closes and sends nothing more (8.25).

    Raises:
        RunOver: It does something else.
    """
    event = _next_event(stage, link)
    ok = isinstance(event, Closing)
    got = "another message" if event is not None else "nothing"
    stage.observe("8.25", ok, ending.words, "the client closes and sends nothing more", got)
    if not ok:
        raise RunOver


def answer_to_fault(stage: Stage, link: Link, ending: Ending) -> None:
    """After a malformed message: the client closes with 1002 and steps no env.

    Raises:
        RunOver: It goes on, or does nothing.
    """
    fault = FAULTS[ending.fault]
    event = _next_event(stage, link)
    if not isinstance(event, Closing):
        silence = f"nothing for {stage.settings.timeout:g} s"
        got = "another message" if event is not None else silence
        for clause in fault.clauses:
            stage.observe(clause, False, ending.words, "the client takes it for an error", got)
        if event is not None and ending.when == "infer":
            stage.observe("8.30", False, ending.words, "no env is stepped", got)
        raise RunOver
    link.discard()  # the client waits for the end of the TCP connection before it goes
    if ending.when == "infer":
        stage.observe("8.30", True, ending.words, None, None)
    _see_crash(stage, fault, ending)
    if fault.clauses != ("12.3",):
        right = event.code == CloseCode.PROTOCOL_ERROR
        stage.observe("8.28", right, ending.words, "a close with 1002", f"it {event}")


def _see_crash(stage: Stage, fault: Fault, ending: Ending) -> None:
    """The client took the message for an error; whether it survived that is another matter."""
    status = stage.listener.wait(stage.process.poll, _GRACE)
    crashed = status is not None and status < 0
    for clause in fault.clauses:
        if clause == "3.15":
            got = f"killed by signal {-(status or 0)}"
            stage.observe(clause, not crashed, ending.words, "no crash", got)
        elif clause not in ("8.28", "12.3"):
            stage.observe(clause, True, ending.words, None, None)


# ---------------------------------------------------------------- the end of the process


def expect_end(stage: Stage, ending: Ending) -> None:
    """Check that the client stays away, and how it ends."""
    fault = FAULTS[ending.fault] if ending.fault else None
    stays = "12.4" if fault is not None and fault.clauses == ("12.3",) else _STAYS[ending.kind]
    before = stage.listener.link.headers.get("Authorization") if stage.listener.link else None
    found = _exit_or_return(stage, before if ending.kind == "unauthorized" else None)
    back = isinstance(found, Link)
    stage.observe(stays, not back, ending.words, "the client stays away", "it came back")
    if back and ending.kind != "fault":
        raise RunOver
    status = found if isinstance(found, int) else None
    _JUDGES[ending.kind](stage, ending, fault, status)


def _exit_or_return(stage: Stage, same_key: str | None) -> Link | int | None:
    """The exit status, or the connection that the client tries to open once more."""
    deadline = time.monotonic() + stage.settings.timeout
    stage.listener.link = None

    def attempt(link: Link) -> bool:
        link.reject(503, "the run is over")
        return True

    while (left := deadline - time.monotonic()) > 0:
        found = stage.next_link(attempt)
        if not isinstance(found, Link) or found.request is None:
            return found if not isinstance(found, Link) else None
        key = found.headers.get("Authorization")
        found.discard()
        if same_key is None or key == same_key or left <= 0:
            return found
    return None


def _exited(status: int | None, stage: Stage) -> str:
    if status is None:
        return f"still running {stage.settings.timeout:g} s later"
    return f"exit status {status}{stage.process.last_words()}"


def _judge_stop(stage: Stage, ending: Ending, fault: Fault | None, status: int | None) -> None:
    got = _exited(status, stage)
    stage.observe("8.19", status == 0, ending.words, "exit status 0", got)


def _judge_text(stage: Stage, ending: Ending, fault: Fault | None, status: int | None) -> None:
    got = _exited(status, stage)
    ok = status is not None and status != 0
    stage.observe("8.27", ok, ending.words, "an exit status other than 0", got)


def _judge_refusal(stage: Stage, ending: Ending, fault: Fault | None, status: int | None) -> None:
    said = " ".join(ending.reason.split()) in stage.process.output()
    expected = "a status other than 0, and the reason in its output"
    got = _exited(status, stage)
    stage.observe("8.21", said and status != 0, ending.words, expected, got)


def _judge_key(stage: Stage, ending: Ending, fault: Fault | None, status: int | None) -> None:
    said = bool(stage.process.output())
    expected = "a status other than 0, and a word why"
    got = _exited(status, stage)
    stage.observe("8.23", said and status != 0, ending.words, expected, got)


def _judge_fault(stage: Stage, ending: Ending, fault: Fault | None, status: int | None) -> None:
    assert fault is not None
    output = stage.process.output()
    got = _exited(status, stage)
    if fault.clauses == ("12.3",):
        told = all(part in output for part in fault.says) and status != 0
        expected = f"closes, and reports an error that names {' and '.join(fault.says)}"
        stage.observe("12.3", told, ending.words, expected, got)
        return
    stage.observe("8.29", bool(output), ending.words, "a word on what is wrong", got)
    if fault.says:
        named = any(part in output for part in fault.says)
        clause = "13.1" if "openpi" in fault.says else "4.39"
        expected = f"a report that says {' or '.join(fault.says)}"
        stage.observe(clause, named, ending.words, expected, got)


_JUDGES: Final[Mapping[Kind, Callable[[Stage, Ending, Fault | None, int | None], None]]] = {
    "stop": _judge_stop,
    "text": _judge_text,
    "refusal": _judge_refusal,
    "unauthorized": _judge_key,
    "fault": _judge_fault,
}
