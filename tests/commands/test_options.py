"""What the command line understands."""

from __future__ import annotations

import argparse
import doctest
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from plugrl_gym import __version__, plot, rollout, serve, train
from plugrl_gym.__main__ import main
from plugrl_gym.agents.sb3.settings.algorithms import ALGORITHMS as LEARNERS
from plugrl_gym.commands import options, space_text
from plugrl_gym.commands.agents import default_run_dir
from plugrl_gym.commands.naming import check_folder
from plugrl_gym.commands.options import (
    assignment,
    collected,
    count,
    port,
    seconds,
    threads,
    whole,
)
from plugrl_gym.commands.space_text import parse_space
from plugrl_gym.errors import UsageError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1", 1),
        ("a=1e-3", 1e-3),
        ("a=lin_0.001", "lin_0.001"),
        ("a='3'", "3"),
        ("a={'net_arch': [64, 64]}", {"net_arch": [64, 64]}),
        ("a=none", None),
        ("a=True", True),
        ("a=false", False),
        ("a=", ""),
        ("a=x=y", "x=y"),
        ("a=__import__('os')", "__import__('os')"),
    ],
)
def test_assignment_reads_a_literal_or_takes_the_text(text, value):
    name, read = assignment(text)
    assert name == "a"
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("text", ["", "a", "=1", "a b=1", "1a=1"])
def test_assignment_refuses_what_has_no_name_or_value(text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected name=value"):
        assignment(text)


def test_of_two_assignments_the_later_counts():
    assert collected([("a", 1), ("b", 2), ("a", 3)]) == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (whole, "0", 0),
        (count, "100_000", 100_000),
        (port, "0", 0),
        (port, "65535", 65535),
        (seconds, "0.5", 0.5),
        (seconds, "0", 0.0),
        (threads, "auto", "auto"),
        (threads, "2", 2),
    ],
)
def test_numbers(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (whole, "-1"),
        (whole, "1.0"),
        (whole, "²"),
        (count, "0"),
        (count, "_"),
        (port, "65536"),
        (port, "http"),
        (seconds, "-1"),
        (seconds, "nan"),
        (seconds, "inf"),
        (seconds, "1s"),
        (threads, "0"),
        (threads, "all"),
    ],
)
def test_numbers_out_of_their_range_are_refused(read, text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        read(text)


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("Discrete(2)", spaces.Discrete(2)),
        ("Discrete(3, start=-1)", spaces.Discrete(3, start=-1)),
        ("Box(-1, 1, (3,))", spaces.Box(-1, 1, (3,))),
        ("Box(-inf, inf, (2, 2), float64)", spaces.Box(-np.inf, np.inf, (2, 2), np.float64)),
        ("Box(low=0, high=255, shape=(4, 3), dtype='uint8')", spaces.Box(0, 255, (4, 3), np.uint8)),
        ("Box([-1, -2], [1, 2])", spaces.Box(np.float32([-1, -2]), np.float32([1, 2]))),
        ("MultiDiscrete([2, 3])", spaces.MultiDiscrete([2, 3])),
        ("MultiBinary(4)", spaces.MultiBinary(4)),
        ("Text(20)", spaces.Text(20)),
        ("Dict(a=Discrete(2))", spaces.Dict(a=spaces.Discrete(2))),
        ("Dict({'a/b': Discrete(2)})", spaces.Dict({"a/b": spaces.Discrete(2)})),
        ("Tuple(Discrete(2), Text(1))", spaces.Tuple([spaces.Discrete(2), spaces.Text(1)])),
    ],
)
def test_parse_space_reads_gymnasiums_notation(text, space):
    assert parse_space(text) == space


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (3,), np.float64), spaces.Discrete(7)])
def test_parse_space_reads_what_gymnasium_prints(space):
    assert parse_space(str(space)) == space


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("3", "'3'"),
        ("Box", "'Box'"),
        ("Box(-1, 1", "Box(-1, 1"),
        ("Bix(-1, 1)", "Bix(-1, 1)"),
        ("Box(-1, 1, 3)", "Box(-1, 1, 3)"),
        ("Box(-1)", "Box(-1)"),
        ("Box(-1, 1, (3,), complex64)", "complex64"),
        ("Box(1, -1, (3,))", "Box(1, -1, (3,))"),
        ("Box(0, 1, (10**18,))", "10 ** 18"),
        ("Box(0, 1, (1000000000, 1000000000, 1000000000))", "1000000000"),
        ("Discrete(2, seed=open('x'))", "open('x')"),
        ("Discrete(n for n in [1])", "n for n in"),
        ("Dict(**{'a': Discrete(2)}, a=3)", "Dict("),
        ("Discrete(-'a')", "'a'"),
        ("().__class__", "__class__"),
        ("(" * 300, "((("),
    ],
)
def test_parse_space_refuses_the_rest_in_a_sentence(text, named):
    with pytest.raises(UsageError) as caught:
        parse_space(text)
    assert named in str(caught.value)


