"""Requests merge where that costs nobody a wait without a bound (SPEC 7)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import pytest

from plugrl_gym.latency import Latency
from plugrl_gym.server import Client, Request
from plugrl_gym.server.batching import Batcher, Departed
from plugrl_gym.server.meters import Meters
from plugrl_gym.server.statistics import STAGES
from tests.support.raw_client import infer_of, raw_client
from tests.support.serving import FakeAgent, running

NEVER = 3600.0


class Bench:
    """A batcher with a policy that answers each request with its client's number."""

    def __init__(self, wait: float) -> None:
        self.calls: list[list[int]] = []
        self.error: Exception | None = None
        self.lock = asyncio.Lock()
        self.meters = Meters(Latency(STAGES))
        self.batcher = Batcher(self._act, self.lock, wait, self.meters)

    def _act(self, requests: Sequence[Request]) -> list[np.ndarray[Any, Any]]:
        if self.error is not None:
            raise self.error
        self.calls.append([request.client.number for request in requests])
        return [np.full((1, 1), request.client.number) for request in requests]

    def ask(self, key: int) -> asyncio.Task[int]:
        async def submit() -> int:
            request = Request(Client(key, "here"), infer_of(0), None)
            return int((await self.batcher.submit(key, request)).item())

        return asyncio.create_task(submit())


