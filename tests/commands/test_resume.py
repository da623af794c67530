"""Runs that stop, are killed, or go wrong, and go on: ``--resume``, ``--load``, exit codes."""

from __future__ import annotations

import csv
import json
import re
import signal
from pathlib import Path

import pytest
from stable_baselines3 import PPO

from plugrl_gym import train
from plugrl_gym.commands.output import Output
from plugrl_gym.serve import _parser as serve_parser
from plugrl_gym.serve import main
from tests.support.commands import rollout, run, serve
from tests.support.resuming import checkpoints, stopped_run

SMALL = ("-P", "n_steps=16", "-P", "batch_size=16", "-P", "n_epochs=1", "--preset", "none")
TRAIN = ("-m", "plugrl_gym.train")


def timesteps(run_dir: Path) -> list[int]:
    with (run_dir / "progress.csv").open(newline="") as file:
        return [int(line["time/total_timesteps"]) for line in csv.DictReader(file)]


def test_a_killed_server_goes_on_and_its_client_with_it(tmp_path):
    options = (*SMALL, "--seed", 1, "--total-timesteps", 6000, "--save-every", 64)
    with serve(*options, "--run-dir", tmp_path, "--table") as first:
        url = first.url()
        with rollout("CartPole-v1", "--num-envs", 2, "--url", url, "--json") as client:
            first.line(r"total_timesteps +\| 160 ")
            first.process.kill()
            first.process.wait()
            known = max(checkpoints(tmp_path))
            assert 0 < known < 6000
            port = url.rpartition(":")[2]
            again = ("-m", "plugrl_gym.serve", "--resume", tmp_path, "--port", port, "--json")
            finished = run(*again)
            assert client.finish().code == 0
    assert finished.code == 0, finished.stderr
    result = finished.result
    assert result["finished"]
    assert result["seed"] == 1
    assert result["timesteps"] == result["transitions_stored"] == 6016
    assert result.pop("run_dir") == str(tmp_path)
    assert result == json.loads((tmp_path / "result.json").read_text())
    assert result["books"]["errors"] == []
    assert result["books"]["env_steps"] < 6016
    assert timesteps(tmp_path) == list(range(32, 6017, 32))
    assert PPO.load(tmp_path / "model.zip").num_timesteps == 6016


def test_a_signal_saves_a_whole_checkpoint(tmp_path):
    options = (*SMALL, "--save-every", 0, "--run-dir", tmp_path)
    with serve(*options) as server, rollout("CartPole-v1", "--url", server.url()):
        server.line("client 1 .* joined")
        server.interrupt(signal.SIGTERM)
        finished = server.finish()
    assert finished.code == 0, finished.stderr
    (saved,) = checkpoints(tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["timesteps"] == saved
    assert not result["finished"]


def test_train_begins_with_a_loaded_model_and_goes_on_without_being_told_the_env(tmp_path):
    model, run_dir = stopped_run(tmp_path / "one") / "model.zip", tmp_path / "two"
    options = ("--num-envs", 2, "--seed", 3, "--run-dir", run_dir, "--json")
    first = run(*TRAIN, "CartPole-v1", "--load", model, *options, "--total-timesteps", 64)
    assert first.code == 0, first.stderr
    assert PPO.load(run_dir / "model.zip").n_steps == 16
    second = run(*TRAIN, "--resume", run_dir, "--total-timesteps", 128, "--json")
    assert second.code == 0, second.stderr
    one, two = first.result, second.result
    assert (one["timesteps"], two["timesteps"]) == (64, 128)
    assert (two["env_id"], two["algo"], two["seed"]) == ("CartPole-v1", "ppo", 3)
    assert two["episodes"] > one["episodes"]
    assert two["wall_seconds"] > one["wall_seconds"]
    assert timesteps(run_dir) == [32, 64, 96, 128]
    assert "going on at env step 64, from" in second.stderr


def test_a_learner_that_diverges_ends_with_one_line_and_exit_code_1(tmp_path):
    finished = run(
        *(*TRAIN, "CartPole-v1", "--num-envs", 2, "--run-dir", tmp_path, "--quiet", *SMALL),
        *("-P", "learning_rate=1e30", "-P", "max_grad_norm=1e30"),
    )
    assert finished.code == 1
    said, consequence = finished.stderr.splitlines()
    assert re.fullmatch(
        r"plugrl-gym train: update 1, at env step 32, made \d+ of \d+ numbers in policy\.\S+ not "
        rf"finite \(nan\); the last good checkpoint is {tmp_path}/checkpoints/0",
        said,
    )
    assert consequence == (
        "plugrl-gym train: the server ended with exit code 1, and the client was ended with it"
    )
    assert PPO.load(tmp_path / "model.zip").num_timesteps == 0


@pytest.fixture(scope="module")
def a_run(tmp_path_factory):
    """A directory with a run in it, and an empty one."""
    directory = tmp_path_factory.mktemp("some")
    stopped_run(directory / "run")
    (directory / "empty").mkdir()
    return directory


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--resume", "none"), "there is no run directory none"),
        (("--resume", "empty"), "empty holds no run: there is no config.json in it"),
        (("--load", "none.zip"), "there is no file none.zip"),
        (
            ("--resume", "run", "--algo", "a2c"),
            "run was started with algorithm=ppo, it cannot go on with algorithm=a2c",
        ),
        (
            ("--resume", "run", "-P", "gamma=0.5"),
            "run was started with gamma=0.99, it cannot go on with gamma=0.5",
        ),
        (
            ("--resume", "run", "--run-dir", "other"),
            "a run that goes on stays in run, got run_dir other",
        ),
        (
            ("--resume", "run", "--load", "run/model.zip"),
            "--resume goes on with a run, --load begins one: give one of them",
        ),
        (
            ("--resume", "run", "--no-run-dir"),
            "--resume goes on in its directory; leave out --no-run-dir",
        ),
        (
            ("--load", "run/model.zip", "--algo", "sac"),
            "run/model.zip holds a model of PPO, not of SAC",
        ),
        (
            ("--run-dir", "run"),
            "run holds a run: go on with it by --resume run, or choose another --run-dir",
        ),
    ],
)
def test_serve_says_in_one_line_what_cannot_be(options, complaint, a_run, capsys, monkeypatch):
    monkeypatch.chdir(a_run)
    assert main(["--port", "0", *options]) == 2
    assert capsys.readouterr() == ("", f"plugrl-gym serve: {complaint}\n")


def test_train_without_an_env_says_so():
    assert run(*TRAIN).complaint == "plugrl-gym train: say which env to train on, as CartPole-v1"


def test_train_leaves_a_class_that_is_none_of_ours_to_the_run(tmp_path, monkeypatch):
    config = {"algorithm": "somebody:MyPPO", "env_id": "CartPole-v1", "num_envs": 2, "seed": 0}
    text = json.dumps({"format": 1, "total_timesteps": 100, **config})
    (tmp_path / "config.json").write_text(text)
    started = []
    monkeypatch.setattr(train, "ReportingChild", lambda module, given, *_: started.append(given))
    options = train._parser().parse_args(["--resume", str(tmp_path)])
    with Output("train", quiet=True, json=False).opened() as output:
        train._Training(options, output)._serve(tmp_path / "url")
    said = serve_parser().parse_args(started[0])
    assert (said.algo, said.resume, said.num_envs) == (None, tmp_path, 2)
