"""What the place that people look at can show."""

from __future__ import annotations

import os
import sys
from typing import TextIO

__all__ = ["coloured", "in_notebook", "is_live"]


def is_live(stream: TextIO) -> bool:
    """Whether a line there can be drawn over: a terminal, and not a dumb one."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def coloured(stream: TextIO) -> bool:
    """Whether to use colours: a terminal whose user has not said NO_COLOR (no-color.org)."""
    if os.environ.get("NO_COLOR") or not is_live(stream):
        return False
    # Windows' old console shows escape sequences as they are.
    return sys.platform != "win32" or "WT_SESSION" in os.environ


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config
