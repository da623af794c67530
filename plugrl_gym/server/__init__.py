"""Serve a policy and its learner to clients anywhere.

Example:
    >>> from plugrl_gym.agents.random_agent import RandomAgent
    >>> from plugrl_gym.server import serve
    >>> serve(RandomAgent(total_timesteps=10_000))  # doctest: +SKIP
    True
"""

from __future__ import annotations

from plugrl_gym.server.agent import Agent, Client, Refusal, Request
from plugrl_gym.server.app import PlugRLServer, serve
from plugrl_gym.server.statistics import RunSnapshot, RunStatistics
from plugrl_gym.server.tls import tls_context

__all__ = [
    "Agent",
    "Client",
    "PlugRLServer",
    "Refusal",
    "Request",
    "RunSnapshot",
    "RunStatistics",
    "serve",
    "tls_context",
]
