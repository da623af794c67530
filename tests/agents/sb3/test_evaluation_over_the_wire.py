"""Evaluations between the steps of a training client, against SB3's own EvalCallback."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env

from plugrl_gym import PlugRLVectorEnv
from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.client import PeriodicEvaluation, RunSummary, evaluate
from tests.support.lockstep import assert_same_weights, logless, make_envs, weights_of
from tests.support.serving import Running, running

EPISODES = 3
TOTAL = 600
# EVERY does not fall on the end of a rollout: there SB3 evaluates before the update, we after it.
EVERY = 160
CASES: dict[str, tuple[Any, str, int, dict[str, Any]]] = {
    "ppo": (PPO, "CartPole-v1", 4, {"n_steps": 75, "batch_size": 50, "n_epochs": 3}),
    "a2c": (A2C, "CartPole-v1", 4, {"n_steps": 25}),
    "dqn": (DQN, "CartPole-v1", 1, {"learning_starts": 100, "train_freq": 7, "batch_size": 16}),
    "sac": (SAC, "Pendulum-v1", 1, {"learning_starts": 500, "train_freq": 7, "batch_size": 16}),
}


def reference(case: str, directory: Path) -> Any:
    """SB3 in one process, with its own evaluations."""
    algorithm, env_id, n_envs, settings = CASES[case]
    judge = EvalCallback(
        make_vec_env(env_id, 2, seed=77),
        n_eval_episodes=EPISODES,
        eval_freq=EVERY // n_envs,
        log_path=str(directory),
        best_model_save_path=str(directory),
        verbose=0,
    )
    envs = make_vec_env(env_id, n_envs, seed=0)
    model = algorithm("MlpPolicy", envs, seed=0, device="cpu", **settings)
    return logless(model).learn(TOTAL, callback=judge)


def train(
    server: Running, case: str, every: int | None = EVERY, patience: float = 10.0
) -> tuple[RunSummary, PeriodicEvaluation | None]:
    """A training client that evaluates; None for one that does not."""
    _, env_id, n_envs, _ = CASES[case]
    judged = make_envs(env_id, 2)
    with PlugRLVectorEnv(make_envs(env_id, n_envs), server.url) as envs:
        judge = None
        if every is not None:

            def connect(inner: Any) -> PlugRLVectorEnv:
                return PlugRLVectorEnv(inner, server.url, mode="eval", connect_timeout=patience)

            judge = PeriodicEvaluation(envs, judged, connect, every, EPISODES, seed=77)
        summary = envs.run(seed=0, between_steps=judge)
    judged.close()
    return summary, judge


def make_agent(case: str, **settings: Any) -> SB3Agent:
    algorithm, _, _, hyperparameters = CASES[case]
    given = {**hyperparameters, "device": "cpu"}
    return SB3Agent(
        algorithm,
        **{"total_timesteps": TOTAL, "seed": 0, "preset": "none", **settings},
        hyperparameters=given,
        eval_episodes=EPISODES,
    )


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "case",
    ["ppo", *(pytest.param(case, marks=pytest.mark.full) for case in ("a2c", "dqn", "sac"))],
)
def test_evaluations_are_those_of_sb3s_eval_callback_and_weights_those_without(
    case: str, tmp_path: Path
) -> None:
    model = reference(case, tmp_path / "sb3")
    agent = make_agent(case, run_dir=tmp_path / "ours")
    with running(agent) as server:
        train(server, case)
    assert agent.model is not None
    assert_same_weights(weights_of(agent.model), weights_of(model))
    expected = np.load(tmp_path / "sb3" / "evaluations.npz")
    found = lines(tmp_path / "ours" / "evaluations.csv")
    assert [int(line["timesteps"]) for line in found] == expected["timesteps"].tolist()
    for line, returns, lengths in zip(
        found, expected["results"].tolist(), expected["ep_lengths"].tolist(), strict=True
    ):
        assert [float(number) for number in line["returns"].split()] == pytest.approx(returns)
        assert [int(number) for number in line["lengths"].split()] == lengths
    theirs, ours = (
        type(model).load(tmp_path / name / "best_model.zip", device="cpu")
        for name in ("sb3", "ours")
    )
    assert ours.num_timesteps == theirs.num_timesteps
    for name, weight in theirs.policy.state_dict().items():
        assert torch.equal(ours.policy.state_dict()[name], weight)


def test_without_evaluations_the_weights_are_the_same() -> None:
    weights = []
    for every in (None, 90):
        agent = make_agent("a2c", total_timesteps=200)
        with running(agent) as server:
            train(server, "a2c", every)
        assert agent.model is not None
        weights.append(weights_of(agent.model))
    assert_same_weights(*weights)


def test_an_evaluation_due_with_the_last_step_is_waited_for() -> None:
    agent = make_agent("a2c", final_evaluation=True)
    with running(agent) as server:
        summary, _ = train(server, "a2c", every=TOTAL // 2)
        assert server.ended() is True
    assert (summary.env_steps, summary.finished) == (TOTAL, True)
    assert agent.evaluations.number == 2
    assert agent.evaluations.last is not None
    assert agent.evaluations.last.timesteps == TOTAL
    assert agent.counters.transitions_stored == TOTAL


def test_a_run_that_waits_for_an_evaluation_ends_with_its_client() -> None:
    agent = make_agent("a2c", final_evaluation=True)
    with running(agent) as server:
        with PlugRLVectorEnv(make_envs("CartPole-v1", 4), server.url) as envs:
            envs.run(seed=0, max_steps=TOTAL)  # leaves without asking for a further action
        assert server.ended() is True
    assert agent.timesteps == TOTAL


def test_an_evaluation_due_with_the_last_step_of_another_server_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = make_agent("a2c")
    with running(agent) as server:
        summary, judge = train(server, "a2c", every=TOTAL, patience=0.0)
    assert (summary.env_steps, summary.finished) == (TOTAL, True)
    assert judge is not None
    assert judge.last is None or not judge.last.returns
    assert agent.evaluations.number == 0


def test_an_evaluation_of_a_learning_server_counts_on_both_sides_the_same() -> None:
    agent = make_agent("ppo")
    with (
        running(agent) as server,
        PlugRLVectorEnv(make_envs("CartPole-v1", 3), server.url, mode="eval") as envs,
    ):
        found = evaluate(envs, EPISODES, seed=3)
    evaluation = agent.evaluations.last
    assert evaluation is not None
    assert (evaluation.returns, evaluation.lengths) == (found.returns, found.lengths)
    assert evaluation.complete
