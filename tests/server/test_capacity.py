"""Limits to clients, envs and messages: none by default, and what they refuse says so."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from gymnasium import spaces
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from plugrl_gym.errors import UsageError
from plugrl_gym.protocol import SpaceDeclaration
from plugrl_gym.protocol.close import REASON_RESYNC
from plugrl_gym.server import PlugRLServer, Refusal
from plugrl_gym.server.capacity import Capacity, Full
from tests.support.raw_client import declare, raw_client
from tests.support.serving import FakeAgent, Running, running


def declared(envs: int) -> SpaceDeclaration:
    one = declare(spaces.Discrete(2))
    return SpaceDeclaration(one.env_id, envs, one.autoreset, one.observation, one.action, one.mode)


def turned_away(run: Running) -> str:
    """The words with which a handshake is refused for want of room."""
    with pytest.raises(InvalidStatus) as caught, connect(run.url):
        pass
    response = caught.value.response
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "5"
    return bytes(response.body or b"").decode()


def until(found: Callable[[], bool]) -> None:
    """Try again and again; what is awaited is another thread's, which each attempt waits for."""
    assert any(found() for _ in range(1000))


def test_nothing_is_limited_by_default() -> None:
    capacity = Capacity(None, None)
    capacity.check_room(10**9)
    capacity.claim("one", 10**9)
    assert capacity.envs == 10**9


@pytest.mark.parametrize("option", ["max_clients", "max_envs", "max_message_bytes"])
def test_limit_below_one_is_a_mistake(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option}: expected"):
        PlugRLServer(FakeAgent(), **{option: 0})


def test_envs_are_counted_by_connection_and_freed_with_it() -> None:
    capacity = Capacity(None, 10)
    capacity.claim("one", 4)
    capacity.claim("two", 3)
    capacity.claim("one", 7)
    assert capacity.envs == 10
    with pytest.raises(Full, match="10 envs at most, 7 are here, client has 4"):
        capacity.claim("two", 4)
    with pytest.raises(Refusal, match="takes at most 10 envs, client has 11"):
        capacity.claim("three", 11)
    assert capacity.envs == 10
    capacity.leave("one")
    capacity.leave("one")
    assert capacity.envs == 3


def test_client_too_many_is_told_503_and_finds_room_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running(FakeAgent(), max_clients=2) as run:
        with raw_client(run.url) as first:
            with raw_client(run.url):
                words = turned_away(run)
            first.exchange(0)

        def found() -> bool:
            with contextlib.suppress(InvalidStatus), raw_client(run.url) as client:
                client.exchange(0)
                return True
            return False

        until(found)
    assert words == "This PlugRL server takes 2 clients at a time; try later.\n"
    assert "refused, HTTP 503: This PlugRL server takes 2 clients" in caplog.text


def test_client_that_declares_more_envs_than_ever_fit_is_refused() -> None:
    with running(FakeAgent(), max_envs=4) as run, raw_client(run.url) as client:
        client.ask(0, spaces=declared(5))
        assert client.closed() == (1008, "this server takes at most 4 envs, client has 5")


def test_client_that_shows_more_envs_than_ever_fit_is_closed_as_one_that_does_not_fit() -> None:
    agent = FakeAgent()
    with running(agent, max_envs=4) as run, raw_client(run.url) as client:
        client.exchange(0, 1)
        client.ask(2, 3, 4)
        assert client.closed() == (1001, REASON_RESYNC)
        agent.wait_for_departures(1)


@pytest.mark.parametrize("declares", [True, False])
def test_client_for_whose_envs_there_is_no_room_now_is_told_to_come_later(declares: bool) -> None:
    with running(FakeAgent(), max_envs=4) as run, raw_client(run.url) as first:
        first.infer(0, spaces=declared(3))
        with raw_client(run.url) as second:
            second.ask(0, 1, **({"spaces": declared(2)} if declares else {}))
            assert second.closed() == (1013, "4 envs at most, 3 are here, client has 2")
        with raw_client(run.url) as third:
            third.infer(0, spaces=declared(1))
            assert turned_away(run) == "This PlugRL server takes 4 envs at a time; try later.\n"


def test_optional_limit_to_messages_names_both_sizes_and_harms_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running(FakeAgent(), max_message_bytes=2000) as run:
        with raw_client(run.url) as client:
            client.socket.send(b"\0" * 3000)
            code, reason = client.closed()
        with raw_client(run.url) as client:
            client.exchange(0)
    assert code == 1009
    for text in (reason, caplog.text):
        assert "3000" in text
        assert "2000" in text
