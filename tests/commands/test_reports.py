"""A child that tells how far it is."""

from __future__ import annotations

import sys
import textwrap

import pytest

from plugrl_gym.commands.reports import ReportingChild
from plugrl_gym.display import Reading
from tests.support.commands import DEADLINE


@pytest.fixture
def told(tmp_path, monkeypatch):
    """(program) -> the ended child that ran it as a module, and what was relayed."""

    def run(program: str, **options: object) -> tuple[ReportingChild, list[str]]:
        (tmp_path / "program.py").write_text(textwrap.dedent(program))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        lines: list[str] = []
        with ReportingChild("program", ["--x"], lines.append, **options) as child:
            assert child.wait(DEADLINE)
            child.hear_out()
        return child, lines

    return run


def test_readings_result_and_words_come_apart(told):
    child, lines = told(
        """
        import sys
        print('{"reading": {"steps": 3, "pause": "waiting", "table": []}}')
        print('{"env_steps": 7}')
        print("a word", file=sys.stderr)
        print("", file=sys.stderr)
        """
    )
    assert child.reading == Reading(3, pause="waiting")
    assert child.result == {"env_steps": 7}
    assert lines == ["a word", ""]
    assert child.said == "a word"


def test_it_is_asked_for_a_result_and_readings(told):
    child, _ = told("import json, sys; print(json.dumps({'given': sys.argv[1:]}))")
    assert child.result == {"given": ["--x", "--json", "--report"]}


def test_what_is_no_json_on_stdout_is_taken_for_words(told):
    child, lines = told(
        """
        import os, sys
        print("hello from a package", flush=True)
        print('{"reading": {"ste', end="", flush=True)
        os._exit(3)
        """
    )
    assert (child.code, child.reading, child.result) == (3, None, None)
    assert lines == ["hello from a package", '{"reading": {"ste']


def test_an_environment_is_passed_on(told, tmp_path):
    own = {"PYTHONPATH": str(tmp_path), "COLOUR": "blue", "PATH": sys.exec_prefix}
    child, _ = told(
        "import os; print('{\"x\": \"' + os.environ['COLOUR'] + '\"}')", environment=own
    )
    assert child.result == {"x": "blue"}
