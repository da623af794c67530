"""What the place that people look at can show."""

from __future__ import annotations

import io
import sys
import types

import pytest

from plugrl_gym.display import coloured, in_notebook, is_live


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "variables", "live", "colours"),
    [
        (Terminal(), {"TERM": "xterm", "WT_SESSION": "1"}, True, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1", "WT_SESSION": "1"}, True, False),
        (Terminal(), {"TERM": "dumb", "WT_SESSION": "1"}, False, False),
        (io.StringIO(), {"TERM": "xterm", "WT_SESSION": "1"}, False, False),
    ],
)
def test_a_stream_is_drawn_on_and_coloured(stream, variables, live, colours, monkeypatch):
    for name in ("TERM", "NO_COLOR", "WT_SESSION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (is_live(stream), coloured(stream)) == (live, colours)


@pytest.mark.parametrize(("config", "expected"), [({"IPKernelApp": {}}, True), ({}, False)])
def test_a_notebook_is_known_by_its_kernel(config, expected, monkeypatch):
    shell = types.SimpleNamespace(config=config)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert in_notebook() is expected


def test_without_ipython_there_is_no_notebook(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
