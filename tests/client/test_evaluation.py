"""Episodes counted to judge a policy: how many, of which envs, and when."""

from __future__ import annotations

import socket
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from plugrl_gym import PlugRLVectorEnv
from plugrl_gym.agents.random_agent import RandomAgent
from plugrl_gym.client import EvaluationSummary, PeriodicEvaluation, evaluate
from tests.support.serving import running


class Episodes(gym.Env[Any, Any]):
    """Its episodes last ``lengths`` steps, in turn; each step pays ``reward``."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, lengths: tuple[int, ...], reward: float = 1.0) -> None:
        self._lengths, self._reward = lengths, reward
        self._began, self._left = -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._began += 1
        self._left = self._lengths[self._began % len(self._lengths)]
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        return np.zeros(1, np.float32), self._reward, self._left == 0, False, {}


MODES = pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)


def vector(*envs: Episodes, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> SyncVectorEnv:
    return SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=mode)


def evaluating(server: Any, *envs: Episodes, **options: Any) -> PlugRLVectorEnv:
    return PlugRLVectorEnv(vector(*envs, **options), server.url, mode="eval")


@MODES
def test_each_env_contributes_an_equal_share_of_its_first_episodes(mode: AutoresetMode) -> None:
    with (
        running(RandomAgent()) as server,
        evaluating(server, Episodes((1,)), Episodes((5, 7), 10.0), mode=mode) as envs,
    ):
        found = evaluate(envs, 4)
    assert found.lengths == (1, 1, 5, 7)
    assert found.returns == (1.0, 1.0, 50.0, 70.0)
    assert (found.mean_return, found.mean_length, found.finished) == (30.5, 3.5, False)
    assert found.std_return == np.std(found.returns)


@pytest.mark.parametrize("horizon", [1, 3])
def test_a_number_that_does_not_divide_is_met_exactly(horizon: int) -> None:
    with (
        running(RandomAgent(horizon=horizon)) as server,
        evaluating(server, Episodes((2,)), Episodes((3,)), Episodes((4,))) as envs,
    ):
        assert sorted(evaluate(envs, 5).lengths) == [2, 3, 3, 4, 4]
        assert sorted(evaluate(envs, 1).lengths) == [4]


def test_without_a_number_all_episodes_count() -> None:
    with (
        running(RandomAgent()) as server,
        evaluating(server, Episodes((1,)), Episodes((3,))) as envs,
    ):
        found = evaluate(envs, max_steps=12)
    assert sorted(found.lengths) == [1] * 6 + [3] * 2
    assert found.env_steps == 12


def test_the_end_of_the_run_leaves_what_there_is() -> None:
    class Ending(RandomAgent):
        rows = 0

        def feedback(self, client: Any, feedback: Any) -> Any:
            self.rows += len(feedback.env_indices)
            return super().feedback(client, feedback)

        @property
        def finished(self) -> bool:
            return self.rows >= 8

    with (
        running(Ending()) as server,
        evaluating(server, Episodes((3,)), Episodes((9,))) as envs,
    ):
        found = evaluate(envs, 10)
        assert evaluate(envs, 10) == EvaluationSummary((), (), 0, True)
    assert found == EvaluationSummary((3.0,), (3,), 8, True)


def test_a_summary_of_nothing_has_no_means() -> None:
    nothing = EvaluationSummary((), (), 0, True)
    assert nothing.to_dict() == {
        "episodes": 0,
        "mean_return": None,
        "std_return": None,
        "mean_length": None,
        "returns": (),
        "lengths": (),
        "env_steps": 0,
        "finished": True,
    }


def test_a_server_without_spaces_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    class Plain(RandomAgent):
        features = ()

    agent = Plain(spaces.Discrete(2), total_timesteps=100)
    with running(agent) as server, evaluating(server, Episodes((1,))) as envs:
        evaluate(envs, 2)
    assert "takes this client for one to learn from" in caplog.text


# -- Every so many steps of a training client ---------------------------------------------


def test_an_evaluation_that_finds_no_server_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    deaf = socket.socket()  # holds its port and does not listen
    deaf.bind(("127.0.0.1", 0))

    def connect(inner: Any) -> PlugRLVectorEnv:
        url = f"ws://127.0.0.1:{deaf.getsockname()[1]}"
        return PlugRLVectorEnv(inner, url, mode="eval", connect_timeout=0.0)

    with (
        deaf,
        running(RandomAgent()) as server,
        PlugRLVectorEnv(vector(Episodes((4,))), server.url) as envs,
    ):
        judge = PeriodicEvaluation(envs, vector(Episodes((2,))), connect, 4, 1)
        assert envs.run(max_steps=6, between_steps=judge).env_steps == 6
    assert judge.last is None
    assert "no evaluation after 4 env steps: no PlugRL server" in caplog.text


def test_evaluations_come_between_steps_in_connections_of_their_own() -> None:
    agent = RandomAgent(total_timesteps=24)
    with (
        running(agent) as server,
        PlugRLVectorEnv(vector(Episodes((4,)), Episodes((5,))), server.url) as envs,
    ):
        connections, seen = [], []

        def connect(inner: Any) -> PlugRLVectorEnv:
            seen.append(envs.stats.env_steps)
            connections.append(PlugRLVectorEnv(inner, server.url, mode="eval"))
            return connections[-1]

        judge = PeriodicEvaluation(envs, vector(Episodes((2, 3))), connect, 7, 3)
        summary = envs.run(between_steps=judge)
    assert (summary.env_steps, summary.finished, summary.connections) == (24, True, 1)
    assert seen == [8, 14, 22]
    assert judge.last is not None
    assert judge.last.lengths == (2, 3, 2)
    assert server.server.statistics.snapshot().evaluation_episodes == 9


@MODES
@pytest.mark.parametrize("horizon", [1, 2, 5])
def test_no_evaluation_begins_while_the_server_waits_for_a_feedback(
    horizon: int, mode: AutoresetMode
) -> None:
    agent = RandomAgent(horizon=horizon)
    envs_below = vector(Episodes((4, 1)), Episodes((7,)), Episodes((3, 8, 2)), mode=mode)
    with (
        running(agent) as server,
        PlugRLVectorEnv(envs_below, server.url) as envs,
    ):
        owed, times = [], []

        def connect(inner: Any) -> PlugRLVectorEnv:
            owed.append(envs.owes_feedback)
            times.append(envs.stats.env_steps)
            return PlugRLVectorEnv(inner, server.url, mode="eval")

        judge = PeriodicEvaluation(envs, vector(Episodes((2,))), connect, 20, 1)
        envs.run(max_steps=300, between_steps=judge)
    assert owed == [False] * len(owed)
    # Each one comes within two chunks of the step at which it was due.
    late = [time - 20 * number for number, time in enumerate(times, 1)]
    assert len(times) >= 13
    assert min(late) >= 0
    assert max(late) <= 3 * 2 * horizon + 3


def test_the_seed_is_for_the_first_reset_and_the_envs_stay_open() -> None:
    seeds: list[Any] = []

    class Seeds(Episodes):
        closed = False

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            seeds.append(seed)
            return super().reset(seed=seed, options=options)

        def close(self) -> None:
            assert not self.closed
            self.closed = True

    env = Seeds((2,))
    judged = vector(env)
    with (
        running(RandomAgent(total_timesteps=20)) as server,
        PlugRLVectorEnv(vector(Episodes((4,))), server.url) as envs,
    ):
        judge = PeriodicEvaluation(
            envs, judged, lambda e: PlugRLVectorEnv(e, server.url, mode="eval"), 8, 1, seed=77
        )
        envs.run(between_steps=judge)
    assert seeds == [77, None, None, None]  # the end of each episode is a reset, too
    assert not env.closed
    judged.close()
    assert env.closed
