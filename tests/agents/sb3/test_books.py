"""What the SB3 agent says that it kept is what it has stored."""

from __future__ import annotations

from typing import Any

import pytest
from gymnasium import spaces

from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.agents.sb3.learners.trajectories import Rollout
from plugrl_gym.server.statistics import RunSnapshot
from tests.support.raw_client import BOX, declare, raw_client
from tests.support.serving import running


def exchanges(settings: dict[str, Any], algorithm: str = "ppo") -> RunSnapshot:
    """Seven exchanges of two clients of three envs, and of one that evaluates."""
    discrete = declare(spaces.Discrete(2), BOX)
    agent = SB3Agent(algorithm, total_timesteps=1000, num_envs=1, preset="none", **settings)
    with running(agent) as run, raw_client(run.url) as one, raw_client(run.url) as two:
        one.infer(0, 1, 2, spaces=discrete)
        two.infer(0, 1, 2, spaces=discrete)
        for client in (one, two, one, one, two):
            client.feed_back(0, 1, 2)
            client.infer(0, 1, 2)
        one.feed_back(1)
        one.infer(1)
        with raw_client(run.url) as judge:
            judge.infer(0, spaces=declare(spaces.Discrete(2), BOX, "eval"))
            judge.feed_back(0)
            judge.infer(0)
        run.server.request_shutdown()
        assert run.ended() is False
        return run.server.statistics.snapshot()


PPO = {"n_steps": 8, "batch_size": 8, "n_epochs": 1}


@pytest.mark.parametrize(
    ("algorithm", "settings"), [("ppo", PPO), ("dqn", {"learning_starts": 4, "buffer_size": 50})]
)
def test_agent_counts_the_rows_that_the_server_has_down_as_stored(
    algorithm: str, settings: dict[str, Any]
) -> None:
    now = exchanges(settings, algorithm)
    assert now.book_errors == ()
    assert (now.books.rows_stored, now.books.rows_discarded) == (16, {"evaluation": 1})


def test_rollout_that_loses_a_row_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Rollout.add
    monkeypatch.setattr(Rollout, "add", lambda self, steps: add(self, steps) - (len(steps) == 3))
    (error,) = exchanges(PPO).book_errors
    assert error.startswith("rows stored 16 is not the agent's own count ")
