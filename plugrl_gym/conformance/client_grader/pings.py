"""Pings of the grading server, and how long the client takes to answer them (SPEC 2.14)."""

from __future__ import annotations

import time

from plugrl_gym.conformance.client_grader.link import Link, Listener
from plugrl_gym.conformance.client_grader.stage import Pace, Stage

__all__ = ["Pinger"]


class Pinger:
    """Pings one connection again and again.

    Args:
        link: The connection.
        pace: How often, and how soon a pong is due.
    """

    def __init__(self, link: Link, pace: Pace) -> None:
        self._link = link
        self._pace = pace
        self._sent: dict[bytes, float] = {}

    def tick(self) -> None:
        """Send a ping if it is time for one."""
        now = time.monotonic()
        if not self._sent or now - max(self._sent.values()) >= self._pace.ping:
            payload = f"ping {len(self._sent)}".encode()
            self._sent[payload] = now
            self._link.ping(payload)

    def rest(self, listener: Listener) -> None:
        """Wait for pongs that are still due: nobody can tell when one came that was not read."""
        due = max(self._sent.values(), default=0.0) + self._pace.pong
        listener.wait(self._settled, due - time.monotonic())

    def finish(self, stage: Stage) -> None:
        """Wait for the last pongs and report."""
        self.rest(stage.listener)
        longest = max((self._delay(payload) for payload in self._sent), default=0.0)
        got = f"one took {longest:.1f} s" if longest != float("inf") else "one was not answered"
        expected = f"each of {len(self._sent)} pings answered within {self._pace.pong:g} s"
        stage.observe("2.14", longest <= self._pace.pong, "pings", expected, got)

    def _settled(self) -> bool | None:
        gone = self._link.closing is not None
        return True if gone or all(p in self._link.pongs for p in self._sent) else None

    def _delay(self, payload: bytes) -> float:
        answered = self._link.pongs.get(payload)
        return float("inf") if answered is None else answered - self._sent[payload]
