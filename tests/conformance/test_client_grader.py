"""The client grader: conforming clients pass, and each deliberate mistake is named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from plugrl_gym.conformance import grade_client
from plugrl_gym.conformance.client_checks import CLIENT_CHECKS
from plugrl_gym.conformance.client_grader import SCENARIOS, Pace
from plugrl_gym.conformance.report import Report
from plugrl_gym.errors import UsageError
from tests.conformance.client_mutations import CLIENT, MUTATIONS, Mutation

sys.path.insert(0, str(CLIENT.parent))

import rare_bugs
import raw_client_bugs
import zoo_client

#: A grading server in a hurry, where a busy machine lets it be; its patience with the client is
#: another matter (timeout).
PACE = Pace(greeting=0.05, late=4.0, stall=5.0, ping=0.1, pong=4.0)
WORKERS = 2

CLAUSES = {check.clause for check in CLIENT_CHECKS}
#: Seen of clients with other spaces than the probe's, or that send typed scalars.
ZOO_ONLY = {
    *("4.30", "4.31", "4.32", "6.4.13", "6.4.16", "6.4.17", "9.3.8", "9.3.15", "9.3.16"),
    *("9.3.18", "9.3.19", "9.3.20", "9.3.21", "9.3.24", "9.3.25"),
}


def grade(command: str | list[str], **settings: Any) -> Report:
    """Grade at the tests' pace."""
    defaults: dict[str, Any] = {"steps": 16, "timeout": 20.0, "pace": PACE}
    return grade_client(command, **{**defaults, **settings})


def client(*options: str) -> list[str]:
    """The raw client, with the zoo's options."""
    return [sys.executable, str(CLIENT), "{host}", "{port}", *options]


def named(report: Report) -> set[str]:
    """All clauses that a report says something against."""
    return {finding.check.clause for finding in (*report.violations, *report.notes)}


def unseen(report: Report) -> set[str]:
    """The clauses that a report did not look at."""
    return {finding.check.clause for finding in report.not_exercised}


# ---------------------------------------------------------------- a few at a time


@pytest.fixture(scope="module")
def farm(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Report]]]:
    """The reports of all selected tests that want one, by the test's id."""
    with ThreadPoolExecutor(WORKERS) as pool:
        yield {
            item.nodeid: pool.submit(JOBS[item.originalname or item.name], **_parameters(item))
            for item in request.session.items
            if isinstance(item, pytest.Function)
            and item.module is request.module
            and "report" in item.fixturenames
        }
        pool.shutdown(cancel_futures=True)


def _parameters(item: pytest.Function) -> dict[str, Any]:
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


@pytest.fixture
def report(request: pytest.FixtureRequest, farm: dict[str, Future[Report]]) -> Report:
    """What the grader says of the client that the test is about."""
    return farm[request.node.nodeid].result()


# ---------------------------------------------------------------- clients that conform


def grade_raw_client() -> Report:
    return grade(client("--features", "all", "--num-envs", "5"), probe=True)


def grade_rollout() -> Report:
    command = f"{sys.executable} -m plugrl_gym.rollout --probe --url {{url}} --num-envs 5"
    return grade(command, probe=True)


COMPILER = shutil.which("g++") or shutil.which("clang++")


def grade_other_language() -> Report:
    assert COMPILER is not None
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "probe_client"
        source = CLIENT.with_name("probe_client.cpp")
        options = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([COMPILER, *options, "-o", program, source], check=True, timeout=110)
        return grade([str(program), "{host}", "{port}", "--num-envs", "4"], probe=True)


@pytest.mark.timeout(900)
def test_raw_client_passes_every_scenario(report: Report) -> None:
    assert report.exit_code == 0, report.to_text()
    assert named(report) == set(), report.to_text()
    assert unseen(report) == ZOO_ONLY


@pytest.mark.timeout(900)
def test_rollout_command_passes_every_scenario(report: Report) -> None:
    assert report.exit_code == 0, report.to_text()
    assert named(report) == set(), report.to_text()
    assert unseen(report) == ZOO_ONLY


@pytest.mark.timeout(900)
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_client_in_another_language_passes_every_scenario(report: Report) -> None:
    assert report.exit_code == 0, report.to_text()
    assert named(report) == {"9.1.3"}, report.to_text()


