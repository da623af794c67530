"""``rollout --procs`` and ``train --procs``, as processes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from plugrl_gym import train
from plugrl_gym.commands.output import Output
from plugrl_gym.errors import UsageError
from tests.support.commands import Command, rollout, run, serve
from tests.support.terminal import on_terminal, screen

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="looks for pids in /proc")
FLEET = ("CartPole-v1", "--num-envs", 2, "--procs", 2)


def children(parent: Command) -> list[int]:
    pid = parent.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_two_processes_are_one_result_and_one_table():
    with (
        serve("--algo", "random", "--total-timesteps", 10_000, "--json") as server,
        rollout(*FLEET, "--url", server.url(), "--seed", 3, "--json") as fleet,
    ):
        ran, served = fleet.finish(), server.finish()
    assert (ran.code, served.code) == (0, 0)
    result = ran.result
    first, second = result["processes"]
    assert (first["process"], second["process"]) == (1, 2)
    assert [own["exit_code"] for own in (first, second)] == [0, 0]
    assert (first["seed"], second["seed"]) == (3, 5)
    assert result["env_steps"] == first["env_steps"] + second["env_steps"]
    assert result["books"]["errors"] == []
    # What came after the run's end is in no result of the server's.
    assert 10_000 <= served.result["timesteps"] <= result["books"]["steps_fed_back"]
    assert re.search(r"\n    sum +[\d,]+ ", ran.stderr)
    assert ran.stderr.count("the server ended the run") == 2


def test_a_terminal_shows_the_table_while_it_runs_and_at_the_end():
    with serve("--algo", "random", "--total-timesteps", 10_000) as server:
        code, drawn = on_terminal("-m", "plugrl_gym.rollout", *FLEET, "--url", server.url())
        assert server.finish().code == 0
    assert code == 0
    bar, header, first, second, total, *_ = screen(drawn)
    assert re.match(r"10,0\d\d steps \[.*, 0 of 2 processes\]$", bar)
    assert header == "process    env steps   episodes   mean return    steps/s  end"
    assert first.endswith("the server ended the run")
    assert second.endswith("the server ended the run")
    assert total.startswith("    sum       10,0")
    assert "2 of 2 processes" in drawn


@needs_proc
def test_one_that_dies_is_named_while_the_other_goes_on():
    with (
        serve("--algo", "random") as server,
        rollout(*FLEET, "--url", server.url(), "--max-steps", 20_000, "--json") as fleet,
    ):
        server.line("client 2 .* joined")
        victim = children(fleet)[1]
        os.kill(victim, signal.SIGKILL)
        named = fleet.line("process 2 died")
        ran = fleet.finish()
        server.interrupt()
        assert server.finish().code == 0
    assert named.string == (
        "plugrl-gym rollout: process 2 died: killed by signal 9 (SIGKILL); 1 of 2 goes on\n"
    )
    assert ran.code == 1
    first, second = ran.result["processes"]
    assert (first["exit_code"], first["env_steps"], first["end"]) == (0, 20_000, "done")
    assert (second["exit_code"], second["end"]) == (-9, "died: killed by signal 9 (SIGKILL)")
    assert not ran.result["finished"]


@needs_proc
def test_ctrl_c_ends_all_of_them_well():
    with (
        serve("--algo", "random") as server,
        rollout(*FLEET, "--url", server.url()) as fleet,
    ):
        server.line("client 2 .* joined")
        fleet.interrupt()
        ran = fleet.finish()
        for _ in range(2):
            # 1006 where it came amid a message; tests/client shows when it must be 1000.
            assert server.line(r"client \d .* left: (\d+)")[1] in ("1000", "1006")
        server.interrupt()
        assert server.finish().code == 0
    assert ran.code == 130
    assert "Traceback" not in ran.stderr
    lines = ran.stderr.splitlines()
    assert [line.split()[-1] for line in lines[-4:-2]] == ["interrupted"] * 2
    assert lines[-1] == "plugrl-gym rollout: interrupted"


def test_what_all_say_is_said_once():
    nowhere = ("--url", "127.0.0.1:1", "--connect-timeout", 0.2, "-q")
    complaint = run("-m", "plugrl_gym.rollout", *FLEET, *nowhere).complaint
    assert complaint.startswith("plugrl-gym rollout: no PlugRL server could be reached")


def test_a_mistake_is_found_before_a_process_is_started():
    complaint = run("-m", "plugrl_gym.rollout", "CartPol-v1", "--procs", 2).complaint
    assert "Did you mean: `CartPole`" in complaint


def test_train_with_two_client_processes(tmp_path):
    finished = run(
        *("-m", "plugrl_gym.train", *FLEET, "--algo", "random", "--total-timesteps", 200),
        *("--run-dir", tmp_path, "--json"),
    )
    assert finished.code == 0, finished.stderr
    assert finished.result["timesteps"] >= 200
    assert "Training random on CartPole-v1 x 2 in each of 2 processes" in finished.stderr
    # The run may be over before the second has come.
    assert re.search(r"client \d .* joined: CartPole-v1 x 2", finished.stderr)


def of_a_run_with_eight_envs(tmp_path, procs):
    config = {"algorithm": "ppo", "env_id": "CartPole-v1", "num_envs": 8, "seed": 0}
    text = json.dumps({"format": 1, "total_timesteps": 100, **config})
    (tmp_path / "config.json").write_text(text)
    options = train._parser().parse_args(["--resume", str(tmp_path), "--procs", str(procs)])
    with Output("train", quiet=True, json=False).opened() as output:
        return train._Training(options, output)


def test_the_processes_of_a_run_that_goes_on_share_its_envs(tmp_path, monkeypatch):
    started = {}
    monkeypatch.setattr(
        train, "ReportingChild", lambda module, given, *_: started.update({module: given})
    )
    training = of_a_run_with_eight_envs(tmp_path, 2)
    training._serve(tmp_path / "url")
    training._client("ws://127.0.0.1:1")
    assert "--num-envs=8" in started["plugrl_gym.serve"]
    assert {"--num-envs=4", "--procs=2"} <= set(started["plugrl_gym.rollout"])


def test_envs_that_cannot_be_shared_are_refused(tmp_path):
    with pytest.raises(UsageError, match="--procs 3: the run has 8 envs"):
        of_a_run_with_eight_envs(tmp_path, 3)
