"""A client that sends a thousand bad rows does not fill the log."""

from __future__ import annotations

import pytest

from plugrl_gym.server import session
from plugrl_gym.server.session import Warnings


def test_warnings_of_one_kind_are_spaced_and_say_how_many_were_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr(session.time, "monotonic", lambda: now[0])
    warnings = Warnings()
    for number in range(5):
        warnings.warn("stale", f"stale {number}")
    warnings.warn("non-finite", "another kind")
    now[0] += 10.0
    warnings.warn("stale", "stale 5")
    now[0] += 10.0
    warnings.warn("stale", "stale 6")
    assert caplog.messages == [
        "stale 0",
        "another kind",
        "stale 5 (and 4 like it before)",
        "stale 6",
    ]