LEGAL: Mapping[str, tuple[list[str], dict[str, Any], set[str]]] = {
    "one env": (["--num-envs", "1"], {}, {"9.1.3"}),
    "many envs": (["--num-envs", "60", "--features", "all"], {"steps": 8}, set()),
    "prefixes": (["--run", "2", "--features", "all"], {}, set()),
    "horizon 1": (["--features", "all"], {"horizon": 1}, set()),
    "horizon 20": (["--features", "all"], {"horizon": 20, "action_dim": 10}, set()),
    "one number": (["--features", "all"], {"action_dim": 1}, set()),
    "integers": (["--features", "all"], {"action_dtype": ">i4"}, set()),
    "half floats": (["--features", "all"], {"action_dtype": "<f2"}, set()),
    "bools": (["--features", "all"], {"action_dtype": "|b1"}, set()),
    "one feature": (["--features", "gym-chunk-steps"], {}, {"9.1.3"}),
    "not a probe client": (["--features", "all"], {"probe": False}, {"9.1.3"}),
    "slow steps": (["--slow-step", "0.02"], {"steps": 6}, {"9.1.3"}),
    **{
        bug: (["--features", "all", "--bug", bug], {}, set())
        for bug in rare_bugs.LEGAL
        if bug != "far-indices"
    },
    "far-indices": (["--bug", "far-indices"], {"probe": False}, {"5.17", "9.1.3"}),
}


def grade_legal(name: str, scenarios: str = "basic/,resync/,features/all") -> Report:
    """Grade one of the clients that do nothing wrong."""
    options, settings, _ = LEGAL[name]
    return grade(client(*options), **{"probe": True, "scenarios": scenarios, **settings})


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LEGAL)
def test_conforming_client_is_not_blamed(name: str, report: Report) -> None:
    assert report.exit_code == 0, report.to_text()
    assert named(report) == LEGAL[name][2], report.to_text()


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LEGAL)
def test_conforming_client_is_not_blamed_in_any_scenario(name: str, report: Report) -> None:
    assert report.exit_code == 0, report.to_text()
    assert named(report) <= LEGAL[name][2] | {"9.1.3"}, report.to_text()


def grade_zoo(kind: str) -> Report:
    """Grade a client whose observation has every kind of leaf."""
    options = ["--features", "all", "--zoo", kind]
    return grade(client(*options), scenarios="spaces,basic/varied answers,reuse,errors/fraction")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["box", "discrete", "multi"])
def test_client_with_every_kind_of_space_is_not_blamed(kind: str, report: Report) -> None:
    assert report.exit_code == 0, report.to_text()
    assert named(report) == set(), report.to_text()
    assert not unseen(report) & {"9.3.8", "9.3.15", "9.3.16", "9.3.18", "9.3.19", "9.3.20"}
    if kind == "discrete":
        assert not unseen(report) & {"6.4.13", "6.4.16", "6.4.17", "9.3.21", "9.3.24", "9.3.25"}


# ---------------------------------------------------------------- the mutation table


def test_every_bug_is_in_the_table() -> None:
    bugs = {*raw_client_bugs.BUGS, *rare_bugs.RARE, *zoo_client.ZOO}
    assert {mutation.bug for mutation in MUTATIONS} - {""} == bugs


def test_every_check_is_failed_by_a_bug() -> None:
    assert set().union(*(mutation.clauses for mutation in MUTATIONS)) == CLAUSES


def grade_mutation(mutation: Mutation, scenarios: str | None = None) -> Report:
    """Grade one mistake, where it shows unless told otherwise."""
    return grade(
        mutation.command,
        probe=mutation.probe,
        scenarios=scenarios or mutation.runs,
        timeout=mutation.timeout,
        pace=replace(PACE, **mutation.pace),
    )


IDS = [mutation.bug or "features unused" for mutation in MUTATIONS]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=IDS)
def test_mutation_is_named_by_the_clauses_it_breaks(mutation: Mutation, report: Report) -> None:
    assert named(report) == mutation.clauses, report.to_text()
    assert bool(report.problems) == mutation.problem, report.to_text()


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=IDS)
def test_mutation_is_caught_by_the_whole_suite(mutation: Mutation, report: Report) -> None:
    assert named(report) >= mutation.clauses, report.to_text()


JOBS: Mapping[str, Callable[..., Report]] = {
    "test_raw_client_passes_every_scenario": grade_raw_client,
    "test_rollout_command_passes_every_scenario": grade_rollout,
    "test_client_in_another_language_passes_every_scenario": grade_other_language,
    "test_conforming_client_is_not_blamed": grade_legal,
    "test_conforming_client_is_not_blamed_in_any_scenario": partial(grade_legal, scenarios="all"),
    "test_client_with_every_kind_of_space_is_not_blamed": grade_zoo,
    "test_mutation_is_named_by_the_clauses_it_breaks": grade_mutation,
    "test_mutation_is_caught_by_the_whole_suite": partial(grade_mutation, scenarios="all"),
}


