"""The command line of the conformance suite, and its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from plugrl_gym.agents.random_agent import RandomAgent
from plugrl_gym.conformance.cli import main
from plugrl_gym.server import tls_context
from tests.conformance.strangers import free_port
from tests.support.certificates import certificate_files
from tests.support.programs import ROOT, reference_server
from tests.support.serving import running


def test_clean_server_exits_with_0_and_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    with reference_server() as (_, port):
        url = f"ws://127.0.0.1:{port}"
        assert main(["server", "--url", url, "--state-dim", "3", "--phases", "scoping"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"server {url}: no violation of PlugRL v1 found\n")
    assert "Not exercised by this run" in out
    assert err == ""


def test_violation_exits_with_1_and_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with reference_server("--bug", "accepts-short-data") as (_, port):
        arguments = ["--url", f"ws://127.0.0.1:{port}", "--phases", "errors:too few bytes*"]
        assert main(["server", *arguments]) == 1
    out = capsys.readouterr().out
    assert "does NOT conform" in out
    assert "SPEC 4.35" in out
    assert "errors: too few bytes of data" in out
    assert "b'data': 23 bytes" in out


def test_server_that_cannot_be_graded_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server", "--url", f"ws://127.0.0.1:{free_port()}"]) == 1
    assert "could not be graded" in capsys.readouterr().out


def test_server_behind_tls_is_graded_where_its_certificate_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = certificate_files(tmp_path)
    context = tls_context(files.cert, files.key)
    with running(RandomAgent(horizon=2), ssl_context=context) as run:
        arguments = ["server", "--url", run.url, "--phases", "scoping"]
        assert main(arguments) == 1
        assert "is not trusted (" in capsys.readouterr().out
        assert main([*arguments, "--ca-file", str(files.ca)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"server {run.url}: no violation of PlugRL v1 found\n")
    assert err == ""


def test_json_and_junit_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.xml"
    with reference_server("--bug", "env-major") as (_, port):
        url = f"ws://127.0.0.1:{port}"
        options = ["--phases", "exchange:any*", "--json", "--junit", str(file)]
        assert main(["server", "--url", url, *options]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["violations"] == ["6.4.7"]
    (suite,) = ElementTree.parse(file).getroot()
    failed = [case.get("name", "").split()[0] for case in suite if case.find("failure") is not None]
    assert failed == ["6.4.7"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "required: client|server|checklist"),
        (["grade"], "invalid choice: 'grade'"),
        (["server"], "required: --url"),
        (["client"], "required: --command"),
        (["server", "--url", "localhost"], "no server address"),
        (["server", "--url", "ws://h:1", "--phases", "none"], "no phase 'none'"),
        (["server", "--url", "ws://h:1", "--timeout", "soon"], "invalid float value: 'soon'"),
        (
            ["server", "--url", "ws://h:1", "--timeout", "-1"],
            "timeout: expected seconds above 0, got -1.0",
        ),
        (["server", "--url", "wss://h:1", "--ca-file", "/no/such.pem"], "cannot read /no/such.pem"),
        (["server", "--url", "ws://h:1", "--ca-file", "/no/such.pem"], "ws://h:1 has no TLS"),
        (["server", "--url", "ws://h:1", "--state-dim", "0"], "at least one dimension"),
        (["server", "--url", "ws://h:1", "--junit", "/no/such/dir/f.xml"], "No such file"),
        (["client", "--command", "true", "--scenario", "none"], "none"),
        (["client", "--command", "true", "--horizon", "0"], "horizon"),
        (["client", "--command", " "], "names no program"),
        (["client", "--command", "'a"], "No closing quotation"),
        (["server", "--url", "ws://h:1", "--frobnicate"], "unrecognized arguments"),
    ],
)
def test_bad_usage_exits_with_2_and_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(arguments)
    except SystemExit as error:  # argparse's own way to go
        status = error.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.startswith("python -m plugrl_gym.conformance")
    assert sentence in err
    assert err.count("\n") == 1


def test_module_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "plugrl_gym.conformance", "server", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0
    for option in (
        "--url", "--state-dim", "--state-key", "--image-key", "--api-key", "--ca-file", "--phases",
        "--until-stop", "--feedback-timeout", "--timeout", "--json", "--junit",
    ):  # fmt: skip
        assert option in done.stdout
