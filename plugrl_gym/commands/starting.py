"""The first moment of a command, before it has loaded what it needs; imports nothing heavy."""

from __future__ import annotations

import sys
from types import TracebackType

__all__ = ["quiet_interrupt"]


def quiet_interrupt(prog: str) -> None:
    """A Ctrl-C while packages are being imported is one line, too, and no traceback of theirs.

    Args:
        prog: The command's name, which begins the line.
    """
    shown = sys.excepthook

    def show(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if issubclass(kind, KeyboardInterrupt):
            print(f"{prog}: interrupted", file=sys.stderr)
        else:
            shown(kind, error, traceback)

    sys.excepthook = show