# ---------------------------------------------------------------- clients that cannot be graded


def python(code: str) -> list[str]:
    """A client that is a line of Python."""
    return [sys.executable, "-c", code, "{port}"]


CONNECT = "import socket, sys, time; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"

UNUSABLE = {
    "not found": ("./no-such-client {port}", "cannot be run"),
    "empty": ("", "empty"),
    "quotes": ("client 'unclosed", "cannot be read"),
    "dies at once": (python("raise SystemExit('no licence')"), "exited with status 1 before"),
    "ends at once": (python("pass"), "exited with status 0 before"),
    "is killed": (python("import os; os.kill(os.getpid(), 9)"), "exited with status -9 before"),
    "never connects": (python("import time; time.sleep(60)"), "did not connect"),
    "prints for ever": (
        python("import time\nwhile True: print('x' * 1000), time.sleep(0.001)"),
        "did not connect",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_command_that_never_connects_is_a_problem(name: str) -> None:
    command, sentence = UNUSABLE[name]
    timeout = 5.0 if sentence == "did not connect" else 20.0  # the others do not wait for it
    began = time.monotonic()
    report = grade(command, scenarios="all", timeout=timeout)
    assert time.monotonic() - began < 25
    assert report.exit_code == 1
    assert len(report.problems) == 1
    assert sentence in report.problems[0]
    assert named(report) == set()


def test_last_words_of_a_client_are_reported() -> None:
    command = python("import sys; sys.exit('no licence for this machine')")
    assert "no licence for this machine" in grade(command).problems[0]


def test_client_that_only_opens_tcp_is_a_problem_in_time() -> None:
    report = grade(python(f"{CONNECT} time.sleep(60)"), timeout=5.0, scenarios="basic/")
    assert "did not connect" in report.problems[0]


HANDSHAKE = (
    f"{CONNECT} s.sendall(b'GET / HTTP/1.1\\r\\nHost: x\\r\\nUpgrade: websocket\\r\\n"
    "Connection: Upgrade\\r\\nSec-WebSocket-Version: 13\\r\\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\\r\\n\\r\\n');"
)


def test_client_that_hangs_after_the_handshake_is_a_problem_in_time() -> None:
    report = grade(python(f"{HANDSHAKE} time.sleep(60)"), timeout=5.0, scenarios="resync/")
    assert "did nothing for 5 s" in report.problems[0]


def test_client_that_dies_after_the_handshake_is_a_problem() -> None:
    command = python(f"{HANDSHAKE} time.sleep(0.3); sys.exit('out of memory')")
    report = grade(command, scenarios="resync/")
    assert "without a close frame and exited with status 1" in report.problems[0]
    assert "out of memory" in report.problems[0]


def test_grading_gives_up_after_a_few_runs_that_cannot_be_finished() -> None:
    report = grade(python(f"{HANDSHAKE} time.sleep(60)"), timeout=5.0, scenarios="reconnect,text")
    assert "3 runs could not be finished; the rest is left out" in report.problems


def test_client_that_ends_by_itself_is_a_problem() -> None:
    report = grade(client("--max-steps", "20"), scenarios="basic/", probe=True)
    assert named(report) == set()
    assert "ended by itself" in report.problems[0]


def test_what_a_client_started_is_ended_with_it(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    child = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    command = python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])")
    grade(command, timeout=10.0, scenarios="basic/")  # in which two programs have to start
    pid = int(file.read_text())
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _runs(pid):
        time.sleep(0.01)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie that waits for its parent."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


@pytest.mark.parametrize(
    "arguments",
    [
        {"scenarios": "basics"},
        {"horizon": 0},
        {"action_dim": 0},
        {"action_dim": 11, "probe": True},
        {"action_dtype": "float"},
        {"action_dtype": "<U3"},
        {"steps": 1},
        {"timeout": 0},
    ],
)
def test_argument_that_makes_no_sense_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        grade_client("true", **arguments)


def test_scenarios_of_the_issue_exist() -> None:
    names = {"basic", "resync", "text", "reconnect", "reuse", "spaces", "features", "slow"}
    assert names <= set(SCENARIOS)
