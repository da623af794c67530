"""Grades a server by talking to it."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from typing import Final
from urllib.parse import urlsplit

from plugrl_gym.conformance.report import Report
from plugrl_gym.conformance.server_checks import SERVER_CHECKS
from plugrl_gym.conformance.server_grader.cases import Case, Phase
from plugrl_gym.conformance.server_grader.contact import first_contact
from plugrl_gym.conformance.server_grader.ends import LIVENESS, SHUTDOWN, STOP
from plugrl_gym.conformance.server_grader.errors import ERRORS
from plugrl_gym.conformance.server_grader.exchange import EXCHANGE
from plugrl_gym.conformance.server_grader.features import FEATURES
from plugrl_gym.conformance.server_grader.grading import (
    CannotGrade,
    CaseOver,
    Grading,
    Options,
    RunOver,
)
from plugrl_gym.conformance.server_grader.reuse import REUSE
from plugrl_gym.conformance.server_grader.scene import Scene
from plugrl_gym.conformance.server_grader.scoping import SCOPING
from plugrl_gym.conformance.server_grader.spaces import SPACES
from plugrl_gym.durations import check_seconds
from plugrl_gym.errors import UsageError
from plugrl_gym.trust import tls_context

__all__ = ["PHASES", "grade_server"]

#: In the order in which they run; what ends the server comes last.
PHASES: Final = (
    EXCHANGE,
    SCOPING,
    REUSE,
    SPACES,
    FEATURES,
    ERRORS,
    LIVENESS,
    STOP,
    SHUTDOWN,
)


def grade_server(
    url: str,
    *,
    state_dim: int | None = None,
    state_key: str = "obs",
    image_key: str | None = None,
    api_key: str | None = None,
    ca_file: str | PathLike[str] | None = None,
    action_dim: int = 3,
    phases: str | Iterable[str] = "all",
    until_stop: bool = False,
    until_shutdown: bool = False,
    timeout: float = 30.0,
    feedback_timeout: float | None = None,
    stop_timeout: float = 600.0,
    progress: Callable[[str], None] = lambda scenario: None,
) -> Report:
    """Drive a server as SPEC.md lets clients behave, and misbehave, and say what it makes of it.

    Args:
        url: Where it listens, as ``ws://127.0.0.1:8000``.
        state_dim: Numbers in the state that its policy reads; None if it reads none.
        state_key: The name of that state.
        image_key: The name of the 64 x 64 x 3 image that its policy reads; None if it reads none.
        api_key: The key that it requires.
        ca_file: For ``wss://``: a PEM file with the certificates to trust, of an authority or its
            own; None for those that the system trusts.
        action_dim: Elements of an action, for servers that do not declare it.
        phases: ``"all"``, or phases by name; ``"errors:*dtype*"`` selects cases of a phase.
        until_stop: Go on until the server ends the run, and grade the end; else it is left
            running.
        until_shutdown: Go on until its operator stops it, and grade that.
        timeout: Seconds to wait for any one reply.
        feedback_timeout: The limit of SPEC 8.8 that it was started with; None leaves that
            unexercised.
        stop_timeout: Seconds after which a server that does not end is given up.
        progress: Told what is going on, again and again.

    Returns:
        What was found. Nothing is raised for what the server does.

    Raises:
        UsageError: An argument makes no sense.

    Example:
        >>> report = grade_server("ws://127.0.0.1:8000", state_dim=3)  # doctest: +SKIP
        >>> print(report.to_text())  # doctest: +SKIP
    """
    _check_usage(url, timeout, feedback_timeout, stop_timeout, state_dim, action_dim)
    selected = list(_select(phases))
    options = Options(
        url=url,
        scene=Scene.of(state_dim, state_key, image_key),
        api_key=api_key,
        trust=tls_context(url, ca_file),
        action_dim=action_dim,
        timeout=timeout,
        feedback_timeout=feedback_timeout,
        stop_timeout=stop_timeout,
        until_stop=until_stop,
        until_shutdown=until_shutdown,
    )
    report = Report("server", SERVER_CHECKS, url)
    _run(Grading(options, report, progress), selected)
    return report


def _check_usage(
    url: str,
    timeout: float,
    feedback_timeout: float | None,
    stop_timeout: float,
    state_dim: int | None,
    action_dim: int,
) -> None:
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("ws", "wss") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        fits = False
    if not fits:
        raise UsageError(f"{url!r} is no server address: expected ws://HOST:PORT")
    check_seconds(timeout=timeout, stop_timeout=stop_timeout, positive=True)
    check_seconds(feedback_timeout=feedback_timeout, positive=True, none=True)
    for name, size in (("state", state_dim), ("action", action_dim)):
        if size is not None and size < 1:
            raise UsageError(f"the {name} must have at least one dimension, got {size}")


def _select(phases: str | Iterable[str]) -> Iterator[tuple[Phase, tuple[Case, ...]]]:
    """The phases with those of their cases that were asked for.

    Raises:
        UsageError: There is no such phase or case.
    """
    words = phases.split(",") if isinstance(phases, str) else list(phases)
    wanted: dict[str, list[str]] = {}
    for word in words:
        name, _, pattern = word.strip().partition(":")
        if name != "all" and name not in {phase.name for phase in PHASES}:
            known = ", ".join(phase.name for phase in PHASES)
            raise UsageError(f"there is no phase {name!r}; choose from all, {known}")
        names = [phase.name for phase in PHASES] if name == "all" else [name]
        for each in names:
            wanted.setdefault(each, []).append(pattern or "*")
    found = False
    for phase in PHASES:
        patterns = wanted.get(phase.name, [])
        cases = tuple(
            case
            for case in phase.cases
            if any(fnmatch.fnmatch(case.name, pattern) for pattern in patterns)
        )
        found = found or bool(cases)
        if cases:
            yield phase, cases
    if not found:
        raise UsageError(f"no case matches {', '.join(words)!r}")


def _run(grading: Grading, selected: list[tuple[Phase, tuple[Case, ...]]]) -> None:
    report, case_name = grading.report, "first contact"
    try:
        grading.progress(case_name)
        first_contact(grading)
        for phase in PHASES:
            if phase not in [chosen for chosen, _ in selected]:
                report.skip("needs a phase that --phases leaves out", *phase.clauses)
        for phase, cases in selected:
            reason = phase.absent(grading)
            if reason:
                report.skip(reason, *phase.clauses)
                continue
            for case in cases:
                grading.scenario = case_name = f"{phase.name}: {case.name}"
                grading.progress(case_name)
                _run_case(grading, case)
    except CannotGrade as error:
        report.problem(str(error))
    except CaseOver:
        report.problem("the first exchange failed, as the violations say; nothing else was tried")
    except RunOver:
        if not grading.ending:
            report.skip(
                f"the server ended the run during “{case_name}”; start it for more steps",
                *(finding.check.clause for finding in report.not_exercised),
            )


def _run_case(grading: Grading, case: Case) -> None:
    try:
        case.run(grading)
    except CaseOver:
        return  # observed; the next case makes a connection of its own
