"""Random walks over modes, horizons, done patterns, resets, cuts and faults.

The memory server holds every message against the state table (SPEC 5) and checks that no env
asks twice; each walk then compares what it stored with the envs' own traces.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from plugrl_gym.protocol import (
    CHUNK_STEPS,
    EXECUTED_ACTIONS,
    GYM_SPACES,
    REUSE_FEEDBACK_OBS,
    Metadata,
)
from tests.client.conftest import sync
from tests.support.memory import MemoryServer, lost
from tests.support.tracing import Step, TracingEnv

MODES = list(AutoresetMode)
FEATURES = (REUSE_FEEDBACK_OBS, GYM_SPACES, CHUNK_STEPS, EXECUTED_ACTIONS)
STEPS = 900


class Walk:
    """One random walk of a wrapped TracingEnv vector."""

    def __init__(self, wrap: Any, mode: AutoresetMode, seed: int) -> None:
        self.rng = np.random.default_rng([seed, MODES.index(mode)])
        n = int(self.rng.integers(1, 5))
        self.longest_chunk = int(self.rng.choice([1, 2, 3, 6]))
        self.ragged_horizons = self.rng.random() < 0.3
        self.fault_rate = float(self.rng.choice([0.0, 0.0, 0.02]))
        self.reset_rate = float(self.rng.choice([0.0, 0.0, 0.03]))
        self.override_rate = float(self.rng.choice([0.0, 0.1]))
        self.drawn = 0
        features = tuple(f for f in FEATURES if self.rng.random() < 0.6)
        if EXECUTED_ACTIONS not in features:
            self.override_rate = 0.0
        self.envs = [TracingEnv(i, seed, int(self.rng.choice([1, 3, 9]))) for i in range(n)]
        self.server = MemoryServer(self.choose, Metadata(features=features), self.fault)
        self.wrapped = wrap(sync(*self.envs, mode=mode), self.server)

    def choose(self, indices: np.ndarray) -> np.ndarray:
        horizon = self.longest_chunk
        if self.ragged_horizons:
            horizon = int(self.rng.integers(1, horizon + 1))
        size = horizon * len(indices)
        chunk = np.arange(self.drawn, self.drawn + size, dtype=np.float64)
        self.drawn += size
        return chunk.reshape(horizon, len(indices), 1)

    def fault(self, message: str) -> Exception | None:
        return lost() if self.rng.random() < self.fault_rate and message != "connect" else None

    def go(self) -> None:
        self.wrapped.reset(seed=0)
        for step in range(STEPS):
            if self.rng.random() < self.reset_rate:
                self.reset()
            planned = self.wrapped.infer()
            actions = None
            if self.rng.random() < self.override_rate:
                actions = planned.copy()
                actions[self.rng.integers(len(actions))] = -1.0 - self.drawn
            info = self.wrapped.step(actions)[4]
            assert info["action"].shape == planned.shape
            assert step % 10 or self.wrapped.stats.book_errors == ()
        self.server.fault = lambda message: None
        self.wrapped.close()

    def reset(self) -> None:
        mask = self.rng.random(len(self.envs)) < 0.5
        if not mask.any():
            mask[:] = True
        options = None if mask.all() else {"reset_mask": mask}
        self.wrapped.reset(options=options)


def steps_of(row: Any, trace: dict[tuple[int, int, int], Step]) -> list[Step]:
    """The env's own steps that a fed-back chunk claims to have run."""
    env, episode, first = (int(x) for x in row.first)
    assert env == row.env
    last_env, last_episode, last = (int(x) for x in row.last)
    assert (last_env, last_episode) == (env, episode), "a chunk crosses an episode's end"
    assert 1 <= last - first <= len(row.chunk)
    return [trace[env, episode, t] for t in range(first, last)]


def check(walk: Walk) -> None:
    trace = {(e.number, s.episode, s.time): s for e in walk.envs for s in e.trace}
    episodes: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for (env, episode, _), step in trace.items():
        episodes[env, episode].append(step.reward)
    told: Counter[tuple[int, int, int]] = Counter()
    for row in walk.server.rows:
        ran = steps_of(row, trace)
        told.update((row.env, s.episode, s.time) for s in ran)
        assert row.reward == sum(s.reward for s in ran)
        assert (row.terminated, row.truncated) == (ran[-1].terminated, ran[-1].truncated)
        assert not any(s.terminated or s.truncated for s in ran[:-1])
        planned = row.chunk[: len(ran), 0].tolist()
        actual = [s.action for s in ran]
        if row.overridden is None:
            assert actual == planned
        else:
            assert row.executed[: len(ran), 0].tolist() == actual
            assert row.overridden == (actual != planned)
        if row.steps is not None:
            assert row.steps == len(ran)
        whole = episodes[row.env, ran[0].episode]
        if row.terminated or row.truncated:
            assert row.episode == (sum(whole), len(whole))
        else:
            assert row.episode is None
    assert max(told.values(), default=1) == 1, "a step was fed back twice"
    stats = walk.wrapped.stats
    assert stats.env_steps == len(trace)
    assert len(trace) - len(told) == stats.steps_dropped, "a step was lost without being counted"
    assert stats.chunks_received == stats.chunks_fed_back + stats.chunks_dropped
    assert stats.chunks_fed_back == len(walk.server.rows)
    assert (stats.book_errors, stats.books.chunks_open) == ((), 0)
    if not walk.fault_rate and not walk.reset_rate:
        # Only the close can cost anything, where its turn to speak had passed.
        assert stats.connections == 1
        assert stats.chunks_dropped <= len(walk.envs)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.name)
@pytest.mark.parametrize("seeds", [range(15), pytest.param(range(15, 120), marks=pytest.mark.full)])
def test_every_step_is_told_once_and_truly(wrap: Any, mode: AutoresetMode, seeds: range) -> None:
    for seed in seeds:
        walk = Walk(wrap, mode, seed)
        walk.go()
        check(walk)
