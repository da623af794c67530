"""Grade a client: start it once for every run, and hold up a server that misses nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from typing import Final

from plugrl_gym.conformance.client_checks import CLIENT_CHECKS
from plugrl_gym.conformance.client_grader.aftermath import (
    answer_to_fault,
    answer_to_text,
    expect_end,
    expect_return,
)
from plugrl_gym.conformance.client_grader.conversation import Conversation
from plugrl_gym.conformance.client_grader.features import FEATURES
from plugrl_gym.conformance.client_grader.link import Closing, Link, Listener
from plugrl_gym.conformance.client_grader.probe import MAX_DIM, ProbeOracle
from plugrl_gym.conformance.client_grader.process import CannotStart, ClientProcess
from plugrl_gym.conformance.client_grader.scenarios import Ending, Plan, Run, choose
from plugrl_gym.conformance.client_grader.stage import (
    Pace,
    RunOver,
    Settings,
    Stage,
    Subject,
    Unusable,
)
from plugrl_gym.conformance.report import Report
from plugrl_gym.durations import check_seconds
from plugrl_gym.errors import UsageError

__all__ = ["grade_client"]

_HOST: Final = "127.0.0.1"
_TYPESTR: Final = re.compile(r"[<>|][bui]1|[<>](?:[ui][248]|f[248])")
_MOST_PROBLEMS: Final = 3


def grade_client(
    command: str | Sequence[str],
    *,
    probe: bool = False,
    scenarios: str | Iterable[str] = "all",
    horizon: int = 4,
    action_dim: int = 3,
    action_dtype: str = "<f8",
    steps: int = 40,
    timeout: float = 60.0,
    pace: Pace | None = None,
) -> Report:
    """Start a client against a grading server, again and again, and judge what it does.

    Args:
        command: Starts the client; ``{port}``, ``{host}`` and ``{url}`` in it are replaced. A
            str is split as a shell would, without a shell.
        probe: The client runs the probe environment (SPEC 10): what it does with each action is
            checked too.
        scenarios: ``"all"``, or names of :data:`~.scenarios.SCENARIOS`.
        horizon: Steps in an action.
        action_dim: Numbers in an action of one env, where the client does not declare its
            spaces; at most 10 for a probe client.
        action_dtype: The typestr of ordinary actions; the scenario ``basic`` sends others too.
        steps: Exchanges (infer, action, feedback) of a full run, at least 4.
        timeout: How long the client may be silent, in seconds.
        pace: The grading server's own times.

    Returns:
        What was seen, clause by clause.

    Raises:
        UsageError: An argument makes no sense.

    Example:
        >>> from plugrl_gym.conformance.client_grader import grade_client
        >>> report = grade_client("./my_client 127.0.0.1 {port}", scenarios="basic")
        >>> report.exit_code
        0
    """
    settings = Settings(
        command, probe, horizon, action_dim, action_dtype, steps, timeout, pace or Pace()
    )
    _check(settings)
    runs = choose(scenarios)
    target = command if isinstance(command, str) else " ".join(command)
    report = Report("client", CLIENT_CHECKS, target)
    subject = Subject()
    for run in runs:
        if run.needs == "integers" and not (
            subject.action_space is not None and subject.action_space.is_discrete
        ):
            continue
        try:
            _perform(report, settings, subject, run)
        except Unusable:
            break
        if subject.problems >= _MOST_PROBLEMS:
            report.problem(f"{subject.problems} runs could not be finished; the rest is left out")
            break
    _explain(report, settings)
    return report


def _check(settings: Settings) -> None:
    check_seconds(timeout=settings.timeout, positive=True)
    if settings.horizon < 1 or settings.dim < 1 or settings.steps < 4:
        raise UsageError("horizon and action_dim are at least 1, steps at least 4")
    if _TYPESTR.fullmatch(settings.typestr) is None:
        raise UsageError(f"action_dtype {settings.typestr!r} is no numeric typestr such as '<f4'")
    if settings.probe and settings.dim > MAX_DIM:
        raise UsageError(f"the probe's actions have at most {MAX_DIM} numbers, not {settings.dim}")


def _explain(report: Report, settings: Settings) -> None:
    """Tell why clauses had no occasion."""
    if not settings.probe:
        probe = ("6.4.21", "6.4.22", "6.4.23", "6.4.24", "6.5.9", "6.5.12", "6.5.14", "6.5.15")
        report.skip("seen of clients that run the probe environment", *probe)
        report.skip(
            "seen of clients that run the probe environment",
            *("4.9", "8.37", "8.41", "8.43", "8.44"),
            *(f"10.{number}" for number in range(1, 9)),
        )


def _perform(report: Report, settings: Settings, subject: Subject, run: Run) -> None:
    """One start of the client."""
    listener = Listener(_HOST)
    try:
        process = ClientProcess(settings.command, _HOST, listener.port)
    except CannotStart as error:
        listener.stop()
        report.problem(str(error))
        raise Unusable from None
    stage = Stage(report, settings, subject, run, listener, process)
    if settings.probe:
        stage.oracle = ProbeOracle(settings.dim, subject.reading)
    try:
        _go_through(stage)
    except Unusable:
        raise
    except RunOver:
        pass
    finally:
        process.end()
        listener.stop()


def _go_through(stage: Stage) -> None:
    """All connections of a run, and the client's end."""
    plans = stage.run.plans
    named: set[int] = set()
    waits: list[float] = []
    for number, plan in enumerate(plans):
        began = time.monotonic()
        link = _connect(stage, plan, plans[number - 1].ending if number else None)
        waits.append(time.monotonic() - began)
        if plan.ending.when == "handshake":
            break
        conversation = Conversation(stage, link, plan, number)
        closing = conversation.hold()
        named |= conversation.named
        _after(stage, link, plan.ending, closing)
    if len(plans) > 3:
        _see_waits(stage, waits[1:])
    _see_indices(stage, named)
    _see_unused(stage)
    expect_end(stage, plans[-1].ending)


