"""Train any Gymnasium vector env against a server somewhere else, over PlugRL version 1.

Example:
    >>> import gymnasium as gym
    >>> from plugrl_gym import PlugRLVectorEnv
    >>> with PlugRLVectorEnv(gym.make_vec("CartPole-v1", num_envs=2)) as envs:
    ...     envs.num_envs
    2
"""

from __future__ import annotations

from plugrl_gym.client import ClientStatistics, PlugRLVectorEnv, RunSummary
from plugrl_gym.errors import (
    ConnectionFailed,
    ConnectionLost,
    ConnectTimeout,
    LocalProtocolError,
    PlugRLError,
    ProtocolError,
    RemoteProtocolError,
    ReplyTimeout,
    RunFinished,
    ServerRefused,
    UnsupportedSpace,
    UsageError,
)

__all__ = [
    "ClientStatistics",
    "ConnectTimeout",
    "ConnectionFailed",
    "ConnectionLost",
    "LocalProtocolError",
    "PlugRLError",
    "PlugRLVectorEnv",
    "ProtocolError",
    "RemoteProtocolError",
    "ReplyTimeout",
    "RunFinished",
    "RunSummary",
    "ServerRefused",
    "UnsupportedSpace",
    "UsageError",
    "__version__",
]

__version__ = "0.1.0"
