"""The client's ledger: it balances whatever happens, and shows what was lost on the way."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from plugrl_gym import LocalProtocolError, PlugRLVectorEnv, RunFinished
from plugrl_gym.client import books
from plugrl_gym.client.books import Books
from plugrl_gym.client.chunks import Chunks, Open
from plugrl_gym.client.statistics import ClientStatistics
from plugrl_gym.protocol import Metadata
from tests.client.conftest import sync
from tests.support.memory import MemoryServer, finished, lost
from tests.support.tracing import CountingEnv

Wrap = Callable[..., PlugRLVectorEnv]


def server(horizon: int = 3, **options: Any) -> MemoryServer:
    return MemoryServer(
        lambda envs: np.zeros((horizon, len(envs)), np.int64), Metadata(), **options
    )


def play(envs: PlugRLVectorEnv, steps: int) -> None:
    envs.reset(seed=0)
    for _ in range(steps):
        envs.step()


def test_live_books_say_what_is_open(wrap: Wrap) -> None:
    envs = wrap(sync(CountingEnv(9), CountingEnv(9)), server())
    play(envs, 5)
    books = envs.stats.books
    assert (books.env_steps, books.steps_fed_back, books.steps_open) == (10, 6, 4)
    assert (books.chunks_received, books.chunks_fed_back, books.chunks_open) == (4, 2, 2)
    assert envs.stats.book_errors == ()


def test_ignored_steps_are_not_in_the_books(wrap: Wrap) -> None:
    envs = wrap(sync(CountingEnv(2), mode=AutoresetMode.NEXT_STEP), server(1))
    play(envs, 6)  # two episodes of two steps, each with its ignored step
    assert envs.stats.books.env_steps == 4
    assert envs.stats.book_errors == ()


def fail_at(name: str, call: int, error: Callable[[], Exception]) -> Callable[[str], Any]:
    calls = 0

    def fault(message: str) -> Exception | None:
        nonlocal calls
        calls += message == name
        return error() if message == name and calls == call else None

    return fault


@pytest.mark.parametrize("message", ["infer", "action", "feedback"])
def test_lost_connection_is_a_reason(wrap: Wrap, message: str) -> None:
    envs = wrap(sync(CountingEnv(9)), server(fault=fail_at(message, 2, lost)))
    play(envs, 9)
    dropped = envs.stats.books.chunks_dropped
    assert dropped == ({"connection lost": 1} if message == "feedback" else {})
    assert envs.stats.connections == 2
    assert envs.stats.book_errors == ()


def test_end_of_the_run_is_a_reason(wrap: Wrap) -> None:
    envs = wrap(sync(CountingEnv(9)), server(fault=fail_at("feedback", 2, finished)))
    with pytest.raises(RunFinished):
        play(envs, 9)
    assert envs.stats.books.steps_dropped == {"run over": 3}
    assert envs.stats.book_errors == ()


def test_reset_in_mid_episode_is_a_reason(wrap: Wrap) -> None:
    envs = wrap(sync(CountingEnv(9), CountingEnv(9)), server())
    play(envs, 4)
    envs.reset()
    books = envs.stats.books
    assert (books.chunks_dropped, books.steps_dropped) == ({"reset": 2}, {"reset": 2})
    assert envs.stats.book_errors == ()


def test_close_feeds_back_what_it_can_and_drops_the_rest(wrap: Wrap) -> None:
    envs = wrap(sync(CountingEnv(9)), server())
    play(envs, 3)
    envs.infer()
    envs.close()
    assert envs.stats.books.chunks_dropped == {"closed": 1}
    assert envs.stats.books.errors(closed=True) == ()


def test_rows_that_could_not_be_sent_are_in_the_books(wrap: Wrap) -> None:
    class Broken(CountingEnv):
        def _observe(self) -> np.ndarray:
            return super()._observe() * (np.nan if self.time == 3 else 1.0)

    envs = wrap(sync(Broken(9)), server())
    with pytest.raises(LocalProtocolError, match="NaN"):
        play(envs, 3)
    assert envs.stats.books.steps_dropped == {"not sent": 3}
    assert envs.stats.book_errors == ()


def test_crash_of_an_env_is_a_reason(wrap: Wrap) -> None:
    class Crashing(CountingEnv):
        def step(self, action: Any) -> Any:
            if self.time == 2:
                raise RuntimeError("sim crashed")
            return super().step(action)

    memory = server()
    envs = wrap(sync(Crashing(9)), memory)
    with pytest.raises(RuntimeError, match="sim crashed"):
        play(envs, 3)
    assert envs.stats.books.steps_dropped == {"env failed": 2}
    assert envs.stats.book_errors == ()
    assert memory.closes == [1000]


@pytest.mark.parametrize("message", ["infer", "action", "feedback"])
def test_ctrl_c_in_mid_exchange_is_a_reason_and_the_next_step_reconnects(
    wrap: Wrap, message: str
) -> None:
    memory = server(fault=fail_at(message, 2, KeyboardInterrupt))  # type: ignore[arg-type]
    envs = wrap(sync(CountingEnv(9)), memory)
    with pytest.raises(KeyboardInterrupt):
        play(envs, 9)
    assert envs.stats.book_errors == ()
    if message == "feedback":
        envs.reset()  # the env had moved, and nobody saw where
    envs.step()
    assert memory.connections == 2
    assert envs.stats.book_errors == ()


def test_ctrl_c_between_an_answer_and_its_entry_loses_nothing_unseen(
    wrap: Wrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = server()
    envs = wrap(sync(CountingEnv(9)), memory)
    envs.reset()
    monkeypatch.setattr(Chunks, "assign", interrupt)
    with pytest.raises(KeyboardInterrupt):
        envs.infer()
    monkeypatch.undo()
    monkeypatch.setattr("plugrl_gym.client.session.Connection", memory.connect)
    for _ in range(4):
        envs.step()
    assert memory.connections == 2
    assert envs.stats.book_errors == ()


def interrupt(*args: Any, **kwargs: Any) -> None:
    raise KeyboardInterrupt


# -- Bugs that lose something -----------------------------------------------------------------


def loses_a_held_row(monkeypatch: pytest.MonkeyPatch) -> None:
    release = Chunks.release

    def forgetful(self: Chunks) -> Any:
        rows = release(self)
        return None if rows is None or len(rows) == 1 else rows.select(np.array([0]))

    monkeypatch.setattr(Chunks, "release", forgetful)


def forgets_a_finished_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    hold = Chunks._hold

    def partial(self: Chunks, envs: Any, *rest: Any) -> None:
        if len(envs) > 1:
            hold(self, envs[1:], *rest)

    monkeypatch.setattr(Chunks, "_hold", partial)


def counts_too_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chunks, "drop", lambda self: replace(drop(self), steps=0))


def forgets_what_a_loss_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chunks, "drop", lambda self: replace(drop(self), chunks=0))


def counts_a_step_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    count = ClientStatistics.count_step

    def twice(self: ClientStatistics, active: Any, *rest: Any) -> None:
        count(self, active, *rest)
        self.book.env_steps += 1

    monkeypatch.setattr(ClientStatistics, "count_step", twice)


drop = Chunks.drop


@pytest.mark.parametrize(
    "bug",
    [
        loses_a_held_row,
        forgets_a_finished_chunk,
        counts_too_few_steps,
        forgets_what_a_loss_costs,
        counts_a_step_twice,
    ],
)
def test_bug_that_loses_something_unbalances_the_books(
    wrap: Wrap, monkeypatch: pytest.MonkeyPatch, bug: Callable[[pytest.MonkeyPatch], None]
) -> None:
    bug(monkeypatch)
    envs = wrap(sync(CountingEnv(4), CountingEnv(9)), server(fault=fail_at("feedback", 3, lost)))
    with contextlib.suppress(LocalProtocolError):  # some bugs break more than the books
        play(envs, 20)
    assert envs.stats.book_errors != ()


def test_account_of_a_connection_that_ended_with_something_open_is_remembered() -> None:
    stats = ClientStatistics(open=lambda: Open(1, 2))
    stats.connected()
    assert "connection 0: at the end 1 chunks of 2 steps are open" in stats.book_errors


def test_books_of_connections_add_up() -> None:
    one, two = Books(env_steps=3), Books(env_steps=4, chunks_received=2)
    one.drop(2, 3, "reset")
    two.drop(1, 1, "reset")
    one.add(two)
    assert one.flat() == {
        "env_steps": 7,
        "chunks_received": 2,
        "chunks_fed_back": 0,
        "chunks_dropped[reset]": 3,
        "chunks_open": 0,
        "steps_fed_back": 0,
        "steps_dropped[reset]": 4,
        "steps_open": 0,
    }


# -- Ctrl-C comes anywhere ------------------------------------------------------------------------

CLIENT = str(Path(books.__file__).parent)


@contextlib.contextmanager
def ctrl_c_before(line: int) -> Iterator[list[str]]:
    """KeyboardInterrupt before the line-th line of the client that is run; it gets its place."""
    lines, places = 0, []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(CLIENT) or places:
            return None
        lines += event == "line"
        if event == "line" and lines == line:
            places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield places
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_books_balance_wherever_ctrl_c_comes(wrap: Wrap, mode: AutoresetMode) -> None:
    for line in range(1, 10_000):
        envs = wrap(sync(CountingEnv(2), CountingEnv(3), mode=mode), server(2))
        with ctrl_c_before(line) as places, contextlib.suppress(KeyboardInterrupt):
            play(envs, 3)
            envs.reset()
            envs.close()
        envs.close()
        assert (*envs.stats.book_errors, *envs.stats.books.errors(closed=True)) == (), places
        if not places:
            break
    assert 500 < line < 9_999
