"""The one place that calls an agent: one method at a time, learning in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata as distribution
from typing import Any, Final

import numpy.typing as npt

from plugrl_gym.errors import LocalProtocolError, RemoteProtocolError
from plugrl_gym.protocol import PROTOCOL_VERSION, Feedback, Infer, Metadata
from plugrl_gym.server.agent import Agent, Client, Refusal, Request
from plugrl_gym.server.statistics import ClientBook, RunStatistics

__all__ = ["SERVER_NAME", "AgentRunner", "RunEnded", "server_version"]

logger = logging.getLogger("plugrl_gym.server")

SERVER_NAME: Final = "plugrl-gym"


class RunEnded(Exception):
    """The run is ending: nothing is answered any more."""


def server_version() -> str:
    """The version of this package; ``"0"`` where it was not installed."""
    try:
        return distribution.version("plugrl-gym")
    except distribution.PackageNotFoundError:
        return "0"


class AgentRunner:
    """Serialises the calls of one agent.

    Args:
        agent: What is served.
        statistics: Gets the time spent in learning.
        on_end: Called once the agent has finished the run (None), or failed (its exception).

    Attributes:
        lock: Held while the agent learns, so that every other call waits for that.
        ended: Set by the server when the run ends: from then on only :meth:`leave` and
            :meth:`close` reach the agent.
        metadata: What the agent last told of itself. A client that connects while the agent
            learns gets it at once, for it must not wait for the metadata.
    """

    def __init__(
        self,
        agent: Agent,
        statistics: RunStatistics,
        on_end: Callable[[Exception | None], None],
    ) -> None:
        self.agent = agent
        self.lock = asyncio.Lock()
        self.ended = False
        self.metadata = Metadata()
        self._statistics = statistics
        self._on_end = on_end
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="plugrl-learn")
        self._learning_since: float | None = None
        self._learned = 0.0
        self.refresh()

    def refresh(self) -> None:
        """Ask the agent for its metadata, and complete them."""
        self.metadata = replace(
            self.agent.metadata(),
            protocol_version=PROTOCOL_VERSION,
            server=SERVER_NAME,
            server_version=server_version(),
            features=tuple(self.agent.features),
        )

    def clock(self) -> float:
        """Seconds on a clock that stands still while the agent learns (SPEC 8.9)."""
        since = self._learning_since
        return (time.monotonic() if since is None else since) - self._learned

    async def join(self, client: Client) -> None:
        """See :meth:`Agent.join`.

        Raises:
            Refusal: This client cannot be served.
            RunEnded: The run is over.
        """
        async with self.lock:
            self._check()
            self.agent.join(client)
            self.refresh()

    async def prepare(self, client: Client, infer: Infer) -> Any:
        """See :meth:`Agent.prepare`.

        Raises:
            RemoteProtocolError: The observation does not fit.
            RunEnded: The run is over.
        """
        async with self.lock:
            self._check()
            return self.agent.prepare(client, infer)

    def act(self, requests: Sequence[Request]) -> list[npt.NDArray[Any]]:
        """See :meth:`Agent.act`; the caller has made sure that ``lock`` is free or its own.

        Raises:
            RunEnded: The run is over; by this call, where the agent raised.
        """
        self._check()
        try:
            actions = self.agent.act(requests)
            if len(actions) != len(requests):
                raise LocalProtocolError(
                    f"the agent answered {len(requests)} requests with {len(actions)} actions"
                )
        except Exception as error:
            raise self.fail(error) from None
        return actions

    async def feedback(self, client: Client, feedback: Feedback, book: ClientBook) -> None:
        """Hand a feedback over, and learn where it completes what the agent learns from.

        Raises:
            RemoteProtocolError: The observation does not fit; nothing was counted in ``book``.
            RunEnded: The run is over; by this feedback, where it was the last.
        """
        async with self.lock:
            self._check()
            try:
                self.agent.feedback(client, feedback)
                book.fed_back(feedback)
                while self.agent.learning_due and not self.ended:
                    await self._learn()
                    if self.agent.finished:
                        break
            except (RemoteProtocolError, Refusal):
                raise
            except Exception as error:
                raise self.fail(error) from None
            self.end_if_finished()

    async def _learn(self) -> None:
        began = self._learning_since = time.monotonic()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self.agent.learn)
        finally:
            seconds = time.monotonic() - began
            self._learned += seconds
            self._learning_since = None
            self._statistics.learned(seconds)

    async def leave(self, client: Client) -> None:
        """See :meth:`Agent.leave`; a departure ends no run, so an error there is only logged."""
        async with self.lock:
            try:
                self.agent.leave(client)
            except Exception:
                logger.exception("%s: the agent failed to let it go", client)

    async def close(self) -> None:
        """Wait for learning to end, then let the agent save what it keeps."""
        async with self.lock:
            self._thread.shutdown()
            self.agent.close()

    def fail(self, error: Exception) -> RunEnded:
        """The agent failed, and with it the run (SPEC 8.12)."""
        self.ended = True
        self._on_end(error)
        return RunEnded()

    def _check(self) -> None:
        if self.ended:
            raise RunEnded

    def end_if_finished(self) -> None:
        """End the run if the agent says that it is over; call it while the agent is not learning.

        Raises:
            RunEnded: It is.
        """
        if not self.ended and self.agent.finished:
            self.ended = True
            self._on_end(None)
            raise RunEnded
