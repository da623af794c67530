"""Grades servers; :func:`grade_server` is all that others need."""

from __future__ import annotations

from plugrl_gym.conformance.server_grader.grader import PHASES, grade_server

__all__ = ["PHASES", "grade_server"]
