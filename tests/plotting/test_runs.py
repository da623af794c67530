"""Run directories read as arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest

from plugrl_gym.errors import UsageError
from plugrl_gym.plotting.runs import read_run
from tests.support.run_dirs import RETURN, SECONDS, STEPS, write_run


def test_a_run_is_read_with_its_gaps_as_nan(tmp_path):
    log = {STEPS: [100, 200, 300], SECONDS: [1, 2, 4], RETURN: ["", 20.5, 30]}
    run = read_run(write_run(tmp_path / "run", log, algorithm="a2c", seed=7))
    assert (run.algorithm, run.env_id, run.seed) == ("a2c", "CartPole-v1", 7)
    assert run.log[STEPS].tolist() == [100, 200, 300]
    assert math.isnan(run.log[RETURN][0])
    assert run.log[RETURN][1:].tolist() == [20.5, 30]
    assert run.settings == {"num_envs": 4, "horizon": 1}


def test_seconds_are_interpolated_between_the_lines(tmp_path):
    run = read_run(write_run(tmp_path / "run"))
    assert run.seconds_at(np.array([100.0, 150.0, 200.0])).tolist() == [1, 2, 3]


def test_seconds_are_unknown_without_a_column(tmp_path):
    run = read_run(write_run(tmp_path / "run", {STEPS: [100], RETURN: [1]}))
    assert np.isnan(run.seconds_at(np.array([100.0]))).all()


def test_a_line_that_is_still_being_written_is_left_out(tmp_path):
    path = write_run(tmp_path / "run")
    with (path / "progress.csv").open("a") as file:
        file.write("300,4,4")
    assert read_run(path).log[STEPS].tolist() == [100, 200]


def test_a_run_of_plain_sb3_is_named_by_its_directory(tmp_path):
    path = write_run(tmp_path / "mine")
    (path / "config.json").unlink()
    run = read_run(path)
    assert (run.algorithm, run.env_id, run.seed) == ("mine", None, None)


def test_a_run_without_config_is_named_by_its_result(tmp_path):
    path = write_run(tmp_path / "r", result={"algo": "sac", "env_id": "Ant-v5", "seed": 3})
    (path / "config.json").unlink()
    run = read_run(path)
    assert (run.algorithm, run.env_id, run.seed) == ("sac", "Ant-v5", 3)


def test_evaluations_that_a_client_left_are_left_out(tmp_path):
    evaluations = {"timesteps": [1, 2, 3], "mean_reward": [5, 6, 7], "complete": [1, 0, 1]}
    run = read_run(write_run(tmp_path / "run", evaluations=evaluations))
    assert run.evaluations["timesteps"].tolist() == [1, 3]
    assert run.evaluations["mean_reward"].tolist() == [5, 7]


def test_stages_are_read_where_all_quantiles_are_told(tmp_path):
    whole = {"p50": 0.5, "p95": 1, "p99": 2.5, "count": 3}
    latency = {"queue": whole, "odd": {"p50": 1}, "odder": None, "none": {**whole, "p99": None}}
    run = read_run(write_run(tmp_path / "run", result={"latency": latency}))
    assert run.latency == {"queue": {"p50": 0.5, "p95": 1.0, "p99": 2.5}}
    assert read_run(write_run(tmp_path / "old", result={})).latency == {}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("progress.csv", None, "has no progress.csv, so there is nothing to draw in it"),
        ("progress.csv", b"", "tells of no env step yet"),
        ("progress.csv", f"{STEPS},{RETURN}\n".encode(), "tells of no env step yet"),
        ("progress.csv", b"a,b\n1,2\n", "tells of no env step yet"),
        ("progress.csv", b"\xff\xfe\x00\n", "cannot be read"),
        ("config.json", b"{", "cannot be read"),
        ("config.json", b"[]", "cannot be read"),
        ("result.json", b"\xff", "cannot be read"),
        ("evaluations.csv", b"\xff\n", "cannot be read"),
    ],
)
def test_what_cannot_be_drawn_is_told_in_a_sentence(tmp_path, name, content, said):
    path = write_run(tmp_path / "run")
    if content is None:
        (path / name).unlink()
    else:
        (path / name).write_bytes(content)
    with pytest.raises(UsageError, match=said) as caught:
        read_run(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"there is no run directory .*nowhere"):
        read_run(tmp_path / "nowhere")
