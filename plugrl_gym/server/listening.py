"""Sockets and addresses: what happens before a request is read (SPEC 2)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

from websockets.asyncio.server import Server, ServerConnection, serve

from plugrl_gym.errors import UsageError
from plugrl_gym.protocol.credentials import hide_key

__all__ = ["check_address", "client_urls", "keep_alive", "listen", "quiet_logger", "shut"]

_BOTH: Final = {
    "localhost": ("127.0.0.1", "::1"),
    "::": ("::", "0.0.0.0"),
    "": ("0.0.0.0", "::"),
}
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::", ""})
_NO_SUCH_ADDRESS: Final = frozenset(
    {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, None}
)
_ATTEMPTS: Final = 10

# A dead peer is noticed after a minute: 30 s of silence and three probes (SPEC 2.15).
_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPALIVE", 30),  # macOS' name for TCP_KEEPIDLE
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
)


async def listen(
    handler: Callable[[ServerConnection], Awaitable[None]],
    host: str,
    port: int,
    **options: Any,
) -> list[Server]:
    """Open every address that ``host`` stands for, all on one port.

    ``localhost`` is 127.0.0.1 and ::1, whichever a client tries first; ``::`` is both families.

    Args:
        handler: Runs each connection.
        host: An address or name of this machine.
        port: 0 takes any free one.
        **options: For ``websockets.asyncio.server.serve``.

    Raises:
        UsageError: The port is taken or not permitted, or ``host`` is not of this machine.
    """
    _check_name(host, port)
    for attempt in range(_ATTEMPTS):
        try:
            return await _listen_once(handler, host, port, options)
        except OSError as error:
            # A free port of one family may be taken in the other: then try another.
            if port == 0 and error.errno == errno.EADDRINUSE and attempt < _ATTEMPTS - 1:
                continue
            raise UsageError(_explain(error, host, port)) from error
    raise AssertionError("the last attempt returns or raises")


async def _listen_once(
    handler: Callable[[ServerConnection], Awaitable[None]],
    host: str,
    port: int,
    options: dict[str, Any],
) -> list[Server]:
    servers: list[Server] = []
    refusal: OSError | None = None
    for address in _BOTH.get(host, (host,)):
        try:
            server = await serve(handler, address, port, **options)
        except OSError as error:
            if _is_no_address(error):
                refusal = refusal or error  # a machine without one of the two families
                continue
            for opened in servers:
                opened.close()
                await opened.wait_closed()
            raise
        servers.append(server)
        port = server.sockets[0].getsockname()[1]
    if not servers:
        assert refusal is not None
        raise refusal
    return servers


def check_address(host: str, port: int) -> None:
    """Find out whether :func:`listen` can open an address, before anything that takes time.

    Raises:
        UsageError: As of :func:`listen`.
    """
    _check_name(host, port)
    refusal: OSError | None = None
    for address in _BOTH.get(host, (host,)):
        try:
            found = socket.getaddrinfo(address or None, port, type=socket.SOCK_STREAM)
            for family, kind, protocol, _, place in found:
                with socket.socket(family, kind, protocol) as probe:
                    if os.name == "posix":  # as asyncio does; elsewhere it means something else
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(place)
            return
        except OSError as error:
            if not _is_no_address(error):
                raise UsageError(_explain(error, host, port)) from error
            refusal = refusal or error
    assert refusal is not None
    raise UsageError(_explain(refusal, host, port)) from refusal


def _check_name(host: str, port: int) -> None:
    try:
        host.encode("idna")  # as getaddrinfo does, whose error this would be
    except UnicodeError as error:
        raise UsageError(_explain(OSError(), host, port)) from error


def _is_no_address(error: OSError) -> bool:
    return error.errno in _NO_SUCH_ADDRESS or isinstance(error, socket.gaierror)


async def shut(servers: list[Server], patience: float) -> None:
    """Close the ports; handshakes that are under way get ``patience`` seconds to be refused."""
    for server in servers:
        server.close(close_connections=False)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience):
            for server in servers:
                await server.wait_closed()


def _explain(error: OSError, host: str, port: int) -> str:
    # Windows reports a port that it reserves as WSAEACCES, which Python maps to EACCES.
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is in use: stop the program that has it, or choose another "
            "port (0 takes any free one)"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"listening on port {port} of {host} is not permitted: choose a port above 1023 "
            "(0 takes any free one)"
        )
    return (
        f"cannot listen on {host}, port {port}, for it is no address of this machine: use "
        "127.0.0.1 for clients on this machine, 0.0.0.0 for all others too"
    )


def client_urls(host: str, port: int, scheme: str = "ws") -> list[str]:
    """The addresses under which a client may reach ``host``, likeliest first.

    For 0.0.0.0 and :: these are the loopback address and the one of the default route.
    """
    if host not in _EVERYWHERE:
        return [f"{scheme}://{_bracketed(host)}:{port}"]
    hosts: list[str] = []
    for wildcard in _BOTH.get(host, (host,)):
        family = socket.AF_INET6 if ":" in wildcard else socket.AF_INET
        hosts += ["::1" if family == socket.AF_INET6 else "127.0.0.1", *_outward(family)]
    return [f"{scheme}://{_bracketed(name)}:{port}" for name in dict.fromkeys(hosts)]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _outward(family: socket.AddressFamily) -> list[str]:
    """This machine's address on the default route; connecting a UDP socket sends nothing."""
    with (
        contextlib.suppress(OSError),
        socket.socket(family, socket.SOCK_DGRAM) as probe,
    ):
        probe.connect(("2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1", 9))
        return [probe.getsockname()[0]]
    return []


def keep_alive(connection: ServerConnection) -> None:
    """Let the kernel find a dead peer, for WebSocket pings may not (SPEC 2.15)."""
    sock = connection.transport.get_extra_info("socket")
    if sock is None:
        return
    # Some platforms lack some of the options; without them their own defaults hold.
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class _OneLine(logging.Filter):
    """Makes of each failed handshake (a port scan, ``nc -z``) one quiet line, not a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.INFO and "handshake failed" not in record.getMessage():
            return True
        if record.exc_info and record.exc_info[1] is not None:
            record.msg, record.args = f"{record.getMessage()}: {record.exc_info[1]}", ()
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


quiet_logger = logging.getLogger("plugrl_gym.server.websocket")
quiet_logger.addFilter(hide_key)
quiet_logger.addFilter(_OneLine())
