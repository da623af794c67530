"""Where a command's words go."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plugrl_gym.commands.options import CommandParser, add_output_options
from plugrl_gym.commands.output import Output, json_line
from plugrl_gym.display import Bar, Lines, Reading, Reporter
from tests.support.commands import DEADLINE, environment
from tests.support.terminal import screen


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def as_stderr(monkeypatch, stream):
    """Make it stderr; to be called in a test, for pytest sets stderr anew before one."""
    for name, value in (("TERM", "xterm"), ("WT_SESSION", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_a_terminal_gets_one_live_line_and_lines_above_it(monkeypatch):
    terminal = as_stderr(monkeypatch, Terminal())
    with Output("prog", quiet=False, json=False).opened() as output:
        reading = Reading(5, 10, rate=9.0)
        with Reporter(lambda: reading, output.surface(), period=60.0) as reporter:
            reporter.show()
            output.say("a line")
            logging.getLogger("plugrl_gym.client").warning("lost")
            reporter.show()
    said, logged, bar, end = screen(terminal.getvalue())
    assert said == "a line"
    assert logged.endswith(" warning: lost")
    assert bar.startswith(" 50%|")
    assert bar.endswith("9 steps/s]")
    assert end == ""


def test_a_dumb_terminal_gets_lines(monkeypatch):
    as_stderr(monkeypatch, Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(Output("prog", False, False).surface(), Lines)


def test_a_terminal_gets_a_bar_and_a_pipe_lines(monkeypatch):
    as_stderr(monkeypatch, Terminal())
    assert isinstance(Output("prog", False, False).surface(), Bar)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(Output("prog", False, False).surface(), Lines)


@pytest.mark.parametrize(
    ("no_color", "expected"), [("", "\x1b[33mwarning:\x1b[0m"), ("1", "warning:")]
)
def test_warnings_are_coloured_on_a_terminal_only(no_color, expected, monkeypatch):
    terminal = as_stderr(monkeypatch, Terminal())
    monkeypatch.setenv("NO_COLOR", no_color)
    with Output("prog", False, False).opened():
        logging.getLogger("plugrl_gym.server").warning("no feedback for 60 s")
    assert terminal.getvalue()[9:] == f"{expected} no feedback for 60 s\n"


def test_quiet_shows_nothing(monkeypatch):
    terminal = as_stderr(monkeypatch, Terminal())
    output = Output("prog", quiet=True, json=False)
    with Reporter(lambda: Reading(5, rate=9.0), output.surface(), period=0.01):
        output.say("nothing")
    assert terminal.getvalue() == ""


def test_a_quiet_command_still_warns(monkeypatch):
    pipe = as_stderr(monkeypatch, io.StringIO())
    log = logging.getLogger("plugrl_gym.server")
    with Output("prog", quiet=True, json=False).opened():
        log.info("nothing")
        log.warning("dropped feedback of env %d", 3)
    log.warning("nothing")
    assert pipe.getvalue()[9:] == "warning: dropped feedback of env 3\n"


@pytest.mark.parametrize(
    ("verbose", "child", "expected"),
    [
        (False, False, ["client 1 refused: no"]),
        (False, True, []),
        (True, False, ["listening on here", "client 1 refused: no", "left: 1008"]),
        (True, True, ["listening on here", "client 1 refused: no", "left: 1008"]),
    ],
)
def test_what_is_said_already_is_logged_where_all_is_asked_for(
    verbose, child, expected, monkeypatch
):
    pipe = as_stderr(monkeypatch, io.StringIO())
    log = logging.getLogger("plugrl_gym.server")
    with Output("prog", False, False, child, verbose=verbose).opened():
        log.info("listening on %s", "here")
        log.info("%s refused: %s", "client 1", "no")
        log.debug("left: 1008")
    assert [line.split(" ", 1)[1] for line in pipe.getvalue().splitlines()] == expected


def test_verbose_leaves_the_frames_of_the_websocket_library_out(monkeypatch):
    pipe = as_stderr(monkeypatch, io.StringIO())
    with Output("prog", False, False, verbose=True).opened():
        logging.getLogger("plugrl_gym.client.websocket").debug("> BINARY 00 01 02")
    assert pipe.getvalue() == ""


def test_reports_are_lines_of_json_and_the_result_is_the_last(capfd):
    with Output("prog", True, True, child=True, report=True).opened() as output:
        with Reporter(lambda: Reading(5, mean_return=9.0), output.surface()):
            os.write(1, b"an env in C prints\n")
        output.result({"env_steps": 5})
    said = capfd.readouterr()
    reading, result = map(json.loads, said.out.splitlines())
    assert Reading(**{**reading["reading"], "table": ()}) == Reading(5, mean_return=9.0)
    assert result == {"env_steps": 5}
    assert said.err == "an env in C prints\n"


def test_a_command_whose_listener_is_gone_goes_on(monkeypatch):
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    Output("prog", False, False).say("nobody hears this")


@pytest.mark.parametrize(
    ("code", "command"),
    [
        (0, "plugrl_gym.train CartPole-v1 --algo random --total-timesteps 20 --json --quiet"),
        (0, "plugrl_gym.conformance checklist"),
        (1, "plugrl_gym.conformance server --url ws://127.0.0.1:1 --timeout 1 --json"),
    ],
)
def test_a_reader_who_goes_away_brings_no_traceback(code: int, command: str, tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, "-m", *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=tmp_path,
    )
    assert process.stdout is not None
    process.stdout.close()  # as with `| true`
    try:
        _, stderr = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    assert (stderr, process.returncode) == (b"", code)


def test_json_has_no_nan():
    with pytest.raises(ValueError):
        json_line({"mean_return": float("nan")})


def test_quiet_and_verbose_exclude_each_other(capsys):
    parser = CommandParser("prog", "", "")
    add_output_options(parser)
    assert parser.parse_args(["-q"]).quiet
    assert parser.parse_args(["-v"]).verbose
    with pytest.raises(SystemExit):
        parser.parse_args(["-q", "-v"])
    assert "not allowed with" in capsys.readouterr().err


def test_a_command_leaves_logging_as_it_was():
    names = ("plugrl_gym", "plugrl_gym.client.websocket", "plugrl_gym.server.websocket")
    before = [(logging.getLogger(n).level, len(logging.getLogger(n).handlers)) for n in names]
    with Output("prog", quiet=False, json=False, verbose=True).opened():
        assert logging.getLogger("plugrl_gym").level == logging.DEBUG
    assert before == [
        (logging.getLogger(n).level, len(logging.getLogger(n).handlers)) for n in names
    ]
