"""A client behind a network that breaks: nothing is made up, and the books tell what was lost."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from websockets.sync.client import connect

from plugrl_gym import PlugRLVectorEnv
from plugrl_gym.client import heartbeat, session
from tests.client.conftest import sync
from tests.support.proxy import Cut, Proxy, proxy
from tests.support.serving import FakeAgent, Running, running
from tests.support.tracing import CountingEnv


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_LONGEST_DELAY", 0.02)


def wrap(between: Proxy, **options: Any) -> PlugRLVectorEnv:
    return PlugRLVectorEnv(sync(CountingEnv(5), CountingEnv(8)), between.url, **options)


def rows(run: Running) -> int:
    return run.server.statistics.snapshot().books.rows_received


@pytest.mark.parametrize("kind", Cut)
def test_cut_connection_costs_what_it_held_and_no_more(kind: Cut) -> None:
    agent = FakeAgent(horizon=2)
    with running(agent) as run, proxy(run.server.port, seed=3) as between:
        envs = wrap(between)
        for step, _ in enumerate(envs.rollout(max_steps=200)):
            if step % 10 == 5:
                assert between.cut(kind)
        envs.close()
        stats = envs.stats
        agent.wait_for_departures(stats.connections)
        given = run.server.statistics.snapshot().books.chunks_given
    assert between.cuts[kind] >= 9
    assert stats.connections == between.cuts[kind] + 1
    assert stats.book_errors == ()
    assert run.server.statistics.snapshot().book_errors == ()
    # What one side sent and the other did not get was on its way when the connection was cut.
    assert 0 <= given - stats.chunks_received <= 2 * stats.connections
    assert 0 <= stats.chunks_fed_back - rows(run) <= 2 * stats.connections


def test_slow_network_breaks_nothing() -> None:
    with running(FakeAgent()) as run, proxy(run.server.port) as between:
        between.latency, between.jitter, between.rate = 0.001, 0.004, 200_000.0
        envs = wrap(between)
        envs.run(max_steps=60)
        envs.close()
    assert (envs.stats.connections, envs.stats.chunks_dropped) == (1, 0)


def test_network_that_swallows_everything_is_noticed_within_the_limit() -> None:
    noticed = threading.Event()
    with running(FakeAgent()) as run, proxy(run.server.port) as between:
        envs = wrap(between, liveness_timeout=3.0)
        for step, _ in enumerate(envs.rollout(max_steps=40)):
            if step == 10:
                between.stall(True)
                pulse = envs._session._connection._heartbeat  # type: ignore[union-attr]
                threading.Thread(target=lift, args=(pulse, between, noticed)).start()
        envs.close()
    assert noticed.is_set()
    assert envs.stats.connections == 2
    assert envs.stats.book_errors == ()


def test_messages_are_signs_of_life_where_no_ping_gets_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = 0

    def ping(beat: heartbeat.Heartbeat) -> None:
        """As while the caller is sending, at each try."""
        nonlocal tried
        tried += 1

    monkeypatch.setattr(heartbeat.Heartbeat, "_ping", ping)
    with running(FakeAgent()) as run:
        envs = PlugRLVectorEnv(sync(CountingEnv(4)), run.url, liveness_timeout=2.4)
        for _ in envs.rollout(max_steps=1_000_000):
            if tried > 5:  # the fourth in silence would have been the last
                break
        envs.close()
    assert (tried, envs.stats.connections) == (6, 1)


def lift(pulse: Any, between: Proxy, noticed: threading.Event) -> None:
    """End the stall once the client has given up the connection."""
    pulse._thread.join(10)
    if pulse.gone is not None:
        noticed.set()
    between.stall(False)


def test_large_message_is_given_a_second_for_each_100_kb_and_no_ping_waits_for_it() -> None:
    with (
        running(FakeAgent()) as run,
        connect(run.url, create_connection=heartbeat.Listening) as connection,
    ):
        beat = heartbeat.Heartbeat(connection, 60.0)
        with beat.sending(50_000_000):
            assert beat._patience == 500.0
            assert beat._ping() is None
        assert beat._patience == 0.0
        deadline = time.monotonic() + 10
        while (pong := beat._ping()) is None:  # its own thread may be at it
            assert time.monotonic() < deadline
        assert pong.wait(10)
        beat.stop()
