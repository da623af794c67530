"""Serve a policy and its learner to clients anywhere.

Example:
    >>> from plugrl_gym.agents.random_agent import RandomAgent
    >>> from plugrl_gym.server import serve
    >>> serve(RandomAgent(total_timesteps=10_000))  # doctest: +SKIP
    True
"""

from __future__ import annotations

from plugrl_gym.server.agent import Agent, Answer, Client, Refusal, Request
from plugrl_gym.server.app import PlugRLServer, serve
from plugrl_gym.server.statistics import STAGES, RunSnapshot, RunStatistics
from plugrl_gym.server.tls import tls_context

__all__ = [
    "STAGES",
    "Agent",
    "Answer",
    "Client",
    "PlugRLServer",
    "Refusal",
    "Request",
    "RunSnapshot",
    "RunStatistics",
    "serve",
    "tls_context",
]
