"""What the server measures of itself while it works; read by ``/metrics``.

A measurement costs a search among a dozen numbers and two additions. Everything here belongs to
the server's event loop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from plugrl_gym.server.agent import Request

__all__ = ["Histogram", "Meters"]

_SECONDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
_SIZES: Final = tuple(float(2**k) for k in range(13))


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

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Meters:
    """One server's measurements; times in seconds.

    Attributes:
        inference: Time of each forward pass, ``Agent.act``.
        batch_requests: Connections answered by one forward pass.
        batch_rows: Envs answered by one.
        batch_wait: From a request's arrival to its forward pass, learning in between included.
        answer: From an infer's arrival to the sending of its action.
        execution: From the sending of an action to the arrival of its feedback.
        connections: WebSockets opened since the start.
        denied: HTTP status -> requests that were refused with it.
        closed: Reason -> connections that this end closed.
    """

    def __init__(self) -> None:
        self.inference = Histogram(_SECONDS)
        self.batch_requests = Histogram(_SIZES)
        self.batch_rows = Histogram(_SIZES)
        self.batch_wait = Histogram(_SECONDS)
        self.answer = Histogram(_SECONDS)
        self.execution = Histogram(_SECONDS)
        self.connections = 0
        self.denied: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()

    def batch(
        self, requests: Sequence[Request], since: Iterable[float], began: float, ended: float
    ) -> None:
        """One forward pass.

        Args:
            requests: Those that it answered.
            since: When each of them came.
            began: When the pass began.
            ended: When it ended; all by ``time.perf_counter``.
        """
        self.inference.observe(ended - began)
        self.batch_requests.observe(len(requests))
        self.batch_rows.observe(sum(len(request.infer.env_indices) for request in requests))
        for arrival in since:
            self.batch_wait.observe(began - arrival)
