"""What people see: on a terminal, in a pipe, quietly and in detail."""

from __future__ import annotations

import re

import pytest

from tests.support.commands import run, serve
from tests.support.terminal import on_terminal, screen

TRAIN = ("-m", "plugrl_gym.train", "CartPole-v1", "--algo", "random", "--num-envs", 2)
STAMP = r"\d\d:\d\d:\d\d "


@pytest.fixture
def training(tmp_path):
    return (*TRAIN, "--total-timesteps", 300, "--run-dir", tmp_path)


def test_train_draws_one_bar_with_lines_above_and_a_summary_below(training, tmp_path):
    code, drawn = on_terminal(*training, columns=120)
    assert code == 0
    first, *above, bar, done, file, end = screen(drawn)
    assert first == f"Training random on CartPole-v1 x 2; files: {tmp_path}"[:120]
    assert all(
        re.match(f"{STAMP}client 1 .* joined|Watch it in a browser|No learning_curve", line)
        for line in above
    )
    assert re.match(r"100%\|.*█\| 30\d/30\d \[00:\d\d<.*, return \d+\.\d,.*\]$", bar)
    assert re.match(r"Done: 30\d env steps in ", done)
    assert file == f"  {tmp_path / 'result.json'}"
    assert end == ""


def test_train_in_a_pipe_says_the_same_in_lines(training, tmp_path):
    ran = run(*training)
    assert ran.code == 0
    assert "\r" not in ran.stderr
    assert "\x1b" not in ran.stderr
    first, *lines, done, file = ran.stderr.splitlines()
    assert first == f"Training random on CartPole-v1 x 2; files: {tmp_path}"
    assert any(re.match(f"{STAMP}client 1 .* joined", line) for line in lines)
    assert done.startswith("Done: 30")
    assert file == f"  {tmp_path / 'result.json'}"


def test_a_quiet_train_says_nothing(training):
    ran = run(*training, "-q")
    assert (ran.code, ran.stdout, ran.stderr) == (0, "", "")


def test_a_verbose_train_says_what_both_sides_do(training):
    ran = run(*training, "-v")
    assert ran.code == 0
    assert "connected to ws://127.0.0.1:" in ran.stderr
    assert "left: 1001 plugrl-server-stop" in ran.stderr


def test_a_refusal_is_all_that_is_said_of_a_refused_client(tmp_path):
    env = "tests.support.awkward_envs:TinyImage-v0"
    ran = run(*TRAIN[:2], env, "--algo", "sac", "--num-envs", 2, "--run-dir", tmp_path / "run")
    assert ran.code == 2
    assert ran.stderr.count("sac needs Box actions") == 1
    assert "left: 1008" not in ran.stderr


def test_rollout_draws_what_it_waits_for_and_then_a_bar():
    with serve("--algo", "random") as server:
        url, limit = ("--url", server.url()), ("--max-steps", 200)
        code, drawn = on_terminal("-m", "plugrl_gym.rollout", "CartPole-v1", *url, *limit)
        dumb = {"TERM": "dumb"}
        plain = on_terminal("-m", "plugrl_gym.rollout", "CartPole-v1", *url, *limit, variables=dumb)
        server.interrupt()
        stopped = server.finish()
    assert (code, plain[0]) == (0, 0)
    bar, said, _ = screen(drawn)
    assert re.match(r"100%\|.*\| 200/200 \[.*p50 .* m?s\]$", bar)
    assert said.startswith("The limit was reached: 200 env steps in ")
    assert "\x1b[32m" in drawn
    assert "\x1b" not in plain[1]
    assert "█" not in plain[1]
    assert re.search(r"Stopped: 400 env steps", stopped.stderr)
