"""Who may come in: keys, and pages that a browser has loaded from elsewhere (SPEC 2.12, 2.16)."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest
from websockets.datastructures import Headers
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from plugrl_gym.client.reaching import websocket_logger
from plugrl_gym.errors import UsageError
from plugrl_gym.server import PlugRLServer
from plugrl_gym.server.access import Access
from tests.support.raw_client import DEADLINE
from tests.support.serving import FakeAgent, running

KEY = "a-key-that-nobody-guesses"


def denied(access: Access, *headers: tuple[str, str]) -> int | None:
    """The status with which a request is refused; None where it may come in."""
    denial = access.deny(Headers(headers))
    return None if denial is None else denial.status.value


# -- Other machines need a key -------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST", "::1"])
def test_loopback_needs_no_key(host: str) -> None:
    assert denied(Access(host)) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.20", "robot.lan", "fe80::1"])
def test_any_other_host_needs_a_key_or_a_word(host: str) -> None:
    with pytest.raises(UsageError, match=r"needs a key: set PLUGRL_API_KEY.*--insecure"):
        Access(host)
    assert denied(Access(host, insecure=True)) is None
    assert denied(Access(host, KEY)) == 401


def test_server_refuses_to_be_made_for_other_machines_without_a_key() -> None:
    agent = FakeAgent()
    with pytest.raises(UsageError, match=r"listening on 0\.0\.0\.0 lets other machines in"):
        PlugRLServer(agent, "0.0.0.0", 0)
    assert agent.closed == 0


def test_unusable_key_is_refused_and_not_shown() -> None:
    with pytest.raises(UsageError, match="without blanks") as caught:
        PlugRLServer(FakeAgent(), api_key="two words")
    assert "two words" not in str(caught.value)


def test_key_is_asked_for_on_loopback_too_where_one_is_set() -> None:
    access = Access("127.0.0.1", KEY)
    assert denied(access) == 401
    assert denied(access, ("Authorization", f"Api-Key {KEY}")) is None
    assert denied(access, ("Authorization", "Api-Key guess")) == 401


def test_two_keys_are_none() -> None:
    twice = [("Authorization", f"Api-Key {KEY}")] * 2
    assert denied(Access("127.0.0.1", KEY), *twice) == 401


def test_key_comes_before_everything_else() -> None:
    wrong = [("Host", "evil.example"), ("Origin", "https://evil.example")]
    assert denied(Access("127.0.0.1", KEY), *wrong) == 401


# -- Host ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8000", "localhost:9000", "[::1]:8000", "127.0.0.1", "LocalHost:1", "sub.localhost"],
)
def test_loopback_server_is_called_by_names_of_loopback(host: str) -> None:
    assert denied(Access("127.0.0.1"), ("Host", host)) is None


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "192.168.1.20:8000", "0.0.0.0:8000", "10.0.0.1"),
        *("127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.1@evil.example", "[::2]"),
        *("", ":8000", "127.0.0.1:port", "127.0.0.1/x", "[::1", "127.0.0.1, evil.example"),
    ],
)
def test_loopback_server_is_not_called_by_a_foreign_name(host: str) -> None:
    assert denied(Access("127.0.0.1"), ("Host", host)) == 403
    assert denied(Access("localhost", KEY), ("Host", host), *_with_key()) == 403


def _with_key() -> list[tuple[str, str]]:
    return [("Authorization", f"Api-Key {KEY}")]


def test_two_hosts_are_foreign() -> None:
    assert denied(Access("127.0.0.1"), ("Host", "localhost"), ("Host", "localhost")) == 403


def test_server_for_other_machines_may_have_any_name() -> None:
    for access, key in ((Access("0.0.0.0", KEY), _with_key()), (Access("::", insecure=True), [])):
        assert denied(access, ("Host", "trainer.example:8000"), *key) is None


def test_allowed_host_is_a_name_of_the_server() -> None:
    access = Access("127.0.0.1", allowed_hosts=["Trainer.example", "[fe80::1]"])
    assert denied(access, ("Host", "trainer.EXAMPLE:443")) is None
    assert denied(access, ("Host", "[fe80::1]:8000")) is None
    assert denied(access, ("Host", "other.example")) == 403


def test_port_of_an_allowed_host_does_not_matter() -> None:
    access = Access("127.0.0.1", allowed_hosts=["trainer.example:443", "[fe80::1]:443"])
    assert denied(access, ("Host", "trainer.example:8000")) is None
    assert denied(access, ("Host", "[fe80::1]")) is None


@pytest.mark.parametrize("host", ["*", "https://trainer.example", ""])
def test_allowed_host_that_no_client_could_name_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="expected a name or an address"):
        Access("127.0.0.1", allowed_hosts=[host])


# -- Origin ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "origin",
    [
        *("https://evil.example", "http://evil.example:8000", "http://127.0.0.1:3000", "null", ""),
        *("http://localhost:8000", "file://", "http://127.0.0.1", "127.0.0.1:8000"),
        *("chrome-extension://abcdef", "http://127.0.0.1:8000/page", "http://127.0.0.1:8000@evil"),
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_foreign_page_is_refused(host: str, origin: str) -> None:
    headers = [("Host", "127.0.0.1:8000"), ("Origin", origin)]
    assert denied(Access(host, insecure=True), *headers) == 403
    assert denied(Access(host, KEY), *headers, *_with_key()) == 403


@pytest.mark.parametrize("address", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000"])
def test_origin_of_the_server_itself_is_its_own(address: str) -> None:
    # Some WebSocket libraries send one without being a browser.
    for scheme in ("http", "ws"):
        headers = [("Host", address), ("Origin", f"{scheme}://{address}")]
        assert denied(Access("127.0.0.1"), *headers) is None


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_default_port_need_not_be_told(scheme: str) -> None:
    headers = [("Host", "localhost"), ("Origin", f"{scheme}://localhost")]
    assert denied(Access("127.0.0.1"), *headers) is None


def test_name_that_was_made_to_resolve_to_an_open_server_is_not_its_own() -> None:
    rebound = [("Host", "evil.example:8000"), ("Origin", "http://evil.example:8000")]
    assert denied(Access("0.0.0.0", insecure=True), *rebound) == 403
    assert denied(Access("0.0.0.0", KEY), *rebound, *_with_key()) is None
    allowed = Access("0.0.0.0", insecure=True, allowed_hosts=["evil.example"])
    assert denied(allowed, *rebound) is None


def test_own_names_and_addresses_of_an_open_server_are_its_own() -> None:
    for name in ("192.168.1.20", "[fe80::1]", socket.gethostname(), "localhost"):
        headers = [("Host", f"{name}:8000"), ("Origin", f"http://{name}:8000")]
        assert denied(Access("0.0.0.0", insecure=True), *headers) is None


def test_two_origins_are_foreign() -> None:
    twice = [("Origin", "http://localhost:8000")] * 2
    assert denied(Access("127.0.0.1"), ("Host", "localhost:8000"), *twice) == 403


def test_refusal_quotes_what_was_sent_on_one_line_and_names_the_cure() -> None:
    access = Access("127.0.0.1")
    for header in ("Host", "Origin"):
        denial = access.deny(Headers([(header, "evil\t\x85.example:8000")]))
        assert denial is not None
        assert "--allow-host" in denial.text
        assert denial.text.isprintable()


# -- Over a socket ---------------------------------------------------------------------------


def refusal(url: str, **headers: str) -> tuple[int, str]:
    """How the server refuses a handshake: the status and the words."""
    with (
        pytest.raises(InvalidStatus) as caught,
        connect(url, additional_headers=headers, open_timeout=DEADLINE, logger=websocket_logger),
    ):
        pass
    response = caught.value.response
    return response.status_code, bytes(response.body or b"").decode()


def test_handshake_without_the_key_gets_a_readable_401() -> None:
    agent = FakeAgent()
    with running(agent, api_key=KEY) as run:
        assert refusal(run.url) == (
            401,
            "This PlugRL server wants a key, and this client sent no key.\n",
        )
        status, text = refusal(run.url, Authorization="Api-Key guess")
        with connect(run.url, additional_headers={"Authorization": f"Api-Key {KEY}"}) as client:
            assert client.recv(timeout=DEADLINE)
    assert (status, "is not the server's" in text) == (401, True)


def test_handshake_of_a_foreign_page_gets_a_readable_403() -> None:
    with running(FakeAgent()) as run:
        status, text = refusal(run.url, Origin="https://evil.example")
    assert status == 403
    assert "'https://evil.example' (header Origin)" in text


def test_key_is_in_no_log_however_loud(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with running(FakeAgent(), api_key=KEY) as run:
        address: Any = ("127.0.0.1", run.server.port)
        with connect(
            run.url,
            additional_headers={"Authorization": f"Api-Key {KEY}"},
            logger=websocket_logger,
        ):
            pass
        refusal(run.url, Authorization=f"Api-Key {KEY}x")
        with socket.create_connection(address, DEADLINE) as visitor:  # an illegal header
            visitor.sendall(f"GET / HTTP/1.1\r\nAuthorization: {KEY}\x01\r\n\r\n".encode())
            visitor.settimeout(DEADLINE)
            while visitor.recv(4096):
                pass
    assert "Upgrade: websocket" in caplog.text  # headers are logged
    assert KEY not in caplog.text
    assert not [record for record in caplog.records if KEY in repr(vars(record))]


def test_refusals_are_told_to_the_operator_but_not_each_of_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running(FakeAgent(), api_key=KEY) as run:
        for _ in range(5):
            refusal(run.url)
    told = [record.getMessage() for record in caplog.records if "HTTP 401" in record.getMessage()]
    assert told == [
        "127.0.0.1: refused, HTTP 401: This PlugRL server wants a key, and this client sent no key."
    ]
