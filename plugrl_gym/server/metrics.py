"""``/metrics``: the run and the server in the text format of Prometheus.

Importing this module needs the package prometheus-client (the extra ``metrics``). Numbers are kept
elsewhere, as plain Python, and turned into metrics only when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from plugrl_gym.latency import QUANTILES, Histogram, Latency
from plugrl_gym.server.books import Books
from plugrl_gym.server.meters import Meters
from plugrl_gym.server.statistics import STAGES, RunSnapshot

__all__ = ["Metrics"]

_CHUNKS_AND_ROWS: Final = {
    "chunks_given": "Chunks of actions sent, one for each env of an action message",
    "chunks_abandoned": "Of these, chunks whose connection ended before their feedback",
    "rows_received": "Rows of feedback messages, whatever became of them",
    "rows_answered": "Of these, rows of envs that held a chunk",
    "rows_stored": "Of these, rows that the agent kept",
}
_HISTOGRAMS: Final = {
    "batch_requests": "Connections answered by each forward pass",
    "batch_rows": "Envs answered by each forward pass",
}
_STAGES: Final = f"Time of each stage of an exchange: {', '.join(STAGES)}"
# Of the bounds of a stage's buckets every fourth is told, the powers of 2.
_COARSE: Final = 4


class Metrics(Collector):
    """One server's metrics, in a registry of their own, with those of its process.

    Args:
        snapshot: The run of now.
        meters: What the server measures of itself.
        levels: (connections, envs) of now.
    """

    content_type: Final = CONTENT_TYPE_LATEST

    def __init__(
        self,
        snapshot: Callable[[], RunSnapshot],
        meters: Meters,
        levels: Callable[[], tuple[int, int]],
    ) -> None:
        self._snapshot = snapshot
        self._meters = meters
        self._levels = levels
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def render(self) -> bytes:
        """All metrics of now."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """The metrics one by one, as a registry asks for them."""
        run, meters = self._snapshot(), self._meters
        connections, envs = self._levels()
        yield _gauge("connections", "Open connections", connections)
        yield _gauge("clients", "Of these, those that have asked for actions", run.clients)
        yield _gauge("envs", "Envs of all connections", envs)
        yield from _progress(run)
        yield from _ledger(run)
        yield _counter("learning_seconds", "Time spent learning", run.learning_seconds)
        yield _counter("connections_opened", "WebSockets opened", meters.connections)
        yield _counters("denied", "Requests refused with an HTTP status", "status", meters.denied)
        yield _counters("closed", "Connections closed by the server", "reason", meters.closed)
        for name, text in _HISTOGRAMS.items():
            yield _histogram(name, text, getattr(meters, name))
        yield _stages(meters.latency)
        yield _stage_quantiles(run.latency)


def _progress(run: RunSnapshot) -> Iterator[Metric]:
    steps = {"train": run.env_steps, "eval": run.evaluation_steps}
    episodes = {"train": run.episodes, "eval": run.evaluation_episodes}
    yield _counters("env_steps", "Steps that envs ran", "mode", steps)
    yield _counters("episodes", "Episodes that ended", "mode", episodes)
    yield _gauge("steps_per_second", "Env steps since the first action", run.steps_per_second)
    for name, returns in (("return", run.returns), ("evaluation_return", run.evaluation_returns)):
        if returns:
            of = f"of the returns of the last {len(returns)} episodes"
            yield _gauge(f"{name}_mean", f"Mean {of}", sum(returns) / len(returns))
            yield _gauge(f"{name}_min", f"Smallest {of}", min(returns))
            yield _gauge(f"{name}_max", f"Largest {of}", max(returns))
    if run.mean_length is not None:
        yield _gauge("length_mean", "Mean length of these episodes, in env steps", run.mean_length)


def _ledger(run: RunSnapshot) -> Iterator[Metric]:
    books = run.books
    for name, text in _CHUNKS_AND_ROWS.items():
        yield _counter(name, text, getattr(books, name))
    yield _counters("rows_discarded", "Rows that were not kept", "reason", books.rows_discarded)
    yield _gauge("chunks_open", "Chunks whose feedback may still come", books.chunks_open)
    yield _gauge("rows_waiting", "Rows received that wait for the agent", books.rows_waiting)
    yield _gauge("books_errors", "Accounts that do not balance", len(run.book_errors))
    yield _accounts(run.connections)


def _accounts(connections: Mapping[int, Books]) -> Metric:
    family = GaugeMetricFamily(
        "plugrl_client_ledger", "Each open connection's account", labels=["client", "account"]
    )
    for number, books in connections.items():
        for account, value in books.flat().items():
            family.add_metric([str(number), account], value)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"plugrl_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"plugrl_{name}", text, value=value)


def _counters(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"plugrl_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(
        f"plugrl_{name}", text, buckets=_buckets(histogram), sum_value=histogram.total
    )


def _stages(latency: Latency) -> Metric:
    family = HistogramMetricFamily("plugrl_stage_seconds", _STAGES, labels=["stage"])
    for stage in latency:
        histogram = latency[stage]
        family.add_metric([stage], _buckets(histogram, _COARSE), histogram.total)
    return family


def _stage_quantiles(latency: Mapping[str, Mapping[str, float]]) -> Metric:
    family = GaugeMetricFamily(
        "plugrl_stage_quantile_seconds",
        "What this share of a stage's times do not exceed, since the start",
        labels=["stage", "quantile"],
    )
    for stage, values in latency.items():
        for name, share in QUANTILES.items():
            family.add_metric([stage, str(share)], values[name])
    return family


def _buckets(histogram: Histogram, every: int = 1) -> list[tuple[str, float]]:
    """(bound, how many values up to it) of every so many bounds, and of infinity."""
    up_to = list(accumulate(histogram.counts))
    places = range(0, len(histogram.bounds), every)
    finite = [(str(float(f"{histogram.bounds[k]:.6g}")), float(up_to[k])) for k in places]
    return [*finite, ("+Inf", float(up_to[-1]))]
