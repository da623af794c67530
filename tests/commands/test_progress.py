"""The live line, and where words go."""

from __future__ import annotations

import io
import json
import logging
import sys
import time
from dataclasses import replace

import pytest

from plugrl_gym.client import ClientStatistics
from plugrl_gym.commands.output import Output, json_line
from plugrl_gym.commands.progress import ClientProgress, Reading, Reporter, server_reading
from plugrl_gym.commands.result import first_reaching, make_result, sentence, write_result
from plugrl_gym.server import RunStatistics


class Terminal(io.StringIO):
    def isatty(self):
        return True


def snapshot(**changes):
    return replace(RunStatistics().snapshot(), **changes)


def test_a_server_shows_nothing_before_the_first_client():
    assert server_reading(snapshot(), 100, False) is None


def test_a_servers_reading():
    run = snapshot(
        clients_seen=1, clients=1, env_steps=1200, steps_per_second=345.6, returns=(1.0, 2.0)
    )
    expected = "1,200 of 10,000 steps, 346 steps/s, mean return 1.5"
    assert str(server_reading(run, 10_000, False)) == expected
    assert str(server_reading(run, 10_000, True)) == f"{expected}, learning"
    assert str(server_reading(run, None, False)).startswith("1,200 steps, ")


def test_a_servers_reading_tells_the_last_evaluation():
    run = snapshot(clients_seen=1, clients=1, steps_per_second=5.0)
    reading = server_reading(run, None, True, "9.0 ± 1.0 over 2 episodes at step 8")
    assert reading.text == "5 steps/s, evaluation 9.0 ± 1.0 over 2 episodes at step 8, learning"


def test_a_server_tells_that_its_clients_are_gone():
    assert server_reading(snapshot(clients_seen=2), None, False).text == "0 steps/s, no client"


def test_a_client_tells_what_it_waits_for(monkeypatch):
    progress = ClientProgress(ClientStatistics(), None)
    assert progress.read() is None
    progress.on_wait(12.3, "the server")
    assert str(progress.read()) == "0 steps, waiting for the server, 12 s"
    later = time.monotonic() + 3
    monkeypatch.setattr("time.monotonic", lambda: later)
    assert progress.read() is None  # the wait is over: no further notice came


def test_a_clients_reading_counts_its_rate_from_the_first_step(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stats = ClientStatistics()
    progress = ClientProgress(stats, 1000)
    now[0], stats.book.env_steps = 200.0, 8
    progress.read()
    now[0], stats.book.env_steps = 202.0, 108
    stats.returns.append(9.0)
    assert str(progress.read()) == "108 of 1,000 steps, 50 steps/s, mean return 9.0"


def test_a_terminal_gets_one_live_line_and_lines_above_it(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    output = Output("prog", quiet=False, json=False)
    reading = Reading(5, 10, "9 steps/s")
    with Reporter(lambda: reading, output) as reporter:
        reporter._show()
        output.say("a line")
    drawn = terminal.getvalue()
    assert "50%" in drawn
    assert "5 of 10 steps" in drawn
    assert "9 steps/s" in drawn
    assert "\ra line\n" in drawn.replace(" ", "").replace("aline", "a line")


def test_a_pipe_gets_a_line_only_for_news(monkeypatch):
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    output = Output("prog", quiet=False, json=False)
    reporter = Reporter(lambda: Reading(5, None, "9 steps/s"), output, interval=0.0)
    reporter._show()
    reporter._show()
    (line,) = pipe.getvalue().splitlines()
    assert line.endswith("5 steps, 9 steps/s")


def test_a_pipe_gets_a_line_for_a_pause_at_once_and_for_the_rest_now_and_then(monkeypatch):
    pipe, now = io.StringIO(), [0.0]
    monkeypatch.setattr(sys, "stderr", pipe)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    readings = iter(
        [
            Reading(1, None, "moving"),
            Reading(2, None, "waiting, 5 s", paused=True),
            Reading(2, None, "waiting, 6 s", paused=True),
            Reading(2, None, "waiting, 10 s", paused=True),
            Reading(3, None, "moving again"),
        ]
    )
    reporter = Reporter(lambda: next(readings), Output("prog", False, False), interval=5.0)
    for now[0] in (1.0, 2.0, 3.0, 7.0, 8.0):
        reporter._show()
    assert [line.split(" ", 1)[1] for line in pipe.getvalue().splitlines()] == [
        "2 steps, waiting, 5 s",
        "2 steps, waiting, 10 s",
    ]


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_quiet_shows_nothing(stream, monkeypatch):
    silent = stream()
    monkeypatch.setattr(sys, "stderr", silent)
    output = Output("prog", quiet=True, json=False)
    with Reporter(lambda: Reading(5, None, "9 steps/s"), output, interval=0.01):
        output.say("nothing")
    assert silent.getvalue() == ""


def test_a_quiet_command_still_warns(monkeypatch):
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    log = logging.getLogger("plugrl_gym.server")
    with Output("prog", quiet=True, json=False).opened():
        log.info("nothing")
        log.warning("dropped feedback of env %d", 3)
    log.warning("nothing")
    assert pipe.getvalue()[9:] == "warning: dropped feedback of env 3\n"


def test_the_log_does_not_repeat_what_the_command_says(monkeypatch):
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with Output("prog", quiet=False, json=False).opened():
        logging.getLogger("plugrl_gym.server").info("listening on %s", "ws://127.0.0.1:8000")
    assert pipe.getvalue() == ""


def test_json_has_no_nan():
    with pytest.raises(ValueError):
        json_line({"mean_return": float("nan")})


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
