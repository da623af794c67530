"""What there is to show at one moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Reading", "seconds_in_words"]


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of something that counts env steps; what is None or empty is not shown.

    Attributes:
        steps: Env steps so far; None before anything counts.
        total: Env steps in all; None where nobody knows.
        rate: Env steps per second of late.
        episodes: Episodes that ended.
        mean_return: Over the last 100 of them.
        latency: Seconds that half of the exchanges with the server stay below.
        clients: How many are connected.
        note: Anything else.
        pause: Nothing moves, and this says why.
        activity: What goes on besides, as "learning".
        table: What these are the sums of, line by line; only where there is room for it.

    Example:
        >>> str(Reading(5632, 20_000, rate=250.0, mean_return=40.6, clients=1))
        '5,632 of 20,000 steps, 250 steps/s, mean return 40.6, 1 client'
        >>> str(Reading(pause="loading torch, 4 s"))
        'loading torch, 4 s'
    """

    steps: int | None = None
    total: int | None = None
    rate: float | None = None
    episodes: int = 0
    mean_return: float | None = None
    latency: float | None = None
    clients: int | None = None
    note: str = ""
    pause: str = ""
    activity: str = ""
    table: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All but the steps, as short as a bar wants it."""
        return ", ".join(self._parts("return"))

    def __str__(self) -> str:
        parts = list(self._parts("mean return"))
        if self.steps is not None:
            of = "" if self.total is None else f" of {self.total:,}"
            parts.insert(0, f"{self.steps:,}{of} steps")
        return ", ".join(parts)

    def _parts(self, mean_return: str) -> Iterator[str]:
        if self.rate is not None:
            yield f"{self.rate:,.0f} steps/s"
        if self.mean_return is not None:
            yield f"{mean_return} {self.mean_return:.1f}"
        if self.latency is not None:
            yield f"p50 {seconds_in_words(self.latency)}"
        if self.clients is not None:
            yield f"{self.clients} client{'' if self.clients == 1 else 's'}"
        yield from filter(None, (self.note, self.activity, self.pause))


def seconds_in_words(seconds: float) -> str:
    """A duration in the unit that suits it.

    Example:
        >>> seconds_in_words(0.00123), seconds_in_words(0.25), seconds_in_words(12.0)
        ('1.2 ms', '250 ms', '12.0 s')
    """
    if seconds >= 1.0:
        return f"{seconds:.1f} s"
    milliseconds = seconds * 1e3
    return f"{milliseconds:.1f} ms" if milliseconds < 100 else f"{milliseconds:.0f} ms"
