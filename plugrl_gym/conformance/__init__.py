"""Grades any PlugRL v1 client or server against SPEC.md.

From a shell: ``python -m plugrl_gym.conformance client|server --help``. In anyone's CI: the pytest
plugin (``pytest --plugrl-server URL``). From Python:

    >>> from plugrl_gym.conformance import grade_server
    >>> report = grade_server("ws://127.0.0.1:1", timeout=1)
    >>> report.exit_code, report.problems
    (1, ['nothing listens at ws://127.0.0.1:1: connection refused'])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugrl_gym.conformance.checks import Check, Severity
    from plugrl_gym.conformance.client_grader import grade_client
    from plugrl_gym.conformance.findings import Finding
    from plugrl_gym.conformance.report import Report
    from plugrl_gym.conformance.server_grader import grade_server

__all__ = ["Check", "Finding", "Report", "Severity", "grade_client", "grade_server"]

_HOMES = {
    "Check": "checks",
    "Finding": "findings",
    "Report": "report",
    "Severity": "checks",
    "grade_client": "client_grader",
    "grade_server": "server_grader",
}


def __getattr__(name: str) -> Any:
    # The pytest plugin lives in this package and is loaded by every pytest run: import late.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
