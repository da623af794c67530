"""The page's part of the HTTP side: documents, data, images, and the key for a cookie."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from plugrl_gym.server.access import Access
from plugrl_gym.server.page.board import Board
from plugrl_gym.server.page.camera import png, visible
from plugrl_gym.server.page.files import ASSETS, FORM, PAGE, contents

__all__ = ["Page"]

_HTML: Final = "text/html; charset=utf-8"
# Nothing from elsewhere, nothing inline, in nobody's frame; and no other site may embed any of it.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# So long a question for news is held. The end of the run, and then of the server, is told at once.
_HELD_SECONDS: Final = 1.0


def _from_browser(request: Request) -> bool:
    """Whether a browser asks for a document, rather than curl or a script."""
    return "text/html" in ",".join(request.headers.get_all("Accept")).lower()


@dataclass(frozen=True, slots=True)
class Page:
    """Answers what a browser asks for.

    Attributes:
        board: What there is to see.
        access: Gives out cookies.
        ended: Set when the run ends.
        secure: Whether this server speaks TLS.
    """

    board: Board
    access: Access
    ended: asyncio.Event
    secure: bool

    def asset(self, connection: ServerConnection, path: str) -> Response | None:
        """A file that everybody may have; None where ``path`` is none."""
        if path not in ASSETS:
            return None
        name, media_type = ASSETS[path]
        return _answer(connection, contents(name), media_type)

    def form(self, connection: ServerConnection) -> Response:
        """The form that asks for the key, and nothing else."""
        return _answer(connection, contents(FORM), _HTML, HTTPStatus.UNAUTHORIZED)

    def answers(self, request: Request, path: str) -> bool:
        """Whether a request is for the page; at ``/`` others than browsers get a sentence."""
        return path in ("/status.json", "/camera.png") or (path == "/" and _from_browser(request))

    async def answer(self, connection: ServerConnection, request: Request, path: str) -> Response:
        """What somebody gets who may come in, where :meth:`answers` holds."""
        if path == "/status.json":
            return await self._status(connection, hold=request.path.endswith("?wait"))
        if path == "/camera.png":
            return await self._image(connection)
        return _answer(connection, contents(PAGE), _HTML)

    async def _status(self, connection: ServerConnection, hold: bool) -> Response:
        self.board.camera.watch()
        if hold:
            self.board.expect_more()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), _HELD_SECONDS)
        text = json.dumps(self.board.status(), allow_nan=False, separators=(",", ":"))
        return _answer(connection, text.encode(), "application/json")

    async def _image(self, connection: ServerConnection) -> Response:
        sight = self.board.camera.newest
        if sight is None:
            text = b"No image has come since somebody began to watch.\n"
            return _answer(connection, text, "text/plain; charset=utf-8", HTTPStatus.NOT_FOUND)
        # In a thread: a large image takes milliseconds, in which the loop serves clients.
        image = await asyncio.to_thread(lambda: png(visible(sight.image)))
        return _answer(connection, image, "image/png")

    def welcome(self, connection: ServerConnection) -> Response:
        """The answer to somebody who has shown the key: a cookie, where one is wanted."""
        response = _answer(connection, b"", "text/plain; charset=utf-8", HTTPStatus.NO_CONTENT)
        cookie = self.access.cookie(self.secure)
        if cookie is not None:
            response.headers["Set-Cookie"] = cookie
        return response


def _answer(
    connection: ServerConnection,
    body: bytes,
    media_type: str,
    status: HTTPStatus = HTTPStatus.OK,
) -> Response:
    response = connection.respond(status, "")
    response.body = body
    own = {"Content-Type": media_type, "Content-Length": str(len(body))}
    for name in own:
        del response.headers[name]
    response.headers.update({**own, **_HEADERS})
    return response
