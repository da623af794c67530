"""Both sides' books in what the commands say and print."""

from __future__ import annotations

import pytest

from plugrl_gym import rollout as rollout_command
from plugrl_gym.client import PlugRLVectorEnv, RunSummary
from plugrl_gym.commands.options import seconds_or_none
from plugrl_gym.commands.result import imbalance, make_result, sentence
from plugrl_gym.server import RunStatistics
from tests.support.commands import rollout, serve


def test_books_of_a_server_and_its_client_agree():
    with (
        serve("--algo", "random", "--horizon", 3, "--total-timesteps", 300, "--json") as server,
        rollout("CartPole-v1", "--num-envs", 3, "--url", server.url(), "--json") as client,
    ):
        ours, theirs = client.finish().result["books"], server.finish().result["books"]
    assert (ours["errors"], theirs["errors"]) == ([], [])
    assert ours["chunks_received"] == theirs["chunks_given"]
    assert ours["chunks_fed_back"] == theirs["rows_received"] == theirs["rows_answered"]
    assert ours["steps_fed_back"] == theirs["env_steps"]
    assert set(ours["chunks_dropped"]) <= {"run over"}
    assert sum(ours["chunks_dropped"].values()) == theirs["chunks_abandoned"]


def test_run_whose_books_do_not_balance_says_so_in_its_last_line():
    statistics = RunStatistics()
    statistics.enter(True).books.rows_received += 3
    result = make_result("random", None, None, statistics.snapshot(), None, finished=True)
    said = sentence(result)
    assert "; THE BOOKS DO NOT BALANCE: rows received 3 is not answered 0 + stale 0" in said
    assert imbalance({"errors": []}) == ""


def test_rollout_whose_books_do_not_balance_says_so(monkeypatch, capsys):
    summary = RunSummary(
        8, 0, 1, 8.0, 8.0, 1.0, 8.0, 8, 0, 1, True, {}, {"errors": ["env steps 8 is odd"]}
    )
    monkeypatch.setattr(PlugRLVectorEnv, "run", lambda self, **options: summary)
    assert rollout_command.main(["CartPole-v1", "--num-envs", "1"]) == 0
    assert "; THE BOOKS DO NOT BALANCE: env steps 8 is odd" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "value"), [("none", None), ("None", None), ("0.5", 0.5)])
def test_a_limit_is_seconds_or_none(text, value):
    assert seconds_or_none(text) == value


@pytest.mark.parametrize("text", ["0", "-1", "never", "inf"])
def test_a_limit_is_nothing_else(text, capsys):
    with pytest.raises(SystemExit):
        rollout_command.main(["CartPole-v1", "--reconnect-timeout", text])
    assert "--reconnect-timeout" in capsys.readouterr().err
