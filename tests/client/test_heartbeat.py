"""When a silent server counts as gone."""

from __future__ import annotations

import ctypes
import socket
import sys
import threading
from typing import Any

import pytest

from plugrl_gym import PlugRLVectorEnv
from plugrl_gym.client.heartbeat import Heartbeat, Pulse
from tests.client.conftest import sync
from tests.support.scripted import Peer, scripted
from tests.support.tracing import CountingEnv


def ticks(pulse: Pulse, answers: str, elapsed: float, patience: float = 0.0) -> list[bool]:
    """What each tick decides; ``+`` stands for a peer that answered, ``-`` for one that did not."""
    return [pulse.tick(elapsed, answer == "+", patience) for answer in answers]


def test_peer_that_falls_silent_is_given_up_within_the_limit() -> None:
    pulse = Pulse(60.0)
    assert pulse.period == 15.0
    assert ticks(pulse, "++---", 15.0) == [False, False, False, False, True]


def test_peer_that_answers_late_is_kept() -> None:
    assert not any(ticks(Pulse(60.0), "--+--+--+", 15.0))


def test_time_in_which_this_side_did_not_listen_counts_little() -> None:
    pulse = Pulse(60.0)
    assert ticks(pulse, "-", 3600.0) == [False]
    assert pulse.silence == 15.0


def test_peer_gets_more_time_while_a_large_message_is_under_way() -> None:
    pulse = Pulse(60.0)
    assert not any(ticks(pulse, "-----", 15.0, patience=45.0))
    assert ticks(pulse, "-", 15.0, patience=45.0) == [True]


def test_a_peer_that_has_taken_a_long_message_has_shown_life() -> None:
    class Silent:
        """Takes pings, and is never heard."""

        heard = False

        def __init__(self, end: socket.socket) -> None:
            self.socket = end

        def ping(self) -> threading.Event:
            return threading.Event()

    ours, theirs = socket.socketpair()
    with ours, theirs:
        beat = Heartbeat(Silent(ours), 4.0)  # type: ignore[arg-type]
        with beat.sending(10_000_000):
            beat._thread.join(3.5)  # as long as it takes to send; it looks every second
        beat._thread.join(1.5)
        assert beat.gone is None
        beat._thread.join(20)
        assert beat.gone is not None


@pytest.mark.skipif(sys.platform == "win32", reason="has no usleep")
def test_client_survives_an_env_that_keeps_the_interpreter_to_itself() -> None:
    class Holding(CountingEnv):
        def step(self, action: Any) -> Any:
            ctypes.PyDLL(None).usleep(2_600_000)  # PyDLL keeps the GIL, as simulators in C may
            return super().step(action)

    def serve(peer: Peer) -> None:
        peer.greet()
        peer.exchange(1)
        peer.socket.close(1001, "plugrl-server-stop")

    with scripted(serve) as server:
        envs = PlugRLVectorEnv(sync(Holding(3)), server.url, liveness_timeout=2.4)
        summary = envs.run(max_steps=1)
        envs.close()
    assert (summary.connections, summary.chunks_dropped) == (1, 0)
