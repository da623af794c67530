"""Watchdogs over the open connections: is a peer still there, and does its feedback come?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from plugrl_gym.server.runner import AgentRunner
    from plugrl_gym.server.session import Session

__all__ = ["watch_feedback", "watch_silence"]

# So many looks in a row must find nothing: one alone may come right after the loop was busy.
_LOOKS: Final = 5
# A feedback that arrived while the loop was busy is still read before its client is given up.
_GRACE_SECONDS: Final = 0.02


async def watch_silence(
    sessions: Callable[[], Iterable[Any]], limit: float, give_up: Callable[[Any], None]
) -> None:
    """Give up connections that show no sign of life, not even a pong; runs until cancelled.

    A process that was stopped, or a machine behind a proxy, can be gone while TCP is content.
    A vanished machine is usually found first by TCP's own keepalive, which works only while no
    ping is on its way: therefore the first look that finds nothing does not send one.

    Args:
        sessions: The present ones; each has a ``socket``, which is a :class:`Link`.
        limit: Seconds of silence, of which up to a fifth is added.
        give_up: Called with a session whose peer is gone.
    """
    silent: dict[Any, int] = {}
    while True:
        await asyncio.sleep(limit / _LOOKS)
        present = set(sessions())
        silent = {s: looks for s, looks in silent.items() if s in present and not s.socket.heard}
        for session in present:
            if session.socket.heard:
                session.socket.heard = False
                continue
            looks = silent[session] = silent.get(session, 0) + 1
            if looks >= _LOOKS:
                give_up(session)
            elif looks > 1:
                session.socket.probe()


async def watch_feedback(
    sessions: Callable[[], Iterable[Session]],
    timeout: float,
    runner: AgentRunner,
    give_up: Callable[[Session], None],
) -> None:
    """Give up connections whose feedback does not come (SPEC 8.8); runs until cancelled.

    Args:
        sessions: The present ones.
        timeout: Seconds from an action to its feedback, as the sessions' deadlines have it.
        runner: Has the clock of the deadlines.
        give_up: Called with a session whose feedback is late.
    """
    while True:
        due = [s.deadline for s in sessions() if s.deadline is not None and not s.closing]
        # A deadline set from now on lies a whole timeout ahead.
        await asyncio.sleep(max(min([timeout, *(d - runner.clock() for d in due)]), 0.0))
        async with runner.lock:  # while the agent learns, the clock stands still
            late = {s: s.deadline for s in sessions() if _overdue(s, runner.clock())}
        if late:
            await asyncio.sleep(_GRACE_SECONDS)
        for session, deadline in late.items():
            if session.deadline == deadline:
                session.deadline = None
                give_up(session)


def _overdue(session: Session, now: float) -> bool:
    late = session.deadline is not None and session.deadline <= now
    return late and not session.closing
