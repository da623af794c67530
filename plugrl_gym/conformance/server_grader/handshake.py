"""Cases of the phase *exchange* that are about the connection itself (SPEC 2)."""

from __future__ import annotations

from typing import Final

from plugrl_gym.conformance.server_grader.cases import Case
from plugrl_gym.conformance.server_grader.grading import PONG_SECONDS, Grading
from plugrl_gym.conformance.server_grader.peer import Unreachable, open_peer
from plugrl_gym.conformance.server_grader.visitor import visit

__all__ = ["HANDSHAKE_CASES"]

_WRONG_KEY: Final = "the-graders-wrong-key"


def _compression(grading: Grading) -> None:
    with grading.connect(compression=True) as peer:
        agreed = peer.extensions
        grading.observe("2.7", not agreed, sent="an offer of permessage-deflate", got=agreed)


def _keys(grading: Grading) -> None:
    """A server without a key accepts any; one with a key answers others with 401."""
    key = grading.options.api_key
    status = _status_with(grading, None if key is not None else _WRONG_KEY)
    if key is None:
        expected = "a handshake that is accepted, for one without a key was"
        got = f"HTTP {status}"
        sent = f"Authorization: Api-Key {_WRONG_KEY}"
        grading.observe("2.13", status == 101, sent=sent, expected=expected, got=got)
        grading.report.skip("needs --api-key and a server that requires it", "2.12")
        return
    if status == 101:
        reason = "the server requires no key"
        grading.report.skip(reason, "2.12")
        grading.observe("2.13", True)
        return
    grading.report.skip("the server requires a key", "2.13")
    statuses = {
        "no key": status,
        f"Authorization: Api-Key {_WRONG_KEY}": _status_with(grading, _WRONG_KEY),
    }
    for sent, found in statuses.items():
        grading.observe("2.12", found == 401, sent=sent, expected="HTTP 401", got=f"HTTP {found}")


def _status_with(grading: Grading, key: str | None) -> int | None:
    """The HTTP status of a handshake with ``key``; 101 where it succeeds."""
    options = grading.options
    try:
        with open_peer(options.url, options.timeout, api_key=key, trust=options.trust):
            return 101
    except Unreachable as error:
        return error.status


def _pings(grading: Grading) -> None:
    """While idle and while acting; every infer is followed by a ping besides."""
    with visit(grading) as visitor:
        for clients_turn in ("an infer", "a feedback"):
            if grading.facts.answers_pings:
                limit = min(PONG_SECONDS, grading.timeout)
                pong = visitor.peer.ping().answered(limit)
                sent = f"a ping, while {clients_turn} is due"
                got = f"none within {limit:g} s"
                grading.facts.answers_pings = pong
                grading.observe("2.14", pong, sent=sent, expected="a pong", got=got)
            if clients_turn == "an infer":
                visitor.ask([0])


HANDSHAKE_CASES: Final = (
    Case("an offer of compression", _compression),
    Case("keys, right and wrong", _keys),
    Case("pings", _pings),
)
