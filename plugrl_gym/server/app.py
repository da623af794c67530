"""The asyncio shell of a training server: connections in, one agent behind them (SPEC 2, 8)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from websockets.asyncio.server import Server, ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response
from websockets.protocol import OPEN

from plugrl_gym.durations import check_seconds
from plugrl_gym.errors import RemoteProtocolError, UsageError
from plugrl_gym.server.access import Access
from plugrl_gym.server.agent import Agent, Refusal
from plugrl_gym.server.batching import Batcher, Departed
from plugrl_gym.server.capacity import Capacity, Full
from plugrl_gym.server.closing import (
    INTERNAL,
    RESYNC,
    SHUTDOWN,
    SILENT,
    STOP,
    TIMEOUT,
    Closing,
)
from plugrl_gym.server.door import Door
from plugrl_gym.server.link import MOST_FRAMES, Link
from plugrl_gym.server.listening import client_urls, keep_alive, listen, quiet_logger, shut
from plugrl_gym.server.meters import Meters
from plugrl_gym.server.page.board import Board
from plugrl_gym.server.page.routes import Page
from plugrl_gym.server.patience import Patience
from plugrl_gym.server.runner import SERVER_NAME, AgentRunner, RunEnded, server_version
from plugrl_gym.server.session import Services, Session, Warnings
from plugrl_gym.server.signals import stopped_by_signals
from plugrl_gym.server.statistics import RunStatistics
from plugrl_gym.server.watching import watch_feedback, watch_silence

if TYPE_CHECKING:
    from plugrl_gym.server.metrics import Metrics

__all__ = ["PlugRLServer", "serve"]

logger = logging.getLogger("plugrl_gym.server")


_MESSAGE_TOO_BIG: Final = 1009  # sent by the WebSocket library (RFC 6455, 7.4.1)

_SILENCE_SECONDS: Final = 300.0
# A handshake that is under way when the server ends gets this long to be refused.
_HANDSHAKE_SECONDS: Final = 1.0
# For a request, or TLS before it, to arrive as a whole.
_OPEN_SECONDS: Final = 10.0


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
        api_key: What a client must send (SPEC 2.12); None to want no key. Needed where ``host``
            lets other machines in.
        insecure: Let other machines in without a key.
        allowed_hosts: More names under which clients reach this server, those of a proxy, say;
            see :class:`~plugrl_gym.server.access.Access`.
        ssl_context: For ``wss://``, as from :func:`~plugrl_gym.server.tls.tls_context`; None for
            ``ws://``.
        max_message_bytes: Largest message accepted; None for no limit (SPEC 2.8).
        max_clients: Most connections at a time; None for no limit.
        max_envs: Most envs of all connections together; None for no limit.
        silence_timeout: Seconds after which a connection counts as lost that shows no sign of
            life, not even the answer to a ping, up to a fifth more; 0 for never. None for 300 s,
            or 1.5 times ``feedback_timeout`` where that is more: a healthy env may keep its
            process from answering as long as it steps (SPEC 2.15).
        close_timeout: Seconds for a client to answer a close frame.
        max_resync_delay: Longest delay, in seconds, of the close for a peer that keeps coming
            back broken (SPEC 8.5); 0 for none.
        on_listening: Called with the server, on its thread, once clients can connect.

    Attributes:
        host: As given.
        port: The real one, once listening.
        statistics: What the run has done; ``statistics.snapshot()`` works in any thread.
        listening: A ``threading.Event``, set once clients can connect.
        board: What the page for browsers shows.

    Raises:
        UsageError: An option is out of its range, or ``host`` lets other machines in without a
            key and ``insecure`` does not say so.

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
        api_key: str | None = None,
        insecure: bool = False,
        allowed_hosts: Sequence[str] = (),
        ssl_context: ssl.SSLContext | None = None,
        max_message_bytes: int | None = None,
        max_clients: int | None = None,
        max_envs: int | None = None,
        silence_timeout: float | None = None,
        close_timeout: float = 5.0,
        max_resync_delay: float = 2.0,
        on_listening: Callable[[PlugRLServer], None] | None = None,
    ) -> None:
        _check_options(port, max_message_bytes)
        check_seconds(feedback_timeout=feedback_timeout, positive=True)
        check_seconds(silence_timeout=silence_timeout, none=True)
        check_seconds(batch_wait=batch_wait, close_timeout=close_timeout)
        check_seconds(max_resync_delay=max_resync_delay)
        if silence_timeout is None:
            silence_timeout = max(_SILENCE_SECONDS, 1.5 * feedback_timeout)
        access = Access(host, api_key, insecure=insecure, allowed_hosts=allowed_hosts)
        self.host = host
        self.port = port
        self.statistics = RunStatistics()
        self.listening = threading.Event()
        self._ssl_context = ssl_context
        self._max_message_bytes = max_message_bytes
        self._silence_timeout = silence_timeout
        self._close_timeout = close_timeout
        self._on_listening = on_listening
        self._runner = AgentRunner(agent, self.statistics, self._on_agent_end)
        self._meters = Meters(self.statistics.latency)
        self._sessions: set[Session] = set()
        self._ending: Closing | None = None
        self.board = Board(
            self.statistics,
            self._runner,
            lambda: [session.client for session in self._sessions],
            lambda: self._ending,
        )
        self._services = Services(
            runner=self._runner,
            batcher=Batcher(self._runner.act, self._runner.lock, batch_wait, self._meters),
            statistics=self.statistics,
            warnings=Warnings(),
            patience=Patience(max_resync_delay),
            capacity=Capacity(max_clients, max_envs),
            meters=self._meters,
            camera=self.board.camera,
            feedback_timeout=feedback_timeout,
        )
        self._ended = asyncio.Event()
        self._door = self._make_door(access)
        self._closing: set[asyncio.Task[None]] = set()
        self._accepted = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: Exception | None = None
        self._requested: Closing | None = None

    def _make_door(self, access: Access) -> Door:
        capacity = self._services.capacity
        return Door(
            access=access,
            capacity=capacity,
            meters=self._meters,
            warnings=self._services.warnings,
            metrics=_make_metrics(
                self.statistics, self._meters, lambda: (len(self._sessions), capacity.envs)
            ),
            page=Page(self.board, access, self._ended, self._ssl_context is not None),
            url=lambda: self.url,
            connections=lambda: len(self._sessions),
            ending=lambda: None if self._ending is None else self._ending.reason,
        )

    @property
    def url(self) -> str:
        """The address to give to a client on this machine; its port is known once listening."""
        return self.urls()[0]

    def urls(self) -> list[str]:
        """Every address under which clients may reach this server, likeliest first."""
        return client_urls(self.host, self.port, "ws" if self._ssl_context is None else "wss")

    def serve(self) -> bool:
        """Block until the run ends; SIGINT and SIGTERM end it too, if this is the main thread.

        A second signal has its usual effect: the process ends without saving.

        Returns:
            True where the agent finished the run, False where it was told to stop.

        Raises:
            UsageError: The address cannot be listened on.
            Exception: What the agent raised, where it failed.
        """
        with stopped_by_signals(self.request_shutdown):
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
        watchdogs = [asyncio.create_task(watch) for watch in self._watches()]
        try:
            if self._on_listening is not None:
                self._on_listening(self)
            if self._requested is not None:
                self._end(self._requested)
            await self._ended.wait()
        finally:
            self._end(SHUTDOWN)  # where this task was cancelled
            for watchdog in watchdogs:
                watchdog.cancel()
            await self._finish(servers)
        if self._failure is not None:
            raise self._failure
        return self._ending is STOP

    def request_shutdown(self) -> None:
        """End the run as its operator (SPEC 8.14); from any thread, at any time.

        Learning that is under way ends first, and what a client had sent counts whose close was
        answered before.
        """
        self._request(SHUTDOWN)

    def request_stop(self) -> None:
        """End the run as finished (SPEC 8.1), from any thread, at any time."""
        self._request(STOP)

    def _request(self, ending: Closing) -> None:
        self._requested = self._requested or ending
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the run is over
                self._loop.call_soon_threadsafe(self._end_as_told, ending)

    def _end_as_told(self, ending: Closing) -> None:
        if self._ending is None:
            for session in self._sessions:
                # The WebSocket library answers a close before what came ahead of it is read.
                session.left = session.socket.state is not OPEN
        self._end(ending)

    async def process_request(
        self, connection: ServerConnection, request: HttpRequest
    ) -> Response | None:
        """Decide about a request before it is answered; None accepts it as a handshake."""
        return await self._door.answer(connection, request)

    async def _listen(self) -> list[Server]:
        servers = await listen(
            self._handle,
            self.host,
            self.port,
            compression=None,
            max_size=self._max_message_bytes,
            # Ours is in link.py: this one would close with a code that has another meaning here.
            ping_interval=None,
            open_timeout=_OPEN_SECONDS,
            # Frames; link.py has the tighter limit, to messages.
            max_queue=MOST_FRAMES,
            create_connection=Link,
            ssl=self._ssl_context,
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
        self._meters.connections += 1
        session = Session(cast(Link, socket), self._accepted, self._services)
        self._sessions.add(session)
        try:
            closing, delay = await self._converse(session)
            if closing is not None:
                self._begin_to_close(session, closing)
            session.closing = True
            leaving = asyncio.create_task(self._leave(session))
            if delay:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(socket.wait_closed(), delay)
            if closing is not None:
                await session.socket.shut(closing.code, closing.reason, self._close_timeout)
            await leaving
        finally:
            self._sessions.discard(session)

    async def _converse(self, session: Session) -> tuple[Closing | None, float]:
        """How to close, if the connection is still open, and after how many seconds."""
        if self._ending is not None:
            return self._ending, 0.0
        client = session.client
        try:
            # Others may have come in since this one was at the door.
            self._services.capacity.check_room(len(self._sessions) - 1)
            await session.converse()
        except Departed:
            pass
        except ConnectionClosed as error:
            if error.sent is not None and error.sent.code == _MESSAGE_TOO_BIG:
                logger.warning("%s: %s", client, error.sent.reason)
        except RunEnded:
            return self._ending, 0.0
        except RemoteProtocolError as error:
            return RESYNC, self._resync_delay(session, str(error))
        except Refusal as refusal:
            # 1008 ends a client for good, so it is only for those that told their spaces (8.18).
            if client.declaration is None:
                return RESYNC, self._resync_delay(session, str(refusal))
            logger.warning("%s refused: %s", client, refusal)
            return Closing.refusal(str(refusal)), 0.0
        except Full as full:
            logger.warning("%s: sent away: %s", client, full)
            return Closing.full(str(full)), 0.0
        except Exception:
            logger.exception("%s: unexpected error", client)
            return INTERNAL, 0.0
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
        session.log_departure(abandoned, run_over=self._ending is not None)

    def _watches(self) -> Iterator[Coroutine[Any, Any, None]]:
        """What goes on beside the connections, as long as the run."""
        yield self.board.record()
        feedback, silence = self._services.feedback_timeout, self._silence_timeout
        late = partial(self._give_up, TIMEOUT, f"no feedback for {feedback:g} s")
        yield watch_feedback(lambda: self._sessions, feedback, self._runner, late)
        if silence:
            gone = partial(self._give_up, SILENT, f"no sign of life for {silence:g} s")
            yield watch_silence(lambda: self._sessions, silence, gone)

    def _give_up(self, closing: Closing, why: str, session: Session) -> None:
        if not session.closing:
            logger.warning("%s: %s", session.client, why)
            self._close(session, closing)

    def _close(self, session: Session, closing: Closing) -> None:
        if not session.left:
            self._begin_to_close(session, closing)
        shut = session.socket.shut(closing.code, closing.reason, self._close_timeout)
        task = asyncio.create_task(shut)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _begin_to_close(self, session: Session, closing: Closing) -> None:
        if not session.closing:
            self._meters.closed[closing.kind] += 1
        session.closing = True

    def _on_agent_end(self, error: Exception | None) -> None:
        if error is not None:
            logger.error("the agent failed: %s: %s", type(error).__name__, error)
            self._failure = self._failure or error
        self._end(STOP if error is None else INTERNAL)

    def _end(self, ending: Closing) -> None:
        if self._ending is None:
            self._ending = ending
            self._runner.ended = True
            self._ended.set()
            logger.info("the run ends: %s", ending.reason)

    async def _finish(self, servers: list[Server]) -> None:
        assert self._ending is not None
        for session in self._sessions:
            self._close(session, self._ending)
        if self._sessions:
            await asyncio.wait([session.task for session in self._sessions])
        # The port is kept until all is saved: a client that comes meanwhile is told how the run
        # ended, and a new server cannot begin from files that are not complete.
        try:
            await self._runner.close()
        finally:
            for error in self.statistics.snapshot().book_errors:
                logger.error("the books do not balance: %s", error)
            await self.board.farewell()
            await shut(servers, _HANDSHAKE_SECONDS)


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


def _check_options(port: int, max_message_bytes: int | None) -> None:
    if not 0 <= port <= 65535:
        raise UsageError(f"port: expected 0 to 65535, got {port}")
    if max_message_bytes is not None and max_message_bytes < 1:
        raise UsageError(f"max_message_bytes: expected 1 or more, or None, got {max_message_bytes}")


def _make_metrics(
    statistics: RunStatistics, meters: Meters, levels: Callable[[], tuple[int, int]]
) -> Metrics | None:
    try:
        from plugrl_gym.server.metrics import Metrics
    except ImportError:  # prometheus-client is an extra
        return None
    return Metrics(statistics.snapshot, meters, levels)
