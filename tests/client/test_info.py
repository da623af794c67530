"""What of an env's info reaches the server, and that nothing in it stops a run."""

from __future__ import annotations

import datetime
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from plugrl_gym import UsageError
from tests.client.conftest import sync
from tests.support.memory import MemoryServer
from tests.support.tracing import CountingEnv

CYCLE: list[Any] = []
CYCLE.append(CYCLE)

UNSENDABLE = {
    "function": print,
    "set": {1, 2},
    "path": Path("x"),
    "stamp": datetime.datetime(2020, 1, 1),
    "datetime64": np.datetime64("2020-01-01"),
    "huge": [2**70],
    "int keys": {0: 1.0},
    "structured": np.zeros(2, dtype=[("a", "i4")]),
    "surrogate": "\ud800",
    "complex": np.complex128(1j),
}


class Telling(CountingEnv):
    """Puts the same values into every step's info."""

    def __init__(self, length: int, **values: Any) -> None:
        super().__init__(length)
        self.values = values

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, dict(self.values)


def sent(
    wrap: Any, *envs: Any, mode: AutoresetMode = AutoresetMode.SAME_STEP, **kwargs: Any
) -> Any:
    server = MemoryServer(lambda envs: np.zeros((2, len(envs)), np.int64))
    wrapped = wrap(sync(*envs, mode=mode), server, **kwargs)
    wrapped.reset()
    for _ in range(6):
        wrapped.step()
    wrapped.close()
    return [feedback.info for feedback in server.feedbacks]


def test_nothing_but_the_episode_is_sent_by_default(wrap: Any) -> None:
    infos = sent(wrap, Telling(3, speed=1.5), Telling(3, speed=2.5))
    assert {key for info in infos for key in info} == {"episode"}


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda m: m.name)
def test_named_keys_are_sent_with_their_mask(wrap: Any, mode: AutoresetMode) -> None:
    envs = Telling(3, speed=1.5, name="left"), Telling(4, name="right")
    infos = sent(wrap, *envs, mode=mode, forward_info=("speed", "name"))
    both = next(i for i in infos if len(i["_name"]) == 2)
    assert list(both)[:2] == ["_speed", "_name"] or "episode" in both
    assert both["_speed"].tolist() == [True, False]
    assert both["name"] == ["left", "right"]
    assert both["speed"][0] == 1.5


def test_a_finished_episodes_info_is_its_own(wrap: Any) -> None:
    class Counting(Telling):
        def step(self, action: Any) -> Any:
            result = super().step(action)
            return *result[:4], {"at": self.time}

    infos = sent(wrap, Counting(3), forward_info=("at",))
    assert [np.asarray(info["at"]).tolist() for info in infos] == [[2], [3], [2], [3]]


@pytest.mark.parametrize("kind", UNSENDABLE)
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda m: m.name)
def test_what_cannot_be_sent_is_left_out_with_one_warning(
    wrap: Any, caplog: pytest.LogCaptureFixture, kind: str, mode: AutoresetMode
) -> None:
    envs = Telling(3, bad=UNSENDABLE[kind], good=1), Telling(4, bad=UNSENDABLE[kind], good=1)
    with caplog.at_level(logging.WARNING, "plugrl_gym.client"):
        infos = sent(wrap, *envs, mode=mode, forward_info=("bad", "good"))
    assert all("bad" not in info for info in infos)
    assert all(np.asarray(info["good"]).tolist() == [1] * len(info["_good"]) for info in infos)
    assert len([r for r in caplog.records if "'bad' cannot be sent" in r.message]) == 1


def test_an_image_of_five_megabytes_can_be_forwarded(wrap: Any) -> None:
    picture = np.arange(5 * 2**20, dtype=np.uint8).reshape(1024, 1024, 5)
    info = sent(wrap, Telling(9, picture=picture), forward_info=("picture",))[0]
    np.testing.assert_array_equal(info["picture"][0], picture)


@pytest.mark.parametrize("keys", ["speed", ("episode",), ("_speed",), (3,)])
def test_keys_that_cannot_be_forwarded_are_refused(wrap: Any, keys: Any) -> None:
    with pytest.raises(UsageError, match="forward_info"):
        sent(wrap, Telling(3), forward_info=keys)
