"""What a browser is given for the key, so that the page need not keep the key itself.

A cookie says until when it is good, and proves by the key that a server said so. No server keeps a
list: after a restart with the same key a browser is still let in, with another key it is not.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import cached_property
from typing import Final

__all__ = ["SECONDS", "CookieLock"]

#: How long a cookie is good.
SECONDS: Final = 7 * 24 * 3600

# A stolen cookie must not make it cheap to try out guesses at a key that somebody chose.
_ROUNDS: Final = 20_000
_SALT: Final = b"plugrl-gym browser page"


class CookieLock:
    """Gives out cookies, and opens to them until they are too old.

    Args:
        key: As from :func:`~plugrl_gym.protocol.credentials.check_key`.

    Example:
        >>> lock = CookieLock("secret")
        >>> cookie = lock.issue(now=1000.0, secure=False).partition(";")[0]
        >>> lock.opens(cookie, now=1001.0), lock.opens(cookie, now=1000.0 + SECONDS)
        (True, False)
        >>> CookieLock("another").opens(cookie, now=1001.0)
        False
    """

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    def issue(self, now: float, secure: bool) -> str:
        """The value of a header ``Set-Cookie``.

        Args:
            now: Seconds since the epoch.
            secure: Whether the browser may send it over TLS only.
        """
        until = int(now) + SECONDS
        flags = "; Secure" if secure else ""
        return (
            f"{self._name}={until}.{self._proof(until)}; Max-Age={SECONDS}; Path=/; HttpOnly; "
            f"SameSite=Strict{flags}"
        )

    def opens(self, header: str, now: float) -> bool:
        """Whether a header ``Cookie`` has a cookie of this lock that is still good."""
        # Cookies of others on this host may hold what http.cookies gives up at.
        pairs = (pair.strip().partition("=") for pair in header.split(";"))
        found = [value for name, _, value in pairs if name == self._name]
        until, _, proof = found[-1].partition(".") if found else ("", "", "")
        if not (until.isascii() and until.isdecimal() and len(until) < 16 and proof.isascii()):
            return False
        return hmac.compare_digest(self._proof(int(until)), proof) and now < int(until)

    @cached_property
    def _name(self) -> str:
        # Browsers send the cookies of one host to all its ports: each key has a name of its own.
        return f"plugrl-{self._sign('name')[:12]}"

    def _proof(self, until: int) -> str:
        return self._sign(f"until {until}")

    def _sign(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

    @cached_property
    def _secret(self) -> bytes:
        return hashlib.pbkdf2_hmac("sha256", self._key, _SALT, _ROUNDS)
