"""A cookie stands for the key, for a while, and cannot be made without it."""

from __future__ import annotations

import pytest

from plugrl_gym.server.cookies import SECONDS, CookieLock

KEY = "a-key-that-nobody-guesses"
NOW = 1_800_000_000.0


def cookie(key: str = KEY, now: float = NOW) -> str:
    """What a browser sends back."""
    return CookieLock(key).issue(now, secure=False).partition(";")[0]


def test_cookie_opens_until_it_is_too_old() -> None:
    lock = CookieLock(KEY)
    assert lock.opens(cookie(), NOW)
    assert lock.opens(cookie(), NOW + SECONDS - 1)
    assert not lock.opens(cookie(), NOW + SECONDS)


def test_cookie_opens_after_a_restart_with_the_same_key_only() -> None:
    assert CookieLock(KEY).opens(cookie(), NOW)
    assert not CookieLock(f"{KEY}2").opens(cookie(), NOW)


def test_servers_with_other_keys_do_not_overwrite_each_others_cookies() -> None:
    mine, other = cookie(), cookie("another")
    assert mine.partition("=")[0] != other.partition("=")[0]
    assert CookieLock(KEY).opens(f"{other}; {mine}", NOW)


def test_cookie_does_not_tell_the_key() -> None:
    assert KEY not in CookieLock(KEY).issue(NOW, secure=True)


@pytest.mark.parametrize("secure", [False, True])
def test_browser_sends_it_to_this_server_only_and_shows_it_to_no_script(secure: bool) -> None:
    _, *flags = CookieLock(KEY).issue(NOW, secure).split("; ")
    expected = [f"Max-Age={SECONDS}", "Path=/", "HttpOnly", "SameSite=Strict"]
    assert flags == expected + ["Secure"] * secure


@pytest.mark.parametrize("others", ['{"a":1}; b="x y', "plugrl=1", "=; ;;", "a=b=c"])
def test_cookies_of_others_on_the_host_do_no_harm(others: str) -> None:
    assert CookieLock(KEY).opens(f"{others}; {cookie()}; {others}", NOW)
    assert not CookieLock(KEY).opens(others, NOW)


def test_longer_life_cannot_be_written_into_a_cookie() -> None:
    name, _, value = cookie().partition("=")
    until, _, proof = value.partition(".")
    assert not CookieLock(KEY).opens(f"{name}={int(until) + 1}.{proof}", NOW)


@pytest.mark.parametrize(
    "value", ["", ".", "1.", ".x", "-1.x", "1e9.x", "٣.x", "9" * 5000, "9.\xe9"]
)
def test_value_that_no_server_gave_out_opens_nothing(value: str) -> None:
    name = cookie().partition("=")[0]
    assert not CookieLock(KEY).opens(f"{name}={value}", NOW)
    assert not CookieLock(KEY).opens(name, NOW)
