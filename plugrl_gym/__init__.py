"""Train any Gymnasium vector env against a server somewhere else, over PlugRL version 1.

Example:
    >>> import gymnasium as gym
    >>> from plugrl_gym import PlugRLVectorEnv
    >>> with PlugRLVectorEnv(gym.make_vec("CartPole-v1", num_envs=2)) as envs:
    ...     envs.num_envs
    2
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from plugrl_gym.client import ClientStatistics, PlugRLVectorEnv, RunSummary

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

_OF_CLIENT = ("ClientStatistics", "PlugRLVectorEnv", "RunSummary")


def __getattr__(name: str) -> Any:
    # Gymnasium takes its time to load, and the pytest plugin loads this module in every pytest run.
    if name not in _OF_CLIENT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from plugrl_gym import client

    return getattr(client, name)


def __dir__() -> list[str]:
    return __all__
