"""The numbers of a run, counted by hand (SPEC 6.5.20 to 6.5.22)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from plugrl_gym.protocol import ReceivedFeedback
from plugrl_gym.protocol.server import BadRow
from plugrl_gym.server import RunStatistics
from plugrl_gym.server.books import Books
from plugrl_gym.server.statistics import ClientBook
from tests.support.raw_client import feedback_of, infer_of


class Envs:
    """One client's envs, each exchange of which is written into a book."""

    def __init__(self, run: RunStatistics, horizon: int = 1, learning: bool = True) -> None:
        self.book: ClientBook = run.enter(learning)
        self.horizon = horizon

    def exchange(self, *envs: int, step_ids: Sequence[int] | None = None, **fields: Any) -> None:
        self.book.asked(infer_of(*envs, step_ids=step_ids))
        self.book.acted(np.array(envs), self.horizon)
        feedback = feedback_of(*envs, **fields)
        self.book.received(ReceivedFeedback(feedback, len(envs)))
        self.book.fed_back(feedback)


@pytest.fixture
def run() -> RunStatistics:
    return RunStatistics()


def test_new_run_has_counted_nothing(run: RunStatistics) -> None:
    now = run.snapshot()
    assert (now.env_steps, now.episodes, now.transitions, now.clients) == (0, 0, 0, 0)
    assert (now.mean_return, now.mean_length, now.steps_per_second) == (None, None, 0.0)


def test_glance_is_a_snapshot_without_books_and_latency(run: RunStatistics) -> None:
    envs = Envs(run)
    envs.exchange(0, 1, rewards=[2.0, 3.0], terminated=[True, False])
    run.learned(0.5)
    now, glance = run.snapshot(), run.glance()
    assert (now.books.chunks_given, len(now.connections), list(now.latency)) == (2, 1, ["learn"])
    assert (glance.books, glance.connections, glance.latency) == (Books(), {}, {})
    rest = {"books": Books(), "connections": {}, "latency": {}}
    told = {"seconds": 0.0, "steps_per_second": 0.0}
    assert replace(glance, **told) == replace(now, **rest, **told)


def test_client_has_numbers_of_its_own(run: RunStatistics) -> None:
    first, second = Envs(run), Envs(run, learning=False)
    first.exchange(0, 1, rewards=[2.0, 3.0], terminated=[True, False])
    second.exchange(0, rewards=[7.0], terminated=[True])
    one, two = run.clients().values()
    assert (one.envs, one.env_steps, one.episodes, one.mean_return) == (2, 2, 1, 2.0)
    assert (two.envs, two.env_steps, two.episodes, two.mean_return) == (1, 1, 1, 7.0)
    assert 0 <= one.idle_seconds < 10
    first.book.leave(0)
    assert list(run.clients()) == [2]


def test_chunk_counts_its_horizon_where_its_client_says_nothing(run: RunStatistics) -> None:
    Envs(run, horizon=4).exchange(0, 1, 2)
    now = run.snapshot()
    assert (now.env_steps, now.transitions) == (12, 3)


def test_chunk_counts_the_steps_that_its_client_reports(run: RunStatistics) -> None:
    Envs(run, horizon=4).exchange(0, 1, 2, steps=[4, 1, 2])
    assert run.snapshot().env_steps == 7


def test_own_sums_give_return_and_length(run: RunStatistics) -> None:
    envs = Envs(run, horizon=2)
    envs.exchange(0, 1, rewards=[1.5, 10.0])
    envs.exchange(0, 1, rewards=[2.0, 20.0], terminated=[True, False], steps=[1, 2])
    envs.exchange(0, 1, rewards=[0.25, 30.0], truncated=[True, True])
    now = run.snapshot()
    assert now.episodes == 3
    assert now.returns == (3.5, 0.25, 60.0)
    assert now.lengths == (3, 2, 6)
    assert now.mean_return == pytest.approx(63.75 / 3)
    assert now.mean_length == pytest.approx(11 / 3)


