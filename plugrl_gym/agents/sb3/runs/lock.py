"""One writer for a run directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from plugrl_gym.errors import UsageError

__all__ = ["Lock"]


class Lock:
    """Held by the process that writes into a directory; its end, however it comes, lets go.

    Args:
        directory: Of one run.

    Raises:
        UsageError: Another process, or another agent in this one, holds it.
    """

    def __init__(self, directory: Path) -> None:
        self._handle: int | None = _open(directory)
        try:
            _lock(self._handle)
        except BlockingIOError:
            self.release()
            raise UsageError(f"{directory}: another process is writing this run") from None

    def release(self) -> None:
        """Let others write."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.release()


if sys.platform == "win32":
    import msvcrt

    def _open(directory: Path) -> int:
        return os.open(directory / ".lock", os.O_RDWR | os.O_CREAT)

    def _lock(handle: int) -> None:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError from error

else:
    import errno
    import fcntl

    def _open(directory: Path) -> int:
        return os.open(directory, os.O_RDONLY)

    def _lock(handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Some network file systems know no locks; a run there goes without.
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise BlockingIOError from error
