"""The key that a client may send and a server may want (SPEC 2.10 to 2.13)."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import traceback
from typing import Final

from plugrl_gym.errors import UsageError

__all__ = ["KeyLock", "authorization", "check_key", "hide_key"]

_SCHEME: Final = "Api-Key"
_VISIBLE: Final = re.compile(r"[!-~]+")


def check_key(key: str) -> str:
    """``key``, if it can travel in a header.

    Raises:
        UsageError: It is empty, or has blanks, control characters or others outside ASCII. The
            text does not show it.
    """
    if not isinstance(key, str) or not _VISIBLE.fullmatch(key):
        raise UsageError(
            "api_key: a key has at least one character, and only letters, digits and signs of "
            "ASCII, without blanks"
        )
    return key


def authorization(key: str) -> str:
    """The value of the header ``Authorization`` that carries ``key``.

    Example:
        >>> authorization("secret")
        'Api-Key secret'
    """
    return f"{_SCHEME} {key}"


class KeyLock:
    """Opens to one key, of which it keeps only a digest.

    Args:
        key: As from :func:`check_key`.

    Example:
        >>> lock = KeyLock("secret")
        >>> lock.opens("Api-Key secret"), lock.opens("Api-Key guess"), lock.opens("secret")
        (True, False, False)
    """

    def __init__(self, key: str) -> None:
        self._digest = _digest(key)

    def opens(self, header: str) -> bool:
        """Whether a header ``Authorization`` carries the key; takes the same time for every one."""
        scheme, _, key = header.partition(" ")
        return hmac.compare_digest(_digest(key.strip()), self._digest) and (
            scheme.lower() == _SCHEME.lower()  # RFC 9110, 11.1: schemes have no case
        )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def hide_key(record: logging.LogRecord) -> bool:
    """A filter for loggers of WebSocket libraries, which log every header when they debug."""
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        text += "".join(traceback.format_exception(record.exc_info[1]))
    # A header that is no HTTP is quoted in the error, without its name.
    secret = any(name in text.lower() for name in ("authorization", "cookie"))
    if secret or "HTTP header" in text:
        record.msg, record.args = "a header that may hold a key, which is not logged", ()
        record.exc_info = record.exc_text = None
    return True
