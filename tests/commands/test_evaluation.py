"""Evaluating, and serving without learning, as users type it."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import DQN, PPO

from plugrl_gym.client import EvaluationSummary
from plugrl_gym.rollout import judgement
from plugrl_gym.rollout import main as rollout_command
from plugrl_gym.serve import main as serve_command
from tests.support.commands import rollout, run, serve

TRAIN = ("-m", "plugrl_gym.train")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of plain SB3, as good as untrained."""
    path = tmp_path_factory.mktemp("model") / "model.zip"
    PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, seed=1, device="cpu").save(path)
    return path


def check_evaluation(result: dict[str, Any], episodes: int) -> None:
    assert result["mode"] == "eval"
    assert result["episodes"] == len(result["returns"]) == len(result["lengths"]) == episodes
    assert result["returns"] == [float(length) for length in result["lengths"]]
    assert result["mean_return"] == pytest.approx(statistics.fmean(result["returns"]))
    assert result["std_return"] == pytest.approx(statistics.pstdev(result["returns"]))
    assert result["mean_length"] == pytest.approx(statistics.fmean(result["lengths"]))


def test_a_trained_model_is_served_evaluated_and_left_alone(model: Path, tmp_path: Path) -> None:
    before = model.read_bytes()
    options = ("--load", model, "--no-learn", "--total-timesteps", 50, "--json")
    with serve(*options, "--run-dir", tmp_path / "run") as server:
        url = server.url()
        evaluation = (url, "--eval", "--max-episodes", 5, "--num-envs", 3, "--seed", 0, "--json")
        with rollout("CartPole-v1", "--url", *evaluation) as client:
            evaluated = client.finish()
        with rollout("CartPole-v1", "--url", *evaluation) as client:
            assert client.finish().result == evaluated.result
        with rollout("CartPole-v1", "--url", url, "--num-envs", 1, "--json") as client:
            ordinary = client.finish()
        served = server.finish()
    check_evaluation(evaluated.result, 5)
    said = evaluated.result
    assert f"5 episodes: mean return {said['mean_return']:.2f} ± {said['std_return']:.2f}" in (
        evaluated.stderr
    )
    assert (ordinary.result["env_steps"], ordinary.result["finished"]) == (50, True)
    assert served.code == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["timesteps"], result["transitions_stored"], result["algo"]) == (50, 0, "ppo")
    assert result["episodes"] == ordinary.result["episodes"] > 0
    assert result["eval"]["episodes"] >= 10
    assert "which does not learn" in served.stderr
    assert f"; {result['eval']['episodes']} evaluation episodes, mean return" in served.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["result.json"]
    assert model.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--no-learn",), "--no-learn needs a model: --load FILE"),
        (("--stochastic",), "--stochastic is for --no-learn"),
        (("--load-normalizer", "x.pkl"), "--load-normalizer is for --no-learn"),
        (
            ("--no-learn", "--load", "model.zip", "-P", "n_steps=8"),
            "-P is for learning, and with --no-learn nothing learns",
        ),
    ],
)
def test_options_that_do_not_go_together_are_one_line(
    options: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve_command(options) == 2
    assert capsys.readouterr() == ("", f"plugrl-gym serve: {complaint}\n")


@pytest.mark.parametrize("other", ["--eval", "--probe"])
def test_a_client_that_trains_in_no_env_evaluates_in_none(
    other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    env = () if other == "--probe" else ("CartPole-v1",)
    with pytest.raises(SystemExit, match="2"):
        rollout_command([*env, other, "--eval-every", "10"])
    assert f"--eval-every does not go with {other}" in capsys.readouterr().err


def test_train_evaluates_keeps_the_best_and_says_so(tmp_path: Path) -> None:
    finished = run(
        *(*TRAIN, "CartPole-v1", "--algo", "dqn", "--seed", 3, "--num-envs", 1, "--json"),
        *("--total-timesteps", 120, "--preset", "none", "--run-dir", tmp_path),
        *("-P", "learning_starts=20", "-P", "policy_kwargs={'net_arch': [16]}"),
        *("--eval-every", 40, "--eval-episodes", 3),
    )
    assert finished.code == 0, finished.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    with (tmp_path / "evaluations.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    # The last one is of the policy that the run ended with.
    assert [int(line["timesteps"]) for line in lines] == [40, 80, 120]
    assert {line["complete"] for line in lines} == {"1"}
    means = [float(line["mean_reward"]) for line in lines]
    told = result["eval"]
    assert told["evaluations"] == 3
    assert (told["last_mean_reward"], told["last_timesteps"]) == (means[-1], 120)
    assert told["best_mean_reward"] == max(means)
    assert told["best_timesteps"] == 40 * (1 + means.index(max(means)))
    assert DQN.load(tmp_path / "best_model.zip").num_timesteps == told["best_timesteps"]
    assert DQN.load(tmp_path / "model.zip").num_timesteps == 120
    assert f"best evaluation {told['best_mean_reward']:.1f} ± " in finished.stderr
    assert f"  {tmp_path / 'best_model.zip'}" in finished.stderr
    with (tmp_path / "progress.csv").open(newline="") as file:
        evaluated = [line for line in csv.DictReader(file) if line["eval/mean_reward"]]
    assert [float(line["eval/mean_reward"]) for line in evaluated] == means


@pytest.mark.parametrize(
    ("summary", "wanted", "said"),
    [
        (
            EvaluationSummary((1.0, 3.0), (4, 6), 12, False),
            2,
            "2 episodes: mean return 2.00 ± 1.00, mean length 5.0",
        ),
        (
            EvaluationSummary((1.0,), (4,), 12, True),
            10,
            "The server ended the run: 1 of 10 episodes: mean return 1.00 ± 0.00, mean length 4.0",
        ),
        (EvaluationSummary((), (), 7, False), None, "0 episodes ended in 7 env steps."),
        (
            EvaluationSummary((), (), 0, True),
            5,
            "The server ended the run: 0 of 5 episodes ended in 0 env steps.",
        ),
    ],
)
def test_an_evaluation_in_words(summary: EvaluationSummary, wanted: int | None, said: str) -> None:
    assert judgement(summary, wanted) == said
