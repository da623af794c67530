"""From a command's function to its exit code: one line for an error, never a traceback of ours."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Final

from plugrl_gym.errors import PlugRLError, RunFailed

__all__ = [
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_USAGE",
    "Leash",
    "interrupt_main",
    "one_line",
    "run_command",
]

#: The run failed.
EXIT_FAILED: Final = 1
#: A mistake of the user's, an unreachable or foreign server, a refusal.
EXIT_USAGE: Final = 2
#: Ctrl-C, as shells count it.
EXIT_INTERRUPTED: Final = 130


def one_line(error: BaseException) -> str:
    """The error's text on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def run_command(prog: str, body: Callable[[], int]) -> int:
    """Run a command.

    Args:
        prog: Its name, which begins the line about an error.
        body: Returns the exit code.

    Returns:
        The exit code. What is neither a :class:`PlugRLError` nor Ctrl-C passes through: it is a
        crash of the user's env or a bug, whose traceback is wanted.
    """
    try:
        with _terminate_as_interrupt():
            return body()
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except PlugRLError as error:
        print(f"{prog}: {one_line(error)}", file=sys.stderr)
        return EXIT_FAILED if isinstance(error, RunFailed) else EXIT_USAGE


@contextlib.contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM is a Ctrl-C without a terminal: both let go of envs and connections in order."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def interrupt_main() -> None:
    """Raise KeyboardInterrupt in the main thread, out of a blocking system call if need be.

    By SIGTERM, which :func:`run_command` has made a Ctrl-C: SIGINT is ignored by what a script
    starts in the background.
    """
    ident = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and ident is not None:
        signal.pthread_kill(ident, signal.SIGTERM)
    else:
        _thread.interrupt_main()


class Leash:
    """Ends this process when the one that started it ends, or says so: stdin closes or has a byte.

    It works the same on every system, and when the parent was killed, too.

    Args:
        held: Whether there is a parent that holds it.

    Attributes:
        on_end: Called once, in a thread of its own. Until it is set the process just exits.
    """

    def __init__(self, held: bool) -> None:
        self.on_end: Callable[[], None] = _exit
        if held:
            threading.Thread(target=self._watch, daemon=True, name="leash").start()

    def _watch(self) -> None:
        # Not sys.stdin: its lock, held by this thread, would abort the interpreter's shutdown.
        os.read(0, 1)
        self.on_end()


def _exit() -> None:
    os._exit(EXIT_INTERRUPTED)
