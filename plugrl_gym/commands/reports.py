"""A command of ours as a child that tells how far it is."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from plugrl_gym.commands.children import Child
from plugrl_gym.display import Reading

__all__ = ["ReportingChild"]

# What a child has started may hold on to its stderr.
_HEARING_SECONDS: Final = 5.0


class ReportingChild(Child):
    """A command in a process of its own, whose readings, result and words come to this one.

    Args:
        module: As for ``python -m``.
        arguments: Of its command line.
        relay: Gets each line that it says on stderr, in a thread of its own.
        environment: Of the process; None for this one's.

    Attributes:
        reading: Its last one; None before the first.
        result: What it printed for ``--json``; None before that.
        said: The last line on stderr that was not empty.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        relay: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.reading: Reading | None = None
        self.result: dict[str, Any] | None = None
        self.said = ""
        self._relay = relay
        heard, words = os.pipe()
        with os.fdopen(words, "wb") as output:
            super().__init__(
                module,
                [*arguments, "--json", "--report"],
                output,
                piped=True,
                environment=environment,
            )
        self._ears = [
            threading.Thread(target=self._listen, daemon=True, name="plugrl-reports"),
            threading.Thread(target=self._hear, args=(heard,), daemon=True, name="plugrl-words"),
        ]
        for ear in self._ears:
            ear.start()

    def _listen(self) -> None:
        assert self.stdout is not None
        with self.stdout as lines:
            for line in lines:
                try:
                    said = json.loads(line)
                except ValueError:
                    # A package that prints while it is imported, or a child killed amid a line.
                    self._relay(line.decode("utf-8", "replace").rstrip("\r\n"))
                    continue
                if "reading" in said:
                    said["reading"]["table"] = tuple(said["reading"]["table"])
                    self.reading = Reading(**said["reading"])
                else:
                    self.result = said

    def _hear(self, stderr: int) -> None:
        with os.fdopen(stderr, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                text = line.rstrip("\r\n")
                self.said = text if text.strip() else self.said
                self._relay(text)

    def hear_out(self) -> None:
        """It has ended: wait, for a bounded time, until all that it said has been heard."""
        for ear in self._ears:
            ear.join(_HEARING_SECONDS)

    def end(self, patience: float) -> None:
        super().end(patience)
        self.hear_out()
