"""The server grader against the reference server, and against what is no PlugRL server."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from plugrl_gym.conformance import Report, grade_server
from plugrl_gym.conformance.server_grader import PHASES
from plugrl_gym.conformance.server_grader.errors import delays_grow
from plugrl_gym.conformance.server_grader.grading import Grading, Options
from plugrl_gym.conformance.server_grader.scene import Scene
from plugrl_gym.conformance.server_grader.visitor import Visitor
from plugrl_gym.errors import UsageError
from tests.conformance import strangers
from tests.support.programs import reference_server

TIMEOUT = 10.0  # of a reply; only a broken grader, or a machine far too slow, ever waits so long


def grade(*options: str, **arguments: Any) -> Report:
    """Grade a reference server that is started with ``options``."""
    with reference_server(*options) as (_, port):
        return grade_server(f"ws://127.0.0.1:{port}", **{"timeout": TIMEOUT, **arguments})


def assert_clean(report: Report) -> None:
    assert report.exit_code == 0, report.to_text()
    assert report.notes == [], report.to_text()


def unexercised(report: Report) -> dict[str, str]:
    return {found.check.clause: found.reason for found in report.not_exercised}


# ----------------------------------------------------------------------- the reference server

#: What the reference server has no occasion to say or do; its bugs do.
NEVER_SAID = {"4.22", "4.28", "4.30", "4.31", "4.32", "6.4.11", "6.4.12", "6.4.14", "8.12"}


@pytest.fixture(scope="module")
def full() -> Report:
    """The server as the issue grades it, with all that can be switched on."""
    return grade(
        "--steps", "1500", "--feedback-timeout", "5",
        state_dim=3, until_stop=True, feedback_timeout=5.0,
    )  # fmt: skip


def test_reference_server_has_no_violation(full: Report) -> None:
    assert_clean(full)


def test_reference_server_exercises_all_but_what_it_cannot(full: Report) -> None:
    assert unexercised(full).keys() == NEVER_SAID | {"2.12", "6.2.9", "8.14"}


def test_every_clause_is_looked_at_in_some_scenario(full: Report) -> None:
    assert sum(found.passed for found in full.findings) > 10_000


@pytest.mark.parametrize(
    ("server", "grader"),
    [
        (["--horizon", "1", "--action-dim", "1"], {}),
        (["--horizon", "7", "--action-dim", "10"], {"image_key": "camera/front", "state_dim": 4}),
        pytest.param([], {"state_key": "a/b~1c", "state_dim": 2}, marks=pytest.mark.full),
        pytest.param([], {"image_key": "obs"}, marks=pytest.mark.full),
    ],
    ids=["smallest", "image-and-state", "nested-name", "image-alone"],
)
def test_reference_server_passes_in_other_configurations(
    server: list[str], grader: dict[str, Any]
) -> None:
    assert_clean(grade("--steps", "1500", *server, **grader))


def test_grading_leaves_the_server_running() -> None:
    with reference_server("--steps", "1500") as (_, port):
        for _ in range(2):
            assert_clean(grade_server(f"ws://127.0.0.1:{port}", timeout=TIMEOUT, phases="scoping"))


@pytest.mark.parametrize(
    "steps",
    [35, 152, 300, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, 430, 10))],
)
def test_run_that_ends_under_the_grader_is_no_violation(steps: int) -> None:
    report = grade("--steps", str(steps), until_stop=True)
    assert_clean(report)
    assert "start it for more steps" in unexercised(report)["8.8"]
    passed = {found.check.clause for found in report.findings if found.passed}
    assert {"8.1", "8.2"} <= passed


def test_key_is_sent_and_asked_for() -> None:
    report = grade("--api-key", "secret", api_key="secret", phases="exchange:keys*")
    assert_clean(report)
    assert next(f.passed for f in report.findings if f.check.clause == "2.12") == 2


def test_missing_key_is_a_problem_that_names_the_option() -> None:
    (problem,) = grade("--api-key", "secret").problems
    assert "pass --api-key" in problem


def test_unused_key_is_no_violation() -> None:
    report = grade(api_key="whatever", phases="exchange:keys*")
    assert_clean(report)
    assert unexercised(report)["2.12"] == "the server requires no key"


def test_wrong_observation_is_a_problem_that_names_the_option() -> None:
    (problem,) = grade("--bug", "needs-state", image_key="camera").problems
    assert "images['camera'] [n, 64, 64, 3]" in problem
    assert "--state-dim" in problem


def test_shutdown_is_graded_when_asked_for() -> None:
    with reference_server("--steps", "1000000") as (server, port):

        def stop(scenario: str) -> None:
            if scenario.endswith("exchanging"):
                server.process.send_signal(signal.SIGTERM)

        report = grade_server(
            f"ws://127.0.0.1:{port}",
            phases="shutdown",
            until_shutdown=True,
            timeout=TIMEOUT,
            progress=stop,
        )
    assert_clean(report)
    assert next(f.passed for f in report.findings if f.check.clause == "8.14") == 3


def test_server_that_does_not_stop_is_given_up() -> None:
    report = grade("--steps", "1000000", phases="stop", until_stop=True, stop_timeout=0.2)
    assert report.violations == []
    assert "did not end the run within 0.2 s" in report.problems[0]


def test_discrete_server_is_graded_with_discrete_spaces() -> None:
    report = grade("--bug", "ignores-start", phases="exchange,spaces:a Discrete*")
    passed = {found.check.clause for found in report.findings if found.passed}
    assert "6.4.11" in passed
    assert {found.check.clause for found in report.violations} == {"6.4.12", "9.3.13"}


def test_server_that_waits_for_all_clients_is_graded_with_a_note() -> None:
    report = grade("--bug", "stalls-on-silent", "--steps", "1500", timeout=5.0)
    assert report.exit_code == 0, report.to_text()
    assert [found.check.clause for found in report.notes] == ["7.3"]
    assert "7.3" in unexercised(report)["8.15"]


# ---------------------------------------------------------------------------------- selection


def test_phases_select_what_runs() -> None:
    seen: list[str] = []
    grade(phases="reuse, errors:*NaN*", progress=seen.append)
    assert {scenario.partition(":")[0] for scenario in seen} == {"first contact", "reuse", "errors"}
    assert [s for s in seen if s.startswith("errors")] == ["errors: NaN in an observation"]


def test_every_case_has_a_name_of_its_own() -> None:
    for phase in PHASES:
        names = [case.name for case in phase.cases]
        assert len(names) == len(set(names))


def test_phase_without_occasion_says_why() -> None:
    report = grade(phases="liveness,stop,shutdown")
    assert "--feedback-timeout" in unexercised(report)["8.8"]
    assert "--until-stop" in unexercised(report)["8.1"]
    assert "--until-shutdown" in unexercised(report)["8.14"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"url": "http://127.0.0.1:1"}, "no server address"),
        ({"url": "127.0.0.1:8000"}, "no server address"),
        ({"url": "ws://127.0.0.1:port"}, "no server address"),
        ({"url": "ws://127.0.0.1:99999"}, "no server address"),
        ({"phases": "everything"}, "no phase 'everything'"),
        ({"phases": "errors:no such case"}, "no case matches"),
        ({"phases": ""}, "no phase ''"),
        ({"timeout": 0}, "timeout: expected seconds above 0, got 0"),
        ({"timeout": float("nan")}, "timeout: expected seconds above 0, got nan"),
        (
            {"feedback_timeout": -1.0},
            "feedback_timeout: expected seconds above 0 or None, got -1.0",
        ),
        ({"state_dim": 0}, "at least one dimension"),
        ({"action_dim": -3}, "at least one dimension"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        grade_server(**{"url": "ws://127.0.0.1:1", **arguments})


# ---------------------------------------------------------------------------------- strangers


def assert_problem(url: str, sentence: str, timeout: float = 5.0) -> Report:
    start = time.monotonic()
    report = grade_server(url, timeout=timeout)
    assert time.monotonic() - start < timeout + 20
    assert report.exit_code == 1
    assert len(report.problems) == 1
    assert sentence in report.problems[0]
    assert url in report.problems[0] or "server" in report.problems[0]
    return report


def test_nothing_listens() -> None:
    port = strangers.free_port()
    assert_problem(f"ws://127.0.0.1:{port}", "connection refused")


def test_host_is_unknown() -> None:
    assert_problem("ws://no-such-host.invalid:8000", "is unknown")


def test_web_server() -> None:
    with strangers.web_server() as url:
        assert_problem(url, "plain HTTP server")


def test_socket_that_says_nothing() -> None:
    with strangers.plain_socket(b"") as url:
        assert_problem(url, "did not complete a WebSocket handshake within 0.5 s", timeout=0.5)


def test_socket_that_speaks_another_protocol() -> None:
    with strangers.plain_socket(b"SSH-2.0-OpenSSH_9.6\r\n") as url:
        assert_problem(url, "is no WebSocket server: it speaks first, and says b'SSH-2.0")


def test_websocket_that_never_speaks() -> None:
    with strangers.websocket(strangers.silent) as url:
        report = assert_problem(url, "sends nothing for 3 s", timeout=3.0)
    assert [found.check.clause for found in report.violations] == ["5.3"]


def test_openpi_server() -> None:
    with strangers.websocket(strangers.openpi) as url:
        report = assert_problem(url, "seems to speak openpi's protocol")
    assert report.violations == []


def test_websocket_of_another_application() -> None:
    with strangers.websocket(strangers.chatty) as url:
        assert_problem(url, "its first frame is no msgpack map")


def test_websocket_that_closes_at_once() -> None:
    with strangers.websocket(strangers.brusque) as url:
        assert_problem(url, "the close 1013 with the reason 'try again later'")


def test_server_that_answers_nothing() -> None:
    with strangers.websocket(strangers.deaf) as url:
        report = assert_problem(url, "answers no infer", timeout=3.0)
    assert [found.check.clause for found in report.violations] == ["5.7"]


def test_server_that_sends_garbage_is_graded_all_the_same() -> None:
    with strangers.websocket(strangers.babbling) as url:
        report = grade_server(url, timeout=TIMEOUT, phases="exchange:any*")
    assert "3.1" in {found.check.clause for found in report.violations}


def test_server_that_vanishes_is_a_problem() -> None:
    with reference_server("--steps", "100000") as (server, port):

        def kill(scenario: str) -> None:
            if scenario.startswith("scoping"):
                server.process.kill()
                server.process.wait()

        report = grade_server(f"ws://127.0.0.1:{port}", timeout=TIMEOUT, progress=kill)
    assert report.exit_code == 1
    assert "has gone between two connections" in report.problems[0]


class SleepyPeer:
    """A server whose process stalls, and goes on just before a pong."""

    def __init__(self) -> None:
        self.frames = [b"more", b"and more"]
        self.awake = False

    def receive(self, seconds: float) -> bytes | None:
        return self.frames.pop() if self.awake and self.frames else None

    def ping(self) -> SleepyPeer:
        return self

    def answered(self, seconds: float) -> bool:
        self.awake = True
        return True


def test_frames_too_many_of_a_server_that_stalls_are_noticed() -> None:
    peer: Any = SleepyPeer()
    grading = Grading(
        Options("ws://127.0.0.1:1", Scene.of(None, "obs", None)), Report("server", ())
    )
    assert Visitor(grading, peer, None).extras(0.0) == 2


@pytest.mark.parametrize(
    ("delays", "grow"),
    [
        ([0.1, 0.2, 0.4], True),
        ([0.05, 0.1, 0.2], True),
        ([0.5, 1.0], False),
        ([0.01, 0.02, 0.04], False),  # less than chance makes
        ([0.003, 0.005, 0.009, 0.017, 0.057, 0.069, 0.212, 0.264], True),  # on a busy machine
        ([0.5] * 12, False),
        ([1.5, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256], True),  # a hiccup at first
        ([0.001, 0.001, 0.002, 1.5], False),  # and one that is no growth
        ([0.001, 0.001, 0.002, 0.004, 1.5, 0.002], False),
        ([0.01, 0.2, 0.05, 0.1, 0.02, 0.15, 0.03, 0.2, 0.1, 0.05, 0.2, 0.1], False),
    ],
)
def test_delays_grow(delays: list[float], grow: bool) -> None:
    assert delays_grow(delays) is grow
