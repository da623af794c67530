from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from plugrl_gym import PlugRLVectorEnv
from plugrl_gym.client import session
from tests.support.memory import MemoryServer


@pytest.fixture
def wrap(monkeypatch: pytest.MonkeyPatch) -> Callable[..., PlugRLVectorEnv]:
    """(vector env, memory server) -> a PlugRLVectorEnv that talks to it."""
    monkeypatch.setattr(session, "_LONGEST_DELAY", 0.0)

    def make(env: Any, server: MemoryServer, **kwargs: Any) -> PlugRLVectorEnv:
        monkeypatch.setattr(session, "Connection", server.connect)
        return PlugRLVectorEnv(env, "ws://127.0.0.1:1", **kwargs)

    return make


def sync(*envs: gym.Env, mode: AutoresetMode = AutoresetMode.SAME_STEP, **kwargs: Any) -> Any:
    """A SyncVectorEnv over the given envs."""
    return SyncVectorEnv([lambda e=e: e for e in envs], autoreset_mode=mode, **kwargs)
