"""Who may come in, decided by the headers of a request alone (SPEC 2.11 to 2.13, 2.16).

Three gates, in this order: the key; the header ``Host``, which shows a web page that has a name of
its own resolve to this machine (DNS rebinding); the header ``Origin``, by which browsers tell the
page that asks.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from websockets.datastructures import Headers

from plugrl_gym.errors import UsageError
from plugrl_gym.protocol.addresses import is_loopback, parse_address
from plugrl_gym.protocol.credentials import KeyLock, check_key
from plugrl_gym.server.cookies import CookieLock

__all__ = ["Access", "Denial"]

_PLACE: Final = re.compile(r"[A-Za-z0-9._:\[\]-]+")
_DEFAULT_PORTS: Final = {"http": 80, "ws": 80, "https": 443, "wss": 443}


class Denial(NamedTuple):
    """Why somebody may not come in.

    Attributes:
        status: Of the HTTP answer.
        text: Its body; one sentence, which may quote the request.
    """

    status: HTTPStatus
    text: str


class Access:
    """Holds every request against what this server's operator allows.

    Args:
        host: What the server listens on.
        api_key: What a client must send (SPEC 2.12); None to want no key.
        insecure: Whether machines other than this one may come in without a key.
        allowed_hosts: Names and addresses, besides ``host``, under which clients reach the server:
            those of a proxy, say.

    Raises:
        UsageError: Other machines could come in without a key and nobody asked for that, the key
            cannot travel in a header, or an allowed host is none.
    """

    def __init__(
        self,
        host: str,
        api_key: str | None = None,
        *,
        insecure: bool = False,
        allowed_hosts: Sequence[str] = (),
    ) -> None:
        self._host = host
        self._loopback = is_loopback(host)
        self._lock = None if api_key is None else KeyLock(check_key(api_key))
        self._cookies = None if api_key is None else CookieLock(api_key)
        self._names = {host.lower(), *map(_plain_name, allowed_hosts)}
        self._allowed = self._names - {host.lower()}
        if not (self._loopback or insecure or self._lock):
            raise UsageError(
                f"listening on {host or 'every address'} lets other machines in, which needs a "
                "key: set PLUGRL_API_KEY, or give --api-key-file FILE (in Python: api_key=), or "
                "say --insecure (insecure=True) to let in everybody who reaches the port"
            )

    def deny(self, headers: Headers) -> Denial | None:
        """Why a handshake with these headers is refused; None where it may come in."""
        return self._wrong_key(headers) or self._foreign(headers)

    def deny_visitor(self, headers: Headers, *, browser: bool) -> Denial | None:
        """Why a request for something to read is refused, which a cookie opens, too.

        Args:
            headers: Of the request.
            browser: Whether it is for the page. A browser says which page asks only where that is
                of another origin, and a page whose name was made to resolve to this server is not.
        """
        foreign = self._foreign(headers) or (self._doubtful_name(headers) if browser else None)
        return foreign or (None if self._has_cookie(headers) else self._wrong_key(headers))

    def cookie(self, secure: bool) -> str | None:
        """``Set-Cookie`` for somebody who has shown the key; None where no key is wanted.

        Args:
            secure: Whether a browser may send it over TLS only.
        """
        return None if self._cookies is None else self._cookies.issue(time.time(), secure)

    def _has_cookie(self, headers: Headers) -> bool:
        given = "; ".join(headers.get_all("Cookie"))
        return self._cookies is not None and self._cookies.opens(given, time.time())

    def _foreign(self, headers: Headers) -> Denial | None:
        return self._foreign_host(headers) or self._foreign_page(headers)

    def _wrong_key(self, headers: Headers) -> Denial | None:
        if self._lock is None:
            return None
        given = headers.get_all("Authorization")
        if len(given) == 1 and self._lock.opens(given[0]):
            return None
        found = "the key of this client is not the server's" if given else "this client sent no key"
        return Denial(HTTPStatus.UNAUTHORIZED, f"This PlugRL server wants a key, and {found}.")

    def _foreign_host(self, headers: Headers) -> Denial | None:
        called = self._called(headers) if self._loopback else None
        if called is None:
            return None
        told, name = called
        return Denial(
            HTTPStatus.FORBIDDEN,
            f"This PlugRL server listens on {self._host} for this machine only, and the client "
            f"calls it {told!r} (header Host); if that is right, start the server with "
            f"--allow-host {name or 'NAME'}.",
        )

    def _called(self, headers: Headers) -> tuple[str, str | None] | None:
        """How the client calls this server, as sent and as one name; None where that is fine."""
        given = headers.get_all("Host")
        if not given:  # every browser sends one (RFC 9112, 3.2)
            return None
        name = _name_and_port(given[0])[0] if len(given) == 1 else None
        if name is not None and self._is_ours(name):
            return None
        return " and ".join(given)[:80], name

    def _doubtful_name(self, headers: Headers) -> Denial | None:
        called = self._called(headers) if self._lock is None else None
        if called is None:
            return None
        told, name = called
        return Denial(
            HTTPStatus.FORBIDDEN,
            "This PlugRL server wants no key, so it shows its page only under names that nobody "
            f"else can have, and the browser calls it {told!r} (header Host); use its address, or "
            f"start it with --allow-host {name or 'NAME'} or with a key.",
        )

    def _foreign_page(self, headers: Headers) -> Denial | None:
        given = headers.get_all("Origin")
        if not given:
            return None
        if len(given) == 1 and self._is_own_origin(given[0], headers.get_all("Host")):
            return None
        told = " and ".join(given)[:80]
        return Denial(
            HTTPStatus.FORBIDDEN,
            f"This PlugRL server does not serve web pages of other servers, and the client says "
            f"that it is a page of {told!r} (header Origin); if that is right, start the server "
            "with --allow-host and the name of that page's host.",
        )

    def _is_own_origin(self, origin: str, hosts: Sequence[str]) -> bool:
        scheme, _, place = origin.partition("://")
        name, port = _name_and_port(place)
        if name is None or scheme.lower() not in _DEFAULT_PORTS or len(hosts) != 1:
            return False
        if name in self._allowed:
            return True
        default = _DEFAULT_PORTS[scheme.lower()]
        own, own_port = _name_and_port(hosts[0])
        if (own, own_port or default) != (name, port or default):
            return False
        # A page whose name was made to resolve to this server is its own origin, too. It knows no
        # key; where none is wanted, only names are trusted that nobody else can have.
        return self._lock is not None or self._is_ours(name)

    def _is_ours(self, name: str) -> bool:
        """Whether ``name`` can only mean this server."""
        if name in self._names or is_loopback(name):
            return True
        if self._loopback:
            return False
        return parse_address(name) is not None or name == socket.gethostname().lower()


def _plain_name(host: str) -> str:
    """A name or address as :func:`_name_and_port` gives it; a port is left out."""
    bare = host.lower().strip("[]")
    name = bare if parse_address(bare) else _name_and_port(host)[0]
    if not name:
        raise UsageError(f"allow-host: expected a name or an address, as proxy.lan, got {host!r}")
    return name


def _name_and_port(place: str) -> tuple[str | None, int | None]:
    """The two parts of ``HOST:PORT``, lower-case and without brackets; no name where it is none."""
    if not _PLACE.fullmatch(place):
        return None, None
    try:
        parts = urlsplit(f"//{place}")
        name, port = parts.hostname, parts.port
    except ValueError:
        return None, None
    return (None if name is None else name.rstrip(".")), port
