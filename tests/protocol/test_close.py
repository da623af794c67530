"""Reasons that fit a close frame (SPEC 8; RFC 6455, 5.5.1)."""

from __future__ import annotations

import pytest

from plugrl_gym.protocol.close import CLOSE_REASON_BYTES, fit_reason


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("short", "short"),
        ("x" * 123, "x" * 123),
        ("x" * 124, "x" * 123),
        ("\u00e9" * 62, "\u00e9" * 61),
        ("\U0001f916" * 40, "\U0001f916" * 30),
        ("", ""),
    ],
)
def test_reason_is_cut_between_characters(sentence: str, expected: str) -> None:
    fitted = fit_reason(sentence)
    assert fitted == expected
    assert len(fitted.encode()) <= CLOSE_REASON_BYTES


def test_reason_with_a_lone_surrogate_still_fits() -> None:
    assert len(fit_reason("env \ud800" * 40).encode()) <= CLOSE_REASON_BYTES
