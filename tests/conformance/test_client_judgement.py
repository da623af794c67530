"""What the client grader makes of messages, without sockets: any bytes end in a verdict."""

from __future__ import annotations

import copy
import random
import time
from collections import deque
from typing import Any

import msgpack
import numpy as np
import pytest

from plugrl_gym.conformance.client_checks import CLIENT_CHECKS
from plugrl_gym.conformance.client_grader.conversation import Conversation
from plugrl_gym.conformance.client_grader.features import FEATURES
from plugrl_gym.conformance.client_grader.link import Arrival, Closing
from plugrl_gym.conformance.client_grader.probe import ProbeOracle, pattern
from plugrl_gym.conformance.client_grader.probe_rows import Reading
from plugrl_gym.conformance.client_grader.scenarios import SCENARIOS, Plan, choose
from plugrl_gym.conformance.client_grader.sending import VARIATIONS, pack
from plugrl_gym.conformance.client_grader.stage import Pace, RunOver, Settings, Stage, Subject
from plugrl_gym.conformance.report import Report
from plugrl_gym.errors import UsageError

DIM, HORIZON = 2, 4


class ScriptedLink:
    """A connection whose messages are known beforehand."""

    def __init__(self, frames: list[bytes]) -> None:
        self.script = deque(frames)
        self.arrivals: deque[Arrival] = deque()
        self.closing: Closing | None = None
        self.pongs: dict[bytes, float] = {}
        self.unread: list[bytes] = []
        self.unread_when_deaf: list[bytes] | None = None
        self.corked = False
        self.begun = False

    def next_event(self) -> Arrival | Closing | None:
        """Nothing while the grader waits with its metadata, then the script, then the end."""
        if not self.begun:
            return None
        return Arrival(self.script.popleft(), False) if self.script else Closing(1000, "")

    def send(self, data: bytes | str) -> None:
        """Once the metadata is there, the script begins."""
        self.begun = True

    def ping(self, payload: bytes) -> None:
        """The pong is here at once, and waits to be read."""
        self.unread.append(payload)

    def read(self) -> None:
        """A pong counts from when it is read."""
        self.pongs |= dict.fromkeys(self.unread, time.monotonic())
        self.unread.clear()

    @property
    def deaf(self) -> bool:
        """Whether nothing is read; what waited when that began is remembered."""
        return False

    @deaf.setter
    def deaf(self, deaf: bool) -> None:
        if deaf:
            self.unread_when_deaf = list(self.unread)

    def discard(self) -> None:
        """Nothing to free."""


class NoSockets:
    """Stands for the listener and for the process."""

    link = None

    def __init__(self, scripted: ScriptedLink) -> None:
        self.scripted = scripted

    def wait(self, ready: Any, seconds: float) -> Any:
        """Whatever is ready now, or once the pongs were read."""
        found = ready()
        if found is None and seconds > 0:
            self.scripted.read()
            found = ready()
        return found

    def close_link(self, code: int, reason: str) -> Closing:
        """The client answers."""
        return Closing(code, reason)

    def poll(self) -> int:
        """It has ended with success."""
        return 0

    def last_words(self) -> str:
        """None."""
        return ""


def judge(*messages: dict[str, Any] | bytes, probe: bool = True, **plan: Any) -> Report:
    """The report on a client that sends these messages and leaves."""
    return hear_out(*messages, probe=probe, **plan)[0]


def hear_out(
    *messages: dict[str, Any] | bytes, probe: bool = True, pace: Pace | None = None, **plan: Any
) -> tuple[Report, ScriptedLink]:
    """The same, and the connection."""
    report = Report("client", CLIENT_CHECKS)
    run = SCENARIOS["basic"][0]
    settings = Settings("", probe, HORIZON, DIM, "<f8", 40, 1.0, pace or Pace())
    link: Any = ScriptedLink([m if isinstance(m, bytes) else pack(m) for m in messages])
    sockets: Any = NoSockets(link)
    stage = Stage(report, settings, Subject(), run, sockets, sockets)
    if probe:
        stage.oracle = ProbeOracle(DIM, Reading())
    whole = Plan(run.plans[0].ending, 99, features=FEATURES, **plan)
    with pytest.raises(RunOver):
        Conversation(stage, link, whole, 0).hold()
    return report, link


def broken(report: Report) -> set[str]:
    """The clauses that were violated."""
    return {finding.check.clause for finding in report.violations}


