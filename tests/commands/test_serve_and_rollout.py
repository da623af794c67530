"""A server process and a client process."""

from __future__ import annotations

import json
import re
import signal
import socket

import pytest
from stable_baselines3 import PPO

import plugrl_gym.rollout
from tests.support.commands import ROOT, Finished, command, rollout, run, serve


def check_latency(ran: Finished, served: Finished) -> None:
    """Both results, and the client's table, have the times of each stage."""
    client, server = ran.result["latency"], served.result["latency"]
    assert set(client) >= {"env", "encode", "exchange", "decode"}
    assert list(server) == ["decode", "queue", "forward", "encode", "answer", "client"]
    for values in (*client.values(), *server.values()):
        assert 0 < values["p50"] <= values["p95"] <= values["p99"] < 60
        assert values["count"] >= 1
    table = ran.stderr[ran.stderr.index("latency, ms") :].splitlines()
    assert [line.split()[0] for line in table[1 : len(client) + 1]] == list(client)
    assert table[1].split()[-1] == f"{client['env']['count']:,}"


def test_both_end_when_the_run_does():
    with (
        serve("--algo", "random", "--horizon", 3, "--total-timesteps", 400, "--json") as server,
        rollout(
            "CartPole-v1", "--url", server.url(), "--num-envs", 2, "--json", "--stats"
        ) as client,
    ):
        ran, served = client.finish(), server.finish()
    assert (ran.code, served.code) == (0, 0)
    check_latency(ran, served)
    assert ran.result["finished"]
    assert served.result["finished"]
    assert served.result["env_id"] == "CartPole-v1"
    assert served.result["timesteps"] >= 400
    assert served.result["mean_return"] == pytest.approx(ran.result["mean_return"])
    assert "The server ended the run" in ran.stderr


