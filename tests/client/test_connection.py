"""PlugRLVectorEnv over real sockets: how connections begin, break and end."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium as gym
import msgpack
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from websockets.sync.client import ClientConnection
from websockets.sync.server import serve

from plugrl_gym import (
    ConnectionFailed,
    ConnectTimeout,
    PlugRLVectorEnv,
    RemoteProtocolError,
    ReplyTimeout,
    RunFinished,
    ServerRefused,
    UsageError,
)
from plugrl_gym.client import heartbeat, session
from plugrl_gym.client.connection import parse_url
from plugrl_gym.protocol import Action, encode
from tests.client.conftest import sync
from tests.support.scripted import Peer, scripted
from tests.support.tracing import CountingEnv

STOP = "plugrl-server-stop"


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_LONGEST_DELAY", 0.05)


def wrap(url: str, env: Any = None, **kwargs: Any) -> PlugRLVectorEnv:
    return PlugRLVectorEnv(env or sync(CountingEnv(3), CountingEnv(5)), url, **kwargs)


def stop_after(exchanges: int) -> Any:
    def handler(peer: Peer) -> None:
        peer.greet()
        peer.exchange(exchanges)
        peer.socket.close(1001, STOP)

    return handler


def serve_on(peer: Peer) -> None:
    peer.greet()
    peer.exchange(10_000)


# -- The run's end and clean closes ---------------------------------------------------------


def test_client_finishes_when_the_server_stops() -> None:
    with scripted(stop_after(4)) as server, wrap(server.url) as envs:
        summary = envs.run(seed=0)
        assert (summary.finished, summary.env_steps, summary.connections) == (True, 8, 1)
        with pytest.raises(RunFinished):
            envs.step()


def test_client_closes_with_1000() -> None:
    with scripted(serve_on) as server:
        with wrap(server.url) as envs:
            envs.run(max_steps=6)
        assert server.wait_for_ends(1) == [(1000, "")]


def test_client_offers_no_compression_and_sends_its_key() -> None:
    with scripted(stop_after(1)) as server:
        with wrap(server.url, api_key="secret") as envs:
            envs.run()
        headers = server.peers[0].socket.request.headers
    assert "Sec-WebSocket-Extensions" not in headers
    assert headers["Authorization"] == "Api-Key secret"


def test_client_keeps_its_key_out_of_its_repr() -> None:
    envs = wrap("ws://127.0.0.1:1", api_key="secret")
    assert "secret" not in repr(envs._session._endpoint)


# -- Lost connections -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (1001, "plugrl-server-resync"),
        (1001, "Feedback timeout"),
        (1001, "Server shutdown"),
        (1011, "Internal server error."),
        (1000, ""),
        (None, None),
    ],
)
def test_client_reconnects_and_starts_with_an_infer(code: int | None, reason: str | None) -> None:
    def cut_after_an_action(peer: Peer) -> None:
        peer.greet()
        peer.exchange(1)
        infer = peer.receive()
        peer.act(np.zeros((4, len(infer.env_indices)), np.int64))
        if code is None:
            peer.break_off()
        else:
            peer.socket.close(code, reason)

    seen = []

    def then_serve(peer: Peer) -> None:
        peer.greet()
        infer = peer.receive()
        seen.append(infer)
        peer.act(np.zeros((1, len(infer.env_indices)), np.int64))
        peer.receive()
        peer.socket.close(1001, STOP)

    with scripted(cut_after_an_action, then_serve) as server, wrap(server.url) as envs:
        summary = envs.run(seed=0)
    assert summary.finished
    assert summary.connections == 2
    assert seen[0].env_indices.tolist() == [0, 1]
    assert seen[0].reuse is None


def test_client_drops_what_the_lost_connection_held() -> None:
    def cut(peer: Peer) -> None:
        peer.greet()
        infer = peer.receive()
        peer.act(np.zeros((10, len(infer.env_indices)), np.int64))
        peer.socket.recv(timeout=10)
        peer.break_off()

    with scripted(cut, stop_after(2)) as server, wrap(server.url) as envs:
        envs.run()
        assert (1001, STOP) in server.wait_for_ends(2)
    assert envs.stats.chunks_received == envs.stats.chunks_fed_back + envs.stats.chunks_dropped


def test_client_gives_up_on_a_server_that_never_lets_it_feed_back() -> None:
    def always_resync(peer: Peer) -> None:
        peer.greet()
        peer.receive()
        peer.socket.close(1001, "plugrl-server-resync")

    with (
        scripted(always_resync) as server,
        wrap(server.url) as envs,
        pytest.raises(ConnectionFailed, match=r"gave up.*plugrl-server-resync"),
    ):
        envs.run()


def test_client_waits_for_a_server_that_starts_later() -> None:
    waiting = threading.Event()
    ready = threading.Event()
    placeholder = socket.socket()
    placeholder.bind(("127.0.0.1", 0))  # nobody else gets the port
    port = placeholder.getsockname()[1]
    envs = wrap(f"ws://127.0.0.1:{port}", connect_timeout=20)

    def dial() -> None:
        waiting.set()
        envs.run()
        ready.set()

    thread = threading.Thread(target=dial, daemon=True)
    thread.start()
    assert waiting.wait(5)
    placeholder.listen()
    with scripted_at(placeholder, stop_after(2)):
        assert ready.wait(20)
    envs.close()


@contextlib.contextmanager
def scripted_at(listener: socket.socket, handler: Any) -> Iterator[None]:
    server = serve(lambda ws: handler(Peer(ws, 0)), sock=listener, compression=None)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield
    server.shutdown()
    thread.join(10)


class Crashing(CountingEnv):
    def step(self, action: Any) -> Any:
        if self.time == 5:
            raise RuntimeError("sim crashed")
        return super().step(action)


@pytest.mark.filterwarnings("ignore::UserWarning:gymnasium")  # of the worker that is gone
def test_crash_of_an_async_worker_reaches_the_user_and_closes_with_1000() -> None:
    def chunks(peer: Peer) -> None:
        peer.greet()
        peer.exchange(10, horizon=3)

    vector = AsyncVectorEnv(
        [lambda: CountingEnv(9), lambda: Crashing(9)], autoreset_mode=AutoresetMode.SAME_STEP
    )
    with scripted(chunks) as server, wrap(server.url, vector) as envs:
        with pytest.raises(RuntimeError, match="sim crashed"):
            envs.run()
        assert server.wait_for_ends(1) == [(1000, "")]
        assert envs.stats.books.steps_dropped == {"env failed": 4}
        assert envs.stats.book_errors == ()


# -- Refusals and protocol errors -----------------------------------------------------------


def test_client_raises_the_servers_sentence_and_stays_away() -> None:
    def refuse(peer: Peer) -> None:
        peer.greet(features=("gym-spaces",))
        assert peer.receive().spaces.env_id is None
        peer.socket.close(1008, "dqn needs Discrete actions, env has Box(1,)")

    with scripted(refuse) as server, wrap(server.url) as envs:
        with pytest.raises(ServerRefused, match=r"^dqn needs Discrete actions, env has Box\(1,\)$"):
            envs.run()
        server.wait_for_ends(1)
        assert len(server.peers) == 1


def test_client_raises_on_a_wrong_key() -> None:
    def reject(connection: Any, request: Any) -> Any:
        return connection.respond(401, "no")

    with (
        scripted(serve_on, process_request=reject) as server,
        wrap(server.url) as envs,
        pytest.raises(ServerRefused, match="401"),
    ):
        envs.reset()


def test_client_takes_a_text_frame_as_fatal() -> None:
    after: list[Any] = []

    def text(peer: Peer) -> None:
        peer.greet()
        peer.receive()
        peer.socket.send("Traceback: something broke")
        after.extend(peer.socket)

    with scripted(text) as server, wrap(server.url) as envs:
        with pytest.raises(RemoteProtocolError, match="text frame"):
            envs.run()
        assert server.wait_for_ends(1)[0][0] == 1002
        assert len(server.peers) == 1
    assert after == []


@pytest.mark.parametrize(
    ("chunk", "text"),
    [
        (np.zeros((1, 3), np.int64), r"expected \[H, 2, \.\.\.\] for 2 envs, got \[1, 3\]"),
        (np.zeros((0, 2), np.int64), "H >= 1"),
        (np.full((1, 2), np.nan), "not a finite number"),
        (np.zeros((1, 2, 5)), r"takes \[H, n\]"),
    ],
)
def test_client_refuses_a_bad_action_before_any_env_moves(chunk: np.ndarray, text: str) -> None:
    def bad(peer: Peer) -> None:
        peer.greet()
        infer = peer.receive()
        peer.socket.send(encode(Action(chunk, infer.env_indices).to_wire()))
        peer.socket.recv(timeout=10)

    env = CountingEnv(3)
    with scripted(bad) as server, wrap(server.url, sync(env, CountingEnv(5))) as envs:
        with pytest.raises(RemoteProtocolError, match=text):
            envs.run()
        assert server.wait_for_ends(1)[0][0] == 1002
    assert env.time == 0


def test_client_names_an_openpi_server() -> None:
    def openpi(peer: Peer) -> None:
        peer.socket.send(msgpack.packb({"action_horizon": 50}))
        peer.socket.recv(timeout=10)

    with (
        scripted(openpi) as server,
        wrap(server.url) as envs,
        pytest.raises(RemoteProtocolError, match=r"not a PlugRL version 1 server.*openpi"),
    ):
        envs.reset()


def test_client_names_a_server_of_another_version() -> None:
    with (
        scripted(lambda peer: (peer.greet(protocol_version=2), peer.receive())) as server,
        wrap(server.url) as envs,
        pytest.raises(RemoteProtocolError, match="speaks PlugRL version 2"),
    ):
        envs.reset()


class Http(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


def test_client_names_a_plain_http_server() -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), Http)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        envs = wrap(f"ws://127.0.0.1:{server.server_port}")
        with pytest.raises(ConnectionFailed, match=r"speaks no WebSocket.*HTTP/1\.0 501"):
            envs.reset()
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


# -- Deadlines ------------------------------------------------------------------------------


def test_client_gives_up_on_a_server_that_is_not_there() -> None:
    envs = wrap("ws://127.0.0.1:1", connect_timeout=0.3)
    started = time.monotonic()
    with pytest.raises(ConnectTimeout, match=r"ws://127\.0\.0\.1:1: nothing listens there"):
        envs.reset()
    assert time.monotonic() - started < 5


def test_client_gives_up_on_a_server_that_never_speaks() -> None:
    with (
        scripted(lambda peer: peer.socket.recv(timeout=10)) as server,
        wrap(server.url, metadata_timeout=0.3) as envs,
        pytest.raises(ReplyTimeout, match="the server's metadata"),
    ):
        envs.reset()


def hold(peer: Peer) -> None:
    peer.greet()
    peer.receive()
    peer.socket.recv(timeout=20)


def test_client_never_takes_a_late_answer_for_the_next() -> None:
    with scripted(hold, stop_after(2)) as server, wrap(server.url, reply_timeout=0.3) as envs:
        envs.reset()
        with pytest.raises(ReplyTimeout, match="the limit is 0 s"):
            envs.step()
        envs._session._endpoint = replace(envs._session._endpoint, reply_timeout=10.0)
        envs.step()
        assert len(server.peers) == 2


class Freezing:
    """Stops a connection as ``kill -STOP`` would: it stays open and answers nothing."""

    def __init__(self) -> None:
        self.frozen, self.thawed = threading.Event(), threading.Event()

    def hold(self, peer: Peer) -> None:
        # Pongs are sent under this lock: a stopped process sends none either.
        with peer.socket.protocol_mutex:
            self.frozen.set()
            assert self.thawed.wait(20)


def test_client_leaves_a_server_without_a_sign_of_life_while_it_waits() -> None:
    freezing = Freezing()

    def freeze(peer: Peer) -> None:
        peer.greet()
        peer.receive()
        freezing.hold(peer)

    with scripted(freeze, stop_after(3)) as server, wrap(server.url, liveness_timeout=3.0) as envs:
        try:
            summary = envs.run()
        finally:
            freezing.thawed.set()
    assert (summary.finished, summary.connections) == (True, 2)
    assert freezing.frozen.is_set()


def test_client_notices_a_dead_server_while_its_env_steps() -> None:
    freezing = Freezing()
    found_out = threading.Event()

    class Slow(CountingEnv):
        def step(self, action: Any) -> Any:
            if not found_out.is_set():
                envs._session._connection._heartbeat._thread.join(20)
                found_out.set()
            return super().step(action)

    def freeze(peer: Peer) -> None:
        peer.greet()
        infer = peer.receive()
        peer.act(np.zeros((1, len(infer.env_indices)), np.int64))
        freezing.hold(peer)

    with scripted(freeze, stop_after(3)) as server:
        envs = wrap(server.url, sync(Slow(3)), liveness_timeout=3.0)
        try:
            assert envs.run().finished
        finally:
            freezing.thawed.set()
            envs.close()
    assert envs.stats.books.chunks_dropped == {"no sign of life": 1}


def test_client_notices_a_dead_server_that_takes_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "_SLOWEST", 1e9)
    thawed = threading.Event()

    class Big(CountingEnv):
        def __init__(self) -> None:
            super().__init__(3)
            self.observation_space = gym.spaces.Box(0, 1, (1_000_000,), np.float64)

        def _observe(self) -> np.ndarray:
            return np.zeros(1_000_000)

    def deaf(peer: Peer) -> None:
        peer.greet()
        with peer.socket.recv_flow_control:  # nothing is read from the socket any more
            assert thawed.wait(20)

    with scripted(deaf, stop_after(1)) as server:
        envs = wrap(server.url, sync(Big()), liveness_timeout=4.0)
        try:
            assert envs.run().finished
        finally:
            thawed.set()
            envs.close()
    assert envs.stats.connections == 2


def test_client_waits_for_a_server_that_learns_and_answers_pings() -> None:
    asked = threading.Event()

    def learn(peer: Peer) -> None:
        peer.greet()
        infer = peer.receive()
        asked.wait(20)
        peer.act(np.zeros((1, len(infer.env_indices)), np.int64))
        peer.receive()
        peer.socket.close(1001, STOP)

    def on_wait(seconds: float, what: str) -> None:
        if what == "the server":
            asked.set()

    with scripted(learn) as server, wrap(server.url, liveness_timeout=2.5, on_wait=on_wait) as envs:
        assert envs.run().finished
    assert asked.is_set()


def test_an_interrupted_exchange_ends_its_connection() -> None:
    interrupting = threading.Event()

    def interrupt(seconds: float, what: str) -> None:
        if interrupting.is_set():
            raise KeyboardInterrupt

    with scripted(hold, stop_after(1)) as server, wrap(server.url, on_wait=interrupt) as envs:
        envs.reset()
        interrupting.set()
        with pytest.raises(KeyboardInterrupt):
            envs.step()
        interrupting.clear()
        server.wait_for_ends(1)
        assert server.ends == [(1000, "")]  # done, not lost (SPEC 8.36)
        envs.step()
        assert len(server.peers) == 2


def test_an_interrupt_amid_a_frame_breaks_the_connection_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def send(self: ClientConnection, message: bytes) -> None:
        raise KeyboardInterrupt  # half of it may be on its way

    with scripted(hold) as server, wrap(server.url) as envs:
        envs.reset()
        monkeypatch.setattr(ClientConnection, "send", send)
        with pytest.raises(KeyboardInterrupt):
            envs.step()
        server.wait_for_ends(1)
        assert server.ends == [(1006, "")]


def test_client_answers_pings_while_its_env_steps() -> None:
    answered = threading.Event()

    class Slow(CountingEnv):
        def step(self, action: Any) -> Any:
            assert answered.wait(20)
            return super().step(action)

    def ping(peer: Peer) -> None:
        peer.greet()
        infer = peer.receive()
        peer.act(np.zeros((1, len(infer.env_indices)), np.int64))
        assert peer.socket.ping().wait(20)
        answered.set()
        peer.receive()
        peer.socket.close(1001, STOP)

    with scripted(ping) as server, wrap(server.url, sync(Slow(3))) as envs:
        assert envs.run().finished


# -- URLs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        ("ws://host:1", "ws://host:1"),
        ("host:9000", "ws://host:9000"),
        ("host", "ws://host:8000"),
        ("wss://host:1/path", "wss://host:1/path"),
        ("[::1]:9000", "ws://[::1]:9000"),
    ],
)
def test_urls_are_taken_as_people_type_them(given: str, parsed: str) -> None:
    assert parse_url(given) == parsed


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("http://host:1", "use ws://host:1"),
        ("ftp://host", "expected ws://"),
        ("ws://", "no host"),
        ("", "expected ws://"),
        ("ws://host:port", "expected ws://"),
        ("ws://my..host:1", "expected ws://"),
    ],
)
def test_other_urls_are_refused_in_words(given: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        parse_url(given)


@pytest.mark.parametrize(
    "url",
    [
        "ws://me:secret@host:1",
        "me:secret@host",
        "http://me:secret@host",
        "ws://me:secret@host:port/path",
        "wss://secret@host",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="leave out what is before the @") as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)
