"""The times that a client measures: which stage gets what."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

from plugrl_gym import PlugRLVectorEnv
from plugrl_gym.client.statistics import STAGES
from tests.client.conftest import sync
from tests.support.scripted import Peer, scripted
from tests.support.serving import FakeAgent, running
from tests.support.tracing import CountingEnv

DELAY = 0.1


class Slow(CountingEnv):
    """Takes its time for each step, and its observations theirs to be read."""

    def step(self, action: Any) -> Any:
        time.sleep(DELAY)
        return super().step(action)


class Thinking(FakeAgent):
    """Takes its time for each action."""

    def act(self, requests):
        time.sleep(DELAY)
        return super().act(requests)


def test_each_stage_is_timed_as_often_as_it_happens():
    with running(FakeAgent(horizon=3)) as server:
        envs = PlugRLVectorEnv(sync(CountingEnv(9), CountingEnv(9)), server.url)
        assert envs.stats.latency() == {}
        envs.run(max_steps=24)
        latency = envs.stats.latency()
        envs.close()
    counts = {stage: values["count"] for stage, values in latency.items()}
    counts.pop("wire", None)
    assert counts == {"env": 12, "encode": 4, "exchange": 4, "decode": 4}  # chunks of 3 steps
    assert set(latency) <= set(STAGES)


def test_a_slow_env_is_seen_in_env_alone():
    with running(FakeAgent()) as server:
        envs = PlugRLVectorEnv(sync(Slow(9)), server.url)
        envs.run(max_steps=5)
        latency = envs.stats.latency()
        envs.close()
    assert latency["env"]["p50"] >= DELAY * 0.9
    assert latency["exchange"]["p50"] < latency["env"]["p50"]


def test_a_slow_server_is_seen_in_exchange_alone():
    with running(Thinking()) as server:
        envs = PlugRLVectorEnv(sync(CountingEnv(9)), server.url)
        envs.run(max_steps=5)
        latency = envs.stats.latency()
        envs.close()
        assert server.statistics.snapshot().latency["forward"]["p50"] >= DELAY * 0.9
    assert latency["exchange"]["p50"] >= DELAY * 0.9
    assert max(latency[stage]["p50"] for stage in ("env", "encode", "decode")) < DELAY


def test_observations_that_are_slow_to_encode_are_seen_in_encode(monkeypatch):
    with running(FakeAgent(horizon=2)) as server:
        envs = PlugRLVectorEnv(sync(CountingEnv(9)), server.url)
        encode = envs._layout.encode

        def slowly(observation: Any) -> Any:
            time.sleep(DELAY)
            return encode(observation)

        monkeypatch.setattr(envs._layout, "encode", slowly)
        envs.run(max_steps=8)
        latency = envs.stats.latency()
        envs.close()
    assert latency["encode"]["p50"] >= 2 * DELAY * 0.9  # both steps of a chunk
    assert latency["env"]["p50"] < DELAY


def test_the_wire_is_timed_by_a_ping_soon_after_the_connection_is_there():
    with running(FakeAgent()) as server:
        envs = PlugRLVectorEnv(sync(CountingEnv(9)), server.url)
        steps = envs.rollout(max_steps=100_000)
        while "wire" not in envs.stats.latency():
            next(steps)  # ends, and then raises, where no pong ever comes
        wire = envs.stats.latency()["wire"]
        envs.close()
    assert wire["count"] == 1
    assert 0 < wire["p50"] < 5.0


def test_without_a_heartbeat_there_is_no_ping_and_nothing_of_the_wire():
    with running(FakeAgent()) as server:
        envs = PlugRLVectorEnv(sync(CountingEnv(9)), server.url, liveness_timeout=None)
        envs.run(max_steps=50)
        assert "wire" not in envs.stats.latency()
        envs.close()


def test_times_go_on_over_a_lost_connection():
    def lose(peer: Peer) -> None:
        peer.greet()
        peer.exchange(1)

    def serve(peer: Peer) -> None:
        peer.greet()
        peer.exchange(1)
        peer.socket.close(1001, "plugrl-server-stop")

    with scripted(lose, serve) as server:
        envs = PlugRLVectorEnv(sync(CountingEnv(9)), server.url)
        envs.run()
        latency = envs.stats.latency()
        envs.close()
    assert envs.stats.connections == 2
    assert latency["exchange"]["count"] == 2


def test_stats_called_are_a_plain_copy():
    with running(FakeAgent()) as server:
        envs = PlugRLVectorEnv(sync(CountingEnv(3), CountingEnv(4)), server.url)
        envs.run(max_steps=30)
        stats, copy = envs.stats, envs.stats()
        envs.close()
    assert json.loads(json.dumps(copy, allow_nan=False)) == copy
    for name in ("env_steps", "episodes", "mean_return", "mean_length", "chunks_received"):
        assert copy[name] == getattr(stats, name)
    assert copy["mean_length"] == np.mean(stats.lengths)
    assert copy["latency"]["env"]["count"] == 15
    assert copy["books"]["errors"] == []


def test_a_summary_has_the_latency():
    with running(FakeAgent()) as server:
        envs = PlugRLVectorEnv(sync(CountingEnv(9)), server.url)
        summary = envs.run(max_steps=4)
        envs.close()
    assert summary.to_dict()["latency"] == summary.latency
    assert summary.latency["env"]["count"] == 4
