"""What the server counts of itself while it works; read by ``/metrics``.

Everything here belongs to the server's event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from plugrl_gym.latency import Histogram, Latency
from plugrl_gym.server.agent import Request

__all__ = ["Meters"]

_SIZES: Final = tuple(float(2**k) for k in range(13))


class Meters:
    """One server's measurements.

    Args:
        latency: Of the run's stages; here ``queue`` and ``forward`` are measured.

    Attributes:
        latency: As given.
        batch_requests: Connections answered by one forward pass.
        batch_rows: Envs answered by one.
        connections: WebSockets opened since the start.
        denied: HTTP status -> requests that were refused with it.
        closed: Reason -> connections that this end closed.
    """

    def __init__(self, latency: Latency) -> None:
        self.latency = latency
        self.batch_requests = Histogram(_SIZES)
        self.batch_rows = Histogram(_SIZES)
        self.connections = 0
        self.denied: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()

    def batch(
        self, requests: Sequence[Request], since: Iterable[float], began: float, ended: float
    ) -> None:
        """One forward pass.

        Args:
            requests: Those that it answered.
            since: From when on each of them has waited.
            began: When the pass began.
            ended: When it ended; all by ``time.perf_counter``.
        """
        self.latency["forward"].observe(ended - began)
        self.batch_requests.observe(len(requests))
        self.batch_rows.observe(sum(len(request.infer.env_indices) for request in requests))
        queue = self.latency["queue"]
        for arrival in since:
            queue.observe(began - arrival)
