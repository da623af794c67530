"""The small files of a run: its config, its log, its lock."""

from __future__ import annotations

import csv
import errno
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import example, given
from stable_baselines3 import PPO
from stable_baselines3.common.logger import HumanOutputFormat
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from plugrl_gym.agents.sb3.runs.config import RunConfig, algorithm_name, described, space_as_json
from plugrl_gym.agents.sb3.runs.logs import logged, make_logger, restore_logged
from plugrl_gym.agents.sb3.settings.noise import NoisePlan
from tests.support.fuzzing import fuzz
from tests.support.spaces import any_space

LINES = "time/total_timesteps,train/loss\n32,0.5\n64,0.25\n96,0.125\n"


def write_lines(run_dir: Path, known: int, **values: Any) -> list[dict[str, str]]:
    """Go on with the log at ``known`` env steps, write one line, read all of it."""
    logger = make_logger(run_dir, None, known)
    for name, value in values.items():
        logger.record(name.replace("_", "/", 1), value)
    logger.dump(step=known + 32)
    logger.close()
    with (run_dir / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("end", ["", "128,0.06", "128,0.0625,"])
def test_lines_that_have_not_happened_are_left_out(end: str, tmp_path: Path) -> None:
    """Of env steps after the checkpoint, or one that a kill has cut."""
    (tmp_path / "progress.csv").write_text(LINES + end)
    lines = write_lines(tmp_path, 70, time_total_timesteps=96, train_loss=0.7)
    assert lines == [
        {"time/total_timesteps": "32", "train/loss": "0.5"},
        {"time/total_timesteps": "64", "train/loss": "0.25"},
        {"time/total_timesteps": "96", "train/loss": "0.7"},
    ]


def test_a_log_that_goes_on_may_get_new_columns(tmp_path: Path) -> None:
    (tmp_path / "progress.csv").write_text(LINES)
    lines = write_lines(tmp_path, 96, time_total_timesteps=128, eval_mean_reward=9.0)
    assert lines[0] == {
        "time/total_timesteps": "32",
        "train/loss": "0.5",
        "eval/mean_reward": "",
    }
    assert lines[3] == {
        "time/total_timesteps": "128",
        "train/loss": "",
        "eval/mean_reward": "9.0",
    }


@pytest.mark.parametrize("content", [None, "", "time/total"])
def test_a_log_that_is_not_there_begins(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "progress.csv").write_text(content)
    assert write_lines(tmp_path, 96, time_total_timesteps=128) == [{"time/total_timesteps": "128"}]


def test_a_full_disk_costs_lines_of_the_log_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(HumanOutputFormat):
        def write(self, *_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    logger = make_logger(tmp_path, None)
    logger.output_formats.insert(0, Full(io.StringIO()))
    for step in (8, 16):
        logger.record("time/total_timesteps", step)
        logger.dump(step)
    logger.write({"eval/mean_reward": 3.0}, {"eval/mean_reward": ("",)}, 16)
    logger.close()
    lines = (tmp_path / "progress.csv").read_text(encoding="utf-8").splitlines()
    assert [line.rpartition(",")[0] or line for line in lines[1:3]] == ["8", "16"]
    assert [record.getMessage() for record in caplog.records] == [
        "a log of numbers (Full) is not complete: [Errno 28] No space left on device; "
        "learning goes on"
    ]


def test_what_was_recorded_for_the_next_line_goes_on(tmp_path: Path) -> None:
    logger, again = make_logger(None, None), make_logger(None, None)
    logger.record("train/loss", np.float32(0.5), exclude="csv")
    logger.record_mean("train/kl", 1.0)
    logger.record("train/image", object())
    restore_logged(again, logged(logger))
    again.record_mean("train/kl", 3.0)
    assert again.name_to_value == {"train/loss": np.float32(0.5), "train/kl": 2.0}
    assert again.name_to_excluded["train/loss"] == ("csv",)


@given(any_space())
@example(
    spaces.Dict(array=spaces.Discrete(2), shape=spaces.Discrete(2), numbers=spaces.Discrete(3))
)
@fuzz(100)
def test_a_space_comes_back_from_config(space: spaces.Space[Any]) -> None:
    shown = json.loads(json.dumps(space_as_json(space), allow_nan=False))
    config = RunConfig("ppo", None, {}, {}, None, 1, 1, None, shown, shown)
    assert config.spaces() == (space, space)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"net_arch": (64, 64), "activation_fn": nn.ReLU}, None),
        (LinearSchedule(0.001, 0.0, 1.0), "lin_0.001"),
        (NoisePlan("normal", 0.1), "normal:0.1"),
        (NormalActionNoise(np.zeros(1), np.ones(1)), "NormalActionNoise(mu=[0.], sigma=[1.])"),
        (np.int64(3), 3),
        (float("inf"), "inf"),
        (len, "builtins:len"),
    ],
)
def test_settings_are_described_in_json(value: Any, said: Any) -> None:
    net = {"net_arch": [64, 64], "activation_fn": "torch.nn.modules.activation:ReLU"}
    assert described(value) == (net if said is None else said)
    json.dumps(described(value), allow_nan=False)


def test_an_object_is_described_without_its_address() -> None:
    assert described(object()) == described(object()) == "<object object>"


def test_an_algorithm_of_ones_own_is_named_by_its_place() -> None:
    class Mine(PPO):
        pass

    assert algorithm_name(PPO) == "ppo"
    assert algorithm_name(Mine) == f"{__name__}:{Mine.__qualname__}"
