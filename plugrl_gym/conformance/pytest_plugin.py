"""A pytest plugin: one test for each clause of SPEC.md, in anyone's CI.

::

    pytest --plugrl-server ws://127.0.0.1:8000 --plugrl-state-dim 3
    pytest --plugrl-client "./my_client 127.0.0.1 {port}" --plugrl-probe

Without one of these two options nothing is collected. The grading happens once, when the first
of the tests runs. A clause without occasion is skipped; a note is a section of a passed test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from plugrl_gym.conformance.checks import Check
    from plugrl_gym.conformance.findings import Finding
    from plugrl_gym.conformance.report import Report

__all__ = [
    "ClauseItem",
    "Grade",
    "GradedItem",
    "pytest_addoption",
    "pytest_collection_modifyitems",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, all with the prefix ``--plugrl-``."""
    group = parser.getgroup("plugrl", "PlugRL v1 conformance")
    add = group.addoption
    add("--plugrl-server", metavar="URL", help="grade the server that listens at this address")
    add("--plugrl-state-dim", type=int, metavar="N", help="as of the command: server --state-dim")
    add("--plugrl-state-key", default="obs", metavar="NAME", help="server --state-key")
    add("--plugrl-image-key", metavar="NAME", help="server --image-key")
    add("--plugrl-api-key", metavar="KEY", help="server --api-key")
    add("--plugrl-ca-file", metavar="FILE", help="server --ca-file")
    add("--plugrl-phases", default="all", metavar="NAMES", help="server --phases")
    add("--plugrl-until-stop", action="store_true", help="server --until-stop")
    add("--plugrl-feedback-timeout", type=float, metavar="SECONDS", help="server, likewise")
    add("--plugrl-client", metavar="COMMAND", help="grade the client that this command starts")
    add("--plugrl-probe", action="store_true", help="client --probe")
    add("--plugrl-scenario", default="all", metavar="NAMES", help="client --scenario")
    add("--plugrl-horizon", type=int, default=4, metavar="H", help="client --horizon")
    add("--plugrl-action-dtype", default="<f8", metavar="TYPESTR", help="client --action-dtype")
    add("--plugrl-steps", type=int, default=40, metavar="N", help="client --steps")
    add("--plugrl-action-dim", type=int, default=3, metavar="N", help="of both: --action-dim")
    add("--plugrl-timeout", type=float, metavar="SECONDS", help="of both: --timeout")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the clauses to what pytest has collected; ``-k`` and ``--deselect`` see them."""
    # tryfirst: before the selection. Items and not a file: nothing on disk stands for them.
    if config.getoption("plugrl_server"):
        items += _items(session, Grade("server", config))
    if config.getoption("plugrl_client"):
        items += _items(session, Grade("client", config))


class Grade:
    """A grading that is done once, when its report is first asked for."""

    def __init__(self, subject: Literal["client", "server"], config: pytest.Config) -> None:
        self.subject = subject
        self._option: Callable[[str], Any] = config.getoption
        self._report: Report | None = None

    def checks(self) -> tuple[Check, ...]:
        """The clauses, in the order of SPEC.md."""
        from plugrl_gym.conformance.checks import by_clause
        from plugrl_gym.conformance.client_checks import CLIENT_CHECKS
        from plugrl_gym.conformance.server_checks import SERVER_CHECKS

        table = SERVER_CHECKS if self.subject == "server" else CLIENT_CHECKS
        return tuple(by_clause(table).values())

    def report(self) -> Report:
        """Grade, unless that has been done."""
        if self._report is None:
            from plugrl_gym.conformance.report import Report
            from plugrl_gym.errors import UsageError

            try:
                grade = self._server if self.subject == "server" else self._client
                self._report = grade()
            except UsageError as error:
                self._report = Report(self.subject, self.checks())
                self._report.problem(str(error))
        return self._report

    def _server(self) -> Report:
        from plugrl_gym.conformance.server_grader import grade_server

        option = self._option
        return grade_server(
            option("plugrl_server"),
            state_dim=option("plugrl_state_dim"),
            state_key=option("plugrl_state_key"),
            image_key=option("plugrl_image_key"),
            api_key=option("plugrl_api_key"),
            ca_file=option("plugrl_ca_file"),
            action_dim=option("plugrl_action_dim"),
            phases=option("plugrl_phases"),
            until_stop=option("plugrl_until_stop"),
            timeout=option("plugrl_timeout") or 30.0,
            feedback_timeout=option("plugrl_feedback_timeout"),
        )

    def _client(self) -> Report:
        from plugrl_gym.conformance.client_grader import grade_client

        option = self._option
        return grade_client(
            option("plugrl_client"),
            probe=option("plugrl_probe"),
            scenarios=option("plugrl_scenario"),
            horizon=option("plugrl_horizon"),
            action_dim=option("plugrl_action_dim"),
            action_dtype=option("plugrl_action_dtype"),
            steps=option("plugrl_steps"),
            timeout=option("plugrl_timeout") or 60.0,
        )


class _Group(pytest.Collector):
    """Gives the items their place: ``plugrl-server::8.4``."""

    def collect(self) -> list[pytest.Item]:
        return []  # the items are made beside it, for pytest collects no collector from nowhere


def _items(session: pytest.Session, grade: Grade) -> list[pytest.Item]:
    name = f"plugrl-{grade.subject}"
    group = _Group.from_parent(session, name=name, nodeid=name)
    made: list[pytest.Item] = [GradedItem.from_parent(group, name="graded", grade=grade)]
    for check in grade.checks():
        made.append(ClauseItem.from_parent(group, name=check.clause, grade=grade, check=check))
    return made


class _Failed(Exception):
    """Carries the text of a failure; there is no traceback worth showing."""


class _Item(pytest.Item):
    """What both kinds of test share."""

    def __init__(self, *, grade: Grade, **options: Any) -> None:
        super().__init__(**options)
        self.grade = grade

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The report's own text."""
        if isinstance(excinfo.value, _Failed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)


class GradedItem(_Item):
    """Fails where the subject could not be graded, or not to the end."""

    def runtest(self) -> None:
        """Grade."""
        problems = self.grade.report().problems
        if problems:
            raise _Failed("\n".join(problems))

    def reportinfo(self) -> tuple[str, None, str]:
        """For pytest's headings."""
        return "SPEC.md", None, f"PlugRL {self.grade.subject}: can be graded"


class ClauseItem(_Item):
    """One clause."""

    def __init__(self, *, check: Check, **options: Any) -> None:
        super().__init__(**options)
        self.check = check

    def runtest(self) -> None:
        """Look up what the grading found."""
        from plugrl_gym.conformance.formats import explain

        finding = self._finding()
        if finding.result == "violated":
            raise _Failed(explain(finding))
        if finding.result == "noted":
            self.add_report_section("call", "PlugRL note", explain(finding))
            self.user_properties.append(("plugrl-note", explain(finding)))
        if finding.result == "not exercised":
            pytest.skip(finding.reason or "this run gave no occasion to check it")

    def _finding(self) -> Finding:
        findings = self.grade.report().findings
        return next(found for found in findings if found.check.clause == self.check.clause)

    def reportinfo(self) -> tuple[str, None, str]:
        """For pytest's headings."""
        return (
            "SPEC.md",
            None,
            f"PlugRL {self.grade.subject} {self.check.clause}: {self.check.rule}",
        )
