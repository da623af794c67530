"""``/metrics``: the run in numbers that Prometheus reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

from gymnasium import spaces
from prometheus_client.parser import text_string_to_metric_families

from plugrl_gym.server.meters import Meters
from plugrl_gym.server.metrics import Metrics
from plugrl_gym.server.statistics import STAGES, RunStatistics
from tests.server.test_door import get
from tests.support.raw_client import declare, raw_client
from tests.support.serving import FakeAgent, Running, running


class Page:
    """One scrape.

    Attributes:
        families: Name -> (type, help).
    """

    def __init__(self, text: str) -> None:
        self.families: dict[str, tuple[str, str]] = {}
        self._samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for family in text_string_to_metric_families(text):
            self.families[family.name] = (family.type, family.documentation)
            for sample in family.samples:
                self._samples[sample.name, tuple(sorted(sample.labels.items()))] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        return self._samples[f"plugrl_{name}", tuple(sorted(labels.items()))]

    def names(self) -> Iterator[str]:
        """Of all samples, once for each combination of labels."""
        return (name for name, _ in self._samples)


def scrape(run: Running) -> Page:
    status, text, headers = get(run.server.port, "/metrics")
    assert status == 200
    assert headers.get_all("Content-Type") is not None
    (kind,) = headers.get_all("Content-Type") or []
    assert kind.startswith("text/plain; version=")
    return Page(text)


def test_metrics_of_a_server_without_clients_are_there_and_zero() -> None:
    with running(FakeAgent()) as run:
        page = scrape(run)
    assert page("clients") == page("connections") == page("envs") == 0
    assert page("env_steps_total", mode="train") == 0
    assert page("books_errors") == 0
    assert "plugrl_return_mean" not in set(page.names())
    assert all(text for _, text in page.families.values())


def test_metrics_show_clients_and_books_while_they_live() -> None:
    agent = FakeAgent(horizon=4)
    with running(agent) as run:
        with raw_client(run.url) as client, raw_client(run.url):
            client.exchange(0, 1, terminated=[True, False], rewards=[3.0, 1.0], steps=[2, 4])
            client.infer(0, 1, 2)
            page = scrape(run)
        agent.wait_for_departures(1)
        after = scrape(run)
    assert (page("connections"), page("clients"), page("envs")) == (2, 1, 3)
    assert page("env_steps_total", mode="train") == 6
    assert page("env_steps_total", mode="eval") == 0
    assert page("episodes_total", mode="train") == 1
    assert (page("return_mean"), page("return_min"), page("return_max")) == (3, 3, 3)
    assert page("length_mean") == 2
    assert (page("chunks_given_total"), page("chunks_open")) == (5, 3)
    assert page("rows_received_total") == page("rows_stored_total") == 2
    assert page("client_ledger", client="1", account="chunks_open") == 3
    assert page("connections_opened_total") == 2
    assert (after("clients"), after("envs"), after("chunks_abandoned_total")) == (0, 0, 3)
    assert after("books_errors") == 0
    assert "plugrl_client_ledger" not in set(after.names())


def test_declared_envs_count_before_they_are_named() -> None:
    declaration = declare(spaces.Discrete(2))
    with running(FakeAgent()) as run, raw_client(run.url) as client:
        client.infer(0, spaces=declaration)
        assert scrape(run)("envs") == 1
        client.feed_back(0)
        client.infer(5)
        assert scrape(run)("envs") == 2


def test_metrics_time_every_stage_of_an_exchange() -> None:
    with running(FakeAgent()) as run, raw_client(run.url) as client:
        for _ in range(3):
            client.exchange(0, 1)
        client.infer(0)
        page = scrape(run)
    times = {
        "decode": 4,
        "queue": 4,
        "forward": 4,
        "encode": 4,
        "answer": 4,
        "client": 3,
        "learn": 0,
    }
    assert tuple(times) == STAGES
    for stage, count in times.items():
        assert page("stage_seconds_count", stage=stage) == count
        assert page("stage_seconds_bucket", stage=stage, le="+Inf") == count
        assert (page("stage_seconds_sum", stage=stage) > 0) is (count > 0)
    low, high = (
        page("stage_quantile_seconds", stage="answer", quantile=q) for q in ("0.5", "0.99")
    )
    assert 0 < low <= high
    assert page("batch_rows_sum") == 7
    assert page("batch_requests_sum") == 4


def test_metrics_tell_how_many_times_lie_below_each_power_of_2() -> None:
    statistics = RunStatistics()
    for seconds in (0.9e-6, 1e-6, 2.1e-6, 3.9e-6, 1e9):
        statistics.latency["learn"].observe(seconds)
    page = Page(metrics_of(statistics).render().decode())
    counts = {le: page("stage_seconds_bucket", stage="learn", le=le) for le in BOUNDS}
    assert counts == {"1e-06": 2, "2e-06": 2, "4e-06": 4, "1073.74": 4, "+Inf": 5}


BOUNDS = ("1e-06", "2e-06", "4e-06", "1073.74", "+Inf")


def metrics_of(statistics: RunStatistics) -> Metrics:
    """Of a server without connections."""
    return Metrics(statistics.snapshot, Meters(statistics.latency), lambda: (0, 0))


def test_metrics_count_what_was_refused_and_closed() -> None:
    with running(FakeAgent(), max_resync_delay=0.0) as run:
        for _ in range(2):
            with raw_client(run.url) as client:
                client.socket.send(b"\xc1")
                client.closed()
        get(run.server.port, "/metrics", Host="evil.example")
        page = scrape(run)
    assert page("closed_total", reason="resync") == 2
    assert page("denied_total", status="403") == 1


def test_metrics_of_two_servers_in_one_process_are_apart() -> None:
    with running(FakeAgent()) as one, running(FakeAgent()) as other, raw_client(one.url):
        assert scrape(one)("connections_opened_total") == 1
        assert scrape(other)("connections_opened_total") == 0


def test_process_metrics_come_along() -> None:
    page = Page(metrics_of(RunStatistics()).render().decode())
    assert ("process_open_fds" in page.families) is (sys.platform == "linux")
    assert all(name.startswith(("plugrl_", "process_")) for name in page.families)


def test_unbalanced_books_show() -> None:
    broken = SimpleNamespace(**{n: getattr(RunStatistics().snapshot(), n) for n in _names()})
    broken.book_errors = ("chunks given 1 is not 0",)
    meters = Meters(RunStatistics().latency)
    page = Page(Metrics(lambda: broken, meters, lambda: (0, 0)).render().decode())  # type: ignore[arg-type, return-value]
    assert page("books_errors") == 1


def _names() -> list[str]:
    return [name for name in dir(RunStatistics().snapshot()) if not name.startswith("_")]
