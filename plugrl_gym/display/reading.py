"""What there is to show at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["Reading", "seconds_in_words"]

# Where room is short: why nothing moves is of most interest.
_LEAST_FIRST: Final = ("latency", "clients", "note", "rate", "mean_return", "activity")


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

    def text(self, room: int | None = None) -> str:
        """All but the steps, as short as a bar wants it.

        Args:
            room: For so many characters: whole parts are left out, those of least interest first;
                the one of most interest stays. None for all.

        Example:
            >>> reading = Reading(5632, rate=250.0, clients=1, activity="learning")
            >>> reading.text()
            '250 steps/s, 1 client, learning'
            >>> reading.text(room=30)
            '250 steps/s, learning'
        """
        parts = self._parts("return")
        for name in _LEAST_FIRST:
            if room is None or len(", ".join(parts.values())) <= room or len(parts) == 1:
                break
            parts.pop(name, None)
        return ", ".join(parts.values())

    def __str__(self) -> str:
        parts = list(self._parts("mean return").values())
        if self.steps is not None:
            of = "" if self.total is None else f" of {self.total:,}"
            parts.insert(0, f"{self.steps:,}{of} steps")
        return ", ".join(parts)

    def _parts(self, mean_return: str) -> dict[str, str]:
        """What there is, by the name of its attribute."""
        parts: dict[str, str] = {}
        if self.rate is not None:
            parts["rate"] = f"{self.rate:,.0f} steps/s"
        if self.mean_return is not None:
            parts["mean_return"] = f"{mean_return} {self.mean_return:.1f}"
        if self.latency is not None:
            parts["latency"] = f"p50 {seconds_in_words(self.latency)}"
        if self.clients is not None:
            parts["clients"] = f"{self.clients} client{'' if self.clients == 1 else 's'}"
        words = {"note": self.note, "activity": self.activity, "pause": self.pause}
        return parts | {name: text for name, text in words.items() if text}


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
