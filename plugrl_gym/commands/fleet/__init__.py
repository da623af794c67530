"""Several client processes on one machine, shown as one table."""

from __future__ import annotations

from plugrl_gym.commands.fleet.command_lines import command_lines, environment
from plugrl_gym.commands.fleet.fleet import Fleet

__all__ = ["Fleet", "command_lines", "environment"]
