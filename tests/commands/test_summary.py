"""The end of a run: what lies where, and what to do with it."""

from __future__ import annotations

import pytest

from plugrl_gym.__main__ import main
from plugrl_gym.commands.summary import summary


def test_files_and_next_steps(tmp_path):
    for name in ("result.json", "model.zip", "progress.csv", "something.else"):
        (tmp_path / name).touch()
    lines = summary(tmp_path, "CartPole-v1", True, "plugrl_gym.train").splitlines()
    assert lines[:5] == [
        "",
        f"  {tmp_path / 'model.zip'}",
        f"  {tmp_path / 'progress.csv'}",
        f"  {tmp_path / 'result.json'}",
        "Next:",
    ]
    commands = [line.split("  ")[1] for line in lines[5:]]
    assert commands == [
        f"python -m plugrl_gym.serve --load {tmp_path / 'model.zip'} --no-learn",
        "python -m plugrl_gym.rollout CartPole-v1 --eval --max-episodes 20",
        f"python -m plugrl_gym.train --resume {tmp_path} --total-timesteps N",
        f"python -m plugrl_gym plot {tmp_path}",
    ]


def test_the_best_model_is_the_one_to_serve(tmp_path):
    for name in ("model.zip", "best_model.zip"):
        (tmp_path / name).touch()
    assert f"--load {tmp_path / 'best_model.zip'} " in summary(
        tmp_path, None, True, "plugrl_gym.serve"
    )


def test_a_run_that_was_stopped_goes_on_as_it_was(tmp_path):
    (tmp_path / "model.zip").touch()
    said = summary(tmp_path, "A-v0", False, "plugrl_gym.serve")
    assert f"plugrl_gym.serve --resume {tmp_path}  " in said
    assert "--total-timesteps" not in said


def test_without_a_model_there_is_nothing_next(tmp_path):
    assert summary(tmp_path, None, True, "plugrl_gym.train") == ""
    (tmp_path / "result.json").touch()
    assert summary(tmp_path, None, True, "plugrl_gym.train") == f"\n  {tmp_path / 'result.json'}"


@pytest.mark.parametrize("words", ["serve --load F --no-learn", "rollout E --eval", "plot RUN"])
def test_what_is_next_are_commands_that_there_are(words, capsys):
    command = words.split()[0]
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    options = capsys.readouterr().out
    assert all(word in options for word in words.split() if word.startswith("--"))
