"""Gymnasium spaces and the wire: descriptions, observations, actions (SPEC 9.3).

The one room that both ends share beside the protocol: the client turns a batch of its env's
observations into images, states and text; a server that was told the spaces turns it back.
"""

from __future__ import annotations

from plugrl_gym.spaces.actions import ActionLayout
from plugrl_gym.spaces.description import build_space, describe_space
from plugrl_gym.spaces.foreign import standard_space
from plugrl_gym.spaces.observations import ObservationLayout

__all__ = ["ActionLayout", "ObservationLayout", "build_space", "describe_space", "standard_space"]
