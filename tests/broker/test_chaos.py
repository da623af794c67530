"""What a trainer is handed while the network breaks: each transition happened, and once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from plugrl_gym import EnvBroker, RemoteVectorEnv
from plugrl_gym.broker import Batch
from tests.chaos.checker import Truth, check_rows, read_truth
from tests.chaos.envs import CUES, Ledgered, read_tag
from tests.support.proxy import Cut, Proxy, proxy
from tests.support.raw_client import DEADLINE
from tests.support.trainers import rolling

CLIENTS, ENVS = 3, 2
Rows = list[Mapping[str, Any]]


@contextmanager
def broken_network(port: int, directory: Path, autoreset: AutoresetMode) -> Iterator[Proxy]:
    """Clients of ledgered envs, and what lies between them and a server."""
    with ExitStack() as stack:
        network = stack.enter_context(proxy(port))
        for client in range(CLIENTS):
            log = str(directory / f"{client}.jsonl")
            makes = [lambda c=client, log=log: Ledgered(c, log)] * ENVS  # type: ignore[misc]
            envs = SyncVectorEnv(makes, autoreset_mode=autoreset)
            stack.enter_context(rolling(network.url, envs))
        yield network


def truth_of(directory: Path) -> Truth:
    truth: Truth = {}
    for log in directory.glob("*.jsonl"):
        truth |= read_truth(log.read_bytes())
    return truth


def row(before: Any, chunk: Any, steps: int, reward: float, ends: Any, after: Any) -> Any:
    terminated, truncated = map(bool, ends)
    return {
        "before": list(read_tag(before)),
        "chunk": np.asarray(chunk).tolist(),
        "steps": steps,
        "reward": reward,
        "terminated": terminated,
        "truncated": truncated,
        "after": list(read_tag(after)),
    }


class Memory:
    """What a trainer knows of each slot: what it showed last, and which chunk it was sent."""

    def __init__(self, broker: EnvBroker) -> None:
        self.rows: Rows = []
        self._broker = broker
        self._shown: dict[int, Any] = {}
        self._sent: dict[int, Any] = {}
        self._random = np.random.default_rng(0)

    def take(self, batch: Batch) -> None:
        """Write down the transitions of a batch, and answer it."""
        for k, slot in enumerate(batch.slots.tolist()):
            if not batch.first[k]:
                self._write(batch, k, slot)
            self._shown[slot] = batch.observation[k]
        slots = batch.slots[batch.waiting]
        if len(slots):
            chunks = self._random.integers(0, CUES, (self._broker.horizon, len(slots)))
            self._broker.step_async(slots, chunks)
            self._sent.update(zip(slots.tolist(), chunks.T, strict=True))

    def _write(self, batch: Batch, k: int, slot: int) -> None:
        ends = batch.terminated[k], batch.truncated[k]
        after = batch.info["final_obs"][k] if any(ends) else batch.observation[k]
        steps = int(batch.info["chunk_steps"][k]) if self._broker.horizon > 1 else 1
        chunk = self._sent.pop(slot)  # a second row of one action would find none
        self.rows.append(row(self._shown[slot], chunk, steps, batch.reward[k], ends, after))


def cut_something(network: Proxy, chance: random.Random) -> None:
    network.cut(chance.choice(list(Cut)))


@pytest.mark.parametrize(
    ("horizon", "autoreset"),
    [(1, AutoresetMode.SAME_STEP), (3, AutoresetMode.NEXT_STEP)],
    ids=["steps", "chunks"],
)
def test_broker_delivers_each_transition_once_and_as_it_was(
    horizon: int, autoreset: AutoresetMode, tmp_path: Path
) -> None:
    chance = random.Random(0)
    with EnvBroker(horizon=horizon) as broker:
        memory = Memory(broker)
        with broken_network(broker.port, tmp_path, autoreset) as network:
            cuts = 0
            while len(memory.rows) < 300:
                batch = broker.collect_async(timeout=DEADLINE)
                assert len(batch) or batch.events
                memory.take(batch)
                if len(memory.rows) > 15 * (cuts + 1):
                    cuts += 1
                    cut_something(network, chance)
            broker.close()
            assert network.cuts.total() > 10
    snapshot = broker.statistics.snapshot()
    verdict = check_rows(memory.rows, truth_of(tmp_path))
    assert verdict.false == []
    assert (verdict.twice, verdict.true_rows) == (0, len(memory.rows))
    assert snapshot.book_errors == ()
    assert snapshot.books.rows_stored == len(memory.rows)
    # What came just before the end was not collected, and what came just after it was too late.
    assert set(snapshot.books.rows_discarded) <= {"not collected", "run over"}


def test_vector_env_hands_out_each_transition_once_and_marks_those_that_no_env_made(
    tmp_path: Path,
) -> None:
    chance, rng = random.Random(1), np.random.default_rng(1)
    rows: Rows = []
    with (
        RemoteVectorEnv(
            CLIENTS * ENVS, port=0, connect_timeout=DEADLINE, refill_timeout=DEADLINE
        ) as envs,
        broken_network(envs.broker.port, tmp_path, AutoresetMode.SAME_STEP) as network,
    ):
        before, _ = envs.reset()
        for step in range(100):
            actions = rng.integers(0, CUES, envs.num_envs)
            after, reward, terminated, truncated, info = envs.step(actions)
            for env in np.flatnonzero(~info["disconnected"]).tolist():
                ends = terminated[env], truncated[env]
                shown = info["final_obs"][env] if any(ends) else after[env]
                rows.append(row(before[env], [actions[env]], 1, reward[env], ends, shown))
            lost = info["disconnected"]
            assert (reward[lost] == 0).all()
            assert truncated[lost].all()
            before = after
            if step % 10 == 5:
                cut_something(network, chance)
        envs.close()
    books = envs.broker.statistics.snapshot()
    truth = truth_of(tmp_path)
    # The wire has no word for an episode that its connection cut off: the vector env truncates it.
    cut = [r for r in rows if r["truncated"] and not truth[tuple(r["before"][:4])].truncated]
    verdict = check_rows([{**r, "truncated": False} if r in cut else r for r in rows], truth)
    assert verdict.false == []
    assert (verdict.twice, verdict.true_rows) == (0, len(rows))
    assert books.book_errors == ()
    assert envs.stats.env_steps == len(rows) == 100 * envs.num_envs - envs.stats.disconnected
    assert envs.stats.disconnected > 0
    assert network.cuts.total() > 5
