"""Mistakes of users: one sentence, exit code 2, no traceback, in bounded time."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import gymnasium as gym
import pytest
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as websocket_serve

from plugrl_gym import PlugRLVectorEnv
from plugrl_gym.commands.entry import run_command
from tests.support.commands import rollout, run, serve

CLIENT = ("-m", "plugrl_gym.rollout", "CartPole-v1", "--num-envs", 2, "--connect-timeout", 5)


@contextmanager
def http_server(version: str) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        protocol_version = version

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def silent_websocket() -> Iterator[str]:
    """Accepts connections and never says a word."""

    def wait(connection: ServerConnection) -> None:
        for _ in connection:
            pass

    with websocket_serve(wait, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def nothing() -> Iterator[str]:
    """A port on which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"ws://127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (nothing, "nothing listens there"),
        (partial(http_server, "HTTP/1.1"), "an HTTP server answered with status 200"),
        (partial(http_server, "HTTP/1.0"), "what listens there speaks no WebSocket"),
        (silent_websocket, "waited 5 s for the server's metadata"),
    ],
)
def test_rollout_names_what_is_no_plugrl_server(place, expected):
    with place() as url:
        started = time.monotonic()
        complaint = run(*CLIENT, "--url", url, "--quiet").complaint
        assert time.monotonic() - started < 40
    assert complaint.startswith("plugrl-gym rollout: ")
    assert url in complaint
    assert expected in complaint


def test_rollout_with_another_action_width_names_both():
    with (
        serve("--algo", "random", "--action-space", "Box(-1, 1, (2,))") as server,
        rollout("Pendulum-v1", "--url", server.url(), "--quiet") as client,
    ):
        complaint = client.finish().complaint
        server.interrupt()
        assert server.finish().code == 0
    assert "(2,)" in complaint
    assert "(1,)" in complaint


def test_serve_on_a_port_in_use_names_it():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        complaint = run("-m", "plugrl_gym.serve", "--algo", "random", "--port", port).complaint
    assert complaint.startswith(f"plugrl-gym serve: port {port} of 127.0.0.1 is in use")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["serve", "--algo", "foo"], "invalid choice: 'foo'"),
        (["serve", "-P", "n_steps"], "expected name=value, got 'n_steps'"),
        (["rollout", "CartPol-v1"], "Did you mean: `CartPole`"),
        (["train", "CartPol-v1"], "Did you mean: `CartPole`"),
        (["rollout", ":CartPole-v1"], "'' is no name of a module"),
        (["rollout", "..envs:Mine-v0"], "'..envs' is no name of a module"),
        (["serve", "--algo", "random", "--url-file", "tests"], "that is a directory, not a file"),
        (["plot", "tests", "--out", "README.md/x"], "README.md is a file, not a directory"),
        (["rollout", "CartPole-v1", "--url", "http://localhost:8000"], "use ws://localhost:8000"),
    ],
)
def test_a_mistake_is_one_line(arguments, expected):
    complaint = run("-m", "plugrl_gym", *arguments).complaint
    assert complaint.startswith(f"plugrl-gym {arguments[0]}: ")
    assert expected in complaint


def test_train_tells_the_servers_reason_as_its_own(tmp_path):
    finished = run(
        *("-m", "plugrl_gym.train", "CartPole-v1", "-P", "steps=3"),
        *("--run-dir", tmp_path / "run", "--quiet"),
    )
    assert finished.complaint.startswith("plugrl-gym train: PPO has no hyperparameter 'steps'")
    assert not (tmp_path / "run").exists()


def test_train_tells_the_clients_reason_as_its_own(tmp_path):
    finished = run(
        *("-m", "plugrl_gym.train", "CartPole-v1", "--algo", "random", "--quiet"),
        *("--env-kwargs", "gravity_of_mars=3.7", "--run-dir", tmp_path),
    )
    complaint = finished.complaint
    assert complaint.startswith("plugrl-gym train: env 'CartPole-v1': --env-kwargs: ")
    assert "gravity_of_mars" in complaint


def test_a_plain_env_is_one_line_that_shows_the_cure(capsys):
    with gym.make("CartPole-v1") as env:
        code = run_command("prog", lambda: PlugRLVectorEnv(env))  # type: ignore[arg-type, return-value]
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "make_vec" in line


@pytest.mark.parametrize(
    ("env", "options", "expected"),
    [
        ("DictAction-v0", [], "actions of a Dict space have no encoding on the wire; flatten them"),
        ("GraphObservation-v0", [], "is a Graph space, which has no encoding on the wire; flatten"),
        ("TinyImage-v0", ["--policy", "CnnPolicy"], "env has Box(3,8,8)"),
        ("Instructed-v0", ["--vector", "async"], "Text observations need shared_memory=False"),
        ("TinyImage-v0", ["--algo", "sac"], "sac needs Box actions, env has Discrete(2)"),
        pytest.param(
            *("Boundless-v0", ["--algo", "sac"]),
            "sac needs finite action bounds, env has Box(1,) from -inf to inf",
            marks=pytest.mark.full,
        ),
        pytest.param(
            *("Stuck-v0", ["--algo", "sac"]),
            "sac needs action bounds low < high, env has Box(2,) from 0.5 to 0.5 (number 1)",
            marks=pytest.mark.full,
        ),
    ],
)
def test_train_refuses_an_env_that_cannot_be_served(tmp_path, env, options, expected):
    finished = run(
        *("-m", "plugrl_gym.train", f"tests.support.awkward_envs:{env}", "--num-envs", 2),
        *("--run-dir", tmp_path / "run", "--quiet", *options),
    )
    assert expected in finished.complaint
