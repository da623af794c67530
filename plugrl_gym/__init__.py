"""Train any Gymnasium vector env against a server somewhere else, over PlugRL version 1.

Example:
    >>> import gymnasium as gym
    >>> from plugrl_gym import PlugRLVectorEnv
    >>> with PlugRLVectorEnv(gym.make_vec("CartPole-v1", num_envs=2)) as envs:
    ...     envs.num_envs
    2
"""

from __future__ import annotations

from importlib import import_module
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
    RunFailed,
    RunFinished,
    ServerRefused,
    UnsupportedSpace,
    UsageError,
)

if TYPE_CHECKING:
    from plugrl_gym.broker import EnvBroker, RemoteVectorEnv
    from plugrl_gym.client import ClientStatistics, PlugRLVectorEnv, RunSummary
    from plugrl_gym.local import local_server

__all__ = [
    "ClientStatistics",
    "ConnectTimeout",
    "ConnectionFailed",
    "ConnectionLost",
    "EnvBroker",
    "LocalProtocolError",
    "PlugRLError",
    "PlugRLVectorEnv",
    "ProtocolError",
    "RemoteProtocolError",
    "RemoteVectorEnv",
    "ReplyTimeout",
    "RunFailed",
    "RunFinished",
    "RunSummary",
    "ServerRefused",
    "UnsupportedSpace",
    "UsageError",
    "__version__",
    "local_server",
]

__version__ = "0.1.0"

_LATE = {
    "ClientStatistics": "client",
    "EnvBroker": "broker",
    "PlugRLVectorEnv": "client",
    "RemoteVectorEnv": "broker",
    "RunSummary": "client",
    "local_server": "local",
}


def __getattr__(name: str) -> Any:
    # Gymnasium takes its time to load, and the pytest plugin loads this module in every pytest run.
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
