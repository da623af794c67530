"""How far a server is, and what is left of its run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from plugrl_gym.commands.progress import ServerProgress
from plugrl_gym.commands.result import first_reaching, make_result, sentence, write_result
from plugrl_gym.server import RunStatistics


def snapshot(**changes):
    return replace(RunStatistics().snapshot(), **changes)


def reading(run, total=None, activity="", evaluation=None):
    return ServerProgress(total).read(run, activity, evaluation)


def test_a_server_shows_nothing_before_the_first_client():
    assert reading(snapshot(), 100) is None


def test_a_servers_reading(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = ServerProgress(10_000)
    run = snapshot(clients_seen=2, clients=2, env_steps=1000, returns=(1.0, 2.0), episodes=2)
    progress.read(run, "")
    now[0] += 2.0
    expected = "1,200 of 10,000 steps, 100 steps/s, mean return 1.5, 2 clients"
    later = replace(run, env_steps=1200)
    assert str(progress.read(later, "")) == expected
    assert str(progress.read(later, "learning")) == f"{expected}, learning"
    assert str(reading(run)).startswith("1,000 steps, ")


def test_a_server_tells_how_fast_it_answers():
    run = snapshot(clients_seen=1, clients=1, latency={"answer": {"p50": 0.0015}})
    assert reading(run).text() == "p50 1.5 ms, 1 client"


def test_a_servers_reading_tells_the_last_evaluation():
    run = snapshot(clients_seen=1, clients=1)
    said = reading(run, None, "learning", "9.0 ± 1.0 over 2 episodes at step 8").text()
    assert said == "1 client, evaluation 9.0 ± 1.0 over 2 episodes at step 8, learning"


def test_a_server_tells_that_it_evaluates():
    progress = ServerProgress(None)
    run = snapshot(clients_seen=1, clients=1, evaluation_steps=5)
    assert progress.read(run, "").activity == "evaluating"
    assert progress.read(run, "").activity == ""


def test_a_server_tells_that_its_clients_are_gone(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = ServerProgress(None)
    progress.read(snapshot(clients_seen=2, clients=1), "")
    progress.read(snapshot(clients_seen=2), "")
    now[0] += 7.0
    alone = progress.read(snapshot(clients_seen=2), "")
    assert alone.pause == "no client, 7 s"
    assert alone.text() == "0 steps/s, no client, 7 s"
    assert progress.read(snapshot(clients_seen=2), "saving").text() == "0 steps/s, saving"


def test_a_result_without_an_episode(tmp_path):
    result = make_result("random", None, None, snapshot(), None, finished=False)
    assert result["mean_return"] is None
    assert result["wall_seconds"] == 0.0
    assert sentence(result) == "0 env steps in 0 s (0 steps/s); no episode ended"
    write_result(tmp_path / "new" / "result.json", result)
    assert json.loads((tmp_path / "new" / "result.json").read_text()) == result


def test_a_result_in_words():
    run = snapshot(env_steps=1000, episodes=2, returns=(1.0, 2.0), steps_per_second=50.0)
    result = make_result("random", None, None, run, None, finished=True)
    assert result["wall_seconds"] == 20.0
    assert sentence(result) == (
        "1,000 env steps in 20 s (50 steps/s); 2 episodes, mean return 1.5 over the last 2"
    )


class Judged:
    """What an agent says of its evaluations."""

    def __init__(self, **said):
        self._said = said

    def summary(self):
        return self._said


def test_a_result_tells_of_evaluations_apart():
    run = snapshot(evaluation_episodes=3, evaluation_returns=(1.0, 2.0, 6.0))
    result = make_result("random", None, None, run, None, finished=True)
    assert result["eval"] == {"episodes": 3, "mean_return": 3.0}
    assert sentence(result).endswith("; no episode ended; 3 evaluation episodes, mean return 3.0")
    assert make_result("random", None, None, snapshot(), None, False)["eval"] is None


def test_a_result_names_the_best_evaluation():
    said = {
        f"{which}_{what}": value
        for which, values in (("best", (9.0, 1.5, 4000)), ("last", (8.0, 0.5, 6000)))
        for what, value in zip(("mean_reward", "std_reward", "timesteps"), values, strict=True)
    }
    run = snapshot(evaluation_episodes=3)
    result = make_result("ppo", None, None, run, None, True, Judged(evaluations=2, **said))
    assert result["eval"] == {"episodes": 3, "mean_return": None, "evaluations": 2, **said}
    expected = "; best evaluation 9.0 ± 1.5 at step 4,000, last 8.0 ± 0.5 at step 6,000"
    assert expected in sentence(result)


@pytest.mark.parametrize(
    ("goal", "within", "step"), [(10, 100, 20), (20, 100, 40), (20, 39, None), (30, 100, None)]
)
def test_the_goal_is_the_first_line_that_reaches_it(tmp_path, goal, within, step):
    progress = tmp_path / "progress.csv"
    progress.write_text(
        "rollout/ep_rew_mean,time/total_timesteps\n,10\n10.5,20\n9.0,30\n20.0,40\n25.0,50\n"
    )
    assert first_reaching(progress, {}, goal, within) == step


@pytest.mark.parametrize(("goal", "step"), [(20.0, 300), (20.5, None)])
def test_without_progress_the_goal_is_looked_for_in_the_result(tmp_path, goal, step):
    result = {"timesteps": 300, "mean_return": 20.0}
    assert first_reaching(tmp_path / "none.csv", result, goal, 300) == step
