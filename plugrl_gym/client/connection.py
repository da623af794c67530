"""One connection to a server: a blocking WebSocket around the protocol's client side.

Every wait has a deadline and says what it waits for. An exchange that was interrupted, by a
deadline or by Ctrl-C, closes its connection: a late answer is never taken for the next one.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final, NoReturn, TypeVar, cast
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import connect

from plugrl_gym.client.heartbeat import Heartbeat, Listening, sever
from plugrl_gym.client.reaching import explain, one_reason, websocket_logger
from plugrl_gym.client.statistics import STAGES
from plugrl_gym.client.waiting import Waiting
from plugrl_gym.durations import check_seconds
from plugrl_gym.errors import (
    ConnectionLost,
    RemoteProtocolError,
    ReplyTimeout,
    RunFinished,
    ServerRefused,
    UsageError,
)
from plugrl_gym.latency import Latency
from plugrl_gym.protocol import Action, ClientProtocol, Feedback, Infer, Metadata
from plugrl_gym.protocol.addresses import is_loopback
from plugrl_gym.protocol.close import (
    REASON_FEEDBACK_TIMEOUT,
    REASON_INTERNAL,
    REASON_RESYNC,
    REASON_SHUTDOWN,
    REASON_STOP,
    CloseCode,
    fit_reason,
)
from plugrl_gym.protocol.credentials import authorization
from plugrl_gym.tls_socket import turn_taking

__all__ = ["NO_ROOM", "Connection", "Endpoint", "parse_url"]

T = TypeVar("T")

_log = logging.getLogger("plugrl_gym.client")
_MESSAGE_TOO_BIG: Final = 1009  # sent by WebSocket libraries (RFC 6455, 7.4.1)
_CLOSES: Final[dict[tuple[int, str], str]] = {
    (CloseCode.GOING_AWAY, REASON_RESYNC): "resync",
    (CloseCode.GOING_AWAY, REASON_FEEDBACK_TIMEOUT): "feedback timeout",
    (CloseCode.GOING_AWAY, REASON_SHUTDOWN): "server shutdown",
    (CloseCode.INTERNAL_ERROR, REASON_INTERNAL): "server error",
}
#: Why a connection was lost, where a full server closed it (SPEC 8.45).
NO_ROOM: Final = "no room"
_TICK: Final = 1.0


def parse_url(url: str) -> str:
    """A ``ws://`` or ``wss://`` URL from what a user types; ``host:port`` is ``ws://host:port``.

    Raises:
        UsageError: Another scheme, no host, or a user name or password, which would end up in logs.
    """
    if not isinstance(url, str) or not url:
        raise UsageError(f"url: expected ws://HOST:PORT, got {url!r}")
    full = url if "://" in url else f"ws://{url}"
    if "@" in full.partition("://")[2].partition("/")[0]:
        raise UsageError(
            "url: PlugRL has no user names and passwords, and a URL ends up in logs: leave out "
            "what is before the @; a key goes by --api-key-file FILE or PLUGRL_API_KEY (in "
            "Python: api_key=)"
        )
    try:
        parts = urlsplit(full)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")  # looking it up does the same, and would say less
    except ValueError as error:
        raise UsageError(f"url: expected ws://HOST:PORT, got {url!r} ({error})") from None
    if parts.scheme in ("http", "https"):
        cure = full.replace("http", "ws", 1)
        raise UsageError(f"url: PlugRL speaks WebSocket, not HTTP: use {cure} for {url!r}")
    if parts.scheme not in ("ws", "wss"):
        raise UsageError(f"url: expected ws:// or wss://, got {parts.scheme}:// in {url!r}")
    if not host:
        raise UsageError(f"url: no host in {url!r}; expected ws://HOST:PORT")
    if port is None and "://" not in url:
        full = f"{full.rstrip('/')}:8000"
    return full


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is, and how long to wait for it; all times in seconds.

    Attributes:
        url: ``ws://HOST:PORT``.
        api_key: Sent as ``Authorization: Api-Key <key>``; never logged.
        ssl_context: Checks the server's certificate; None for ``ws://``.
        connect_timeout: For a server to be reached at all; up to 2 s more where the last attempt
            is being answered.
        metadata_timeout: For a connected server to speak first.
        liveness_timeout: A server of which nothing comes for so long, not even the answer to a
            ping, counts as gone, also while the envs step or the caller does something else. One
            that learns for an hour and answers pings is waited for. None for servers that cannot
            answer while they learn.
        reply_timeout: For an answer in all, however alive the server is; None for no limit.
        close_timeout: For the closing handshake.
        on_wait: Called once a second while waiting, with the seconds waited and what for.
        stages: Gets the times of encode, exchange, wire and decode.

    Raises:
        UsageError: A time is negative, a NaN or no number, or zero where that is no limit.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)
    connect_timeout: float = 30.0
    metadata_timeout: float = 20.0
    liveness_timeout: float | None = 60.0
    reply_timeout: float | None = None
    close_timeout: float = 2.0
    on_wait: Callable[[float, str], None] = field(default_factory=Waiting)
    stages: Latency = field(default_factory=lambda: Latency(STAGES), compare=False, repr=False)

    def __post_init__(self) -> None:
        check_seconds(connect_timeout=self.connect_timeout, close_timeout=self.close_timeout)
        check_seconds(metadata_timeout=self.metadata_timeout, positive=True)
        check_seconds(
            liveness_timeout=self.liveness_timeout,
            reply_timeout=self.reply_timeout,
            positive=True,
            none=True,
        )


class Connection:
    """An open connection; the metadata has been read.

    Args:
        endpoint: Where to connect; one attempt is made, within ``timeout`` seconds.
        timeout: For the TCP connection and the WebSocket handshake.

    Raises:
        ConnectTimeout: Nothing listens there, or it did not answer: trying again may help.
        ConnectionFailed: The name does not resolve, or what listens speaks no WebSocket.
        RemoteProtocolError: It speaks WebSocket, but not PlugRL.
        ServerRefused: The server refused the handshake (HTTP 401 or 403), or said 1008 or 1009.
        RunFinished: The server closed with its stop reason at once.
    """

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self._endpoint = endpoint
        self._protocol = ClientProtocol()
        self._stack = contextlib.ExitStack()
        self._heartbeat: Heartbeat | None = None
        self._sending = False
        self._socket = self._open(timeout)
        try:
            frame = self._receive("the server's metadata", endpoint.metadata_timeout)
            self.metadata: Metadata = self._protocol.receive_metadata(frame)
            _log.debug("connected to %s: %s", endpoint.url, _describe(self.metadata))
        except RemoteProtocolError as error:
            self.abort(CloseCode.PROTOCOL_ERROR, str(error))
            raise RemoteProtocolError(
                f"{endpoint.url} is not a PlugRL version 1 server: {error}{_openpi_hint(error)}"
            ) from None
        except BaseException:
            self.abort()
            raise
        if endpoint.liveness_timeout is not None:
            self._heartbeat = Heartbeat(self._socket, endpoint.liveness_timeout)

    def _open(self, timeout: float) -> Listening:
        endpoint = self._endpoint
        headers = None
        if endpoint.api_key is not None:
            headers = {"Authorization": authorization(endpoint.api_key)}
        try:
            # Entered as a context manager: websockets 17 deprecates any other use.
            opened = self._stack.enter_context(
                connect(
                    endpoint.url,
                    create_connection=Listening,
                    ssl=turn_taking(endpoint.ssl_context),
                    compression=None,
                    max_size=None,
                    open_timeout=timeout,
                    ping_interval=None,
                    close_timeout=endpoint.close_timeout,
                    additional_headers=headers,
                    proxy=None if is_loopback(urlsplit(endpoint.url).hostname or "") else True,
                    logger=websocket_logger,
                )
            )
            return cast(Listening, opened)
        except (OSError, EOFError, WebSocketException) as error:
            raise explain(error, endpoint.url, timeout) from None

    @property
    def features(self) -> tuple[str, ...]:
        """The optional features that the server offers."""
        return self.metadata.features

    def infer(self, infer: Infer, accept: Callable[[Action], T]) -> T:
        """Ask for actions and wait for them.

        Args:
            infer: The request.
            accept: Turns the answer into what the caller wants; it may raise
                RemoteProtocolError.

        Raises:
            LocalProtocolError: The request may not be sent; the connection is as before.
            RemoteProtocolError: The answer breaks the protocol; the connection is closed.
            ReplyTimeout: No answer in time; the connection is closed.
            ConnectionLost, ServerRefused, RunFinished: The server closed it.
        """
        stages, began = self._endpoint.stages, time.perf_counter()
        frame = self._protocol.send_infer(infer)
        encoded = time.perf_counter()
        try:
            self._send(frame)
            reply = self._receive("the server", self._endpoint.reply_timeout)
            arrived = time.perf_counter()
            accepted = accept(self._protocol.receive_action(reply))
            stages["encode"].observe(encoded - began)
            stages["exchange"].observe(arrived - encoded)
            stages["decode"].observe(time.perf_counter() - arrived)
            if self._heartbeat is not None:
                self._heartbeat.measure(stages["wire"])
            return accepted
        except RemoteProtocolError as error:
            self.abort(CloseCode.PROTOCOL_ERROR, str(error))
            raise
        except KeyboardInterrupt:
            # Done before the answer came (SPEC 8.36). Amid a frame no other can be sent.
            self.abort(None if self._sending else CloseCode.NORMAL)
            raise
        except BaseException:
            self.abort()
            raise

    def feedback(self, feedback: Feedback) -> None:
        """Report finished chunks; there is no answer.

        Raises:
            LocalProtocolError: It may not be sent; the connection is as before.
            ConnectionLost, ServerRefused, RunFinished: The server has closed it.
        """
        began = time.perf_counter()
        frame = self._protocol.send_feedback(feedback)
        self._endpoint.stages["encode"].hold(time.perf_counter() - began)
        try:
            self._send(frame)
        except BaseException:
            self.abort()
            raise

    def close(self) -> None:
        """Close with code 1000 and wait for the server's close frame, for a bounded time."""
        self.abort(CloseCode.NORMAL)

    def abort(self, code: CloseCode | None = None, reason: str = "") -> None:
        """Close at once: with a close frame if ``code`` is given, without where it is None."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        with contextlib.suppress(OSError, WebSocketException):
            if code is not None:
                self._socket.close(code, fit_reason(reason))
            else:
                sever(self._socket)
                self._socket.close_socket()
        with contextlib.suppress(OSError, WebSocketException):
            self._stack.close()

    def _send(self, frame: bytes) -> None:
        self._sending = True
        try:
            with self._heartbeat.sending(len(frame)) if self._heartbeat else nullcontext():
                self._socket.send(frame)
            self._sending = False
        except ConnectionClosed as closed:
            self._raise_closed(closed)
        except OSError as error:
            raise ConnectionLost(f"{self._endpoint.url}: {one_reason(error)}") from None

    def _receive(self, what: str, limit: float | None) -> bytes | str:
        started = time.monotonic()
        while True:
            now = time.monotonic()
            if limit is not None and now - started >= limit:
                raise ReplyTimeout(
                    f"{self._endpoint.url}: waited {now - started:.0f} s for {what}, "
                    f"the limit is {limit:.0f} s"
                )
            tick = _TICK if limit is None else min(_TICK, started + limit - now)
            try:
                return self._socket.recv(timeout=max(tick, 0.001))
            except TimeoutError:
                pass
            except ConnectionClosed as closed:
                self._raise_closed(closed)
            self._endpoint.on_wait(time.monotonic() - started, what)

    def _raise_closed(self, closed: ConnectionClosed) -> NoReturn:
        url, frame = self._endpoint.url, closed.rcvd
        if self._heartbeat is not None and self._heartbeat.gone is not None:
            raise ConnectionLost(
                f"{url}: the server has shown no sign of life for {self._heartbeat.gone:.0f} s",
                "no sign of life",
            ) from None
        if frame is None:
            raise ConnectionLost(f"{url}: the connection broke without a close frame") from None
        if frame.code == CloseCode.GOING_AWAY and frame.reason == REASON_STOP:
            raise RunFinished("the server ended the run") from None
        if frame.code == CloseCode.POLICY_VIOLATION:
            raise ServerRefused(frame.reason or "the server refused this client") from None
        if frame.code == _MESSAGE_TOO_BIG:
            raise ServerRefused(
                f"{url}: the server has a limit to the size of messages (--max-message-mb), and "
                f"one of ours is larger: {frame.reason or '(it does not say how large)'}"
            ) from None
        why = _CLOSES.get((frame.code, frame.reason), f"close {frame.code}")
        raise ConnectionLost(
            f"{url}: the server closed the connection: {frame.code} "
            f"{frame.reason or '(no reason given)'}",
            NO_ROOM if frame.code == CloseCode.TRY_AGAIN_LATER else why,
        ) from None


def _describe(metadata: Metadata) -> str:
    name = f"{metadata.server or 'a server'} {metadata.server_version or ''}".strip()
    return f"{name} with {', '.join(metadata.features) or 'no optional features'}"


def _openpi_hint(error: RemoteProtocolError) -> str:
    if "without message_type" in str(error):
        return " (an openpi policy server begins so; it learns nothing and takes no feedback)"
    return ""
