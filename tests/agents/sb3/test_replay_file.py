"""A replay buffer goes to a file and comes back, whatever its class and however full."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer

from plugrl_gym.agents.sb3.learners.replay_buffers import (
    DISCOUNT,
    OVERRIDDEN,
    TRAJECTORY,
    ChunkReplayBuffer,
    DemonstrationReplayBuffer,
    DictChunkReplayBuffer,
    DictDemonstrationReplayBuffer,
    LinkedReplayBuffer,
)
from plugrl_gym.agents.sb3.runs.replay import buffer_state, read_buffer, write_buffer

NUMBERS = spaces.Box(-1, 1, (3,))
NESTED = spaces.Dict(a=NUMBERS, b=spaces.Box(0, 255, (2,), np.uint8))
ACTION = spaces.Box(-1, 1, (2,))


def made(kind: type[Any], envs: int = 1, **settings: Any) -> Any:
    space = NESTED if issubclass(kind, DictReplayBuffer) else NUMBERS
    return kind(20 * envs, space, ACTION, device="cpu", n_envs=envs, **settings)


def linked() -> Any:
    return LinkedReplayBuffer.of(made(NStepReplayBuffer, n_steps=3), [0])


FRUGAL: dict[str, Any] = {"optimize_memory_usage": True, "handle_timeout_termination": False}
MAKERS = {
    "plain": lambda: made(ReplayBuffer, 2),
    "frugal": lambda: made(ReplayBuffer, **FRUGAL),
    "dict": lambda: made(DictReplayBuffer, 2),
    "n-step": lambda: made(NStepReplayBuffer, 2, n_steps=3),
    "chunk": lambda: made(ChunkReplayBuffer),
    "dict-chunk": lambda: made(DictChunkReplayBuffer),
    "demonstration": lambda: made(DemonstrationReplayBuffer),
    "dict-demonstration": lambda: made(DictDemonstrationReplayBuffer),
    "linked": linked,
}


def fill(buffer: Any, steps: int) -> None:
    generator, envs = np.random.default_rng(steps), buffer.n_envs

    def seen() -> Any:
        if isinstance(buffer, DictReplayBuffer):
            numbers, small = generator.normal(size=(envs, 3)), generator.integers(0, 255, (envs, 2))
            return {"a": numbers.astype(np.float32), "b": small.astype(np.uint8)}
        return generator.normal(size=(envs, 3)).astype(np.float32)

    for step in range(steps):
        told = {DISCOUNT: 0.5 + step / 100, OVERRIDDEN: step % 3 == 0, TRAJECTORY: step % 2}
        infos = [dict(told) for _ in range(envs)]
        action = generator.normal(size=(envs, 2)).astype(np.float32)
        ended = generator.random(envs) < 0.1
        buffer.add(seen(), seen(), action, generator.normal(size=envs), ended, infos)


def sample(buffer: Any) -> list[Any]:
    np.random.seed(1)
    drawn: list[Any] = []
    for part in buffer.sample(16):
        drawn += list(part.values()) if isinstance(part, dict) else [part]
    return [None if part is None else part.numpy() for part in drawn]


def through_a_file(buffer: Any, fresh: Any) -> Any:
    file = io.BytesIO()
    write_buffer(buffer, file)
    file.seek(0)
    return read_buffer(fresh, pickle.loads(pickle.dumps(buffer_state(buffer))), file)


@pytest.mark.parametrize("steps", [7, 20, 33])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_buffer_comes_back_as_it_was(kind: str, steps: int) -> None:
    buffer = MAKERS[kind]()
    fill(buffer, steps)
    again = through_a_file(buffer, MAKERS[kind]())
    assert type(again) is type(buffer)
    for _ in range(2):
        for ours, theirs in zip(sample(again), sample(buffer), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        fill(again, 5)
        fill(buffer, 5)


def test_a_buffer_of_another_width_and_class_comes_back_too() -> None:
    """A run that fell out of lockstep has another buffer than a model that was just loaded."""
    wide = made(NStepReplayBuffer, 2, n_steps=3)
    fill(wide, 9)
    buffer = LinkedReplayBuffer.of(wide, [0, 1])
    fill(buffer, 5)
    again = through_a_file(buffer, made(NStepReplayBuffer, 2, n_steps=3))
    assert (type(again), again.n_envs, again.size()) == (LinkedReplayBuffer, 1, buffer.size())
    for ours, theirs in zip(sample(again), sample(buffer), strict=True):
        np.testing.assert_array_equal(ours, theirs)