def test_the_algorithms_of_the_command_line_are_those_there_are():
    assert set(options.ALGORITHMS) == {"random", *LEARNERS}


@pytest.mark.parametrize("command", [main, serve.main, rollout.main, train.main, plot.main])
def test_help_shows_examples_and_exits_with_0(command, capsys):
    with pytest.raises(SystemExit) as ended:
        command(["--help"])
    assert ended.value.code == 0
    assert "examples:\n  plugrl-gym" in capsys.readouterr().out


def test_the_main_command_passes_on_to_the_others(capsys):
    for name in ("serve", "rollout", "train", "plot"):
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: plugrl-gym {name} ")


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"plugrl-gym {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--algo", "random", "-P", "a=1"], "-P is for an algorithm that learns"),
        (["--algo", "random", "--preset", "CartPole-v1"], "--preset is for"),
        (["--algo", "random", "--normalize"], "--normalize is for an algorithm that learns"),
        (["--algo", "random", "--num-envs", "3"], "--num-envs is for an algorithm that learns"),
        (["--algo", "random", "--eval-episodes", "3"], "--eval-episodes is for an algorithm"),
        (["--no-learn", "--load", "m.zip", "--num-envs", "3"], "--num-envs is for learning"),
        (["--no-learn", "--load", "m.zip", "--eval-episodes", "3"], "--eval-episodes is for"),
        (["--algo", "random", "--no-normalize"], "--normalize is for an algorithm that learns"),
        (["--env-id", "CartPole-v1", "--action-space", "Discrete(2)"], "not both"),
        (["--action-space", "Discrete(2)"], "give both"),
        (["--algo", "random", "--env-id", "CartPol-v1"], "Did you mean"),
        (["--algo", "random", "--action-space", "Tuple(Discrete(2))"], "no encoding"),
        (["--preset", "Fancy-v0"], "ppo has no preset 'Fancy-v0'; it has Acrobot-v1, Ant-v5"),
        (["-P", "n_steps=many"], "n_steps of PPO: expected int, got 'many'"),
        (["-P", "steps=3"], "PPO has no hyperparameter 'steps'; did you mean 'n_steps'?"),
        (["--hyperparams", "/no/such.yml"], "/no/such.yml: No such file or directory"),
        (["--algo", "random", "--hyperparams", "x.yml"], "--hyperparams is for an algorithm"),
        (["--policy", "Deep"], "PPO has no policy 'Deep'"),
        (["--algo", "random", "--url-file", "/no/such/dir/url"], "there is no directory"),
        (["--run-dir", __file__], "is a file, not a directory"),
    ],
)
def test_serve_refuses_options_that_cannot_be(arguments, named, capsys):
    assert serve.main(["--port", "0", "--quiet", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("plugrl-gym serve: ")
    assert named in line


def test_a_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "plugrl_gym.agents.sb3.agent", None)
    assert serve.main(["--algo", "ppo", "--no-run-dir"]) == 2
    assert 'pip install "plugrl-gym[sb3]"' in capsys.readouterr().err


def test_the_default_run_dir_is_new_and_not_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda pattern: "now")
    first = default_run_dir("ppo")
    assert first == Path("runs/ppo-now")
    assert not first.exists()
    first.mkdir(parents=True)
    assert default_run_dir("ppo") == Path("runs/ppo-now-2")


def test_a_run_dir_need_not_exist_yet(tmp_path):
    check_folder("--run-dir", tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("module", [options, space_text])
def test_the_examples_in_docstrings_are_true(module):
    tried = doctest.testmod(module)
    assert (tried.failed, tried.attempted > 0) == (0, True)
