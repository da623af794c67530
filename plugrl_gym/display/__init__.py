"""Showing how far something is: one live line, drawn where people look.

Knows nothing of envs, servers or commands: these make a :class:`Reading` now and then, and a
:class:`Reporter` shows it on a surface.
"""

from __future__ import annotations

from plugrl_gym.display.pace import Pace, Pause
from plugrl_gym.display.reading import Reading
from plugrl_gym.display.reporter import Reporter
from plugrl_gym.display.surfaces import Bar, Lines, Surface, user_surface
from plugrl_gym.display.terminal import coloured, in_notebook, is_live

__all__ = [
    "Bar",
    "Lines",
    "Pace",
    "Pause",
    "Reading",
    "Reporter",
    "Surface",
    "coloured",
    "in_notebook",
    "is_live",
    "user_surface",
]
