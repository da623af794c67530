"""The asyncio shell of a training server: connections in, one agent behind them (SPEC 2, 8)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from websockets.asyncio.server import Server, ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response

from plugrl_gym.errors import RemoteProtocolError, UsageError
from plugrl_gym.protocol.close import (
    REASON_FEEDBACK_TIMEOUT,
    REASON_INTERNAL,
    REASON_RESYNC,
    REASON_SHUTDOWN,
    REASON_STOP,
    CloseCode,
    fit_reason,
)
from plugrl_gym.server.agent import Agent, Refusal
from plugrl_gym.server.batching import Batcher, Departed
from plugrl_gym.server.listening import (
    answer_http,
    client_urls,
    keep_alive,
    listen,
    quiet_logger,
)
from plugrl_gym.server.patience import Patience
from plugrl_gym.server.runner import SERVER_NAME, AgentRunner, RunEnded, server_version
from plugrl_gym.server.session import Services, Session, Warnings
from plugrl_gym.server.statistics import RunStatistics

__all__ = ["PlugRLServer", "serve"]

logger = logging.getLogger("plugrl_gym.server")


class _Close(NamedTuple):
    code: CloseCode
    reason: str


_STOP: Final = _Close(CloseCode.GOING_AWAY, REASON_STOP)
_RESYNC: Final = _Close(CloseCode.GOING_AWAY, REASON_RESYNC)
_TIMEOUT: Final = _Close(CloseCode.GOING_AWAY, REASON_FEEDBACK_TIMEOUT)
_SHUTDOWN: Final = _Close(CloseCode.GOING_AWAY, REASON_SHUTDOWN)
_INTERNAL: Final = _Close(CloseCode.INTERNAL_ERROR, REASON_INTERNAL)

_MESSAGE_TOO_BIG: Final = 1009  # sent by the WebSocket library (RFC 6455, 7.4.1)

# A feedback that arrived while the loop was busy is still read before its client is given up.
_GRACE_SECONDS: Final = 0.02
# A handshake that is under way when the server ends gets this long to be refused.
_HANDSHAKE_SECONDS: Final = 1.0


class PlugRLServer:
    """Serves one agent to any number of clients until its run is over.

    Args:
        agent: The policy, with or without a learner.
        host: Where to listen: 127.0.0.1 for this machine only, 0.0.0.0 for all of IPv4, ``::``
            for all, ``localhost`` for both loopback addresses.
        port: 0 takes any free port; see the attribute once listening.
        feedback_timeout: Seconds that a client may take from an action to its feedback, not
            counting those in which the agent learns (SPEC 8.8).
        batch_wait: Longest wait, in seconds, of a request for other connections' requests.
        max_message_bytes: Largest message accepted; None for no limit (SPEC 2.8).
        close_timeout: Seconds for a client to answer a close frame.
        max_resync_delay: Longest delay, in seconds, of the close for a peer that keeps coming
            back broken (SPEC 8.5); 0 for none.
        on_listening: Called with the server, on its thread, once clients can connect.

    Attributes:
        host: As given.
        port: The real one, once listening.
        statistics: What the run has done; ``statistics.snapshot()`` works in any thread.
        listening: A ``threading.Event``, set once clients can connect.

    Raises:
        UsageError: An option is out of its range.

    Example:
        >>> import threading
        >>> from plugrl_gym.agents.random_agent import RandomAgent
        >>> server = PlugRLServer(RandomAgent(), port=0)
        >>> thread = threading.Thread(target=server.serve)
        >>> thread.start()
        >>> server.listening.wait(10)
        True
        >>> server.request_shutdown()
        >>> thread.join()
    """

    def __init__(
        self,
        agent: Agent,
        host: str = "127.0.0.1",
        port: int = 8000,
        *,
        feedback_timeout: float = 60.0,
        batch_wait: float = 0.002,
        max_message_bytes: int | None = None,
        close_timeout: float = 5.0,
        max_resync_delay: float = 2.0,
        on_listening: Callable[[PlugRLServer], None] | None = None,
    ) -> None:
        _check_options(port, feedback_timeout, batch_wait, close_timeout, max_resync_delay)
        self.host = host
        self.port = port
        self.statistics = RunStatistics()
        self.listening = threading.Event()
        self._max_message_bytes = max_message_bytes
        self._close_timeout = close_timeout
        self._on_listening = on_listening
        self._runner = AgentRunner(agent, self.statistics, self._on_agent_end)
        self._services = Services(
            runner=self._runner,
            batcher=Batcher(self._runner.act, self._runner.lock, batch_wait),
            statistics=self.statistics,
            warnings=Warnings(),
            patience=Patience(max_resync_delay),
            feedback_timeout=feedback_timeout,
        )
        self._sessions: set[Session] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._accepted = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()
        self._ending: _Close | None = None
        self._failure: Exception | None = None
        self._shutdown_requested = False

    @property
    def url(self) -> str:
        """The address to give to a client on this machine; its port is known once listening."""
        return self.urls()[0]

    def urls(self) -> list[str]:
        """Every address under which clients may reach this server, likeliest first."""
        return client_urls(self.host, self.port)

    def serve(self) -> bool:
        """Block until the run ends; SIGINT and SIGTERM end it too, if this is the main thread.

        A second signal has its usual effect: the process ends without saving.

        Returns:
            True where the agent finished the run, False where it was told to stop.

        Raises:
            UsageError: The address cannot be listened on.
            Exception: What the agent raised, where it failed.
        """
        with _signals(self.request_shutdown):
            return asyncio.run(self.run())

    async def run(self) -> bool:
        """Serve until the agent finishes or :meth:`request_shutdown`; call it once.

        All connections are closed and :meth:`Agent.close` has run when it returns or raises,
        except where it raises UsageError: then nothing had begun.

        Returns:
            True where the agent finished the run, False where it was told to stop.

        Raises:
            UsageError: The address cannot be listened on.
            Exception: What the agent raised, where it failed.
        """
        self._loop = asyncio.get_running_loop()
        servers = await self._listen()
        watchdog = asyncio.create_task(self._watch_feedback())
        try:
            if self._on_listening is not None:
                self._on_listening(self)
            if self._shutdown_requested:
                self._end(_SHUTDOWN)
            await self._ended.wait()
        finally:
            self._end(_SHUTDOWN)  # where this task was cancelled
            watchdog.cancel()
            await self._finish(servers)
        if self._failure is not None:
            raise self._failure
        return self._ending is _STOP

    def request_shutdown(self) -> None:
        """End the run as its operator (SPEC 8.14); from any thread, at any time.

        Learning that is under way ends first.
        """
        self._shutdown_requested = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the run is over
                self._loop.call_soon_threadsafe(self._end, _SHUTDOWN)

    def process_request(
        self, connection: ServerConnection, request: HttpRequest
    ) -> Response | None:
        """Decide about a handshake before it is answered; None accepts it."""
        return answer_http(connection, request, self.url)

    async def _listen(self) -> list[Server]:
        servers = await listen(
            self._handle,
            self.host,
            self.port,
            compression=None,
            max_size=self._max_message_bytes,
            # Pings that nobody has to answer would only hide a dead peer from TCP's keepalive.
            ping_interval=None,
            close_timeout=self._close_timeout,
            process_request=self.process_request,
            server_header=f"{SERVER_NAME}/{server_version()}",
            logger=quiet_logger,
        )
        self.port = servers[0].sockets[0].getsockname()[1]
        self.statistics.start()
        self.listening.set()
        logger.info("listening on %s", ", ".join(self.urls()))
        return servers

    async def _handle(self, socket: ServerConnection) -> None:
        """One connection, from its handshake to its close."""
        keep_alive(socket)
        self._accepted += 1
        session = Session(socket, self._accepted, self._services)
        self._sessions.add(session)
        try:
            closing, delay = await self._converse(session)
            session.closing = True
            leaving = asyncio.create_task(self._leave(session))
            if delay:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(socket.wait_closed(), delay)
            if closing is not None:
                await socket.close(*closing)
            await leaving
        finally:
            self._sessions.discard(session)

    async def _converse(self, session: Session) -> tuple[_Close | None, float]:
        """How to close, if the connection is still open, and after how many seconds."""
        if self._ending is not None:
            return self._ending, 0.0
        client = session.client
        try:
            await session.converse()
        except Departed:
            pass
        except ConnectionClosed as error:
            if error.sent is not None and error.sent.code == _MESSAGE_TOO_BIG:
                logger.warning("%s: %s", client, error.sent.reason)
        except RunEnded:
            return self._ending, 0.0
        except RemoteProtocolError as error:
            return _RESYNC, self._resync_delay(session, str(error))
        except Refusal as refusal:
            # 1008 ends a client for good, so it is only for those that told their spaces (8.17).
            if client.declaration is None:
                return _RESYNC, self._resync_delay(session, str(refusal))
            logger.warning("%s refused: %s", client, refusal)
            return _Close(CloseCode.POLICY_VIOLATION, fit_reason(str(refusal))), 0.0
        except Exception:
            logger.exception("%s: unexpected error", client)
            return _INTERNAL, 0.0
        return None, 0.0

    def _resync_delay(self, session: Session, why: str) -> float:
        delay = self._services.patience.strike(session.host)
        logger.warning(
            "%s: resync: %s%s", session.client, why, f" (close in {delay:.1f} s)" if delay else ""
        )
        return delay

    async def _leave(self, session: Session) -> None:
        self._services.batcher.leave(session)
        abandoned = session.release()
        if session.joined:
            await self._runner.leave(session.client)
        await session.watch
        socket = session.socket
        logger.info(
            "%s left: %s %s; open chunks: %d",
            session.client,
            socket.close_code,
            socket.close_reason or "",
            abandoned,
        )

    async def _watch_feedback(self) -> None:
        """Close the connections whose feedback does not come (SPEC 8.8)."""
        timeout, runner = self._services.feedback_timeout, self._runner
        while True:
            due = [s.deadline for s in self._sessions if s.deadline is not None]
            # A deadline set from now on lies a whole timeout ahead.
            await asyncio.sleep(max(min([timeout, *(d - runner.clock() for d in due)]), 0.0))
            async with runner.lock:  # while the agent learns, the clock stands still
                late = {s: s.deadline for s in self._sessions if _overdue(s, runner.clock())}
            if late:
                await asyncio.sleep(_GRACE_SECONDS)
            for session, deadline in late.items():
                if session.deadline == deadline:
                    session.deadline = None
                    logger.warning("%s: no feedback for %g s", session.client, timeout)
                    self._close(session, _TIMEOUT)

    def _close(self, session: Session, closing: _Close) -> None:
        session.closing = True
        task = asyncio.create_task(session.socket.close(*closing))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _on_agent_end(self, error: Exception | None) -> None:
        if error is not None:
            logger.error("the agent failed: %s: %s", type(error).__name__, error)
            self._failure = self._failure or error
        self._end(_STOP if error is None else _INTERNAL)

    def _end(self, ending: _Close) -> None:
        if self._ending is None:
            self._ending = ending
            self._runner.ended = True
            self._ended.set()
            logger.info("the run ends: %s", ending.reason)

    async def _finish(self, servers: list[Server]) -> None:
        for server in servers:
            server.close(close_connections=False)
        assert self._ending is not None
        for session in self._sessions:
            self._close(session, self._ending)
        while self._sessions:
            await asyncio.wait([session.task for session in self._sessions])
        await self._runner.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                for server in servers:
                    await server.wait_closed()


def serve(agent: Agent, host: str = "127.0.0.1", port: int = 8000, **options: Any) -> bool:
    """Serve ``agent`` until its run is over; blocks.

    Args:
        agent: The policy, with or without a learner.
        host: See :class:`PlugRLServer`.
        port: See :class:`PlugRLServer`.
        **options: The others of :class:`PlugRLServer`.

    Returns:
        True where the agent finished the run, False where a signal stopped it.

    Raises:
        UsageError: An option is out of its range, or the address cannot be listened on.
        Exception: What the agent raised, where it failed.
    """
    return PlugRLServer(agent, host, port, **options).serve()


def _check_options(port: int, feedback_timeout: float, *durations: float) -> None:
    if not 0 <= port <= 65535:
        raise UsageError(f"port: expected 0 to 65535, got {port}")
    if feedback_timeout <= 0:
        raise UsageError(f"feedback_timeout: expected seconds above 0, got {feedback_timeout}")
    for seconds in durations:
        if seconds < 0:
            raise UsageError(f"a duration cannot be negative, got {seconds} s")


def _overdue(session: Session, now: float) -> bool:
    late = session.deadline is not None and session.deadline <= now
    return late and not session.closing


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at the first SIGINT or SIGTERM; the second has its default effect."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def handle(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
