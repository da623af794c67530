"""The comparison of learning: its plan of clients, its table, and one comparison end to end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.benchmarks.cases import CASES, find_case
from tests.benchmarks.clients import plan
from tests.benchmarks.learning import Learning, run_local, run_lockstep, run_ragged


@pytest.fixture
def threads() -> Iterator[None]:
    """Puts back the number of torch threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("seed", range(20))
def test_somebody_is_always_there_and_all_come_and_go(seed: int) -> None:
    events = plan(seed, 3, 10_000)
    present: set[int] = set()
    for event in events:
        if event.what == "join":
            assert event.client not in present
            present.add(event.client)
        else:
            present.remove(event.client)
        assert present
    assert [event.step for event in events] == sorted(event.step for event in events)
    assert {event.client for event in events if event.what != "join"} == {0, 1, 2}


def test_a_seed_decides_who_comes_and_goes_when() -> None:
    assert plan(1, 3, 10_000) == plan(1, 3, 10_000)
    assert plan(1, 3, 10_000) != plan(2, 3, 10_000)
    assert {event.what for event in plan(1, 3, 10_000)} == {"join", "leave", "cut"}


def record(weights: str, evaluation: float, **others: Any) -> dict[str, Any]:
    return {
        "env_steps": 1000,
        "episodes": 10,
        "mean_return": evaluation - 1,
        "wall_seconds": 10.0,
        "weights": weights,
        "evaluation": evaluation,
        "versions": {"torch": "2"},
        "python": "3",
        "machine": "2 cores",
        "settings": {},
        "task_seconds": 12.0,
        **others,
    }


def section(ragged: float = 25.0, **lockstep: Any) -> list[list[str]]:
    """The cells of the tables for two seeds."""
    many = {"joined": 6, "left": 2, "cut": 1}
    records = {
        "cartpole-dqn/0/local": record("a", 20.0),
        "cartpole-dqn/1/local": record("b", 30.0),
        "cartpole-dqn/0/lockstep": record("a", 20.0, wall_seconds=15.0),
        "cartpole-dqn/1/lockstep": {**record("b", 30.0, wall_seconds=17.0), **lockstep},
        "cartpole-dqn/0/ragged": record("c", ragged, **many),
    }
    lines = Learning().section(records).splitlines()
    return [line.strip("| ").split(" | ") for line in lines if line.startswith("| CartPole")]


def test_equal_runs_are_counted() -> None:
    assert section()[0] == [
        *("CartPole-v1 dqn", "1,000", "2", "2 of 2", "2 of 2"),
        *("10 s", "1.60", "1.00", "6, 2, 1"),
    ]


@pytest.mark.parametrize(
    ("change", "weights", "returns"),
    [
        ({"weights": "x"}, "1 of 2", "2 of 2"),
        ({"mean_return": 29.1}, "2 of 2", "1 of 2"),
        ({"episodes": 11}, "2 of 2", "1 of 2"),
        ({"mean_return": 29.0 + 1e-6}, "2 of 2", "2 of 2"),
    ],
)
def test_what_differs_is_not_counted(change: dict[str, Any], weights: str, returns: str) -> None:
    assert section(**change)[0][3:5] == [weights, returns]


@pytest.mark.parametrize(
    ("ragged", "verdict"), [(25.0, "yes"), (19.0, "no, below"), (31.0, "no, above")]
)
def test_returns_of_many_clients_are_held_against_those_of_sb3(ragged: float, verdict: str) -> None:
    _, evaluation, training, _ = section(ragged)
    assert evaluation == [
        *("CartPole-v1 dqn", "evaluation", "25.0 (20.0 to 30.0)", "25.0"),
        *(f"{ragged:.1f} ({ragged:.1f} to {ragged:.1f})", verdict),
    ]
    assert training[2] == "24.0 (19.0 to 29.0)"
    assert training[-1] == verdict


def test_no_episode_is_no_return() -> None:
    assert section(mean_return=None)[2][3] == "19.0"


def test_each_case_has_as_many_envs_with_three_clients_as_it_can() -> None:
    for case in CASES:
        assert sum(case.clients) in (case.num_envs, 3)


@pytest.mark.usefixtures("threads")
def test_a_run_in_lockstep_is_equal_to_sb3s_own(tmp_path: Path) -> None:
    case = find_case("cartpole-ppo")
    local = run_local(case, 3, 512, tmp_path)
    lockstep = run_lockstep(case, 3, 512, tmp_path / "served")
    for name in ("weights", "evaluation", "env_steps", "episodes"):
        assert lockstep[name] == local[name]
    assert lockstep["mean_return"] == pytest.approx(local["mean_return"], rel=1e-6)
    other = run_local(case, 4, 512, tmp_path)
    assert other["weights"] != local["weights"]


@pytest.mark.full
def test_clients_that_come_and_go_carry_a_run_to_its_end(tmp_path: Path) -> None:
    case = replace(find_case("cartpole-ppo"), clients=(2, 1, 1), num_envs=4)
    ragged = run_ragged(case, 0, 6000, tmp_path)
    assert ragged["env_steps"] >= 6000
    assert ragged["joined"] >= 4
    assert ragged["left"] + ragged["cut"] >= 1
