"""PlugRL version 1 without sockets: whole frames in, typed messages and frames out (SPEC.md).

Example:
    >>> from plugrl_gym.protocol import ClientProtocol, Metadata, ServerProtocol
    >>> server, client = ServerProtocol(), ClientProtocol()
    >>> client.receive_metadata(server.send_metadata(Metadata(action_horizon=4))).action_horizon
    4
"""

from __future__ import annotations

from plugrl_gym.protocol.client import ClientProtocol
from plugrl_gym.protocol.codec import check_encodable, decode, encode
from plugrl_gym.protocol.features import (
    CHUNK_STEPS,
    EXECUTED_ACTIONS,
    GYM_SPACES,
    REUSE_FEEDBACK_OBS,
)
from plugrl_gym.protocol.features.chunk_steps import ChunkSteps
from plugrl_gym.protocol.features.executed_actions import ExecutedActions
from plugrl_gym.protocol.features.gym_spaces import SpaceDeclaration
from plugrl_gym.protocol.fields import Observation
from plugrl_gym.protocol.messages import (
    PROTOCOL_VERSION,
    Action,
    EpisodeStatistics,
    Feedback,
    Infer,
    Metadata,
)
from plugrl_gym.protocol.server import ReceivedFeedback, ServerProtocol
from plugrl_gym.protocol.state import SENDER, TRANSITIONS, MessageType, Role, State

__all__ = [
    "CHUNK_STEPS",
    "EXECUTED_ACTIONS",
    "GYM_SPACES",
    "PROTOCOL_VERSION",
    "REUSE_FEEDBACK_OBS",
    "SENDER",
    "TRANSITIONS",
    "Action",
    "ChunkSteps",
    "ClientProtocol",
    "EpisodeStatistics",
    "ExecutedActions",
    "Feedback",
    "Infer",
    "MessageType",
    "Metadata",
    "Observation",
    "ReceivedFeedback",
    "Role",
    "ServerProtocol",
    "SpaceDeclaration",
    "State",
    "check_encodable",
    "decode",
    "encode",
]
