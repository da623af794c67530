"""When, and how, a long wait is told."""

from __future__ import annotations

import logging
from typing import Final

__all__ = ["FIRST_NOTICE", "log_wait"]

_log = logging.getLogger("plugrl_gym.waiting")
#: Seconds of a wait that nobody needs to be told of.
FIRST_NOTICE: Final = 5.0


def log_wait(seconds: float, what: str) -> None:
    """The default notice of a wait, called once a second: a line at 5 s, then every 30 s."""
    if int(seconds) == int(FIRST_NOTICE) or int(seconds) % 30 == 0:
        _log.warning("waiting for %s, %.0f s", what, seconds)
