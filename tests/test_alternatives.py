"""What the README's table says of the vector envs that keep their workers on one machine."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv
from stable_baselines3.common.vec_env import SubprocVecEnv

#: How multiprocessing tells that the other end of a pipe is gone.
GONE = (EOFError, BrokenPipeError, ConnectionResetError)


def make_env() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1")


def test_a_killed_worker_of_subproc_vec_env_ends_the_run() -> None:
    envs = SubprocVecEnv([make_env, make_env])
    try:
        envs.reset()
        envs.processes[0].kill()
        envs.processes[0].join(30)
        with pytest.raises(GONE):
            envs.step(np.zeros(2, np.int64))
    finally:
        for process, pipe in zip(envs.processes, envs.remotes, strict=True):
            process.kill()
            process.join(30)
            pipe.close()


def test_a_killed_worker_of_async_vector_env_ends_the_run() -> None:
    envs = AsyncVectorEnv([make_env, make_env])
    try:
        envs.reset(seed=0)
        envs.processes[0].kill()
        envs.processes[0].join(30)
        with pytest.raises(GONE):
            envs.step(np.zeros(2, np.int64))
    finally:
        envs.close_extras(terminate=True)
        envs.closed = True