def _after(stage: Stage, link: Link, ending: Ending, closing: Closing | None) -> None:
    """What the client owes on the connection that the grader ended."""
    if ending.kind == "text":
        answer_to_text(stage, link, ending)
    elif ending.fault:
        answer_to_fault(stage, link, ending)
    elif ending.kind == "stop" and closing is not None:
        expected = "a close frame in answer"
        stage.observe("8.36", closing.code is not None, ending.words, expected, f"it {closing}")
    link.discard()


def _connect(stage: Stage, plan: Plan, former: Ending | None) -> Link:
    """The client's next connection."""
    if former is not None:
        link = expect_return(stage, former)
    elif plan.ending.when == "handshake":
        link = _first(stage, refuse=True)
    else:
        link = _first(stage, refuse=False)
    _see_handshake(stage, link)
    return link


def _first(stage: Stage, refuse: bool) -> Link:
    def unauthorized(link: Link) -> bool:
        link.reject(401, "missing or wrong API key")
        return True

    found = stage.next_link(unauthorized if refuse else None)
    if isinstance(found, Link):
        stage.observe("2.1", True, None, None, None)
        return found
    if stage.strangers:
        expected = "a WebSocket handshake (RFC 6455)"
        stage.observe("2.1", False, "nothing yet", expected, stage.strangers[0])
        raise Unusable
    try:
        if found is None:
            limit = stage.settings.timeout
            stage.problem(f"the client did not connect to {_url(stage)} within {limit:g} s")
        stage.problem(f"the client exited with status {found} before it connected to {_url(stage)}")
    except RunOver:
        raise Unusable from None


def _url(stage: Stage) -> str:
    return f"ws://{_HOST}:{stage.listener.port}"


def _see_handshake(stage: Stage, link: Link) -> None:
    offered = ", ".join(link.headers.get_all("Sec-WebSocket-Extensions"))
    ok = "permessage-deflate" not in offered
    stage.observe("2.6", ok, None, "no permessage-deflate", offered)


def _see_waits(stage: Stage, waits: list[float]) -> None:
    """Whether a client that is turned away again and again takes its time (8.35)."""
    hurry = stage.settings.pace.hurry
    got = f"waited {', '.join(f'{wait:.3f}' for wait in waits)} s"
    stage.observe("8.35", max(waits) > hurry, "close after close", "longer and longer waits", got)


def _see_indices(stage: Stage, named: set[int]) -> None:
    """Once a full run is over, the client has named all its envs."""
    if stage.run.title != "basic" or not named:
        return
    dense = sorted(named) == list(range(len(named)))
    got = sorted(named)[:16]
    stage.observe("5.17", dense, None, "0, 1, 2, … without gaps", got)
    if stage.settings.probe:
        stage.observe("10.1", dense, None, "0 to n - 1", got)


def _see_unused(stage: Stage) -> None:
    """Features that a whole run offered (9.1.3 lets a client leave them alone)."""
    offered = {feature for plan in stage.run.plans for feature in plan.features}
    if not offered or stage.run.plans[-1].ending.kind != "stop":
        return
    unused = [feature for feature in FEATURES if feature in offered - stage.used]
    stage.observe("9.1.3", not unused, f"an offer of {sorted(offered)}", "to use them", unused)
