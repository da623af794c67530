"""How long the stages of an exchange take: what client and server measure while they work.

A measurement costs a search among 121 numbers and two additions, and memory does not grow. Times
lie in buckets whose bounds grow by the fourth root of 2, from a microsecond to 18 minutes, so that
a quantile is within a tenth of the true one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from math import sqrt
from time import perf_counter
from typing import Final, TypeVar

__all__ = ["QUANTILES", "SECONDS", "Histogram", "Latency", "timed"]

T = TypeVar("T")
R = TypeVar("R")

#: Bounds of buckets for times, in seconds.
SECONDS: Final = tuple(1e-6 * 2 ** (k / 4) for k in range(121))

#: What a snapshot tells of each stage.
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class Histogram:
    """How many values fell between which bounds.

    Args:
        bounds: Upper bounds, each included, rising; a last one of infinity is implied.

    Attributes:
        counts: For each bound the values up to it and above the one before.
        total: Sum of all values.

    Example:
        >>> sizes = Histogram((1.0, 2.0, 4.0))
        >>> for size in (1, 2, 3, 100):
        ...     sizes.observe(size)
        >>> sizes.counts, sizes.total
        ([1, 1, 1, 1], 106.0)
    """

    __slots__ = ("_held", "bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        self._held = 0.0

    def observe(self, value: float) -> None:
        """Count one value, together with what was held for it."""
        value += self._held
        self._held = 0.0
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def hold(self, part: float) -> None:
        """Add to the next value."""
        self._held += part

    def quantiles(self, shares: Iterable[float]) -> tuple[list[float], int]:
        """For each of ``shares`` the value that this share of all do not exceed, and the count.

        A value is the middle, by factors, of the bucket that it lies in, to three digits. Without
        any value they mean nothing.
        """
        up_to = list(accumulate(self.counts))
        count = up_to[-1]
        return [self._middle(bisect_left(up_to, share * count)) for share in shares], count

    def _middle(self, bucket: int) -> float:
        last = len(self.bounds) - 1
        upper = self.bounds[min(bucket, last)]
        lower = self.bounds[bucket - 1] if 0 < bucket <= last else upper
        return float(f"{sqrt(lower * upper):.3g}")

    def since(self, earlier: Histogram) -> Histogram:
        """What was counted after ``earlier``, a :meth:`copy` of this one."""
        late = Histogram(self.bounds)
        late.counts = [now - then for now, then in zip(self.counts, earlier.counts, strict=True)]
        late.total = self.total - earlier.total
        return late

    def copy(self) -> Histogram:
        """The state of now."""
        return self.since(Histogram(self.bounds))


def timed(call: Callable[[T], R], take: Callable[[float], None]) -> Callable[[T], R]:
    """``call``, which tells ``take`` the seconds that it takes each time."""

    def measured(argument: T) -> R:
        began = perf_counter()
        result = call(argument)
        take(perf_counter() - began)
        return result

    return measured


class Latency:
    """The times of some stages, each in a :class:`Histogram`.

    One thread measures; any may take a snapshot.

    Args:
        stages: Their names, in the order in which a snapshot has them.

    Example:
        >>> latency = Latency(["encode", "decode"])
        >>> for milliseconds in (1, 2, 3):
        ...     latency["encode"].observe(milliseconds / 1000)
        >>> latency.snapshot()
        {'encode': {'p50': 0.00188, 'p95': 0.00316, 'p99': 0.00316, 'count': 3}}
    """

    def __init__(self, stages: Iterable[str]) -> None:
        self._histograms = {stage: Histogram() for stage in stages}

    def __getitem__(self, stage: str) -> Histogram:
        return self._histograms[stage]

    def __iter__(self) -> Iterator[str]:
        return iter(self._histograms)

    def snapshot(self) -> dict[str, dict[str, float]]:
        """Stage -> its p50, p95 and p99 in seconds and its count, as JSON.

        A stage of which nothing was measured yet is left out.
        """
        found: dict[str, dict[str, float]] = {}
        for stage, histogram in self._histograms.items():
            values, count = histogram.quantiles(QUANTILES.values())
            if count:
                found[stage] = {**dict(zip(QUANTILES, values, strict=True)), "count": count}
        return found

    def since(self, earlier: Latency) -> Latency:
        """What was measured after ``earlier``, a :meth:`copy` of this one."""
        late = Latency(())
        late._histograms = {
            stage: histogram.since(earlier[stage]) for stage, histogram in self._histograms.items()
        }
        return late

    def copy(self) -> Latency:
        """The state of now."""
        return self.since(Latency(self))
