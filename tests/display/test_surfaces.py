"""Where readings are shown."""

from __future__ import annotations

import io
import re
import sys
import types

import pytest

from plugrl_gym.display import Bar, Lines, Reading, surfaces, user_surface
from tests.support.terminal import pseudo_terminal, read_all, screen, widest


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def shown(terminal, *readings):
    bar = Bar(terminal)
    for reading in readings:
        bar.show(reading)
    bar.close()
    return screen(terminal.getvalue())


def test_a_bar_has_what_there_is_and_stays(terminal):
    reading = Reading(5632, 20_000, rate=250.0, mean_return=40.6, clients=1, activity="learning")
    line, end = shown(terminal, reading)
    assert line.startswith(" 28%|█")
    assert re.search(r"\| 5,632/20,000 \[00:0\d<", line)
    assert ", 250 steps/s, return 40.6, 1 client, learning]" in terminal.getvalue()
    assert end == ""


def test_what_stays_of_a_bar_tells_of_nothing_that_goes_on(terminal):
    going_on = Reading(5, 10, rate=9.0, activity="saving", pause="no client, 3 s")
    line, _ = shown(terminal, going_on, Reading(pause="drawing, 2 s"))
    assert line.endswith(", 9 steps/s]")


@pytest.mark.parametrize("total", [1_000_000, None])
@pytest.mark.parametrize("pause", ["", "waiting for the server, 12 s"])
@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_a_line_is_whole_on_a_terminal_of_any_width(columns, pause, total):
    with pseudo_terminal(columns) as (ours, its):
        bar = Bar(its)
        bar.show(Reading(682_048, total, 1466.0, 9, -123.4, 0.0022, 2, "note", pause))
        bar.close()
        its.close()
        drawn = read_all(ours)
    assert widest(drawn) <= columns
    # Beside the steps, or where there is no room for both in their place.
    words = pause or "return -123.4"
    assert re.search(rf"(, |\r){words}[], \r\x1b]", drawn), drawn


def test_a_run_that_overshoots_is_complete(terminal):
    line, _ = shown(terminal, Reading(19_000, 20_000), Reading(20_224, 20_000))
    assert line.startswith("100%|")
    assert "20,224/20,224" in line


def test_without_a_total_steps_are_counted(terminal):
    line, _ = shown(terminal, Reading(1234, rate=10.0))
    assert re.fullmatch(r"1,234 steps \[00:0\d, 10 steps/s\]", line)


def test_a_wait_before_the_first_step_leaves_nothing_behind(terminal):
    assert shown(terminal, Reading(pause="loading torch, 3 s")) == [""]
    assert "loading torch, 3 s" in terminal.getvalue()


def test_a_wait_gives_way_to_the_bar(terminal):
    line, _ = shown(terminal, Reading(pause="loading torch, 3 s"), Reading(1, 2))
    assert line.startswith(" 50%|")


def test_a_table_goes_below_the_bar_while_it_is_open(terminal):
    bar = Bar(terminal)
    bar.show(Reading(1, 2, table=("process  steps", "      1      1")))
    bar.show(Reading(2, 2, table=("process  steps", "      1      2")))
    first, *rest = screen(terminal.getvalue())
    assert first.startswith("100%|")
    assert rest[:2] == ["process  steps", "      1      2"]
    bar.close()
    first, *rest = screen(terminal.getvalue())
    assert first.startswith("100%|")
    assert not any(rest)


@pytest.mark.parametrize(
    "reading", [Reading(pause="x" * 300), Reading(3, rate=1e9, note="y" * 300)]
)
def test_a_line_is_cut_to_the_width_of_the_terminal(reading):
    with pseudo_terminal(columns=40) as (ours, its):
        bar = Bar(its)
        bar.show(reading)
        bar.close()
        its.close()
        assert 30 < widest(read_all(ours)) <= 40


@pytest.mark.parametrize(("no_color", "expected"), [("", True), ("1", False)])
def test_a_bar_is_green_unless_nobody_wants_colours(terminal, no_color, expected, monkeypatch):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("WT_SESSION", "1")
    shown(terminal, Reading(1, 2))
    assert ("\x1b[32m" in terminal.getvalue()) is expected


def test_lines_come_now_and_then_and_at_once_where_a_pause_begins(monkeypatch):
    now, lines = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    surface = Lines(lines.append, interval=5.0)
    for now[0], reading in (
        (0.9, Reading(0)),
        (1.0, Reading(1)),
        (2.0, Reading(2, pause="waiting, 5 s")),
        (3.0, Reading(2, pause="waiting, 6 s")),
        (7.0, Reading(2, pause="waiting, 10 s")),
        (8.0, Reading(3)),
        (12.0, Reading(4)),
    ):
        surface.show(reading)
    assert [line.split(" ", 1)[1] for line in lines] == [
        "1 steps",
        "2 steps, waiting, 5 s",
        "2 steps, waiting, 10 s",
        "4 steps",
    ]


def test_nobody_waits_for_a_line_longer_than_five_seconds():
    assert surfaces._INTERVAL + 0.25 < 5.0


@pytest.fixture
def notebook(monkeypatch):
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    displayed = []
    monkeypatch.setattr("tqdm.notebook.display", displayed.append)
    return displayed


def test_a_notebook_gets_a_widget(notebook, capsys):
    surface = user_surface()
    surface.show(Reading(pause="before the first step, 2 s"))
    surface.show(Reading(40, 200, rate=10.0, mean_return=9.5))
    (container,) = notebook
    _, bar, text = container.children
    assert (bar.value, bar.max) == (40, 200)
    said = text.value.replace("\u2007", " ")
    assert "40/200 [" in said
    assert "10 steps/s, return 9.5]" in said
    surface.show(Reading(200, 200))
    surface.close()
    assert bar.bar_style == "success"
    assert capsys.readouterr() == ("", "")


def test_a_notebook_without_widgets_gets_text(notebook, capsys, monkeypatch):
    monkeypatch.setattr("tqdm.notebook.IProgress", None)
    surface = user_surface()
    surface.show(Reading(40, 200))
    surface.close()
    assert notebook == []
    assert "40/200 [" in capsys.readouterr().err


def test_a_program_in_a_pipe_gets_lines(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    surface = user_surface()
    surface.show(Reading(pause="waiting for the server, 5 s"))
    assert capsys.readouterr().err.endswith(" waiting for the server, 5 s\n")
