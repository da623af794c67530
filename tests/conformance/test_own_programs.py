"""The project's own servers and clients, as their users start them, under the suite."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest

from plugrl_gym.conformance import grade_client, grade_server
from tests.support.commands import serve

#: With spaces given for v1 clients, as an operator would for clients that declare nothing.
GIVEN = ("--observation-space", "Box(-inf,inf,(3,))", "--action-space", "Box(-1,1,(3,))")
ENDS = ("--total-timesteps", 3000, "--feedback-timeout", 5)
PPO = ("--algo", "ppo", "-P", "n_steps=64", "-P", "n_epochs=2")
DISCRETE = (*GIVEN[:2], "--action-space", "Discrete(3)")
OFF_POLICY = ("-P", "learning_starts=50", "-P", "batch_size=16", "-P", "train_freq=10")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--algo", "random", "--horizon", 3, *GIVEN[2:]), {}),
        ((*PPO, *GIVEN), {"feedback_timeout": 5.0}),
        pytest.param(
            (*PPO, "--horizon", 4, "--normalize", *GIVEN),
            {"feedback_timeout": 5.0},
            marks=pytest.mark.full,
        ),
        # Nothing is known before the first client has declared its spaces.
        pytest.param(PPO, {}, marks=pytest.mark.full),
        pytest.param(("--algo", "random", "--horizon", 1), {}, marks=pytest.mark.full),
    ],
    ids=["random", "ppo", "ppo, chunks", "ppo, spaces unknown", "random, spaces unknown"],
)
def test_serve_has_no_violation(tmp_path: Any, options: Any, told: dict[str, float]) -> None:
    with serve(*options, *ENDS, "--run-dir", tmp_path) as server:
        report = grade_server(server.url(), state_dim=3, until_stop=True, timeout=30.0, **told)
        finished = server.finish()
    assert report.exit_code == 0, report.to_text()
    assert report.notes == [], report.to_text()
    assert finished.code == 0, finished.stderr


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("sac", (*OFF_POLICY, *GIVEN)),
        *(
            pytest.param(algorithm, options, marks=pytest.mark.full)
            for algorithm, options in [
                ("sac", (*OFF_POLICY, "--horizon", 4, "--async-learn", *GIVEN)),
                ("dqn", (*OFF_POLICY, *DISCRETE)),
                ("td3", (*OFF_POLICY, *GIVEN)),
                ("ddpg", (*OFF_POLICY, *GIVEN)),
                ("tqc", (*OFF_POLICY, *GIVEN)),
                ("crossq", (*OFF_POLICY, *GIVEN)),
                ("qrdqn", (*OFF_POLICY, *DISCRETE)),
                ("a2c", GIVEN),
                ("trpo", ("-P", "n_steps=64", *GIVEN)),
            ]
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_algorithm_makes_a_violation(tmp_path: Any, algorithm: str, options: Any) -> None:
    ends = ("--total-timesteps", 1500, "--feedback-timeout", 5, "--run-dir", tmp_path)
    with serve("--algo", algorithm, *options, *ends) as server:
        report = grade_server(
            server.url(), state_dim=3, until_stop=True, timeout=30.0, feedback_timeout=5.0
        )
        finished = server.finish()
    assert report.exit_code == 0, report.to_text()
    assert finished.code == 0, finished.stderr


VECTORS = [
    *itertools.product(["sync", "async"], ["same-step", "next-step", "disabled"]),
]


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize(("vector", "autoreset"), VECTORS)
def test_rollout_has_no_violation_over_any_vector_env(
    env: str, vector: str, autoreset: str
) -> None:
    command = [sys.executable, "-m", "plugrl_gym.rollout", env, "--url", "{url}"]
    command += ["--num-envs", "3", "--vector", vector, "--autoreset", autoreset]
    settings = {"action_dim": 1, "action_dtype": "<i8" if env == "CartPole-v1" else "<f4"}
    report = grade_client(command, scenarios="all", **settings)
    assert report.exit_code == 0, report.to_text()


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("autoreset", ["same-step", "next-step", "disabled"])
def test_rollout_probe_has_no_violation_in_any_reset_mode(autoreset: str) -> None:
    command = [sys.executable, "-m", "plugrl_gym.rollout", "--probe", "--url", "{url}"]
    report = grade_client(
        [*command, "--num-envs", "4", "--autoreset", autoreset], probe=True, scenarios="all"
    )
    assert report.exit_code == 0, report.to_text()
