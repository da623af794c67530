"""How many threads torch calculates with."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from gymnasium import spaces

from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.agents.sb3.threads import TorchThreads
from plugrl_gym.errors import UsageError

NUMBERS = spaces.Box(-1.0, 1.0, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
BOTH = spaces.Dict({"camera": IMAGE, "arm": NUMBERS})
BEFORE = 3


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    own = torch.get_num_threads()
    torch.set_num_threads(BEFORE)
    yield
    torch.set_num_threads(own)


def build(threads: TorchThreads, space: spaces.Space[object]) -> None:
    SB3Agent(
        torch_threads=threads,
        num_envs=2,
        n_steps=4,
        batch_size=4,
        observation_space=space,
        action_space=spaces.Discrete(2),
    )


@pytest.mark.parametrize(
    ("threads", "space", "expected"),
    [
        (None, NUMBERS, BEFORE),
        (2, NUMBERS, 2),
        (2, IMAGE, 2),
        ("auto", NUMBERS, 1),
        ("auto", IMAGE, BEFORE),
        ("auto", BOTH, BEFORE),
    ],
)
def test_the_number_goes_by_the_choice_and_the_observations(
    threads: TorchThreads, space: spaces.Space[object], expected: int
) -> None:
    build(threads, space)
    assert torch.get_num_threads() == expected


def test_a_number_in_the_environment_wins_over_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    build("auto", NUMBERS)
    assert torch.get_num_threads() == BEFORE


def test_a_learners_thread_that_starts_later_has_the_same_number() -> None:
    build("auto", NUMBERS)
    with ThreadPoolExecutor(1) as learner:
        assert learner.submit(torch.get_num_threads).result() == 1


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, "all"])
def test_other_numbers_are_refused(threads: object) -> None:
    with pytest.raises(UsageError, match="torch_threads: expected a number from 1 up or 'auto'"):
        SB3Agent(torch_threads=threads)