def observation(t: list[float], a: list[list[float]]) -> dict[str, Any]:
    """What probe envs show."""
    states = {"t": np.array(t, "<f8")[:, None], "a": np.array(a).reshape(len(t), DIM)}
    return {"images": {}, "states": states, "text": np.zeros(len(t), "<U1")}


def box(low: float, width: int) -> dict[str, Any]:
    """The description of a Box."""
    bounds = {"low": np.full(width, low), "high": np.full(width, -low)}
    return {"type": "Box", "shape": [width], "dtype": "<f8", **bounds}


def infer(envs: list[int], t: list[float], steps: list[int], **more: Any) -> dict[str, Any]:
    """A request."""
    return {
        "message_type": "infer",
        "data": observation(t, [[0.0] * DIM] * len(t)),
        "env_indices": np.array(envs, "<i8"),
        "step_ids": np.array(steps, "<i8"),
        **more,
    }


def feedback(envs: list[int], t: list[float], ran: list[int], **more: Any) -> dict[str, Any]:
    """What came of chunks of which so many steps were run."""
    ended = np.array([time == 3 + 2 * (env % 3) for env, time in zip(envs, t, strict=True)])
    chunk = pattern(envs, HORIZON, DIM, "<f8")
    last = [chunk[count - 1, row].tolist() for row, count in enumerate(ran)]
    lengths = np.where(ended, t, 0)
    statistics = {"r": lengths.astype("<f8"), "l": lengths.astype("<i8"), "s": ended, "mask": ended}
    longest = max(ran)
    inside = np.arange(longest)[:, None] < np.array(ran)[None, :]
    return {
        "message_type": "feedback",
        "env_indices": np.array(envs, "<i8"),
        "step_ids": np.zeros(len(envs), "<i8"),
        "data": {
            "obs": observation(t, last),
            "rewards": np.array(ran, "<f4"),
            "terminated": ended,
            "truncated": np.zeros(len(envs), "|b1"),
            "info": {"episode": statistics},
        },
        "steps": np.array(ran, "<i8"),
        "step_rewards": inside.astype("<f4"),
        "actions": np.where(inside[:, :, None], chunk[:longest], 0),
        "overridden": np.zeros(len(envs), "|b1"),
        **more,
    }


def conversation() -> list[dict[str, Any]]:
    """What three probe envs say in a while: env 0 ends first, then env 1's chunk is used up."""
    space = {"type": "Dict", "spaces": {"t": box(-9.0, 1), "a": box(-1e6, DIM)}}
    spaces = {
        "env_id": None,
        "num_envs": 3,
        "autoreset": "same-step",
        "observation": space,
        "action": box(-1e6, DIM),
    }
    again = infer([1, 2], [4, 4], [1, 1], reuse=np.array([True, False]))
    again["data"] = observation([4], [pattern([2], HORIZON, DIM, "<f8")[3, 0].tolist()])
    return [
        infer([0, 1, 2], [0, 0, 0], [0, 0, 0], spaces=spaces),
        feedback([0], [3], [3]),
        infer([0], [0], [0]),
        feedback([1, 2], [4, 4], [4, 4]),
        again,
        feedback([1], [5], [1], step_ids=np.ones(1, "<i8")),
    ]


def test_conversation_breaks_nothing() -> None:
    report = judge(*conversation())
    assert broken(report) == set(), report.to_text()
    assert [finding.check.clause for finding in report.notes] == []


def test_grader_reads_the_pongs_that_are_due_before_it_is_deaf() -> None:
    pace = Pace(late=0.0, stall=0.0, ping=0.0)
    report, link = hear_out(*conversation(), pace=pace, slow=True)
    assert broken(report) == set(), report.to_text()
    assert link.pongs
    assert link.unread_when_deaf == []


