"""Keys, certificates and refusals, as the client meets them."""

from __future__ import annotations

import contextlib
import http.server
import logging
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.datastructures import Headers
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response

from plugrl_gym import (
    ConnectionFailed,
    ConnectTimeout,
    PlugRLVectorEnv,
    ServerRefused,
    UsageError,
)
from plugrl_gym.client import reaching
from plugrl_gym.client.reaching import explain, warn_of_plain_key
from plugrl_gym.server import PlugRLServer
from plugrl_gym.server import tls_context as server_context
from plugrl_gym.trust import tls_context
from tests.client.conftest import sync
from tests.support.certificates import Files, certificate_files
from tests.support.raw_client import raw_client
from tests.support.serving import FakeAgent, Running, running
from tests.support.tracing import CountingEnv

KEY = "a-key-that-nobody-guesses"


def envs(url: str, **options: Any) -> PlugRLVectorEnv:
    return PlugRLVectorEnv(sync(CountingEnv(3)), url, **options)


def steps_with(url: str, **options: Any) -> int:
    """Env steps that a client runs with this server."""
    with envs(url, **options) as client:
        return client.run(max_steps=3).env_steps


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return certificate_files(tmp_path / "good")


@contextlib.contextmanager
def tls_server(files: Files, **options: Any) -> Iterator[Running]:
    context = server_context(files.cert, files.key)
    with running(FakeAgent(), ssl_context=context, **options) as run:
        yield run


# -- Keys ------------------------------------------------------------------------------------


def test_client_with_the_key_is_let_in() -> None:
    with running(FakeAgent(), api_key=KEY) as run:
        assert steps_with(run.url, api_key=KEY) == 3


@pytest.mark.parametrize(
    ("key", "words"), [(None, "this client sent no key"), ("wrong", "is not the server's")]
)
def test_client_without_the_key_is_told_at_once_and_does_not_come_back(
    key: str | None, words: str
) -> None:
    with running(FakeAgent(), api_key=KEY) as run:
        with envs(run.url, api_key=key) as client, pytest.raises(ServerRefused) as caught:
            client.reset()
        denied = run.server._meters.denied
    assert f"{run.url}: the server did not let this client in (HTTP 401: " in str(caught.value)
    assert words in str(caught.value)
    assert "set PLUGRL_API_KEY" in str(caught.value)
    assert denied == {"401": 1}


def test_unusable_key_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(UsageError, match="api_key: a key has at least one character"):
        envs("ws://127.0.0.1:1", api_key="two words")


def test_key_is_in_no_log_of_the_client(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with running(FakeAgent(), api_key=KEY) as run:
        steps_with(run.url, api_key=KEY)
        with pytest.raises(ServerRefused), envs(run.url, api_key=f"{KEY}x") as client:
            client.reset()
    assert "GET / HTTP/1.1" in caplog.text  # the library debugs
    assert KEY not in caplog.text
    assert not [record for record in caplog.records if KEY in repr(vars(record))]


@pytest.mark.parametrize(
    ("url", "key", "warns"),
    [
        ("ws://192.0.2.1:8000", KEY, True),
        ("ws://trainer.example:8000", KEY, True),
        ("ws://192.0.2.1:8000", None, False),
        ("wss://192.0.2.1:8000", KEY, False),
        ("ws://127.0.0.1:8000", KEY, False),
        ("ws://localhost:8000", KEY, False),
        ("ws://[::1]:8000", KEY, False),
    ],
)
def test_key_that_others_on_the_network_can_read_is_warned_of_once(
    url: str,
    key: str | None,
    warns: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reaching, "_warned", set())
    for _ in range(2):
        envs(url, api_key=key).close()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == warns
    assert not warns or "travels unencrypted" in told[0]
    assert KEY not in caplog.text


def test_each_server_is_warned_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaching, "_warned", set())
    for number in (1, 2, 1):
        warn_of_plain_key(f"ws://192.0.2.{number}:8000", KEY)
    assert len(caplog.records) == 2


# -- Refusals --------------------------------------------------------------------------------


def test_client_that_a_server_has_no_room_for_waits_for_it() -> None:
    with (
        running(FakeAgent(), max_clients=1) as run,
        raw_client(run.url),
        envs(run.url, connect_timeout=0.3) as client,
        pytest.raises(ConnectTimeout) as caught,
    ):
        client.reset()
    words = "takes in nobody now (HTTP 503: This PlugRL server takes 1 clients"
    assert words in str(caught.value)


