"""The key that a client sends: what one is, how it is compared, and that it is never logged."""

from __future__ import annotations

import hmac
import logging
from typing import Any

import pytest

from plugrl_gym.errors import UsageError
from plugrl_gym.protocol import credentials
from plugrl_gym.protocol.credentials import KeyLock, authorization, check_key, hide_key


@pytest.mark.parametrize("key", ["", " ", "two words", "line\nbreak", "tab\t", "schlüssel", "a\0b"])
def test_key_that_cannot_travel_in_a_header_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(UsageError, match="api_key: a key has at least one character") as caught:
        check_key(key)
    assert not key.strip() or key not in str(caught.value)


def test_key_of_visible_ascii_is_taken() -> None:
    assert check_key("aZ0-_.~+/=!") == "aZ0-_.~+/=!"


@pytest.mark.parametrize(
    ("header", "opens"),
    [
        ("Api-Key secret", True),
        ("api-key secret", True),
        ("Api-Key  secret ", True),
        ("Api-Key Secret", False),
        ("Api-Key secre", False),
        ("Api-Key secrett", False),
        ("Api-Key ", False),
        ("Api-Key", False),
        ("", False),
        ("secret", False),
        ("Bearer secret", False),
        ("Api-Key secret\xff", False),
        ("Api-Key \udcff", False),
    ],
)
def test_lock_opens_to_its_key_alone(header: str, opens: bool) -> None:
    assert KeyLock("secret").opens(header) is opens
    assert KeyLock("secret").opens(authorization("secret"))


def test_keys_are_compared_in_constant_time_and_at_one_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[int, int]] = []
    honest = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return honest(one, other)

    monkeypatch.setattr(credentials.hmac, "compare_digest", compare)
    lock = KeyLock("secret")
    for header in ("Api-Key secret", "Api-Key x", "", "Bearer " + "y" * 5000):
        lock.opens(header)
    assert compared == [(32, 32)] * 4


def test_lock_does_not_keep_the_key() -> None:
    assert "secret" not in repr(vars(KeyLock("secret")))


def _record(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    info: Any = None if error is None else (type(error), error, None)
    return logging.LogRecord("name", logging.DEBUG, "path", 1, message, args, info)


def test_log_shows_no_header_with_a_key() -> None:
    cause = ValueError("invalid value of Authorization: Api-Key secret")
    error = RuntimeError("bad request")
    error.__cause__ = cause
    for record in (
        _record("< %s: %s", "Authorization", "Api-Key secret"),
        _record("> %s: %s", "AUTHORIZATION", "Api-Key secret"),
        _record("bad request", error=error),
        _record("bad request", error=ValueError("invalid HTTP header value: Api-Key secret\x01")),
    ):
        assert hide_key(record)
        assert "secret" not in logging.Formatter().format(record)


def test_log_keeps_everything_else() -> None:
    error = ValueError("no HTTP at all")
    record = _record("bad request by %s", "somebody", error=error)
    assert hide_key(record)
    assert (
        logging.Formatter().format(record) == "bad request by somebody\nValueError: no HTTP at all"
    )
