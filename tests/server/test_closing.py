"""Every way in which a server ends a connection, and what it leaves alone (SPEC 8)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from websockets.frames import Opcode
from websockets.protocol import OPEN

from plugrl_gym.errors import LocalProtocolError, RemoteProtocolError, UsageError
from plugrl_gym.protocol import Observation, encode
from plugrl_gym.protocol.close import (
    REASON_FEEDBACK_TIMEOUT,
    REASON_INTERNAL,
    REASON_RESYNC,
    REASON_SHUTDOWN,
    REASON_STOP,
)
from plugrl_gym.server import PlugRLServer
from plugrl_gym.server.link import Link
from tests.support.raw_client import (
    DEADLINE,
    declare,
    feedback_of,
    infer_of,
    raw_client,
)
from tests.support.serving import FakeAgent, running

RESYNC = (1001, REASON_RESYNC)
DISCRETE = declare(spaces.Discrete(2))


def _nan_infer() -> bytes:
    bad = Observation(states={"obs": np.full((1, 2), np.nan)}, text=[""])
    return encode(infer_of(0, observation=bad).to_wire())


MALFORMED: dict[str, Callable[[], bytes | str]] = {
    "text frame": lambda: "hello",
    "no msgpack": lambda: b"\xc1",
    "empty": lambda: b"",
    "no message_type": lambda: encode({"observation": 1}),
    "feedback first": lambda: encode(feedback_of(0).to_wire()),
    "no env": lambda: encode(infer_of().to_wire()),
    "not finite": _nan_infer,
    "missing key": lambda: encode({"message_type": "infer", "data": {}}),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_server_resyncs_on_a_malformed_first_message(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running(FakeAgent()) as run, raw_client(run.url) as client:
        client.socket.send(MALFORMED[kind]())
        assert client.closed() == RESYNC
    assert "client 1 (127.0.0.1:" in caplog.text
    assert "Traceback" not in caplog.text


def test_server_resyncs_on_two_infers_in_a_row() -> None:
    with running(FakeAgent()) as run, raw_client(run.url) as client:
        client.infer(0)
        client.say(infer_of(0))
        assert client.closed() == RESYNC


def test_server_resyncs_where_the_agent_finds_an_observation_that_does_not_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = FakeAgent(
        fail_in="prepare", error=RemoteProtocolError("infer.data.states.obs: missing")
    )
    with running(agent) as run, raw_client(run.url) as client:
        client.ask(0)
        assert client.closed() == RESYNC
        agent.wait_for_departures(1)
    assert "resync: infer.data.states.obs: missing" in caplog.text


def test_malformed_message_of_one_client_leaves_another_alone() -> None:
    agent = FakeAgent()
    with running(agent) as run, raw_client(run.url) as good:
        good.infer(0)
        for _ in range(3):
            with raw_client(run.url) as bad:
                bad.socket.send(b"\xc1")
                assert bad.closed() == RESYNC
        good.feed_back(0)
        good.exchange(0)
        agent.wait_for_rows(2)
    assert [number for number, _ in agent.fed_back] == [1, 1]


def test_close_waits_longer_each_time_a_broken_peer_returns_and_holds_up_nobody() -> None:
    delays: list[float] = []
    with running(FakeAgent()) as run, raw_client(run.url) as good:
        good.exchange(0)
        for _ in range(4):
            with raw_client(run.url) as bad:
                began = time.monotonic()
                bad.socket.send(b"\xc1")
                good.exchange(0)
                assert bad.closed() == RESYNC
                delays.append(time.monotonic() - began)
    assert delays[2] >= 0.2
    assert delays[3] >= 0.4


def test_close_of_a_broken_peer_does_not_wait_where_no_delay_is_wanted() -> None:
    with running(FakeAgent(), max_resync_delay=0.0) as run:
        began = time.monotonic()
        for _ in range(12):
            with raw_client(run.url) as bad:
                bad.socket.send(b"\xc1")
                assert bad.closed() == RESYNC
    assert time.monotonic() - began < 10.0


def test_shutdown_does_not_wait_for_a_delayed_close() -> None:
    with running(FakeAgent(), max_resync_delay=60.0) as run, ExitStack() as stack:
        clients = [stack.enter_context(raw_client(run.url)) for _ in range(12)]
        for client in clients:
            client.socket.send(b"\xc1")
        assert clients[0].closed() == RESYNC
        run.server.request_shutdown()
        assert clients[-1].closed() == (1001, REASON_SHUTDOWN)
        assert run.ended() is False


def test_refused_client_that_declared_its_spaces_gets_the_sentence() -> None:
    agent = FakeAgent()
    agent.refuse = "fake needs Box actions, env has Discrete(2)" + " and more" * 20
    with running(agent) as run, raw_client(run.url) as client:
        client.ask(0, spaces=DISCRETE)
        code, reason = client.closed()
    assert code == 1008
    assert reason == agent.refuse[:123]
    assert agent.left == []


def test_refused_client_that_declared_nothing_gets_a_resync(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = FakeAgent()
    agent.refuse = "fake needs to know the action space"
    with running(agent) as run, raw_client(run.url) as client:
        client.ask(0)
        assert client.closed() == RESYNC
    assert "fake needs to know the action space" in caplog.text


def test_finished_agent_stops_every_client_in_every_state() -> None:
    agent = FakeAgent(stop_after=2)
    with running(agent) as run, ExitStack() as stack:
        idle, acting, last = (stack.enter_context(raw_client(run.url)) for _ in range(3))
        acting.infer(0)
        last.infer(0, 1)
        last.feed_back(0, 1)
        for client in (idle, acting, last):
            assert client.closed() == (1001, REASON_STOP)
        assert run.ended() is True
    assert sorted(agent.left) == [2, 3]
    assert agent.closed == 1


def test_agent_that_was_finished_before_stops_the_first_that_asks() -> None:
    agent = FakeAgent(stop_after=0)
    with running(agent) as run, raw_client(run.url) as client:
        client.ask(0)
        assert client.closed() == (1001, REASON_STOP)
        assert run.ended() is True
    assert (agent.batches, agent.left, agent.closed) == ([], [1], 1)


def test_shutdown_closes_every_client_and_frees_its_envs() -> None:
    agent = FakeAgent()
    with running(agent) as run, raw_client(run.url) as idle, raw_client(run.url) as acting:
        acting.infer(0)
        run.server.request_shutdown()
        for client in (idle, acting):
            assert client.closed() == (1001, REASON_SHUTDOWN)
        assert run.ended() is False
        assert run.server.statistics.snapshot().abandoned == 1
    assert (agent.left, agent.closed) == ([2], 1)


def test_shutdown_takes_in_what_came_before_a_close_that_was_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = FakeAgent()

    def process(link: Link, event: Any) -> None:
        # By now the close that came with this feedback has been answered, and nobody has read it.
        if link.protocol.state is not OPEN and event.opcode is Opcode.BINARY:
            run.server.request_shutdown()
        handle(link, event)

    with running(agent) as run, raw_client(run.url) as client:
        client.infer(0)
        handle = Link.process_event
        monkeypatch.setattr(Link, "process_event", process)
        wire = client.socket.protocol
        with client.socket.protocol_mutex:
            wire.send_binary(encode(feedback_of(0).to_wire()))
            wire.send_close(1000)
            client.socket.socket.sendall(b"".join(wire.data_to_send()))
        assert run.ended() is False
    assert [number for number, _ in agent.fed_back] == [1]


def test_shutdown_takes_in_what_clients_that_have_left_had_sent_and_learns_no_more() -> None:
    agent = FakeAgent(learn_after=1)
    agent.may_learn.clear()
    with running(agent) as run, raw_client(run.url) as stays, raw_client(run.url) as leaves:
        leaves.ask(0)
        stays.infer(0)
        leaves.answer()
        stays.feed_back(0)
        assert agent.learning.wait(DEADLINE)
        leaves.feed_back(0)
        leaves.socket.close()
        run.server.request_shutdown()
        with pytest.raises(TimeoutError):
            run.wait(0.5)
        agent.may_learn.set()
        assert run.ended() is False
    assert [number for number, _ in agent.fed_back] == [1, 2]
    assert agent.learned == 1


def test_shutdown_waits_for_nothing_that_a_client_had_sent_who_stays() -> None:
    agent = FakeAgent(learn_after=1)
    agent.may_learn.clear()
    with running(agent) as run, raw_client(run.url) as client:
        client.infer(0)
        client.feed_back(0)
        assert agent.learning.wait(DEADLINE)
        client.ask(0)
        run.server.request_shutdown()
        assert client.closed() == (1001, REASON_SHUTDOWN)
        agent.may_learn.set()
        assert run.ended() is False


def test_shutdown_asked_for_before_the_start_ends_the_run_at_once() -> None:
    server = PlugRLServer(FakeAgent(), port=0)
    server.request_shutdown()
    assert server.serve() is False
    server.request_shutdown()  # of a server that has ended: nothing


def test_silent_client_gets_a_feedback_timeout_and_an_idle_one_does_not() -> None:
    agent = FakeAgent()
    with (
        running(agent, feedback_timeout=3.0) as run,
        raw_client(run.url) as idle,
        raw_client(run.url) as acting,
    ):
        idle.exchange(0)
        acting.infer(0)
        assert acting.closed() == (1001, REASON_FEEDBACK_TIMEOUT)
        agent.wait_for_departures(1)
        idle.exchange(0)
        agent.wait_for_rows(2)
    assert agent.left[0] == 2


def test_clock_of_the_feedback_timeout_stands_still_while_the_agent_learns() -> None:
    agent = FakeAgent(learn_after=1)
    agent.may_learn.clear()
    with (
        running(agent, feedback_timeout=2.5) as run,
        raw_client(run.url) as acting,
        raw_client(run.url) as other,
    ):
        acting.ask(0)
        other.infer(0)
        acting.answer()
        other.feed_back(0)
        assert agent.learning.wait(10)
        with pytest.raises(TimeoutError):
            acting.closed(timeout=3.0)
        agent.may_learn.set()
        assert acting.closed() == (1001, REASON_FEEDBACK_TIMEOUT)


@pytest.mark.parametrize("place", ["prepare", "join"])
def test_unexpected_error_over_one_client_closes_only_that_client(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = FakeAgent()
    with running(agent) as run, raw_client(run.url) as good, raw_client(run.url) as bad:
        good.infer(0)
        agent.fail_in = place
        bad.ask(0)
        assert bad.closed() == (1011, REASON_INTERNAL)
        agent.fail_in = ""
        good.feed_back(0)
        good.infer(0)
    assert "client 2" in caplog.text
    assert "broken on purpose" in caplog.text


@pytest.mark.parametrize("place", ["act", "feedback", "learn"])
def test_failing_agent_ends_the_run_for_everybody_and_is_raised(place: str) -> None:
    agent = FakeAgent(learn_after=2)
    with running(agent) as run, raw_client(run.url) as idle, raw_client(run.url) as client:
        idle.exchange(0)
        agent.wait_for_rows(1)
        agent.fail_in = place
        client.ask(0)
        if place != "act":
            client.answer()
            client.feed_back(0)
        for each in (idle, client):
            assert each.closed() == (1011, REASON_INTERNAL)
        assert run.ended() is agent.error
    assert agent.closed == 1


@pytest.mark.parametrize(
    ("actions", "sentence"),
    [
        ([np.full((1, 1), np.nan)], "the policy chose nan for env 0, step 0"),
        ([np.zeros((1, 2))], "expected [H, 1"),
        ([], "1 requests with 0 actions"),
    ],
)
def test_policy_that_cannot_be_sent_is_a_failure_of_the_agent(
    actions: list[object], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = FakeAgent()
    monkeypatch.setattr(agent, "act", lambda requests: actions)
    with running(agent) as run, raw_client(run.url) as client:
        client.ask(0)
        assert client.closed() == (1011, REASON_INTERNAL)
        outcome = run.ended()
    assert isinstance(outcome, LocalProtocolError)
    assert sentence in str(outcome)


def test_departed_client_of_a_failing_leave_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = FakeAgent(fail_in="leave")
    with running(agent) as run:
        with raw_client(run.url) as client:
            client.exchange(0)
        with raw_client(run.url) as client:
            client.exchange(0)
            agent.wait_for_rows(2)
        run.server.request_shutdown()
        assert run.ended() is False
    assert "the agent failed to let it go" in caplog.text


def test_lost_connection_is_a_departure() -> None:
    agent = FakeAgent()
    with running(agent) as run, raw_client(run.url) as client:
        client.infer(0, 1)
        client.socket.socket.shutdown(2)
        agent.wait_for_departures(1)
        with raw_client(run.url) as second:
            second.exchange(0)
        assert run.server.statistics.snapshot().abandoned == 2


@pytest.mark.parametrize(
    "options",
    [{"port": 65536}, {"port": -1}, {"feedback_timeout": 0.0}, {"batch_wait": -0.1}],
)
def test_server_refuses_options_out_of_range(options: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        PlugRLServer(FakeAgent(), **options)  # type: ignore[arg-type]
