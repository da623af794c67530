"""Small valid messages, and both ends of a connection in a wanted state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from plugrl_gym.protocol import (
    CHUNK_STEPS,
    EXECUTED_ACTIONS,
    GYM_SPACES,
    REUSE_FEEDBACK_OBS,
    ClientProtocol,
    Feedback,
    Infer,
    Metadata,
    Observation,
    ServerProtocol,
    State,
)

__all__ = ["EVERYTHING", "acting", "connect", "feedback", "infer", "observation", "same"]

EVERYTHING = (REUSE_FEEDBACK_OBS, GYM_SPACES, CHUNK_STEPS, EXECUTED_ACTIONS)


def observation(rows: int, *, base: float = 0.0, **states: Any) -> Observation:
    """Float64 [rows, 2] states["obs"] counting from ``base``, or the given states."""
    if not states:
        states = {"obs": base + np.arange(rows * 2, dtype=np.float64).reshape(rows, 2)}
    return Observation(states=states, text=[""] * rows)


def infer(envs: Sequence[int] = (0, 1), **changes: Any) -> Infer:
    """A request for ``envs``."""
    n = len(envs)
    parts: dict[str, Any] = {
        "observation": observation(n),
        "env_indices": np.array(envs, np.int64),
        "step_ids": np.zeros(n, np.int64),
    }
    return Infer(**{**parts, **changes})


def feedback(
    envs: Sequence[int] = (0, 1), *, ended: Sequence[bool] | None = None, **changes: Any
) -> Feedback:
    """A report of one-step chunks of ``envs``, each paying 1."""
    m = len(envs)
    parts: dict[str, Any] = {
        "env_indices": np.array(envs, np.int64),
        "step_ids": np.zeros(m, np.int64),
        "observation": observation(m, base=10.0),
        "rewards": np.ones(m, np.float32),
        "terminated": np.zeros(m, np.bool_) if ended is None else np.array(ended, np.bool_),
        "truncated": np.zeros(m, np.bool_),
    }
    return Feedback(**{**parts, **changes})


def connect(
    features: Sequence[str] = EVERYTHING, **known: Any
) -> tuple[ClientProtocol, ServerProtocol]:
    """Both ends once the metadata has crossed."""
    client, server = ClientProtocol(), ServerProtocol()
    client.receive_metadata(server.send_metadata(Metadata(features=tuple(features), **known)))
    assert client.state is server.state is State.IDLE
    return client, server


def acting(
    envs: Sequence[int] = (0, 1), *, horizon: int = 1, features: Sequence[str] = EVERYTHING
) -> tuple[ClientProtocol, ServerProtocol]:
    """Both ends once ``envs`` hold an action of ``horizon`` steps of one number."""
    client, server = connect(features)
    server.receive(client.send_infer(infer(envs)))
    client.receive_action(server.send_action(np.zeros((horizon, len(envs), 1))))
    assert client.state is server.state is State.ACTING
    return client, server


def same(left: Any, right: Any) -> bool:
    """Equality of what frames decode to: arrays by dtype but for byte order, shape and bits."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return (
            isinstance(left, np.ndarray)
            and isinstance(right, np.ndarray)
            and left.dtype.str[1:] == right.dtype.str[1:]
            and left.shape == right.shape
            and left.astype(left.dtype.newbyteorder("=")).tobytes()
            == right.astype(right.dtype.newbyteorder("=")).tobytes()
        )
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and (left == right or (left != left and right != right))
