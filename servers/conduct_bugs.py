"""Deliberate mistakes of reference_server.py in its dealings with clients (SPEC 5 to 9)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from reference_server import Bug, Connection, Malformed, pack
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

LOST: Final[set[int]] = set()  # what clients held that broke off
ABRUPT: Final = 1006


def babble(socket: ServerConnection) -> None:
    """Send bytes that are no WebSocket frame."""
    socket.transport.write(b"\xff\xff\xff\xff")


def forbid(socket: ServerConnection, request: Request) -> Response | None:
    """HTTP 403, where 401 is due."""
    keyed = request.headers.get("Authorization") == "Api-Key secret"
    return None if keyed else socket.respond(HTTPStatus.FORBIDDEN, "no\n")


def remember(connection: Connection) -> None:
    """Keep what a lost client held."""
    if connection.socket.close_code == ABRUPT:
        LOST.update(connection.holding)


def take_along(connection: Connection) -> None:
    """Drop everybody when a connection breaks."""
    if connection.socket.close_code == ABRUPT:
        for other in connection.server.connections:
            other.socket.transport.abort()


def everybody(connection: Connection, envs: list[int]) -> list[int]:
    """The envs of this infer, and of everybody else's last."""
    asked = [env for other in connection.server.connections for env in other.envs]
    return sorted({*envs, *asked})


def forgot_reuse(connection: Connection, message: dict[str, Any], envs: list[int]) -> bool:
    """Whether reuse was used before and is not now."""
    before, connection.reused = getattr(connection, "reused", False), "reuse" in message  # type: ignore[attr-defined]
    return bool(before) and "reuse" not in message


async def fail(connection: Connection, error: Malformed) -> None:
    """Let an exception escape."""
    if error.kind == "unsplittable-info":
        raise RuntimeError("an info that cannot be split")


async def confess(connection: Connection, error: Malformed) -> None:
    """Show a traceback to the client."""
    if error.kind == "unsplittable-info":
        await connection.socket.close(
            1011, 'Traceback (most recent call last):\n  File "server.py"'
        )


def without_version(message: dict[str, Any]) -> list[str | bytes]:
    """Metadata without protocol_version."""
    data = {key: value for key, value in message["data"].items() if key != "protocol_version"}
    return [pack(message | {"data": data})]


BUGS: Final = {
    "no-frames": Bug(what="sends bytes that are no WebSocket frame", on_connect=babble),
    "forbids-keyless": Bug(
        what="needs the API key 'secret' and answers others with 403",
        serving={"process_request": forbid},
    ),
    "impatient-keepalive": Bug(
        what="drops clients that leave a ping unanswered for two seconds and a half",
        serving={"ping_interval": 0.2, "ping_timeout": 2.5},
    ),
    "no-version": Bug(what="declares no protocol_version", greeting=without_version),
    "version-2": Bug(what="declares version 2", metadata={"protocol_version": 2}),
    "dies-on-held-env": Bug(
        what="closes with 1011 on an infer for an env that holds an action",
        refuses_infer=lambda c, m, envs: bool(c.holding & set(envs)) and 1 / 0 > 0,
    ),
    "dies-on-misfit": Bug(
        what="closes with 1011 on an undeclared observation without states.obs",
        refuses_infer=lambda c, m, envs: not c.declared and m["data"]["states"]["obs"] is None,
    ),
    "merges-rows": Bug(what="answers with the rows of all connections", rows=everybody),
    "spoiled-by-departures": Bug(
        what="one connection that breaks takes all others along",
        on_end=take_along,
    ),
    "keeps-lost-envs": Bug(
        what="refuses envs that a lost connection held",
        on_end=remember,
        refuses_infer=lambda c, m, envs: bool(LOST & set(envs)),
    ),
    "no-patience": Bug(
        what="closes at once however often a client was broken",
        never=frozenset({"patience"}),
    ),
    "dies-on-info": Bug(what="closes with a bare 1011 on a bad info", on_error=fail),
    "leaks-traceback": Bug(what="closes with a traceback on a bad info", on_error=confess),
    "sticky-reuse": Bug(
        what="refuses an infer without reuse after one with it",
        refuses_infer=forgot_reuse,
    ),
}
