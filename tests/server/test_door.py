"""Plain HTTP on the port of the WebSocket: for people, probes and Prometheus."""

from __future__ import annotations

import contextlib
import http.client
import logging
import socket
import ssl
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from plugrl_gym.protocol.close import REASON_SHUTDOWN
from plugrl_gym.server import app
from tests.support.raw_client import DEADLINE, raw_client
from tests.support.serving import FakeAgent, running

KEY = "a-key-that-nobody-guesses"


def get(
    port: int, path: str, method: str = "GET", **headers: str
) -> tuple[int, str, http.client.HTTPMessage]:
    """What a browser gets: the status, the body and the headers."""
    browser = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    try:
        browser.request(method, path, headers=headers)
        answer = browser.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        browser.close()


@pytest.mark.parametrize(
    ("path", "status"), [("/", 426), ("/?a=b", 426), ("/nothing", 404), ("/healthz/x", 404)]
)
def test_browser_is_told_what_this_is_and_which_url_to_use(path: str, status: int) -> None:
    with running(FakeAgent()) as run:
        answered, text, headers = get(run.server.port, path)
    assert answered == status
    assert "This is a PlugRL server" in text
    assert run.url in text
    assert headers["Upgrade"] == ("websocket" if status == 426 else None)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/healthz?verbose=1"])
def test_probe_of_a_healthy_server_needs_no_key(path: str) -> None:
    with running(FakeAgent(), api_key=KEY) as run:
        status, text, _ = get(run.server.port, path, Host="10.1.2.3:8000")
    assert (status, text) == (200, "alive\n" if "health" in path else "ready\n")


def test_server_that_ends_is_alive_and_not_ready_and_tells_clients_why() -> None:
    agent = FakeAgent(learn_after=1)
    agent.may_learn.clear()
    with running(agent) as run, raw_client(run.url) as client:
        client.exchange(0)
        assert agent.learning.wait(DEADLINE)
        assert get(run.server.port, "/readyz")[0] == 200
        run.server.request_shutdown()
        assert client.closed() == (1001, REASON_SHUTDOWN)
        status, text, _ = get(run.server.port, "/readyz")
        assert (status, text) == (503, "ending: Server shutdown\n")
        assert get(run.server.port, "/healthz")[0] == 200
        with connect(run.url) as late, pytest.raises(ConnectionClosed, match=REASON_SHUTDOWN):
            late.recv(timeout=DEADLINE)
        agent.may_learn.set()
        assert run.ended() is False
    assert (agent.closed, agent.left) == (1, [1])


@pytest.mark.parametrize("path", ["/metrics", "/", "/nothing", "/%68ealthz", "//healthz"])
def test_everything_else_needs_the_key(path: str) -> None:
    with running(FakeAgent(), api_key=KEY) as run:
        status, text, headers = get(run.server.port, path)
        opened, _, _ = get(run.server.port, path, Authorization=f"Api-Key {KEY}")
    assert (status, headers["WWW-Authenticate"]) == (401, "Api-Key")
    assert text == "This PlugRL server wants a key, and this client sent no key.\n"
    assert opened != 401


def test_handshake_to_the_path_of_a_probe_needs_the_key_too() -> None:
    with (
        running(FakeAgent(), api_key=KEY) as run,
        pytest.raises(InvalidStatus, match="401"),
        connect(f"{run.url}/healthz"),
    ):
        pass


def test_metrics_are_not_for_pages_of_others() -> None:
    with running(FakeAgent()) as run:
        status, text, _ = get(run.server.port, "/metrics", Host="evil.example")
    assert (status, "'evil.example' (header Host)" in text) == (403, True)


def test_without_prometheus_client_metrics_say_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "_make_metrics", lambda *_: None)
    with running(FakeAgent()) as run:
        status, text, _ = get(run.server.port, "/metrics")
    assert status == 501
    assert 'pip install "plugrl-gym[metrics]"' in text


def test_server_without_prometheus_client_has_no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "plugrl_gym.server.metrics", None)
    with running(FakeAgent()) as run:
        assert get(run.server.port, "/metrics")[0] == 501


def say(port: int, text: bytes) -> bytes:
    """Say something to the port, and listen to the end."""
    heard = b""
    with socket.create_connection(("127.0.0.1", port), DEADLINE) as visitor:
        visitor.settimeout(DEADLINE)
        visitor.sendall(text)
        visitor.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while more := visitor.recv(4096):
                heard += more
    return heard


VISITORS: dict[str, bytes] = {
    "nc -z": b"",
    "half a request": b"GET / HTTP/1.1\r\nHost: localhost\r\n",
    "half a line": b"GE",
    "binary": bytes(range(256)) * 8,
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "redis": b"*1\r\n$4\r\nPING\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.0": b"GET / HTTP/1.0\r\n\r\n",
    "POST": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
    "HEAD": b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a long line": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
    "half a handshake": b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\r\n",
    "old WebSocket": b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: "
    b"websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 8\r\n\r\n",
    "TLS": b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + b"\x0a" * 160,
}


@pytest.mark.parametrize("kind", VISITORS)
def test_visitor_costs_one_line_at_most_and_no_traceback(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with running(FakeAgent()) as run:
        before = len(caplog.records)
        say(run.server.port, VISITORS[kind])
        with raw_client(run.url) as client:
            client.exchange(0)
        lines = [r for r in caplog.records[before:] if "client 1" not in r.getMessage()]
        assert len(lines) <= 1, caplog.text
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


def test_tls_to_a_plain_port_is_told_so() -> None:
    with running(FakeAgent()) as run:
        assert b"This port speaks no TLS: use ws://" in say(run.server.port, VISITORS["TLS"])
        context = ssl.create_default_context()
        with (
            socket.create_connection(("127.0.0.1", run.server.port), DEADLINE) as plain,
            pytest.raises(ssl.SSLError) as caught,
            context.wrap_socket(plain, server_hostname="localhost"),
        ):
            pass
    assert caught.value.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")


@pytest.mark.parametrize(
    ("kind", "text"),
    [("POST", b"This is a PlugRL server, which answers GET alone.\n"), ("HEAD", b"")],
)
def test_other_methods_than_get_are_answered(kind: str, text: bytes) -> None:
    with running(FakeAgent()) as run:
        head, _, body = say(run.server.port, VISITORS[kind]).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET\r\n")
    assert body == text


def test_unfinished_handshakes_end_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_OPEN_SECONDS", 0.2)
    with running(FakeAgent()) as run, contextlib.ExitStack() as stack:
        address: Any = ("127.0.0.1", run.server.port)
        waiting = [
            stack.enter_context(socket.create_connection(address, DEADLINE)) for _ in range(20)
        ]
        for visitor in waiting[::2]:
            visitor.sendall(b"GET / HTTP/1.1\r\n")
        for visitor in waiting:
            visitor.settimeout(DEADLINE)
            with contextlib.suppress(ConnectionResetError):
                assert visitor.recv(1) == b""
