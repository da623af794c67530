"""Addresses and sockets, before a WebSocket is open and after (SPEC 2)."""

from __future__ import annotations

import errno
import re
import socket
from types import SimpleNamespace

import numpy as np
import pytest
from websockets.sync.client import connect

from plugrl_gym.errors import UsageError
from plugrl_gym.protocol import Observation
from plugrl_gym.server import PlugRLServer
from plugrl_gym.server.listening import _explain, check_address, client_urls, keep_alive
from tests.support.raw_client import DEADLINE, raw_client
from tests.support.serving import FakeAgent, running


@pytest.mark.parametrize("path", ["/", "/any/path?x=1"])
def test_url_path_and_api_key_do_not_matter(path: str) -> None:
    with (
        running(FakeAgent()) as run,
        connect(
            run.url + path, compression=None, additional_headers={"Authorization": "Api-Key k"}
        ) as client,
    ):
        assert client.recv(timeout=DEADLINE)


def test_server_does_not_agree_to_compression() -> None:
    with running(FakeAgent()) as run, connect(run.url, compression="deflate") as client:
        assert client.response is not None
        assert "Sec-WebSocket-Extensions" not in client.response.headers


def test_server_takes_large_messages() -> None:
    image = np.zeros((2, 800, 800, 3), np.uint8)  # 3.7 MiB, and no library's default of 1 MiB
    agent = FakeAgent()
    with running(agent) as run, raw_client(run.url) as client:
        client.infer(0, 1, observation=Observation(images={"camera": image}, text=["", ""]))


def test_port_in_use_is_one_sentence_and_leaves_the_agent_alone() -> None:
    agent = FakeAgent()
    with running(FakeAgent()) as run:
        port = run.server.port
        with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 is in use: stop"):
            PlugRLServer(agent, port=port).serve()
    assert agent.closed == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_port_in_use_is_found_before_a_server_is_made(host: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} of {host} is in use: stop"):
            check_address(host, port)
    check_address(host, port)


@pytest.mark.parametrize("host", ["", "::", "0.0.0.0", "localhost", "127.0.0.1"])
def test_address_that_can_be_opened_is_let_pass(host: str) -> None:
    check_address(host, 0)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "a" * 64])
def test_address_of_no_interface_is_found_before_a_server_is_made(host: str) -> None:
    with pytest.raises(UsageError, match=f"cannot listen on {host}, port 0"):
        check_address(host, 0)


def test_foreign_address_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1, port 0"):
        PlugRLServer(FakeAgent(), "192.0.2.1", 0, insecure=True).serve()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 64, "a..b"])
def test_unknown_host_name_is_one_sentence(host: str) -> None:
    with pytest.raises(UsageError, match=f"cannot listen on {re.escape(host)}"):
        PlugRLServer(FakeAgent(), host, 0, insecure=True).serve()


def test_missing_permission_names_the_cure() -> None:
    # Root may listen anywhere, so the real error is not to be had in every test run.
    text = _explain(PermissionError(errno.EACCES, "Permission denied"), "127.0.0.1", 80)
    assert text == (
        "listening on port 80 of 127.0.0.1 is not permitted: choose a port above 1023 "
        "(0 takes any free one)"
    )


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["localhost", "::"])
def test_both_families_reach_a_server_on(host: str) -> None:
    with running(FakeAgent(), host=host, insecure=True) as run:
        port = run.server.port
        addresses = ["127.0.0.1", "localhost", *(["[::1]"] if _has_ipv6() else [])]
        for address in addresses:
            with raw_client(f"ws://{address}:{port}") as client:
                client.exchange(0)
        with raw_client(run.url):
            pass


def test_urls_are_addresses_that_a_client_can_use() -> None:
    assert client_urls("127.0.0.1", 8000) == ["ws://127.0.0.1:8000"]
    assert client_urls("::1", 8000) == ["ws://[::1]:8000"]
    assert client_urls("robot.lan", 8000) == ["ws://robot.lan:8000"]
    anywhere = client_urls("0.0.0.0", 8000)
    assert anywhere[0] == "ws://127.0.0.1:8000"
    assert not any("0.0.0.0" in url for url in anywhere)
    assert "ws://[::1]:8000" in client_urls("::", 8000)


def test_dead_peers_are_left_to_the_kernel() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), DEADLINE) as sock,
    ):
        transport = SimpleNamespace(get_extra_info={"socket": sock}.get)
        keep_alive(SimpleNamespace(transport=transport))  # type: ignore[arg-type]
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_KEEPCNT"):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
