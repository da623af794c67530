"""What a request is answered before any WebSocket is open: the HTTP side of a server's port.

``/healthz`` and ``/readyz`` are for whatever watches over processes, and ask for no key; nor do the
scripts and styles of the page, which tell nothing of a run. Everything else passes
:class:`~plugrl_gym.server.access.Access` first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from plugrl_gym.server.access import Access, Denial
from plugrl_gym.server.capacity import Capacity, Full
from plugrl_gym.server.meters import Meters
from plugrl_gym.server.page.routes import Page
from plugrl_gym.server.session import Warnings

if TYPE_CHECKING:
    from plugrl_gym.server.metrics import Metrics

__all__ = ["Door"]

_NO_METRICS: Final = (
    "This server has no metrics, for the package prometheus-client is not installed beside it: "
    'pip install "plugrl-gym[metrics]"\n'
)


@dataclass(frozen=True, slots=True)
class Door:
    """Answers each request that reaches the port.

    Attributes:
        access: Who may come in.
        capacity: Whether there is room.
        meters: Counts who was refused.
        warnings: For the server's log.
        metrics: None where prometheus-client is not installed.
        page: For browsers.
        url: Where clients should go, where a request does not tell.
        connections: How many are open.
        ending: Why the run is ending; None while it is not.
    """

    access: Access
    capacity: Capacity
    meters: Meters
    warnings: Warnings
    metrics: Metrics | None
    page: Page
    url: Callable[[], str]
    connections: Callable[[], int]
    ending: Callable[[], str | None]

    async def answer(self, connection: ServerConnection, request: Request) -> Response | None:
        """The answer to a request; None where it is a handshake that is accepted."""
        if "websocket" in ",".join(request.headers.get_all("Upgrade")).lower():
            denial = self.access.deny(request.headers) or self._full()
            return None if denial is None else self._refuse(connection, denial)
        return await self._visit(connection, request, request.path.partition("?")[0])

    async def _visit(self, connection: ServerConnection, request: Request, path: str) -> Response:
        """The answer to a request that is no handshake."""
        if path == "/healthz":
            return connection.respond(HTTPStatus.OK, "alive\n")
        if path == "/readyz":
            return self._readiness(connection)
        asset = self.page.asset(connection, path)
        if asset is not None:
            return asset
        if path == "/login":  # a cookie would prolong itself
            denial = self.access.deny(request.headers)
            return self._refuse(connection, denial) if denial else self.page.welcome(connection)
        own = self.page.answers(request, path)
        denial = self.access.deny_visitor(request.headers, browser=own)
        if denial is None and own:
            return await self.page.answer(connection, request, path)
        if denial is None:
            return self._plain(connection, request, path)
        if denial.status is HTTPStatus.UNAUTHORIZED and own and path == "/":
            return self.page.form(connection)
        return self._refuse(connection, denial)

    def _readiness(self, connection: ServerConnection) -> Response:
        ending = self.ending()
        if ending is None:
            return connection.respond(HTTPStatus.OK, "ready\n")
        return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, f"ending: {ending}\n")

    def _full(self) -> Denial | None:
        # While the run ends a client is let in to be told so by a close (SPEC 8.1, 8.14).
        if self.ending() is not None:
            return None
        try:
            self.capacity.check_room(self.connections())
        except Full as full:
            return Denial(HTTPStatus.SERVICE_UNAVAILABLE, str(full))
        return None

    def _refuse(self, connection: ServerConnection, denial: Denial) -> Response:
        status, text = denial
        self.meters.denied[str(status.value)] += 1
        address = connection.remote_address
        peer = address[0] if isinstance(address, tuple) else address
        self.warnings.warn(f"denied {status}", f"{peer}: refused, HTTP {status.value}: {text}")
        response = connection.respond(status, f"{text}\n")
        if status is HTTPStatus.UNAUTHORIZED:
            response.headers["WWW-Authenticate"] = "Api-Key"
        elif status is HTTPStatus.SERVICE_UNAVAILABLE:
            response.headers["Retry-After"] = "5"
        return response

    def _plain(self, connection: ServerConnection, request: Request, path: str) -> Response:
        if path == "/metrics":
            if self.metrics is None:
                return connection.respond(HTTPStatus.NOT_IMPLEMENTED, _NO_METRICS)
            response = connection.respond(HTTPStatus.OK, self.metrics.render().decode())
            del response.headers["Content-Type"]
            response.headers["Content-Type"] = self.metrics.content_type
            return response
        address = self._address(request)
        text = (
            "This is a PlugRL server. It speaks the PlugRL protocol over WebSocket; point a client "
            f"at {address} and a browser at http{address.removeprefix('ws')}/\n"
        )
        if path != "/":
            return connection.respond(HTTPStatus.NOT_FOUND, f"Nothing is here. {text}")
        response = connection.respond(HTTPStatus.UPGRADE_REQUIRED, text)
        response.headers["Upgrade"] = "websocket"
        return response

    def _address(self, request: Request) -> str:
        url = self.url()
        host = next(iter(request.headers.get_all("Host")), None)
        return f"{url.partition('://')[0]}://{host}" if host else url
