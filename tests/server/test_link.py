"""Peers that are silent, or do not read, or say too much: bounded in time and memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from plugrl_gym.protocol import encode
from plugrl_gym.server import PlugRLServer, link
from plugrl_gym.server.watching import watch_silence
from tests.support.raw_client import DEADLINE, infer_of, raw_client
from tests.support.serving import FakeAgent, Running, running

PING, BINARY = 0x9, 0x2
_MEGABYTE = 2**20
# More than what the kernel keeps for two sockets, which is some MB.
_TOO_MUCH = 100 * _MEGABYTE


class Mute:
    """A peer that speaks WebSocket by hand: it answers nothing, and reads only when told to."""

    def __init__(self, run: Running) -> None:
        self.socket = socket.create_connection(("127.0.0.1", run.server.port), DEADLINE)
        self.socket.settimeout(DEADLINE)
        self.socket.sendall(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.socket.recv(1)
        assert head.startswith(b"HTTP/1.1 101"), head

    def send(self, opcode: int, data: bytes) -> None:
        """One frame, masked by zeros."""
        self.socket.sendall(frame(opcode, data))

    def rest(self) -> bytes:
        """All that the server has sent, up to the end."""
        heard = b""
        with contextlib.suppress(ConnectionResetError):
            while more := self.socket.recv(65536):
                heard += more
        return heard

    def stuff(self, opcode: int, data: bytes) -> int:
        """Send the same frame until the server takes no more for a second.

        Returns:
            Bytes that went out, at most about ``_TOO_MUCH``.
        """
        pack = frame(opcode, data)
        pack *= max(65536 // len(pack), 1)
        self.socket.settimeout(1.0)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < _TOO_MUCH:
                sent += self.socket.send(memoryview(pack)[sent % len(pack) :])
        self.socket.settimeout(DEADLINE)
        return sent


def frame(opcode: int, data: bytes) -> bytes:
    size = len(data)
    short = size < 126
    length = struct.pack("!B", 0x80 | size) if short else struct.pack("!BQ", 0xFF, size)
    return struct.pack("!B", 0x80 | opcode) + length + bytes(4) + data


@contextlib.contextmanager
def mute(run: Running) -> Iterator[Mute]:
    peer = Mute(run)
    with peer.socket:
        yield peer


# -- Silence ---------------------------------------------------------------------------------


class _Silent:
    """A session as :func:`watch_silence` sees it: whether it was heard, look by look."""

    def __init__(self, heard: Callable[[int], bool], answers: bool) -> None:
        self.socket = self
        self.heard = True
        self.speaks, self.answers = heard, answers
        self.probes = 0

    def probe(self) -> None:
        self.probes += 1
        self.heard = self.heard or self.answers


def _looks(monkeypatch: pytest.MonkeyPatch, session: _Silent, number: int) -> int | None:
    """At which look a session is given up; None where it is not within ``number`` looks."""
    look = 0

    async def sleep(seconds: float) -> None:
        nonlocal look
        assert seconds == 60.0
        if look == number:
            raise asyncio.CancelledError
        look += 1
        session.heard = session.heard or session.speaks(look)

    given_up: list[int] = []
    monkeypatch.setattr(link.asyncio, "sleep", sleep)

    async def watch() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await watch_silence(lambda: [session], 300.0, lambda _: given_up.append(look))

    asyncio.run(watch())
    return given_up[0] if given_up else None


def test_peer_that_answers_pings_is_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    session = _Silent(lambda look: False, answers=True)
    assert _looks(monkeypatch, session, 1000) is None
    assert session.probes > 200


def test_peer_that_sends_is_not_pinged(monkeypatch: pytest.MonkeyPatch) -> None:
    session = _Silent(lambda look: look % 2 == 0, answers=False)
    assert _looks(monkeypatch, session, 1000) is None
    assert session.probes == 0


def test_peer_that_answers_nothing_is_given_up_after_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = _Silent(lambda look: False, answers=False)
    assert _looks(monkeypatch, session, 1000) == 6  # the first look still finds the handshake
    assert session.probes >= 3


def test_peer_that_falls_silent_for_less_than_the_limit_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = _Silent(lambda look: look % 5 == 0, answers=False)
    assert _looks(monkeypatch, session, 1000) is None


def test_silent_connection_is_closed_and_its_neighbour_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = FakeAgent()
    with (
        running(agent, silence_timeout=3.0, close_timeout=0.2) as run,
        raw_client(run.url) as idle,
        mute(run) as peer,
    ):
        heard = peer.rest()
        assert b"\x03\xe9No sign of life" in heard  # the close frame: 1001 and the reason
        assert b"\x89\x00" in heard  # a ping
        idle.exchange(0)
        agent.wait_for_rows(1)
    assert "no sign of life for 3 s" in caplog.text


@pytest.mark.parametrize(("feedback", "silence"), [(60.0, 300.0), (3600.0, 5400.0)])
def test_silence_is_borne_for_longer_than_an_env_may_step(feedback: float, silence: float) -> None:
    assert PlugRLServer(FakeAgent(), feedback_timeout=feedback)._silence_timeout == silence
    given = PlugRLServer(FakeAgent(), feedback_timeout=feedback, silence_timeout=7.0)
    assert given._silence_timeout == 7.0


def test_silence_is_borne_for_ever_where_the_operator_says_so() -> None:
    server = FakeAgent()
    with running(server, silence_timeout=0) as run, mute(run), raw_client(run.url) as client:
        client.exchange(0)


# -- Peers that do not read, or do not stop ---------------------------------------------------


def test_pings_of_a_peer_that_reads_no_pongs_are_not_taken_for_ever() -> None:
    with running(FakeAgent(), close_timeout=0.2) as run, mute(run) as peer:
        assert peer.stuff(PING, bytes(125)) < _TOO_MUCH
        with raw_client(run.url) as client:
            client.exchange(0)


def test_peer_that_floods_a_server_that_learns_has_to_wait() -> None:
    agent = FakeAgent(learn_after=1)
    agent.may_learn.clear()
    with running(agent, close_timeout=0.2) as run, raw_client(run.url) as good:
        with mute(run) as peer:
            good.exchange(0)
            assert agent.learning.wait(DEADLINE)
            peer.send(BINARY, encode(infer_of(0).to_wire()))
            assert peer.stuff(BINARY, bytes(4 * _MEGABYTE)) < _TOO_MUCH
        agent.may_learn.set()
        good.exchange(0)


def test_ping_after_a_message_in_many_fragments_is_answered_while_the_server_learns() -> None:
    agent = FakeAgent(learn_after=1)
    agent.may_learn.clear()
    with running(agent) as run, raw_client(run.url) as client:
        client.exchange(0)
        assert agent.learning.wait(DEADLINE)
        pieces = encode(infer_of(0, step_ids=[1]).to_wire())
        client.socket.send([pieces[i : i + 4] for i in range(0, len(pieces), 4)])
        assert client.socket.ping().wait(DEADLINE)
        agent.may_learn.set()
        assert client.socket.recv(timeout=DEADLINE)


def test_client_that_does_not_take_its_action_is_freed_in_time() -> None:
    agent = FakeAgent(horizon=2_000_000)  # of 16 MB
    with (
        running(agent, feedback_timeout=4.0, close_timeout=0.2) as run,
        mute(run) as peer,
    ):
        peer.send(BINARY, encode(infer_of(0).to_wire()))
        agent.wait_for_departures(1)
        with raw_client(run.url) as good:
            good.exchange(0)


def test_server_sleeps_while_a_client_that_is_late_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"feedback_timeout": 0.2, "close_timeout": 0.5, "max_resync_delay": 0.0}
    with running(FakeAgent(), **options) as run:
        runner, readings = run.server._runner, 0
        clock = runner.clock

        def counted() -> float:
            nonlocal readings
            readings += 1
            return clock()

        monkeypatch.setattr(runner, "clock", counted)
        with mute(run) as peer:
            peer.send(BINARY, encode(infer_of(0).to_wire()))
            peer.send(BINARY, b"no message")
            peer.rest()  # its close frame goes unanswered, and meanwhile the feedback is due
    assert readings < 100


def test_peer_that_claims_a_huge_message_costs_what_it_sends() -> None:
    with running(FakeAgent(), close_timeout=0.2) as run, mute(run) as peer:
        peer.socket.sendall(struct.pack("!BBQ", 0x80 | BINARY, 0xFF, 2**62) + bytes(4))
        with raw_client(run.url) as good:
            good.exchange(0)


def test_broken_frames_end_their_connection_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    rubbish: Any = os.urandom(16)
    with running(FakeAgent(), close_timeout=0.2) as run, raw_client(run.url) as good:
        good.infer(0)
        for data in (
            b"\x82\x05hello",  # not masked
            b"\xff\x80" + bytes(4),  # an opcode and bits that nobody has defined
            b"\x89\xfe\x00\xff" + bytes(259),  # a ping of more than 125 bytes
            frame(0x0, b"the continuation of nothing"),
            frame(0x8, b"\x03"),  # half a close code
            frame(BINARY, rubbish)[:-3],  # a frame that breaks off
        ):
            with mute(run) as peer:
                peer.socket.sendall(data)
                peer.socket.shutdown(socket.SHUT_WR)
                peer.rest()
        good.feed_back(0)
        good.exchange(0)
    assert "Traceback" not in caplog.text
