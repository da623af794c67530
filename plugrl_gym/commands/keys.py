"""The key between client and server: where a user keeps it."""

from __future__ import annotations

import argparse
import logging
import os
import stat
from pathlib import Path
from typing import Final

from plugrl_gym.errors import UsageError

__all__ = ["KEY_VARIABLE", "add_key_options", "read_key", "warn_if_public"]

_log = logging.getLogger("plugrl_gym.commands")
#: The environment variable that may hold it.
KEY_VARIABLE: Final = "PLUGRL_API_KEY"


def add_key_options(group: argparse._ArgumentGroup, purpose: str) -> None:
    """``--api-key-file`` and ``--api-key``; ``purpose`` begins the help of the first."""
    group.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help=f"{purpose}: the first line of FILE "
        f"(default: the environment variable {KEY_VARIABLE})",
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help="the key itself; every user of this machine can then read it in the list of processes",
    )


def read_key(options: argparse.Namespace) -> str | None:
    """The key that a user gave, by option or by the environment; None where there is none.

    Raises:
        UsageError: Two keys, or an unreadable or empty file.
    """
    if options.api_key is not None and options.api_key_file is not None:
        raise UsageError("give --api-key-file or --api-key, not both")
    if options.api_key is not None:
        return str(options.api_key)
    if options.api_key_file is not None:
        return _key_in(options.api_key_file)
    return os.environ.get(KEY_VARIABLE) or None


def _key_in(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            key = file.readline(4096).strip()
    except OSError as error:
        raise UsageError(f"--api-key-file {path}: {error.strerror}") from error
    if not key:
        raise UsageError(f"--api-key-file {path}: its first line is empty, and should be the key")
    warn_if_public(path)
    return key


def warn_if_public(path: Path) -> None:
    """Say so where other users of this machine can read a file that should be secret."""
    if os.name == "posix" and path.stat().st_mode & stat.S_IROTH:
        _log.warning("%s can be read by every user of this machine: chmod 600 %s", path, path)