def test_statistics_of_the_client_count_for_the_rows_that_its_mask_names(
    run: RunStatistics,
) -> None:
    episode = {
        "r": np.array([100.0, 0.0, 300.0]),
        "l": np.array([10, 0, 30]),
        "s": np.array([True, False, False]),
        "mask": np.array([True, False, True]),
    }
    Envs(run).exchange(
        0, 1, 2, terminated=[True, True, False], info={"episode": episode}, rewards=[1, 2, 3]
    )
    now = run.snapshot()
    assert now.episodes == 2
    assert now.returns == (100.0, 2.0)  # env 2 goes on, whatever its mask says
    assert now.lengths == (10, 1)


def test_absent_mask_means_every_row(run: RunStatistics) -> None:
    episode = {"r": np.array([7.0, 8.0]), "l": np.array([3, 4]), "s": np.zeros(2, bool)}
    Envs(run).exchange(0, 1, truncated=[True, True], info={"episode": episode})
    assert run.snapshot().returns == (7.0, 8.0)


def test_episode_that_began_on_another_connection_has_no_return_of_its_own(
    run: RunStatistics,
) -> None:
    envs = Envs(run)
    envs.exchange(0, 1, step_ids=[5, 0])
    envs.exchange(0, 1, step_ids=[6, 1], terminated=[True, True])
    envs.exchange(0, step_ids=[0], terminated=[True], rewards=[9.0])
    now = run.snapshot()
    assert now.episodes == 3
    assert now.returns == (2.0, 9.0)


def test_dropped_row_leaves_no_wrong_return(run: RunStatistics) -> None:
    envs = Envs(run)
    envs.exchange(0, 1)
    envs.book.received(ReceivedFeedback(None, 2, stale=(7,), non_finite=(BadRow(0, 1, "rewards"),)))
    envs.exchange(0, 1, step_ids=[2, 2], terminated=[True, True])
    now = run.snapshot()
    assert now.returns == (2.0,)
    assert (now.episodes, now.stale, now.non_finite, now.dropped) == (2, 1, 1, 2)


def test_window_keeps_the_last_hundred_episodes(run: RunStatistics) -> None:
    envs = Envs(run)
    for reward in range(130):
        envs.exchange(0, rewards=[float(reward)], terminated=[True])
    now = run.snapshot()
    assert now.episodes == 130
    assert now.returns == tuple(float(reward) for reward in range(30, 130))


def test_evaluating_clients_are_kept_apart(run: RunStatistics) -> None:
    Envs(run, learning=False).exchange(0, rewards=[5.0], terminated=[True])
    now = run.snapshot()
    assert (now.env_steps, now.episodes, now.returns) == (0, 0, ())
    assert (now.evaluation_steps, now.evaluation_episodes) == (1, 1)
    assert now.evaluation_returns == (5.0,)


def test_clients_come_and_go(run: RunStatistics) -> None:
    first, second = Envs(run), Envs(run)
    first.exchange(0)
    second.exchange(0)
    first.book.leave(abandoned=3)
    now = run.snapshot()
    assert (now.clients, now.clients_seen, now.abandoned) == (1, 2, 3)
    assert now.env_steps == 2
    assert now.steps_per_second > 0.0


def test_learning_time_adds_up(run: RunStatistics) -> None:
    run.learned(1.5)
    run.learned(0.25)
    assert run.snapshot().learning_seconds == 1.75


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("huge", [1.7e308, -1.7e308])
def test_return_that_cannot_be_summed_up_is_not_known(
    run: RunStatistics, told: bool, huge: float
) -> None:
    envs = Envs(run)
    episode = {"r": np.array([huge]), "l": np.array([3])}
    for _ in range(3):
        feedback = replace(
            feedback_of(0, terminated=[True], info={"episode": episode} if told else None),
            rewards=np.array([huge]),
        )
        envs.book.asked(infer_of(0))
        envs.book.acted(np.array([0]), 1)
        envs.book.received(ReceivedFeedback(feedback, 1))
        envs.book.fed_back(feedback)
    now = run.snapshot()
    assert (now.episodes, now.returns, now.mean_return) == (3, (), None)
    assert run.clients()[1].mean_return is None
