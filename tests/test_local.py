"""``plugrl_gym.local_server``: a server for the length of a block, in a thread or a process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import plugrl_gym
from plugrl_gym import ConnectionFailed, PlugRLVectorEnv, RunFailed, UsageError, local_server
from plugrl_gym.agents.random_agent import RandomAgent
from plugrl_gym.local import ServerProcess, ServerThread
from tests.support.commands import DEADLINE, ROOT
from tests.support.serving import FakeAgent


def play(url: str, steps: int | None = None, **options: Any) -> int:
    """Env steps of a client that ran until the end of the run, or for ``steps``."""
    envs = PlugRLVectorEnv(gym.make_vec("CartPole-v1", num_envs=2), url, **options)
    try:
        return envs.run(seed=0, max_steps=steps).env_steps
    finally:
        envs.close()


@pytest.fixture
def checkout_importable(monkeypatch):
    """Children import this checkout, wherever they run."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYTHONPATH", path)


# -- an agent, in a thread ----------------------------------------------------------------


def test_an_agent_is_served_from_a_thread_until_its_run_ends():
    with local_server(RandomAgent(total_timesteps=20)) as server:
        assert isinstance(server, ServerThread)
        assert server.url == f"ws://127.0.0.1:{server.port}"
        assert server.result is None
        steps = play(server.url)
        result = server.wait(DEADLINE)
    assert steps >= 20
    assert server.statistics.snapshot().env_steps == steps
    assert (result["timesteps"], result["finished"], server.run_dir) == (steps, True, None)
    assert server.result is result


def test_the_end_of_the_block_ends_the_run_and_lets_the_agent_save():
    agent = FakeAgent()
    with local_server(agent) as server:
        assert play(server.url, 10) == 10
        assert agent.closed == 0
    assert agent.closed == 1
    assert server.result is not None
    assert server.result["finished"] is False
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE)


def test_a_server_can_be_kept_without_a_block_and_closed_twice():
    agent = FakeAgent()
    server = local_server(agent)
    server.close()
    server.close()
    assert agent.closed == 1


def test_options_of_the_server_are_passed_on():
    heard = []
    options = {"api_key": "open-sesame", "on_listening": heard.append}
    with local_server(RandomAgent(total_timesteps=4), **options) as server:
        assert heard == [server.server]
        assert play(server.url, api_key="open-sesame") >= 4


def test_waiting_longer_than_asked_says_so():
    with local_server(FakeAgent()) as server, pytest.raises(TimeoutError, match="has not ended"):
        server.wait(0.01)


def test_the_failure_of_an_agent_is_raised_by_wait_and_close():
    agent = FakeAgent(fail_in="act")
    server = local_server(agent)
    with pytest.raises(ConnectionFailed):
        play(server.url, reconnect_timeout=0.0)
    for end in (server.wait, server.close):
        with pytest.raises(RuntimeError, match="broken on purpose") as caught:
            end()
        assert caught.value is agent.error
    assert server.result is None


def test_a_client_that_lost_its_server_hears_why_at_the_end_of_the_block():
    agent = FakeAgent(fail_in="act")
    with pytest.raises(RuntimeError) as caught, local_server(agent) as server:
        play(server.url, reconnect_timeout=0.0)
    assert caught.value is agent.error
    assert isinstance(caught.value.__context__, ConnectionFailed)


def test_an_error_of_the_block_itself_is_the_one_that_is_raised():
    agent = FakeAgent(fail_in="close")
    with pytest.raises(KeyError, match="mine") as caught, local_server(agent):
        raise KeyError("mine")
    assert caught.value.__notes__ == ["The server failed, too: broken on purpose"]


def test_a_server_whose_agent_fails_to_save_leaves_its_port():
    server = local_server(FakeAgent(fail_in="close"))
    with pytest.raises(RuntimeError, match="broken on purpose"):
        server.close()
    socket.create_server(("127.0.0.1", server.port)).close()


def test_a_port_that_is_taken_is_told_at_once_in_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=str(port)) as caught:
            local_server(FakeAgent(), port=port)
    assert "\n" not in str(caught.value)


def test_a_server_that_does_not_end_in_time_is_not_waited_for():
    agent = FakeAgent(learn_after=1)
    agent.may_learn.clear()
    server = local_server(agent, stop_timeout=0.01)

    def lose() -> None:
        with contextlib.suppress(ConnectionFailed):
            play(server.url, reconnect_timeout=0.0)

    client = threading.Thread(target=lose, daemon=True)
    client.start()
    assert agent.learning.wait(DEADLINE)
    with pytest.raises(TimeoutError, match=r"did not end within 0\.01 s"):
        server.close()
    agent.may_learn.set()
    server.stop_timeout = DEADLINE
    server.close()
    client.join(DEADLINE)
    assert agent.closed == 1


def test_it_works_where_an_event_loop_runs_already_as_in_a_notebook():
    async def cell() -> int:
        with local_server(RandomAgent(total_timesteps=4)) as server:
            return play(server.url)

    assert asyncio.run(cell()) >= 4


@pytest.mark.parametrize("served", [RandomAgent, 7])
def test_what_is_neither_a_name_nor_an_agent_is_refused(served):
    with pytest.raises(UsageError, match=r"expected the name of an algorithm, .* or an Agent"):
        local_server(served)


# -- an algorithm, in a process -----------------------------------------------------------


def test_an_algorithm_is_served_from_a_process_until_its_run_ends(tmp_path, checkout_importable):
    run_dir = tmp_path / "run"
    with local_server("random", total_timesteps=20, seed=3, run_dir=run_dir) as server:
        assert isinstance(server, ServerProcess)
        assert (server.run_dir, server.result) == (run_dir, None)
        assert server.url == f"ws://127.0.0.1:{server.port}"
        steps = play(server.url)
        result = server.wait(DEADLINE)
    assert (result["timesteps"], result["seed"], result["finished"]) == (steps, 3, True)
    written = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
    assert result == {**written, "run_dir": str(run_dir)}
    assert "joined: CartPole-v1 x 2" in server.log