def test_a_limit_ends_the_client_and_sigterm_the_server(tmp_path):
    url_file = tmp_path / "url"
    with serve("--algo", "random", "--url-file", url_file) as server:
        url = server.url()
        assert url_file.read_text() == f"{url}\n"
        limits = ("--max-steps", 50, "--num-envs", 2, "--seed", 3, "--url", url)
        ran = run("-m", "plugrl_gym.rollout", "CartPole-v1", *limits, "--json")
        server.interrupt(signal.SIGTERM)
        served = server.finish()
    assert (ran.code, served.code) == (0, 0)
    assert ran.result["env_steps"] == 50
    assert not ran.result["finished"]
    assert "Stopped: 50 env steps" in served.stderr
    assert "Traceback" not in served.stderr
    assert not url_file.exists()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_the_readme_trains_and_both_sides_exit_with_0(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (snippet,) = [snippet for snippet in snippets if "in envs.rollout(" in snippet]
    options = ("--algo", "ppo", "--total-timesteps", 600, "--json", "--run-dir", tmp_path)
    assert f"python -m plugrl_gym.serve {options[0]} {options[1]} {options[2]}" in readme
    with serve(*options) as server:
        assert "ws://127.0.0.1:8000" in snippet
        program = tmp_path / "snippet.py"
        program.write_text(snippet.replace("ws://127.0.0.1:8000", server.url()))
        with command(program) as client:
            ran, served = client.finish(), server.finish()
    assert (ran.code, ran.said, served.code) == (0, "", 0)
    assert re.fullmatch(r"\d+ steps, mean return [\d.]+\n", ran.stdout)
    assert "preset CartPole-v1 for ppo" in served.stderr
    # Three rollouts of 32 x 8, and what an infer of some of the envs left over.
    assert 768 <= served.result["timesteps"] < 768 + 8
    assert json.loads((tmp_path / "result.json").read_text())["seed"] is None
    assert PPO.load(tmp_path / "model.zip").num_timesteps == served.result["timesteps"]


def test_the_learner_that_the_readme_makes_in_python_is_served(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (snippet,) = [snippet for snippet in snippets if "agent = SB3Agent(" in snippet]
    port = free_port()
    for before, after in (
        ("port=8000", f"port={port}"),
        ("20_000", "120"),
        ('5_000, "checkpoints"', f'50, r"{tmp_path}"'),
    ):
        assert before in snippet
        snippet = snippet.replace(before, after)
    program = tmp_path / "snippet.py"
    program.write_text(snippet)
    with (
        command(program) as server,
        rollout("Pendulum-v1", "--num-envs", 1, "--url", f"127.0.0.1:{port}") as client,
    ):
        ran, served = client.finish(), server.finish()
    assert (ran.code, served.code) == (0, 0)
    assert {path.name for path in tmp_path.glob("*.zip")} == {
        "rl_model_50_steps.zip",
        "rl_model_100_steps.zip",
    }


def test_ctrl_c_on_a_learning_server_saves(tmp_path):
    with (
        serve("--algo", "ppo", "--run-dir", tmp_path, "-P", "n_steps=16") as server,
        rollout("CartPole-v1", "--url", server.url(), "--quiet", "--max-steps", 400) as client,
    ):
        ran = client.finish()
        server.interrupt()
        served = server.finish()
    assert (ran.code, ran.stderr) == (0, "")
    assert served.code == 0
    assert "Traceback" not in served.stderr
    assert PPO.load(tmp_path / "model.zip").num_timesteps == 400
    assert not json.loads((tmp_path / "result.json").read_text())["finished"]


def test_a_client_may_come_before_its_server():
    port = free_port()
    with (
        rollout("CartPole-v1", "--url", f"127.0.0.1:{port}", "--json") as client,
        command(
            *("-m", "plugrl_gym.serve", "--algo", "random", "--port", port),
            *("--total-timesteps", 100),
        ) as server,
    ):
        assert client.finish().result["finished"]
        assert server.finish().code == 0


def test_ctrl_c_on_a_waiting_client_is_one_line_and_leaves_no_worker():
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        rollout(
            *("CartPole-v1", "--vector", "async", "--num-envs", 4, "--quiet"),
            *("--url", f"127.0.0.1:{silent.getsockname()[1]}", "--connect-timeout", 90),
        ) as client,
    ):
        silent.settimeout(20)
        accepted, _ = silent.accept()
        with accepted:
            client.interrupt()
            ran = client.finish(20)  # which waits for the workers' ends of stderr, too
    assert (ran.code, ran.stderr) == (130, "plugrl-gym rollout: interrupted\n")


def test_json_is_all_of_stdout_whatever_the_env_prints():
    with (
        serve("--algo", "random", "--total-timesteps", 40) as server,
        rollout("tests.support.awkward_envs:Chatty-v0", "--url", server.url(), "--json") as client,
    ):
        ran = client.finish()
        assert server.finish().stdout == ""
    assert ran.result["mean_return"] == 4.0
    assert "hello from Python" in ran.stderr
    assert "hello from C" in ran.stderr


@pytest.mark.parametrize("vector", ["sync", "async"])
def test_a_crash_of_the_env_is_a_traceback_and_the_server_goes_on(vector):
    env = ("tests.support.awkward_envs:Crashing-v0", "--vector", vector, "--num-envs", 2)
    with serve("--algo", "random") as server:
        ran = run("-m", "plugrl_gym.rollout", *env, "--url", server.url())
        server.line("client 1 .* left")
        server.interrupt()
        assert server.finish().code == 0
    assert ran.code == 1
    assert "RuntimeError: sim crashed" in ran.stderr


def test_a_client_that_declares_nothing_is_served_the_given_spaces():
    with (
        serve("--algo", "random", "--env-id", "CartPole-v1") as server,
        rollout("CartPole-v1", "--url", server.url(), "--max-steps", 8) as client,
    ):
        assert client.finish().code == 0
        server.interrupt()
        assert server.finish().code == 0


@pytest.mark.parametrize("autoreset", ["same-step", "next-step"])
def test_the_reference_server_serves_the_probe(autoreset):
    reference = ("--port", 0, "--horizon", 4, "--action-dim", 3, "--steps", 300)
    with (
        command(ROOT / "servers/reference_server.py", *reference) as server,
        rollout("--probe", "--autoreset", autoreset, "--url", server.url(), "--json") as client,
    ):
        ran, served = client.finish(), server.finish()
    assert (ran.code, served.code) == (0, 0)
    assert ran.result["finished"]
    assert 3 <= ran.result["mean_return"] <= 7


@pytest.mark.parametrize(
    "arguments", [[], ["CartPole-v1", "--probe"], ["--probe", "--vector", "async"]]
)
def test_probe_and_env_id_exclude_each_other(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        plugrl_gym.rollout.main(arguments)
    assert ended.value.code == 2
    assert "--probe" in capsys.readouterr().err


def test_the_probe_has_less_than_1000_envs(capsys):
    assert plugrl_gym.rollout.main(["--probe", "--num-envs", "1000"]) == 2
    assert "expected 1 to 999" in capsys.readouterr().err
