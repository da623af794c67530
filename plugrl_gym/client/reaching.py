"""What stands between a client and an open WebSocket: TLS, keys, and the ways to be turned away."""

from __future__ import annotations

import logging
import socket
import ssl
from typing import Final
from urllib.parse import urlsplit

from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI
from websockets.http11 import Response

from plugrl_gym.errors import (
    ConnectionFailed,
    ConnectTimeout,
    PlugRLError,
    ServerRefused,
    UsageError,
)
from plugrl_gym.protocol.addresses import is_loopback
from plugrl_gym.protocol.credentials import hide_key

__all__ = ["explain", "one_reason", "warn_of_plain_key", "websocket_logger"]

_log = logging.getLogger("plugrl_gym.client")
_warned: set[str] = set()
_MOST_SAID: Final = 300
_WRONG_HOST: Final = frozenset({62, 64})  # X509_V_ERR_HOSTNAME_MISMATCH, ..._IP_ADDRESS_MISMATCH
_EXPIRED: Final = 10  # X509_V_ERR_CERT_HAS_EXPIRED
# What OpenSSL says where plain text answers its hello.
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"})
_PROBE_SECONDS: Final = 2.0

#: For the WebSocket library, which logs the headers of a handshake when it debugs.
websocket_logger = logging.getLogger("plugrl_gym.client.websocket")
websocket_logger.addFilter(hide_key)


def warn_of_plain_key(url: str, api_key: str | None) -> None:
    """Say once for each server that its key can be read by whoever sees the network's packets."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if api_key is None or parts.scheme != "ws" or is_loopback(host) or parts.netloc in _warned:
        return
    _warned.add(parts.netloc)
    _log.warning(
        "the key for %s travels unencrypted, and so does everything else: use wss:// and a server "
        "with --tls-cert, or a tunnel (ssh -L)",
        parts.netloc,
    )


def explain(error: Exception, url: str, timeout: float) -> PlugRLError:
    """What it means that no WebSocket could be opened.

    Args:
        error: What the attempt raised.
        url: Where to.
        timeout: Its deadline, in seconds.

    Returns:
        ConnectTimeout where trying again may help, ConnectionFailed or ServerRefused where not,
        UsageError where the URL is none.
    """
    host = urlsplit(url).hostname
    if isinstance(error, InvalidURI):
        return UsageError(f"url: {error}")
    if isinstance(error, InvalidStatus):
        return _explain_status(url, error.response)
    if isinstance(error, socket.gaierror):
        return ConnectionFailed(
            f"{url}: the host name {host!r} does not resolve ({error.strerror}); check its spelling"
        )
    if isinstance(error, TimeoutError):
        return ConnectTimeout(f"{url}: no answer within {timeout:.0f} s")
    if isinstance(error, ConnectionRefusedError):
        return ConnectTimeout(f"{url}: nothing listens there (connection refused)")
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_certificate(url, error)
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return ConnectionFailed(f"{url}: what listens there speaks no TLS; use ws:// for wss://?")
    if isinstance(error, InvalidHandshake | EOFError | ConnectionResetError):
        return _explain_silence(url, error)
    return ConnectTimeout(f"{url}: {one_reason(error)}")


def _explain_silence(url: str, error: Exception) -> PlugRLError:
    """A connection was made, and then came nothing, or nothing that makes sense."""
    if urlsplit(url).scheme == "ws" and _speaks_tls(url):
        return ConnectionFailed(f"{url}: what listens there speaks TLS; use wss:// for ws://")
    if isinstance(error, ConnectionResetError) or isinstance(error.__cause__, EOFError):
        # A server that starts or ends just now, or what stands in for one that is down.
        return ConnectTimeout(f"{url}: the connection was closed before the handshake ended")
    return ConnectionFailed(
        f"{url}: what listens there speaks no WebSocket ({one_reason(error)}); is it a PlugRL "
        "server?"
    )


def _speaks_tls(url: str) -> bool:
    """Whether TLS would be answered; what speaks it closes on anything else without a word."""
    parts = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((parts.hostname, parts.port or 80), _PROBE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=parts.hostname),
        ):
            return True
    except (OSError, ValueError):
        return False


def _explain_status(url: str, response: Response) -> PlugRLError:
    status, said = response.status_code, _said(response)
    if status == 401:
        return ServerRefused(
            f"{url}: the server did not let this client in (HTTP 401{said}); set "
            "PLUGRL_API_KEY, or give --api-key-file FILE (in Python: api_key=)"
        )
    if status == 403:
        return ServerRefused(f"{url}: the server refused this client (HTTP 403{said})")
    if status in (502, 503, 504):
        return ConnectTimeout(f"{url}: the server takes in nobody now (HTTP {status}{said})")
    return ConnectionFailed(
        f"{url}: an HTTP server answered with status {status} instead of a WebSocket handshake; "
        "is it a PlugRL server?"
    )


def _said(response: Response) -> str:
    """The first line of a plain text answer, as the end of a sentence; empty for any other."""
    kind = next(iter(response.headers.get_all("Content-Type")), "")
    lines = bytes(response.body or b"").decode("utf-8", "replace").strip().splitlines()
    if not kind.startswith("text/plain") or not lines:
        return ""
    text = "".join(c if c.isprintable() else "?" for c in lines[0][:_MOST_SAID])
    return f": {text.rstrip('.')}"


def _explain_certificate(url: str, error: ssl.SSLCertVerificationError) -> PlugRLError:
    host, said = urlsplit(url).hostname, error.verify_message.rstrip(".")
    if error.verify_code in _WRONG_HOST:
        cure = f"call the server as its certificate does, or give it one for {host!r}"
    elif error.verify_code == _EXPIRED:
        cure = "give the server a new one"
    else:
        cure = "name that of its authority, or its own, with --ca-file FILE (in Python: ca_file=)"
    return ConnectionFailed(f"{url}: the server's certificate is not trusted ({said}): {cure}")


def one_reason(error: BaseException) -> str:
    """The error's first line, or its cause's, at a readable length."""
    text = str(error).strip() or type(error).__name__
    cause = error.__cause__ or error.__context__
    if isinstance(error, InvalidHandshake) and cause is not None and str(cause):
        text = f"{text}: {cause}"
    return text.splitlines()[0][:160]