def on_a_loop(wait: float) -> Callable[[Callable[[Bench], Awaitable[None]]], Callable[[], None]]:
    """Run the test on an event loop, within a deadline."""

    def decorate(test: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
        def run() -> None:
            async def bounded() -> None:
                async with asyncio.timeout(10):
                    await test(Bench(wait))

            asyncio.run(bounded())

        run.__name__ = test.__name__
        run.__doc__ = test.__doc__
        return run

    return decorate


@pytest.mark.parametrize("others", [0, 1])
def test_queue_counts_from_when_the_request_is_said_to_have_waited(others: int) -> None:
    @on_a_loop(0.0)
    async def ask(bench: Bench) -> None:
        for key in range(1 + others):
            bench.batcher.enter(key)
        request = Request(Client(0, "here"), infer_of(0), None)
        await bench.batcher.submit(0, request, since=time.perf_counter() - 5.0)
        waited = bench.meters.latency["queue"]
        assert sum(waited.counts) == 1
        assert 5.0 <= waited.total < 15.0

    ask()


@on_a_loop(NEVER)
async def test_single_connection_is_answered_without_a_turn_of_the_loop(bench: Bench) -> None:
    bench.batcher.enter(1)
    request = Request(Client(1, "here"), infer_of(0), None)
    coroutine = bench.batcher.submit(1, request)
    with pytest.raises(StopIteration):
        coroutine.send(None)
    assert bench.calls == [[1]]


@on_a_loop(NEVER)
async def test_request_waits_for_every_connection_that_is_due(bench: Bench) -> None:
    for key in (1, 2, 3):
        bench.batcher.enter(key)
    tasks = [bench.ask(1), bench.ask(3), bench.ask(2)]
    assert await asyncio.gather(*tasks) == [1, 3, 2]
    assert bench.calls == [[1, 3, 2]]


@on_a_loop(0.05)
async def test_silent_connection_is_waited_for_once_and_no_longer_than_the_bound(
    bench: Bench,
) -> None:
    bench.batcher.enter(1)
    bench.batcher.enter(2)
    began = asyncio.get_running_loop().time()
    assert await bench.ask(1) == 1
    assert asyncio.get_running_loop().time() - began >= 0.05
    bench.batcher._wait = NEVER
    bench.batcher.expect(1)
    assert await bench.ask(1) == 1


@on_a_loop(NEVER)
async def test_connection_that_runs_a_chunk_is_not_waited_for(bench: Bench) -> None:
    bench.batcher.enter(1)
    bench.batcher.enter(2)
    await asyncio.gather(bench.ask(1), bench.ask(2))
    bench.batcher.expect(1)
    assert await bench.ask(1) == 1
    assert bench.calls == [[1, 2], [1]]


@on_a_loop(NEVER)
async def test_requests_of_one_turn_of_the_loop_are_merged(bench: Bench) -> None:
    for key in (1, 2, 3):
        bench.batcher.enter(key)
    await asyncio.gather(*(bench.ask(key) for key in (1, 2, 3)))
    bench.batcher.expect(1)
    bench.batcher.expect(2)  # 3 runs on
    await asyncio.gather(bench.ask(1), bench.ask(2))
    assert bench.calls[1:] == [[1, 2]]


@on_a_loop(NEVER)
async def test_departure_of_the_awaited_connection_releases_the_others(bench: Bench) -> None:
    for key in (1, 2, 3):
        bench.batcher.enter(key)
    first, second = bench.ask(1), bench.ask(2)
    await asyncio.sleep(0)
    assert not first.done()
    bench.batcher.leave(3)
    assert await asyncio.gather(first, second) == [1, 2]


@on_a_loop(NEVER)
async def test_request_of_a_departed_connection_is_given_up(bench: Bench) -> None:
    for key in (1, 2, 3):
        bench.batcher.enter(key)
    gone, kept = bench.ask(1), bench.ask(2)
    await asyncio.sleep(0)
    bench.batcher.leave(1)
    with pytest.raises(Departed):
        await gone
    assert await asyncio.gather(kept, bench.ask(3)) == [2, 3]
    assert bench.calls == [[2, 3]]


@on_a_loop(NEVER)
async def test_request_that_comes_after_its_connection_left_is_not_answered(bench: Bench) -> None:
    bench.batcher.enter(1)
    bench.batcher.enter(2)
    bench.batcher.leave(1)
    with pytest.raises(Departed):
        await bench.ask(1)
    assert await bench.ask(2) == 2
    assert bench.calls == [[2]]


@on_a_loop(NEVER)
async def test_cancelled_request_spoils_no_other(bench: Bench) -> None:
    bench.batcher.enter(1)
    bench.batcher.enter(2)
    gone = bench.ask(1)
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await bench.ask(2) == 2


@on_a_loop(0.0)
async def test_batch_waits_for_the_lock_and_takes_all_that_came_meanwhile(bench: Bench) -> None:
    for key in (1, 2, 3):
        bench.batcher.enter(key)
    async with bench.lock:
        first = bench.ask(1)
        for _ in range(3):
            await asyncio.sleep(0)
        second = bench.ask(2)
        for _ in range(3):
            await asyncio.sleep(0)
        assert bench.calls == []
    assert await asyncio.gather(first, second) == [1, 2]
    assert bench.calls == [[1, 2]]


@on_a_loop(NEVER)
async def test_single_request_waits_for_the_lock(bench: Bench) -> None:
    bench.batcher.enter(1)
    async with bench.lock:
        task = bench.ask(1)
        await asyncio.sleep(0)
        assert bench.calls == []
    assert await task == 1


@on_a_loop(NEVER)
async def test_failing_policy_fails_every_request_of_its_batch(bench: Bench) -> None:
    bench.batcher.enter(1)
    bench.batcher.enter(2)
    bench.error = RuntimeError("broken")
    results = await asyncio.gather(bench.ask(1), bench.ask(2), return_exceptions=True)
    assert results == [bench.error, bench.error]


def test_server_merges_the_infers_of_two_clients_into_one_forward_pass() -> None:
    agent = FakeAgent()
    with (
        running(agent, batch_wait=NEVER) as run,
        raw_client(run.url) as first,
        raw_client(run.url) as second,
    ):
        for _ in range(3):
            first.ask(0, 1)
            second.ask(0)
            assert first.answer().action.shape == (1, 2)
            assert second.answer().action.shape == (1, 1)
            first.feed_back(0, 1)
            second.feed_back(0)
            assert first.socket.ping().wait(10)
            assert second.socket.ping().wait(10)
    assert [sorted(batch) for batch in agent.batches] == [[1, 2]] * 3


def test_server_does_not_let_a_silent_client_stall_another() -> None:
    agent = FakeAgent()
    with running(agent, batch_wait=0.2) as run, raw_client(run.url) as client, raw_client(run.url):
        client.exchange(0)
        run.server._services.batcher._wait = NEVER  # it is not waited for again
        for _ in range(5):
            client.exchange(0)
    assert agent.batches == [[1]] * 6


def test_server_releases_a_waiting_infer_when_the_awaited_client_leaves() -> None:
    with running(FakeAgent(), batch_wait=NEVER) as run, raw_client(run.url) as client:
        with raw_client(run.url):
            client.ask(0)
        client.answer()


def test_server_gives_up_the_infer_of_a_client_that_leaves_while_it_waits() -> None:
    agent = FakeAgent()
    with running(agent, batch_wait=NEVER) as run, raw_client(run.url) as client:
        with raw_client(run.url) as leaving:
            leaving.ask(0)
            assert leaving.socket.ping().wait(10)
        agent.wait_for_departures(1)
        client.exchange(0)
    assert agent.batches == [[1]]
