"""Ctrl-C and SIGTERM: what was done until then is told all the same."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Command, Finished, command, rollout, run, serve

FLEET = ("--num-envs", 2, "--procs", 2)


def interrupted(
    server: Command, client: Command, number: int = signal.SIGINT
) -> tuple[Finished, dict[str, Any]]:
    """What a client in mid run leaves, and the server's result."""
    client.line("mean return")
    client.interrupt(number)
    ran = client.finish()
    server.interrupt()
    return ran, server.finish().result


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_rollout_prints_what_it_did(number: int) -> None:
    with (
        serve("--algo", "random", "--json") as server,
        rollout("CartPole-v1", "--url", server.url(), "--json", "--seed", 3) as client,
    ):
        ran, served = interrupted(server, client, number)
    assert ran.code == 130
    result = ran.result
    assert (result["env_id"], result["seed"], result["finished"]) == ("CartPole-v1", 3, False)
    assert result["env_steps"] > 0
    books = result["books"]
    assert (books["errors"], books["chunks_open"], books["steps_open"]) == ([], 0, 0)
    assert 0 < served["timesteps"] <= result["env_steps"]
    *_, said, last = ran.stderr.splitlines()
    assert said.startswith(f"Interrupted: {result['env_steps']:,} env steps in ")
    assert last == "plugrl-gym rollout: interrupted"


def test_an_interrupted_evaluation_prints_the_episodes_that_counted() -> None:
    with (
        serve("--algo", "random", "--json") as server,
        rollout("CartPole-v1", "--url", server.url(), "--json", "--eval") as client,
    ):
        ran, served = interrupted(server, client)
    assert ran.code == 130
    result = ran.result
    assert (result["mode"], result["finished"]) == ("eval", False)
    # Of the step that was interrupted the server has heard nothing yet.
    assert 0 < result["episodes"] == len(result["returns"]) <= served["eval"]["episodes"] + 8
    assert f"Interrupted: {result['episodes']:,} episodes: mean return" in ran.stderr


def test_interrupted_processes_print_their_sum() -> None:
    with (
        serve("--algo", "random", "--json") as server,
        rollout("CartPole-v1", "--url", server.url(), "--json", *FLEET) as client,
    ):
        server.line("client 2 .* joined")
        ran, _ = interrupted(server, client)
    assert ran.code == 130
    result = ran.result
    assert not result["finished"]
    assert [own["exit_code"] for own in result["processes"]] == [130, 130]
    assert 0 < result["env_steps"] == sum(own["env_steps"] for own in result["processes"])
    assert result["books"]["errors"] == []


def test_a_client_that_is_interrupted_before_it_has_a_server_did_nothing() -> None:
    with rollout("CartPole-v1", "--url", "127.0.0.1:1", "--json") as client:
        client.line("waiting for a server|before the first step")
        client.interrupt()
        ran = client.finish()
    assert ran.code == 130
    assert (ran.result["env_steps"], ran.result["finished"]) == (0, False)


@pytest.mark.parametrize("name", ["serve", "rollout", "train", "plot"])
@pytest.mark.parametrize("dot", [".", " "])
def test_ctrl_c_while_packages_are_imported_is_one_line(
    name: str, dot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tqdm.py").write_text("raise KeyboardInterrupt")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ran = run("-m", *f"plugrl_gym{dot}{name}".split(), "CartPole-v1")
    assert ran.code != 0
    assert (ran.stdout, ran.stderr) == ("", f"plugrl-gym {name}: interrupted\n")


def test_an_interrupted_training_prints_the_servers_result(tmp_path: Path) -> None:
    options = ("--algo", "random", "--run-dir", tmp_path, "--json")
    with command("-m", "plugrl_gym.train", "CartPole-v1", *options) as training:
        training.line("mean return")
        training.interrupt()
        ran = training.finish()
    assert ran.code == 130
    result = ran.result
    assert result["timesteps"] > 0
    assert (result["finished"], result["run_dir"]) == (False, str(tmp_path))
