"""Stable-Baselines3 behind the wire; the one place that imports torch.

``from plugrl_gym.agents.sb3 import SB3Agent`` loads torch; reading a preset does not.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from plugrl_gym.agents.sb3.settings.presets import Preset, load_preset, preset_names

if TYPE_CHECKING:
    from plugrl_gym.agents.sb3.agent import SB3Agent
    from plugrl_gym.agents.sb3.policy_agent import SB3PolicyAgent

# OpenMP reads this when torch is loaded. Its threads otherwise wait for each other by spinning,
# which on cores shared with the client costs 71 s instead of 2.6 s for 8000 steps of CartPole-v1.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = ["Preset", "SB3Agent", "SB3PolicyAgent", "load_preset", "preset_names"]


def __getattr__(name: str) -> Any:
    if name == "SB3Agent":
        from plugrl_gym.agents.sb3.agent import SB3Agent

        return SB3Agent
    if name == "SB3PolicyAgent":
        from plugrl_gym.agents.sb3.policy_agent import SB3PolicyAgent

        return SB3PolicyAgent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