def test_client_for_whose_envs_there_is_no_room_comes_back_until_there_is() -> None:
    with running(FakeAgent(), max_envs=1) as run, raw_client(run.url) as other:
        client = envs(run.url)
        client.reset()  # connected, and has not yet said how many envs it has
        other.infer(0)

        class Leave(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if "1013" in record.getMessage():
                    other.socket.close()

        handler = Leave()
        logging.getLogger("plugrl_gym.client").addHandler(handler)
        try:
            with client:
                assert client.run(max_steps=3).env_steps == 3
        finally:
            logging.getLogger("plugrl_gym.client").removeHandler(handler)
        assert run.server._meters.closed["full"] == 1


def test_client_whose_message_is_too_large_is_told_and_does_not_come_back() -> None:
    with running(FakeAgent(), max_message_bytes=100) as run:
        with envs(run.url) as client, pytest.raises(ServerRefused) as caught:
            client.run(max_steps=3)
        assert run.server._meters.connections == 1
    assert "--max-message-mb" in str(caught.value)
    assert "100" in str(caught.value)


def _status(status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> Exception:
    return InvalidStatus(Response(status, "Phrase", Headers([("Content-Type", kind)]), body))


@pytest.mark.parametrize(
    ("status", "expected"),
    [(401, ServerRefused), (403, ServerRefused), (503, ConnectTimeout), (404, ConnectionFailed)],
)
def test_status_of_a_refusal_says_whether_to_come_back(
    status: int, expected: type[Exception]
) -> None:
    found = explain(_status(status, b"Because.\nAnd more.\n"), "ws://here", 1.0)
    assert type(found) is expected
    assert str(found).startswith("ws://here: ")
    assert f"HTTP {status}: Because)" in str(found) or f"status {status}" in str(found)
    assert "And more" not in str(found)


@pytest.mark.parametrize(
    ("body", "kind", "quoted"),
    [
        (b"", "text/plain", ""),
        (b"\n\n", "text/plain", ""),
        (b"<html>no</html>", "text/html", ""),
        (b"bad \x1b[2J \xff bytes", "text/plain", ": bad ?[2J \N{REPLACEMENT CHARACTER} bytes"),
        (b"a" * 5000, "text/plain", ": " + "a" * 300),
    ],
)
def test_words_of_a_server_are_quoted_where_they_are_plain_and_short(
    body: bytes, kind: str, quoted: str
) -> None:
    found = explain(_status(403, body, kind), "ws://here", 1.0)
    assert str(found) == f"ws://here: the server refused this client (HTTP 403{quoted})"


# -- TLS -------------------------------------------------------------------------------------


def test_client_with_the_authority_reaches_a_tls_server(files: Files) -> None:
    with tls_server(files, api_key=KEY) as run:
        assert run.url.startswith("wss://")
        assert steps_with(run.url, api_key=KEY, ca_file=files.ca) == 3


def test_client_may_trust_the_servers_own_certificate_alone(files: Files) -> None:
    with tls_server(files) as run:
        assert steps_with(run.url, ca_file=str(files.cert)) == 3


def refused(url: str, **options: Any) -> str:
    """The one sentence of a client that gives up at once."""
    with (
        envs(url, connect_timeout=60.0, **options) as client,
        pytest.raises(ConnectionFailed) as caught,
    ):
        client.reset()
    assert not isinstance(caught.value, ConnectTimeout)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_certificate_that_is_not_trusted_names_the_cure(files: Files, tmp_path: Path) -> None:
    other = certificate_files(tmp_path / "other")
    with tls_server(files) as run:
        for options in ({}, {"ca_file": other.ca}):
            sentence = refused(run.url, **options)
            assert "the server's certificate is not trusted (unable to get" in sentence
            assert "--ca-file FILE" in sentence


def test_certificate_for_another_host_names_both(tmp_path: Path) -> None:
    files = certificate_files(tmp_path / "elsewhere", "elsewhere.example")
    with tls_server(files) as run:
        for host in ("127.0.0.1", "localhost"):
            sentence = refused(f"wss://{host}:{run.server.port}", ca_file=files.ca)
            assert f"not valid for '{host}'" in sentence
            assert "call the server as its certificate does" in sentence


def test_expired_certificate_is_called_so() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = 10, "certificate has expired"
    found = explain(error, "wss://here:1", 1.0)
    assert isinstance(found, ConnectionFailed)
    assert str(found).endswith("(certificate has expired): give the server a new one")


def test_ws_to_a_tls_port_suggests_wss(files: Files) -> None:
    with tls_server(files) as run:
        sentence = refused(f"ws://127.0.0.1:{run.server.port}")
    assert sentence.endswith("what listens there speaks TLS; use wss:// for ws://")


def test_wss_to_a_plain_port_suggests_ws(files: Files) -> None:
    with running(FakeAgent()) as run:
        sentence = refused(f"wss://127.0.0.1:{run.server.port}", ca_file=files.ca)
    assert sentence.endswith("what listens there speaks no TLS; use ws:// for wss://?")


def test_wss_to_a_plain_http_server_suggests_ws(files: Files) -> None:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            sentence = refused(f"wss://127.0.0.1:{server.server_port}", ca_file=files.ca)
        finally:
            server.shutdown()
            thread.join()
    assert sentence.endswith("what listens there speaks no TLS; use ws:// for wss://?")


def test_ca_file_is_for_wss_only(files: Files) -> None:
    with pytest.raises(UsageError, match="ca_file: ws://here:1 has no TLS"):
        envs("ws://here:1", ca_file=files.ca)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "cannot read .*: No such file"),
        ("", "holds no certificate in PEM form"),
        ("nonsense", "holds no certificate in PEM form"),
        ("-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n", "holds no certificate"),
    ],
)
def test_unusable_ca_file_is_one_sentence(text: str | None, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=f"ca_file: .*{expected}"):
        envs("wss://here:1", ca_file=path)


def test_without_ca_file_the_systems_authorities_count_and_names_are_checked() -> None:
    context = tls_context("wss://here:1", None)
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_no_context_where_there_is_no_tls() -> None:
    assert tls_context("ws://here:1", None) is None


def test_urls_of_a_server_without_tls_stay_ws() -> None:
    assert PlugRLServer(FakeAgent(), port=8000).url == "ws://127.0.0.1:8000"
