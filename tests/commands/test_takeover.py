"""``rollout --takeover``: who it finds, what it refuses, and what both sides then say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plugrl_gym import UsageError
from plugrl_gym.client import Sometimes
from plugrl_gym.commands.options import CommandParser
from plugrl_gym.commands.takeover import add_takeover_options, find_takeover
from plugrl_gym.rollout import main
from tests.benchmarks.sparse_mountain_car import push_along
from tests.support.commands import ROOT, command, rollout, serve

EXPERT = "tests.benchmarks.sparse_mountain_car:push_along"
ENV = "tests.benchmarks.sparse_mountain_car:SparseMountainCarContinuous-v0"


def found(*arguments: str) -> Any:
    parser = CommandParser("rollout", "", "")
    add_takeover_options(parser)
    options = parser.parse_args(arguments)
    options.seed = 3
    return find_takeover(options)


def test_nobody_takes_over_by_default() -> None:
    assert found() is None


def test_an_expert_is_imported_by_name() -> None:
    assert found("--takeover", EXPERT) is push_along


def test_with_a_share_it_takes_over_sometimes_by_the_seed_of_the_envs() -> None:
    arguments = ("--takeover", EXPERT, "--takeover-share", "0.25", "--takeover-length", "2")
    observation, actions = np.zeros((50, 2), np.float32), np.zeros((50, 1), np.float32)
    chosen, again, expected = (
        [one(observation, actions)[1].tolist() for _ in range(20)]
        for one in (found(*arguments), found(*arguments), Sometimes(push_along, 0.25, 2, seed=3))
    )
    assert chosen == again == expected


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--takeover", "push_along"), "expected MODULE:NAME, as my_expert:act, got 'push_along'"),
        (("--takeover", "no_such_module:act"), "no_such_module:act: No module named"),
        (("--takeover", "tests.benchmarks.sparse_mountain_car:nobody"), "no attribute 'nobody'"),
        (("--takeover", "tests.benchmarks.sparse_mountain_car:SPARSE"), "str cannot be called"),
        (("--takeover", ".expert:act"), "'.expert' is no name of a module"),
        (("--takeover-share", "0.5"), "need --takeover"),
        (("--takeover", EXPERT, "--takeover-length", "5"), "needs --takeover-share"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[str, ...], text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        found(*arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--takeover-share", "1.5"), "expected a number from 0 to 1, got '1.5'"),
        (("--takeover", EXPERT, "--eval"), "--takeover does not go with --eval"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([ENV, *arguments])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line


def test_both_sides_tell_how_much_was_overridden(tmp_path: Path) -> None:
    learner = ("--algo", "sac", "--total-timesteps", 200, "-P", "learning_starts=1000")
    demonstrated = ("--demonstrations-share", 0.5, "--run-dir", tmp_path)
    expert = ("--takeover", EXPERT, "--takeover-share", 0.5, "--seed", 0)
    with (
        serve(*learner, *demonstrated) as server,
        rollout(ENV, "--num-envs", 2, "--url", server.url(), *expert, "--json") as client,
    ):
        ran, served = client.finish(), server.finish()
    assert (ran.code, served.code) == (0, 0)
    result = json.loads((tmp_path / "result.json").read_text())
    share = result["overridden_share"]
    assert 0.4 < share < 0.6
    assert result["overridden_steps"] == ran.result["overridden_steps"] == round(200 * share)
    told = f"{share:.1%} of the steps overridden"
    assert told in ran.stderr
    assert told in served.stderr
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["settings"]["demonstrations_share"] == 0.5


def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    parts = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (example,) = [part for part in parts if "takeover=" in part]
    learner = ("--algo", "sac", "--preset", "none", "--total-timesteps", 80)
    with serve(*learner, "--run-dir", tmp_path) as server:
        program = tmp_path / "example.py"
        program.write_text(example.replace("num_envs=8)", f'num_envs=8), "{server.url()}"'))
        with command(program) as client:
            ran, served = client.finish(), server.finish()
    assert (ran.code, ran.said, served.code) == (0, "", 0)
    told = re.fullmatch(r"(\d+) of 80 steps overridden\n", ran.stdout)
    assert told is not None
    assert int(told[1]) == json.loads((tmp_path / "result.json").read_text())["overridden_steps"]