JUNK: list[Any] = [
    *(None, True, 0, -1, 2**63, 1.5, float("nan"), "", "x", b"", b"x" * 20, [], [1, "x"], {}),
    *({"a": 1}, {1: 2}, {b"x": 1}, msgpack.Timestamp(1, 2), msgpack.ExtType(3, b"x")),
    *(np.zeros(0), np.zeros((0, 7)), np.array(5.0), np.zeros((3, 3)), np.full((3, 1), np.nan)),
    *(np.arange(3), np.arange(3, dtype="<u8") + np.uint64(2**63), np.zeros(3, "|b1")),
    *(np.array(["a", "b", "c"]), np.zeros((1, 2, 2, 2), "|u1"), np.array([np.inf])),
    *(np.zeros(3, "<f2"), np.zeros((4, 3), "<f4"), np.zeros((2, 2, 2, 2, 2)), np.arange(9) - 4),
    *({b"__ndarray__": True}, {b"__npgeneric__": True, b"data": 300, b"dtype": "|u1"}),
    {b"__ndarray__": True, b"data": b"", b"dtype": "<U0", b"shape": [2**40]},
    {b"__ndarray__": True, b"data": b"1234", b"dtype": "<U1", b"shape": [1]},
    {b"nd": True, b"type": "<f8", b"kind": b"", b"shape": [1], b"data": bytes(8)},
]


def places(value: Any) -> list[tuple[dict[str, Any], str]]:
    """Every map and key of a message."""
    found = []
    if isinstance(value, dict):
        for key, item in value.items():
            found += [(value, key), *places(item)]
    return found


@pytest.mark.parametrize("probe", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_any_change_of_a_conversation_ends_in_a_verdict(seed: int, probe: bool) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        messages = copy.deepcopy(conversation())
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            where, key = rng.choice(places(rng.choice(messages)))
            if rng.random() < 0.2:
                del where[key]
            else:
                where[key] = copy.deepcopy(rng.choice(JUNK))
        judge(*messages, probe=probe)


@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_end_in_a_verdict(seed: int) -> None:
    rng = random.Random(seed)
    frame = pack(conversation()[0])
    for _ in range(200):
        data = bytearray(frame[: rng.randrange(1, len(frame) + 1)])
        for _ in range(rng.randrange(6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        judge(bytes(data))


@pytest.mark.parametrize(
    ("t", "ran", "change", "clauses"),
    [
        (3, 3, {"rewards": np.array([1.0], "<f4")}, {"6.5.9", "9.4.5"}),
        (3, 3, {"terminated": np.zeros(1, "|b1")}, {"10.7"}),
        (2, 2, {"terminated": np.ones(1, "|b1")}, {"10.7"}),
        (4, 4, {}, {"10.2"}),
        (3, 2, {}, {"6.5.13"}),
    ],
)
def test_feedback_of_a_probe_env_is_checked(
    t: int, ran: int, change: dict[str, Any], clauses: set[str]
) -> None:
    answer = feedback([0], [t], [ran])
    answer["data"] = {**answer["data"], "info": {}, **change}
    assert broken(judge(infer([0], [0], [0]), answer)) == clauses


def test_env_that_is_never_mentioned_again_is_no_fault() -> None:
    report = judge(infer([0, 1], [0, 0], [0, 0]), feedback([0], [3], [3]), infer([0], [0], [0]))
    assert broken(report) == set(), report.to_text()


# ---------------------------------------------------------------- what the grader sends


def test_pattern_is_that_of_the_specification() -> None:
    action = pattern([7, 0], 3, 4, "<f8")
    assert action.shape == (3, 2, 4)
    assert action[2, 0, 3] == 20073
    assert action[0, 1, 1] == 1


@pytest.mark.parametrize(
    "typestr", sorted({v.typestr for v in VARIATIONS if v.typestr[1:] not in ("", "b1")})
)
def test_pattern_tells_the_steps_of_a_chunk_apart_in_every_type(typestr: str) -> None:
    action = pattern(list(range(5)), 4, 3, typestr)
    assert action.dtype == np.dtype(typestr)
    for row in range(5):
        assert len(np.unique(action[:, row, 0])) == 4


def test_scenarios_are_chosen_by_name() -> None:
    assert [run.title for run in choose("text")] == ["text", "text/in place of metadata"]
    assert [run.title for run in choose("text/")] == ["text"]
    assert [run.title for run in choose("reconnect/lost, slow")] == ["reconnect/lost", "slow"]
    assert choose("all") == [run for runs in SCENARIOS.values() for run in runs]
    assert choose(["slow", "all"])[0].title == "slow"
    with pytest.raises(UsageError, match="no scenario 'slowly'; there are spaces, basic"):
        choose("slowly")


def test_titles_of_runs_are_unique() -> None:
    titles = [run.title for run in choose("all")]
    assert len(set(titles)) == len(titles)
