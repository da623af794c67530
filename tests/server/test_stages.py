"""The times that a server measures: which stage gets what."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from plugrl_gym.server import STAGES
from tests.support.raw_client import raw_client
from tests.support.serving import FakeAgent, running

DELAY = 0.03


class Slow(FakeAgent):
    """Takes its time for one method."""

    def __init__(self, method: str) -> None:
        super().__init__(learn_after=1)
        original = getattr(self, method)

        def slowly(*arguments: Any) -> Any:
            time.sleep(DELAY)
            return original(*arguments)

        setattr(self, method, slowly)


@pytest.mark.parametrize(
    ("method", "stage"), [("prepare", "decode"), ("act", "forward"), ("learn", "learn")]
)
def test_what_the_agent_does_slowly_is_seen_in_its_stage_and_in_no_other(method, stage):
    with running(Slow(method)) as run, raw_client(run.url) as client:
        for _ in range(5):
            client.exchange(0)
        client.infer(0)  # what came before has been learned from
        latency = run.statistics.snapshot().latency
    slow = {name for name, values in latency.items() if values["p50"] >= DELAY * 0.9}
    assert slow - {"answer", "client"} == {stage}
    assert ("answer" in slow) is (stage != "learn")
    assert list(latency) == list(STAGES)


def test_what_a_client_does_slowly_is_seen_in_client():
    with running(FakeAgent()) as run, raw_client(run.url) as client:
        for _ in range(3):
            client.infer(0)
            time.sleep(DELAY)
            client.feed_back(0)
        client.infer(0)
        latency = run.statistics.snapshot().latency
    assert latency["client"]["p50"] >= DELAY * 0.9
    assert latency["answer"]["p50"] < DELAY


def test_the_stages_of_an_answer_make_up_the_answer():
    with running(FakeAgent()) as run, raw_client(run.url) as client:
        for _ in range(50):
            client.exchange(0)
    latency = run.statistics.latency
    totals = {stage: latency[stage].total for stage in STAGES}
    parts = sum(totals[stage] for stage in ("queue", "forward", "encode"))
    assert 0 < parts < totals["answer"]


def test_a_snapshot_tells_how_many_envs_the_clients_have():
    agent = FakeAgent()
    with running(agent) as run:
        with raw_client(run.url) as one, raw_client(run.url) as other:
            one.infer(0, 1)
            other.infer(5)
            run_now = run.statistics.snapshot()
            assert (run_now.clients, run_now.envs) == (2, 3)
        agent.wait_for_departures(2)
        assert run.statistics.snapshot().envs == 0


def test_nothing_is_told_of_what_was_never_measured():
    with running(FakeAgent()) as run:
        assert run.statistics.snapshot().latency == {}


def test_numbers_are_plain():
    with running(FakeAgent()) as run, raw_client(run.url) as client:
        client.exchange(0)
        client.infer(0)
        latency = run.statistics.snapshot().latency
    values = [value for stage in latency.values() for value in stage.values()]
    assert all(type(value) in (int, float) for value in values)
    assert np.isfinite(values).all()
