"""How far a client is, and where it shows that."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

import numpy as np
import pytest

from plugrl_gym.client import progress as client_progress
from plugrl_gym.client.progress import ClientProgress
from plugrl_gym.display import Bar, Lines
from tests.client.conftest import sync
from tests.support.memory import MemoryServer
from tests.support.terminal import pseudo_terminal, read_all, screen
from tests.support.tracing import CountingEnv


def zeros(horizon: int = 1) -> MemoryServer:
    return MemoryServer(lambda envs: np.zeros((horizon, len(envs)), np.int64))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    return clock


def test_a_client_without_a_server_says_what_it_waits_for(wrap: Any, now: list[float]) -> None:
    progress = ClientProgress(wrap(sync(CountingEnv(3)), zeros()), None)
    assert progress.read() is None
    now[0] += 4.0
    assert str(progress.read()) == "waiting for a server at ws://127.0.0.1:1, 4 s"


def test_a_connected_client_says_that_it_waits_for_the_server(wrap: Any, now: list[float]) -> None:
    envs = wrap(sync(CountingEnv(3)), zeros())
    envs.reset()
    progress = ClientProgress(envs, None)
    assert progress.read() is None
    now[0] += 3.0
    assert str(progress.read()) == "before the first step, 3 s"
    envs._waiting(2.0, "the server")
    assert str(progress.read()) == "waiting for the server, 2 s"
    envs.infer()
    assert str(progress.read()) == "before the first step, 3 s"


def test_a_reading_counts_what_was_done_since_then(wrap: Any, now: list[float]) -> None:
    envs = wrap(sync(CountingEnv(3), CountingEnv(5)), zeros())
    envs.run(max_steps=10)
    progress = ClientProgress(envs, 1000)
    envs.run(max_steps=4)
    progress.read()
    now[0] += 2.0
    envs.run(max_steps=6)
    reading = progress.read()
    assert reading is not None
    assert (reading.steps, reading.total, reading.rate) == (10, 1000, 3.0)
    assert reading.mean_return == envs.stats.mean_return


def test_what_else_keeps_it_from_stepping_is_said(wrap: Any) -> None:
    envs = wrap(sync(CountingEnv(3)), zeros())
    envs.run(max_steps=4)
    progress = ClientProgress(envs, None)
    with progress.pause("evaluating"):
        reading = progress.read()
    assert reading is not None
    assert reading.pause == "evaluating, 0 s"


@pytest.mark.parametrize("call", ["run", "rollout"])
def test_progress_on_a_terminal_is_a_bar_that_logging_does_not_tear(
    wrap: Any, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with pseudo_terminal(columns=100) as (ours, its):
        monkeypatch.setattr(sys, "stderr", its)
        handler = logging.StreamHandler(its)
        logging.root.addHandler(handler)
        try:
            envs = wrap(sync(CountingEnv(3), CountingEnv(5)), zeros())
            if call == "run":
                envs.run(max_steps=20, progress=True, between_steps=_log_at(envs, 10))
            else:
                for _ in envs.rollout(max_steps=20, progress=True):
                    _log_at(envs, 10)()
        finally:
            logging.root.removeHandler(handler)
        monkeypatch.undo()
        its.close()
        said, bar, *_ = screen(read_all(ours))
    assert said == "half of it"
    assert re.match(r"100%\|.*\| 20/20 \[00:\d\d<.*, return \d", bar)


def _log_at(envs: Any, step: int) -> Any:
    def log() -> None:
        if envs.stats.env_steps == step:
            logging.getLogger("plugrl_gym.client").warning("half of it")

    return log


def test_progress_in_a_pipe_is_a_line_now_and_then(
    wrap: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        client_progress,
        "user_surface",
        lambda: Lines(lambda line: print(line, file=sys.stderr), interval=0.0),
    )
    wrap(sync(CountingEnv(3)), zeros()).run(max_steps=7, progress=True)
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"\d\d:\d\d:\d\d 7 of 7 steps, .*mean return .*", last)


def test_without_progress_nothing_is_shown(wrap: Any, capsys: pytest.CaptureFixture[str]) -> None:
    wrap(sync(CountingEnv(3)), zeros()).run(max_steps=7)
    assert capsys.readouterr() == ("", "")


def test_a_bar_is_closed_where_the_caller_breaks_off(
    wrap: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []

    class Closed(Bar):
        def close(self) -> None:
            closed.append(True)
            super().close()

    monkeypatch.setattr(client_progress, "user_surface", lambda: Closed(sys.stderr))
    envs = wrap(sync(CountingEnv(3)), zeros())
    steps = envs.rollout(progress=True)
    next(steps)
    steps.close()
    assert closed
    assert not envs._waiting.silent
