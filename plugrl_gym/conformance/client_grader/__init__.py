"""Grades a client: :func:`grade_client`."""

from __future__ import annotations

from plugrl_gym.conformance.client_grader.grader import grade_client
from plugrl_gym.conformance.client_grader.scenarios import SCENARIOS
from plugrl_gym.conformance.client_grader.stage import Pace

__all__ = ["SCENARIOS", "Pace", "grade_client"]
