"""A peer that keeps coming back broken waits longer each time (SPEC 8.5)."""

from __future__ import annotations

import pytest

from plugrl_gym.server import patience
from plugrl_gym.server.patience import Patience


def test_delay_begins_at_nothing_doubles_and_ends_at_its_bound() -> None:
    peers = Patience(longest=1.0)
    assert [peers.strike("a") for _ in range(7)] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_hosts_are_told_apart() -> None:
    peers = Patience(longest=1.0)
    peers.strike("a")
    peers.strike("a")
    assert peers.strike("b") == 0.0


def test_valid_exchange_takes_back_one_strike() -> None:
    peers = Patience(longest=1.0)
    for _ in range(3):
        peers.strike("a")
    peers.forgive("a")
    assert peers.strike("a") == 0.2
    for _ in range(9):
        peers.forgive("a")
    assert peers.strike("a") == 0.0


def test_strikes_are_forgotten_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(patience.time, "monotonic", lambda: now[0])
    peers = Patience(longest=1.0)
    peers.strike("a")
    now[0] = 59.0
    assert peers.strike("a") == 0.1
    now[0] = 120.0
    assert peers.strike("a") == 0.0


def test_endless_strikes_stay_at_the_bound() -> None:
    peers = Patience(longest=3.0)
    assert [peers.strike("a") for _ in range(2000)][-1] == 3.0
