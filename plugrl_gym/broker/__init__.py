"""The trainer's side: envs of clients anywhere, for any learner.

:class:`EnvBroker` hands out what arrives as it arrives; :class:`RemoteVectorEnv` makes of it an
ordinary :class:`gymnasium.vector.VectorEnv`.
"""

from __future__ import annotations

from plugrl_gym.broker.batch import Batch, EnvEvent
from plugrl_gym.broker.env_broker import EnvBroker
from plugrl_gym.broker.remote_vector_env import RemoteStatistics, RemoteVectorEnv

__all__ = ["Batch", "EnvBroker", "EnvEvent", "RemoteStatistics", "RemoteVectorEnv"]
