"""Trainers for brokers, and clients that step real envs in a thread of the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from plugrl_gym import EnvBroker, PlugRLVectorEnv
from plugrl_gym.broker import Batch
from tests.support.raw_client import DEADLINE

__all__ = ["Rolling", "Trainer", "make_envs", "rolling", "training"]


def make_envs(
    env_id: str, num_envs: int, autoreset: AutoresetMode = AutoresetMode.SAME_STEP, **kwargs: Any
) -> VectorEnv[Any, Any, Any]:
    """Sync envs."""
    return gym.make_vec(
        env_id,
        num_envs=num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": autoreset},
        **kwargs,
    )


class Rolling:
    """A client that rolls out in a thread.

    Attributes:
        outcome: What ``run`` returned, or the exception that it raised.
    """

    def __init__(self, envs: PlugRLVectorEnv, **options: Any) -> None:
        self.envs = envs
        self.outcome: Any = None
        self._thread = threading.Thread(target=self._run, kwargs=options)
        self._thread.start()

    def _run(self, **options: Any) -> None:
        try:
            self.outcome = self.envs.run(**options)
        except BaseException as error:
            self.outcome = error
        finally:
            self.envs.close()

    def ended(self) -> Any:
        """Wait for its end and say what came of it."""
        # A client that the network kept from hearing of the end looks for its server that long.
        self._thread.join(2 * DEADLINE)
        assert not self._thread.is_alive(), "the client did not end"
        return self.outcome


@contextmanager
def rolling(
    url: str, envs: VectorEnv[Any, Any, Any], seed: int | None = 0, **options: Any
) -> Iterator[Rolling]:
    """Roll ``envs`` out in a thread; the server must end the run within the block."""
    client = Rolling(PlugRLVectorEnv(envs, url, reconnect_timeout=DEADLINE, **options), seed=seed)
    try:
        yield client
    finally:
        client.ended()


class Trainer:
    """Answers whatever has arrived, in a thread, until told to stop.

    Args:
        broker: Whose.
        act: A batch -> actions for its waiting rows; None for zeros of the action space's shape.

    Attributes:
        batches: What was collected.
        failure: What ended it, if it failed.
    """

    def __init__(self, broker: EnvBroker, act: Callable[[Batch], Any] | None = None) -> None:
        self.batches: list[Batch] = []
        self.failure: BaseException | None = None
        self._broker = broker
        self._act = act
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                batch = self._broker.collect_async(1, 0.05)
                self.batches.append(batch)
                slots = batch.slots[batch.waiting]
                if len(slots):
                    self._broker.step_async(slots, self._choose(batch, len(slots)))
        except BaseException as error:
            self.failure = error

    def _choose(self, batch: Batch, rows: int) -> Any:
        if self._act is not None:
            return self._act(batch)
        space = self._broker.single_action_space
        assert space is not None
        chunk = (self._broker.horizon, rows, *(space.shape or ()))
        return np.zeros(chunk, space.dtype)

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()


@contextmanager
def training(broker: EnvBroker, act: Callable[[Batch], Any] | None = None) -> Iterator[Trainer]:
    """A trainer that answers whatever has arrived, as long as the block lasts."""
    trainer = Trainer(broker, act)
    try:
        yield trainer
    finally:
        trainer.stop()
    if trainer.failure is not None:
        raise trainer.failure
