"""A keyboard takes over: synthetic key events through SDL's driver without a screen."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pygame
import pytest

from plugrl_gym import UsageError
from plugrl_gym.client import Keyboard
from plugrl_gym.client.takeover import replaced
from plugrl_gym.protocol import EXECUTED_ACTIONS, Metadata
from tests.client.conftest import sync
from tests.support.memory import MemoryServer
from tests.support.tracing import CountingEnv


@pytest.fixture(autouse=True)
def _no_screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    yield
    pygame.display.quit()


def press(name: str, down: bool = True) -> None:
    kind = pygame.KEYDOWN if down else pygame.KEYUP
    pygame.event.post(pygame.event.Event(kind, key=pygame.key.key_code(name)))


def executed(keyboard: Keyboard, planned: Any) -> Any:
    return replaced(keyboard, None, np.asarray(planned))


def test_a_key_that_is_held_takes_over_one_env() -> None:
    keyboard = Keyboard({"left": 0, "right": 1}, env=1)
    assert executed(keyboard, [0, 0, 0]) is None
    press("right")
    assert executed(keyboard, [0, 0, 0]).tolist() == [0, 1, 0]
    assert executed(keyboard, [0, 1, 0]).tolist() == [0, 1, 0]
    press("right", down=False)
    assert executed(keyboard, [0, 0, 0]) is None


def test_of_several_keys_the_last_counts_and_then_the_one_before() -> None:
    keyboard = Keyboard({"left": 0, "right": 1})
    press("right")
    press("left")
    assert executed(keyboard, [5]).tolist() == [0]
    press("left", down=False)
    assert executed(keyboard, [5]).tolist() == [1]


def test_other_keys_and_events_are_nothing() -> None:
    keyboard = Keyboard({"space": 1})
    press("a")
    pygame.event.post(pygame.event.Event(pygame.USEREVENT))
    press("space", down=False)
    assert executed(keyboard, [0]) is None


def test_a_key_may_stand_for_several_numbers() -> None:
    keyboard = Keyboard({"w": [0.0, 1.0]})
    press("w")
    assert executed(keyboard, np.zeros((1, 2), np.float32)).tolist() == [[0.0, 1.0]]


def test_it_goes_on_where_an_env_has_closed_its_window() -> None:
    keyboard = Keyboard({"space": 1})
    executed(keyboard, [0])
    pygame.quit()
    assert executed(keyboard, [0]) is None
    press("space")
    assert executed(keyboard, [0]).tolist() == [1]


def test_it_takes_over_in_a_run(wrap: Any) -> None:
    envs = wrap(
        sync(CountingEnv(50)),
        MemoryServer(
            lambda envs: np.zeros((1, len(envs)), np.int64), Metadata(features=(EXECUTED_ACTIONS,))
        ),
    )
    keyboard = Keyboard({"space": 1})
    ran = []
    for number, (*_, info) in enumerate(envs.rollout(max_steps=6, takeover=keyboard)):
        ran += info["action"].tolist()
        if number in (1, 3):
            press("space", down=number == 1)
    assert ran == [0, 0, 1, 1, 0, 0]


def test_an_env_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="no env 2 among 2"):
        executed(Keyboard({"space": 1}, env=2), [0, 0])


def test_an_action_that_does_not_fit_is_refused() -> None:
    keyboard = Keyboard({"space": 0.5})
    press("space")
    with pytest.raises(UsageError, match=r"expected int64 \[1\], got float64"):
        executed(keyboard, [0])


def test_a_key_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="no key 'lefft'"):
        Keyboard({"lefft": 0})


def test_without_a_screen_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pygame.display.quit()
    monkeypatch.setenv("SDL_VIDEODRIVER", "nothing-of-that-name")
    with pytest.raises(UsageError, match="Keyboard needs a screen"):
        Keyboard({"space": 1})


def test_without_pygame_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(UsageError, match=r'pip install "gymnasium\[classic-control\]"'):
        Keyboard({"space": 1})