def test_the_end_of_the_block_lets_the_child_save_though_forks_of_this_process_live_on(
    tmp_path, checkout_importable
):
    envs = None
    run_dir = tmp_path / "run"
    try:
        with local_server("random", run_dir=run_dir, stop_timeout=DEADLINE) as server:
            inner = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="async")
            envs = PlugRLVectorEnv(inner, server.url)
            envs.run(max_steps=10)
        assert server.result is not None
        assert server.result["finished"] is False
        assert (run_dir / "result.json").exists()
    finally:
        if envs is not None:
            envs.close()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"total_timestep": 5}, "there is no option total_timestep; did you mean total_timesteps?"),
        ({"announce": True}, "there is no option announce"),
        (
            {"hyperparameters": {"policy_kwargs": object}},
            "hyperparameters: policy_kwargs=<class 'object'> cannot be told to another process; "
            "expected numbers, texts, and lists and dicts of them",
        ),
        (
            {"hyperparameters": {"n steps": 1}},
            "hyperparameters: expected name=value, got 'n steps=1'",
        ),
    ],
)
def test_an_option_that_cannot_be_is_refused_before_a_process_is_started(
    options, complaint, monkeypatch
):
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(UsageError) as caught:
        local_server("ppo", **options)
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    ("algorithm", "options", "complaint"),
    [
        ("random", {"total_timesteps": -1}, "argument --total-timesteps: expected a whole number"),
        (None, {"resume": "no/such/run"}, "no/such/run"),
    ],
)
def test_what_the_child_refuses_is_raised_as_its_one_sentence(
    algorithm, options, complaint, checkout_importable
):
    with pytest.raises(UsageError) as caught:
        local_server(algorithm, **options)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not str(caught.value).startswith("plugrl-gym")


def test_a_missing_extra_is_raised_as_its_one_sentence(tmp_path, checkout_importable, monkeypatch):
    (tmp_path / "stable_baselines3.py").write_text(
        "raise ModuleNotFoundError('hidden', name='stable_baselines3')", encoding="utf-8"
    )
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    monkeypatch.setenv("PYTHONPATH", path)
    with pytest.raises(UsageError) as caught:
        local_server("ppo", no_run_dir=True)
    assert str(caught.value) == (
        '--algo ppo needs stable_baselines3, which is not installed: pip install "plugrl-gym[sb3]"'
    )


def test_a_key_reaches_the_child_and_is_not_in_the_list_of_processes(
    checkout_importable, monkeypatch
):
    started = []
    popen = subprocess.Popen

    def watched(command, **kwargs):
        started.append(command)
        return popen(command, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", watched)
    with local_server("random", total_timesteps=4, api_key="open-sesame") as server:
        with pytest.raises(plugrl_gym.ServerRefused):
            play(server.url)
        assert play(server.url, api_key="open-sesame") >= 4
    (command,) = started
    assert "sesame" not in " ".join(command)


def test_a_key_in_the_environment_is_not_wanted_from_clients(checkout_importable, monkeypatch):
    monkeypatch.setenv("PLUGRL_API_KEY", "for another server")
    with local_server("random", total_timesteps=4) as server:
        assert play(server.url) >= 4


def test_a_child_that_crashes_is_told_at_once_and_raised_with_the_end_of_its_log(
    checkout_importable, caplog
):
    server = local_server("random")
    kill(server)
    server._reader.join(DEADLINE)
    assert server.url in caplog.text
    with pytest.raises(RunFailed) as caught:
        server.close()
    assert str(caught.value).startswith("the server was killed by signal 9")


def test_a_child_that_does_not_start_in_time_is_ended(checkout_importable, monkeypatch):
    started = []
    popen = subprocess.Popen

    def watched(*arguments, **kwargs):
        started.append(popen(*arguments, **kwargs))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", watched)
    with pytest.raises(TimeoutError, match="did not start within 0 s; its log:"):
        local_server("random", start_timeout=0.0, stop_timeout=DEADLINE)
    (child,) = started
    assert child.poll() is not None


def test_the_block_that_the_readme_shows_runs(tmp_path, checkout_importable, capsys):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (snippet,) = [snippet for snippet in snippets if "local_server" in snippet]
    for before, after in (('"ppo"', '"random"'), ("20_000", f'600, run_dir=r"{tmp_path}"')):
        assert before in snippet
        snippet = snippet.replace(before, after)
    exec(snippet, {})
    assert re.fullmatch(r"mean return [\d.]+; files: .+\n", capsys.readouterr().out)
    assert (tmp_path / "result.json").exists()


def kill(server: ServerProcess) -> None:
    """SIGKILL, as the system does where memory runs out."""
    if sys.platform == "win32":
        pytest.skip("Windows has no such signal")
    os.kill(server.pid, signal.SIGKILL)


def test_the_child_ends_where_the_process_that_started_it_is_killed(
    tmp_path: Path, checkout_importable
):
    program = (
        "import sys\n"
        "from plugrl_gym import local_server\n"
        f"server = local_server('random', run_dir={str(tmp_path / 'run')!r})\n"
        "print(server.url, flush=True)\n"
        "sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()
        envs = PlugRLVectorEnv(gym.make_vec("CartPole-v1", num_envs=2), url, reconnect_timeout=0.0)
        steps = envs.rollout()
        next(steps)
        parent.kill()
        with pytest.raises(plugrl_gym.ConnectionFailed):
            for _ in steps:
                pass
        envs.close()
