"""What a process holds: resident memory and open files, where the system tells."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["open_files", "resident_bytes"]


def resident_bytes(pid: int | None = None) -> int:
    """Resident memory of a process, of this one for None; 0 where there is no /proc."""
    statm = Path(f"/proc/{pid or os.getpid()}/statm")
    if not statm.exists():
        return 0
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int | None = None) -> int:
    """Open files and sockets of a process; 0 where there is no /proc."""
    directory = Path(f"/proc/{pid or os.getpid()}/fd")
    return len(list(directory.iterdir())) if directory.exists() else 0
