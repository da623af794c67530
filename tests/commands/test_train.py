"""Both sides on one machine, as processes of ``train``."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import select
import signal
import sys
from pathlib import Path

import pytest
from stable_baselines3 import PPO

from tests.support.commands import Command, command, run

TRAIN = ("-m", "plugrl_gym.train")
RANDOM = (*TRAIN, "CartPole-v1", "--algo", "random", "--num-envs", 2)
KEYS = [
    "env_id",
    "algo",
    "seed",
    "timesteps",
    "episodes",
    "mean_return",
    "steps_per_second",
    "wall_seconds",
    "transitions_stored",
    "chunks_dropped",
]

needs_proc = pytest.mark.skipif(
    not (sys.platform == "linux" and hasattr(os, "pidfd_open")), reason="looks for pids in /proc"
)


class Children:
    """The processes that a command has started, held on to by more than their number."""

    def __init__(self, parent: Command) -> None:
        pids = Path(f"/proc/{parent.process.pid}/task/{parent.process.pid}/children")
        self.pids = {self._role(int(pid)): int(pid) for pid in pids.read_text().split()}
        self._handles = [os.pidfd_open(pid) for pid in self.pids.values()]

    @staticmethod
    def _role(pid: int) -> str:
        command_line = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        return command_line[2].removeprefix("plugrl_gym.")

    def end_within(self, seconds: float) -> bool:
        """Whether all of them end."""
        return all(select.select([handle], [], [], seconds)[0] for handle in self._handles)

    def close(self) -> None:
        for pid, handle in zip(self.pids.values(), self._handles, strict=True):
            if not select.select([handle], [], [], 0)[0]:
                os.kill(pid, signal.SIGKILL)
            os.close(handle)


@contextlib.contextmanager
def children_of(parent: Command):
    children = Children(parent)
    try:
        yield children
    finally:
        children.close()


def test_train_leaves_model_progress_and_result(tmp_path):
    run_dir = tmp_path / "run"
    finished = run(
        *(*TRAIN, "CartPole-v1", "--algo", "ppo", "--seed", 5, "--num-envs", 4, "--json"),
        *("--total-timesteps", 512, "-P", "n_steps=64", "-P", "learning_rate=lin_0.001"),
        *("--run-dir", run_dir, "--goal", 10),
    )
    assert finished.code == 0, finished.stderr
    result = json.loads((run_dir / "result.json").read_text())
    assert list(result)[: len(KEYS)] == KEYS
    assert finished.result == {**result, "run_dir": str(run_dir)}
    assert (result["env_id"], result["algo"], result["seed"]) == ("CartPole-v1", "ppo", 5)
    assert result["timesteps"] == result["transitions_stored"] == 512
    assert result["chunks_dropped"] == 0
    assert result["finished"]
    assert result["wall_seconds"] * result["steps_per_second"] == pytest.approx(512, rel=0.01)
    model = PPO.load(run_dir / "model.zip")
    assert (model.num_timesteps, model.n_steps, model.n_envs) == (512, 64, 4)
    with (run_dir / "progress.csv").open(newline="") as file:
        log = list(csv.DictReader(file))
    assert [int(line["time/total_timesteps"]) for line in log] == [256, 512]
    assert [(line["time/clients"], line["time/envs"]) for line in log] == [("1", "4")] * 2
    assert float(log[0]["latency/forward_p50"]) <= float(log[0]["latency/forward_p95"]) < 10
    assert log[0]["latency/learn_p50"] == ""  # the first line is written before the first update
    assert 0 < float(log[1]["latency/learn_p50"]) <= result["latency"]["learn"]["p99"]
    assert result["latency"]["learn"]["count"] == 2
    assert str(run_dir / "model.zip") in finished.stderr
    assert str(run_dir / "learning_curve.png") in finished.stderr
    assert (run_dir / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert "Goal reached: the mean return of the last 100 episodes was at least 10 after" in (
        finished.stderr
    )


def test_train_with_a_missed_goal_exits_with_1(tmp_path):
    finished = run(
        *(*RANDOM, "--total-timesteps", 300, "--run-dir", tmp_path, "--goal", 400, "--quiet")
    )
    assert finished.code == 1
    assert finished.stderr == (
        "Goal missed: the mean return of 100 episodes did not reach 400 within 300 env steps.\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json"]


def test_train_names_the_side_that_crashed(tmp_path):
    env = "tests.support.awkward_envs:Crashing-v0"
    finished = run(*TRAIN, env, "--algo", "random", "--run-dir", tmp_path)
    assert finished.code == 1
    assert "RuntimeError: sim crashed" in finished.stderr
    assert finished.stderr.splitlines()[-1] == (
        "plugrl-gym train: the client ended with exit code 1, and the server was ended with it"
    )


@needs_proc
def test_train_ends_the_client_of_a_dead_server(tmp_path):
    with command(*RANDOM, "--run-dir", tmp_path) as training:
        training.line("client 1 .* joined")
        with children_of(training) as children:
            os.kill(children.pids["serve"], signal.SIGKILL)
            finished = training.finish()
            assert children.end_within(5)
    assert finished.code == 1
    assert finished.stderr.splitlines()[-1] == (
        "plugrl-gym train: the server was killed by signal 9, and the client was ended with it"
    )


@needs_proc
def test_ctrl_c_saves_and_ends_both_sides(tmp_path):
    with command(*TRAIN, "CartPole-v1", "-P", "n_steps=16", "--run-dir", tmp_path) as training:
        training.line("client 1 .* joined")
        with children_of(training) as children:
            assert set(children.pids) == {"serve", "rollout"}
            training.interrupt()
            finished = training.finish()
            assert children.end_within(0)
    assert finished.code == 130
    assert finished.stderr.splitlines()[-3:] == [
        f"What was learned so far: {tmp_path / 'model.zip'}",
        f"Go on with:  python -m plugrl_gym.train --resume {tmp_path}",
        "plugrl-gym train: interrupted",
    ]
    assert finished.stderr.count("interrupted") == 1
    assert "Traceback" not in finished.stderr
    assert PPO.load(tmp_path / "model.zip")


@needs_proc
def test_killing_train_orphans_nobody(tmp_path, monkeypatch):
    for name in ("TMPDIR", "TEMP"):  # what is killed does not remove its temporary files
        monkeypatch.setenv(name, str(tmp_path))
    with command(*RANDOM, "--run-dir", tmp_path) as training:
        training.line("client 1 .* joined")
        with children_of(training) as children:
            training.process.kill()
            assert children.end_within(10)
