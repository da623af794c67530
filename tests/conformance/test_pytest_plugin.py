"""The pytest plugin: one test for each clause, and nothing unless it is asked for."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from plugrl_gym.conformance.server_checks import SERVER_CHECKS
from tests.conformance.strangers import free_port
from tests.support.programs import ROOT, reference_server

pytest_plugins = ["pytester"]

MODULE = "plugrl_gym.conformance.pytest_plugin"
INSTALLED = bool(entry_points(group="pytest11", name="plugrl"))
PLUGIN = [] if INSTALLED else ["-p", MODULE]
NO_NETWORK = f"ws://127.0.0.1:{free_port()}"


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Somebody's project with a test of its own."""
    monkeypatch.syspath_prepend(ROOT)
    pytester.makepyfile("def test_own(): pass")
    return pytester


def test_nothing_is_collected_unless_asked_for(project: pytest.Pytester) -> None:
    project.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)


def test_each_clause_is_a_test(project: pytest.Pytester) -> None:
    with reference_server("--bug", "needs-int64", "--steps", "1500") as (_, port):
        result = project.runpytest_inprocess(
            *PLUGIN, "-rsf", f"--plugrl-server=ws://127.0.0.1:{port}",
            "--plugrl-phases=exchange,spaces",
        )  # fmt: skip
    counts = result.parseoutcomes()
    assert counts["failed"] == 1
    assert sum(counts[key] for key in ("passed", "failed", "skipped")) == len(SERVER_CHECKS) + 2
    result.stdout.fnmatch_lines(
        [
            "*PlugRL server 6.3.6: indices and step ids are accepted in every integer type*",
            "*SPEC 6.3.6*",
            "*expected  an action",
            "*got       the close 1001 with the reason 'plugrl-server-resync'",
            "*needs a phase that --phases leaves out*",
            "FAILED plugrl-server::6.3.6*",
        ]
    )


def test_clauses_can_be_selected(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess(
        *PLUGIN, f"--plugrl-server={NO_NETWORK}", "-k", "graded or own", "-v"
    )
    result.assert_outcomes(passed=1, failed=1, deselected=len(SERVER_CHECKS))
    result.stdout.fnmatch_lines(["*nothing listens at*"])


def test_note_is_a_section_of_a_passed_test(project: pytest.Pytester) -> None:
    with reference_server("--bug", "no-version") as (_, port):
        result = project.runpytest_inprocess(
            *PLUGIN, "-rP", f"--plugrl-server=ws://127.0.0.1:{port}", "-k", "12.1",
            "--plugrl-phases=exchange:pings",
        )  # fmt: skip
    result.assert_outcomes(passed=1, deselected=len(SERVER_CHECKS) + 1)
    result.stdout.fnmatch_lines(["*PlugRL note*", "*SPEC 12.1*"])


def test_bad_option_fails_with_its_sentence(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess(*PLUGIN, "--plugrl-server=nowhere", "-k", "graded")
    result.assert_outcomes(failed=1, deselected=len(SERVER_CHECKS) + 1)
    result.stdout.fnmatch_lines(["'nowhere' is no server address*"])


def test_client_that_dies_is_reported(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess(
        *PLUGIN, "--plugrl-client", f"{sys.executable} -c 0", "--plugrl-scenario=text",
        "--plugrl-timeout=5", "-k", "graded",
    )  # fmt: skip
    assert result.parseoutcomes()["failed"] == 1


def test_plugin_loads_no_grader_and_no_heavy_library_into_a_pytest_run() -> None:
    code = (
        f"import sys; import {MODULE};"
        "heavy = {m for m in sys.modules if m.startswith('plugrl_gym.conformance.')};"
        "heavy |= {'gymnasium', 'numpy', 'websockets'} & set(sys.modules);"
        f"print(sorted(heavy - {{'{MODULE}'}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "[]"
