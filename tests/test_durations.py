"""Every time that a caller can give is a number of seconds, or refused where it is given."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from plugrl_gym import EnvBroker, PlugRLVectorEnv, RemoteVectorEnv, UsageError, local_server
from plugrl_gym.agents.random_agent import RandomAgent
from plugrl_gym.conformance import grade_client, grade_server
from plugrl_gym.durations import check_seconds
from plugrl_gym.server import PlugRLServer
from tests.support.lockstep import make_envs

BAD = {"a NaN": math.nan, "infinite": math.inf, "negative": -0.5, "text": "30", "a bool": True}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_what_is_no_duration_is_refused_by_name(bad: object):
    with pytest.raises(UsageError, match=r"^patience: expected seconds from 0 up, got "):
        check_seconds(patience=bad)


@pytest.mark.parametrize("good", [0, 0.0, 1e-3, 7, np.float32(0.5), np.int64(3)])
def test_any_real_number_from_0_up_is_a_duration(good: object):
    check_seconds(patience=good)


def test_zero_and_none_are_durations_where_the_caller_says_so():
    check_seconds(patience=None, none=True)
    with pytest.raises(UsageError, match=r"^patience: expected seconds from 0 up, got None$"):
        check_seconds(patience=None)
    with pytest.raises(UsageError, match=r"^patience: expected seconds above 0 or None, got 0$"):
        check_seconds(patience=0, positive=True, none=True)


def client(**times: Any) -> None:
    PlugRLVectorEnv(make_envs("CartPole-v1", 1), "ws://127.0.0.1:1", **times)


def server(**times: Any) -> None:
    PlugRLServer(RandomAgent(), port=0, **times)


def remote_envs(**times: Any) -> None:
    RemoteVectorEnv(1, port=0, **times).close()


def broker(**times: Any) -> None:
    with EnvBroker(port=0) as opened:
        opened.collect_async(**times)


def broker_reset(**times: Any) -> None:
    with EnvBroker(port=0) as opened:
        opened.reset(**times)


def thread(**times: Any) -> None:
    with local_server(RandomAgent(), **times):
        pass


def process(**times: Any) -> None:
    with local_server("random", **times):
        pass


def waiting(**times: Any) -> None:
    with local_server(RandomAgent()) as running:
        running.wait(**times)


def client_grader(**times: Any) -> None:
    grade_client("no-such-program {port}", **times)


def server_grader(**times: Any) -> None:
    grade_server("ws://127.0.0.1:1", **times)


TAKERS: dict[Callable[..., None], str] = {
    client: "connect_timeout reconnect_timeout metadata_timeout liveness_timeout reply_timeout",
    server: "feedback_timeout batch_wait silence_timeout close_timeout max_resync_delay",
    remote_envs: "connect_timeout refill_timeout stall_timeout",
    broker: "timeout",
    broker_reset: "timeout",
    thread: "start_timeout stop_timeout",
    process: "start_timeout stop_timeout",
    waiting: "seconds",
    client_grader: "timeout",
    server_grader: "timeout feedback_timeout stop_timeout",
}


@pytest.mark.parametrize("bad", [math.nan, -1])
@pytest.mark.parametrize(
    ("take", "name"),
    [(take, name) for take, names in TAKERS.items() for name in names.split()],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_time_that_is_none_is_refused_where_it_is_given(
    take: Callable[..., None], name: str, bad: float
):
    with pytest.raises(UsageError, match=rf"^{name}: expected seconds .*, got {bad}$"):
        take(**{name: bad})


def test_a_coroutine_is_told_as_well():
    with EnvBroker(port=0) as opened, pytest.raises(UsageError, match=r"^timeout: expected"):
        asyncio.run(opened.collect(timeout=math.nan))
