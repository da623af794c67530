"""The one place that calls an agent: one method at a time, learning in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata as distribution
from typing import Any, Final

from plugrl_gym.errors import LocalProtocolError, RemoteProtocolError, RunFailed
from plugrl_gym.protocol import PROTOCOL_VERSION, Feedback, Infer, Metadata
from plugrl_gym.server.agent import Agent, Answer, Client, Refusal, Request
from plugrl_gym.server.books import FAILED, RUN_OVER, UNFIT
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
        preparing: Seconds that the last :meth:`prepare` took, without waiting for its turn.
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
        self.preparing = 0.0
        self.metadata = Metadata()
        self._statistics = statistics
        self._on_end = on_end
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="plugrl-learn")
        self._learning_since: float | None = None
        self._learned = 0.0
        self._aside: asyncio.Task[None] | None = None
        self._has_learned = asyncio.Event()
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
            began = time.perf_counter()
            try:
                prepared = self.agent.prepare(client, infer)
            except RunFailed as error:
                raise self.fail(error) from None
            self.preparing = time.perf_counter() - began
            self.end_if_finished()
            return prepared

    def act(self, requests: Sequence[Request]) -> Sequence[Answer]:
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

    async def feedback(
        self, client: Client, feedback: Feedback, book: ClientBook, has_left: Callable[[], bool]
    ) -> None:
        """Hand a feedback over, and learn where it completes what the agent learns from.

        Args:
            client: Whose it is.
            feedback: What it sent.
            book: Its own.
            has_left: Whether the client had left when the run was told to end: then it counts all
                the same, and nothing is learned. Asked when its turn has come.

        Raises:
            RemoteProtocolError: The observation does not fit; ``book`` has its rows as discarded.
            RunEnded: The run is over; by this feedback, where it was the last.
        """
        async with self.lock:
            if self.ended and not has_left():
                book.left_out(feedback, RUN_OVER)
                raise RunEnded
            try:
                book.fed_back(feedback, self._hand(client, feedback, book))
                self._learn_aside()
                while self.agent.learning_due and not self.ended:
                    await self._learn()
                    if self.agent.finished:
                        break
            except (RemoteProtocolError, Refusal):
                raise
            except Exception as error:
                raise self.fail(error) from None
            self.end_if_finished()

    def _hand(
        self, client: Client, feedback: Feedback, book: ClientBook
    ) -> Mapping[str, int] | None:
        try:
            return self.agent.feedback(client, feedback)
        except BaseException as error:
            book.left_out(feedback, UNFIT if isinstance(error, RemoteProtocolError) else FAILED)
            raise

    async def feedback_dropped(self, client: Client) -> None:
        """See :meth:`Agent.feedback_dropped`.

        Raises:
            RunEnded: The run is over; by this call, where the agent raised.
        """
        async with self.lock:
            self._check()
            try:
                self.agent.feedback_dropped(client)
            except Exception as error:
                raise self.fail(error) from None

    async def _learn(self) -> None:
        """Learn once while everything else waits."""
        if self._aside is not None:
            await self._has_learned.wait()
            return
        self._learning_since = time.monotonic()
        try:
            await self._call_learn()
        finally:
            self._learned += time.monotonic() - self._learning_since
            self._learning_since = None

    async def _call_learn(self) -> None:
        began = time.monotonic()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self.agent.learn)
        finally:
            self._statistics.learned(time.monotonic() - began)

    def _learn_aside(self) -> None:
        """Begin to learn while clients are served, if the agent wants to and has not begun."""
        if self._aside is None and self.agent.learning_wanted:
            self._aside = asyncio.get_running_loop().create_task(self._go_on_learning())

    async def _go_on_learning(self) -> None:
        try:
            while self.agent.learning_wanted and not self.ended:
                await self._call_learn()
                self._wake_waiting()
                with contextlib.suppress(RunEnded):
                    self.end_if_finished()
        except Exception as error:
            self.fail(error)
        finally:
            self._aside = None
            self._wake_waiting()

    def _wake_waiting(self) -> None:
        self._has_learned.set()
        self._has_learned = asyncio.Event()

    async def leave(self, client: Client) -> None:
        """See :meth:`Agent.leave`; an error there is only logged."""
        async with self.lock:
            try:
                self.agent.leave(client)
            except Exception:
                logger.exception("%s: the agent failed to let it go", client)
            with contextlib.suppress(RunEnded):
                self.end_if_finished()

    async def close(self) -> None:
        """Wait for learning to end, then let the agent save what it keeps."""
        if self._aside is not None:
            await self._aside
        async with self.lock:
            self._thread.shutdown()
            let_go: Mapping[str, int] | None = None
            try:
                let_go = self.agent.close()
            finally:
                self._statistics.audit(self.agent.rows_stored, let_go or {})

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
