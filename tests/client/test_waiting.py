"""What a client waits for just now."""

from __future__ import annotations

import pytest

from plugrl_gym.client.waiting import Waiting
from plugrl_gym.notices import log_wait


def test_a_long_wait_is_told_from_the_fifth_second_on() -> None:
    told: list[tuple[float, str]] = []
    waiting = Waiting(lambda seconds, what: told.append((seconds, what)))
    for second in range(1, 8):
        waiting(float(second), "the server")
    assert told == [(5.0, "the server"), (6.0, "the server"), (7.0, "the server")]


def test_a_silent_one_is_only_remembered() -> None:
    waiting = Waiting(lambda seconds, what: pytest.fail("a live line shows it"))
    waiting.silent = True
    waiting(9.0, "the server")
    assert waiting.words() == "waiting for the server, 9 s"


def test_a_wait_is_over_where_no_further_notice_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    waiting = Waiting()
    assert waiting.words() == ""
    waiting(1.0, "the server")
    now[0] += 1.5
    assert waiting.words() == "waiting for the server, 1 s"
    now[0] += 1.0
    assert waiting.words() == ""


def test_the_log_has_the_fifth_second_and_every_half_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    waiting = Waiting(log_wait)
    for second in range(1, 70):
        waiting(second + 0.02, "a server")
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for a server, 5 s",
        "waiting for a server, 30 s",
        "waiting for a server, 60 s",
    ]
