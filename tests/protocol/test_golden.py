"""One table of bytes drives the reader and the writer (tests/golden/*.hex)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plugrl_gym.errors import RemoteProtocolError
from plugrl_gym.protocol import (
    Action,
    ChunkSteps,
    EpisodeStatistics,
    ExecutedActions,
    Feedback,
    Infer,
    MessageType,
    Metadata,
    Observation,
    SpaceDeclaration,
    decode,
    encode,
)
from plugrl_gym.protocol.features.gym_spaces import (
    BoxSpec,
    DictSpec,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    TextSpec,
    TupleSpec,
)
from plugrl_gym.protocol.messages import read_message
from tests.support.golden import golden
from tests.support.messages import same

ARRAYS: dict[str, Any] = {
    "float32": np.array([[1, 2, 3], [4, 5, 6]], np.float32),
    "float64": np.array([0.1, -1e300]),
    "float16": np.array([1.5, -2.0, 65504.0], np.float16),
    "uint8 image": np.array([[*range(9), 253, 254, 255]], np.uint8).reshape(1, 2, 2, 3),
    "int8": np.array([-128, 127], np.int8),
    "int64": np.array([-(2**63), 2**31 + 5]),
    "uint64": np.array([2**64 - 1], np.uint64),
    "bool": np.array([True, False, True]),
    "unicode": np.array(["go", "stop"]),
    "unicode beyond the BMP": np.array(["é", "\U0001f916"]),
    "no dimension": np.array(3.0),
    "no row": np.zeros((0, 7)),
    "no column": np.zeros((2, 0), np.uint8),
    "scalar float32": np.float32(0.5),
    "scalar bool": np.True_,
    "scalar int64": np.int64(-1),
    "scalar uint8": np.uint8(255),
}

READABLE: dict[str, Any] = {
    "big-endian int16": np.array([1, -2], np.int16),
    "big-endian float64": np.array([1.5, -2.5]),
    "big-endian unicode": np.array(["a", "bc"]),
    "<u1": np.array([7, 8], np.uint8),
    "empty strings": np.array(["", "", ""]),
}


def state(*values: float) -> Observation:
    rows = len(values) // 2
    array = np.array(values, np.float32).reshape(rows, 2)
    return Observation(states={"obs": array}, text=[""] * rows)


def ids(*values: int) -> Any:
    return np.array(values, np.int64)


MESSAGES: dict[str, Any] = {
    "metadata": Metadata(
        protocol_version=1,
        server="example",
        server_version="0.1",
        algorithm="ppo",
        policy="MlpPolicy",
        action_horizon=4,
        action_dim=2,
        features=("reuse-feedback-obs",),
        extra={"motto": "keep"},
    ),
    "metadata, nothing known": Metadata(),
    "infer": Infer(
        Observation(
            images={"cam": np.arange(1, 7, dtype=np.uint8).reshape(2, 1, 1, 3)},
            states={"arm": np.array([[0.5], [-0.5]])},
            text=["go", "stop"],
        ),
        ids(3, 0),
        ids(0, 2**31 + 5),
    ),
    "infer, reuse": Infer(
        state(1, 2), ids(0, 1, 2), ids(1, 0, 1), reuse=np.array([True, False, True])
    ),
    "infer, spaces": Infer(
        state(0, 0),
        ids(0),
        ids(0),
        spaces=SpaceDeclaration(
            env_id="CartPole-v1",
            num_envs=1,
            autoreset="same-step",
            observation=DictSpec(
                {
                    "obs": BoxSpec(
                        np.array([-1, -np.inf], np.float32), np.array([1, np.inf], np.float32)
                    ),
                    "say": TextSpec(0, 5, "ab"),
                }
            ),
            action=TupleSpec(
                (
                    DiscreteSpec(2, -1, "<i8"),
                    MultiDiscreteSpec(ids(3, 4), ids(0, 1), "<i4"),
                    MultiBinarySpec((2, 2)),
                )
            ),
            mode="eval",
        ),
    ),
    "action": Action(np.arange(4, dtype=np.float32).reshape(2, 2, 1), ids(3, 0)),
    "action, legacy": Action(np.array([[1, 0]])),
    "feedback": Feedback(
        ids(0, 3),
        ids(0, 1),
        state(1, 2, 3, 4),
        np.array([2.0, -0.5], np.float32),
        np.array([True, False]),
        np.array([False, True]),
    ),
    "feedback, episode": Feedback(
        ids(0, 3),
        ids(0, 1),
        state(1, 2, 3, 4),
        np.array([2.0, 1.0], np.float32),
        np.array([True, False]),
        np.array([False, False]),
        info={
            "episode": EpisodeStatistics(
                np.array([2.0, 0.0]),
                ids(2, 0),
                np.array([True, False]),
                np.array([True, False]),
            ).to_wire()
        },
    ),
    "feedback, chunk steps and executed actions": Feedback(
        ids(1, 0),
        ids(0, 0),
        state(1, 2, 3, 4),
        np.array([1.0, 3.0], np.float32),
        np.array([True, False]),
        np.array([False, False]),
        chunk_steps=ChunkSteps(ids(1, 2), np.array([[1, 1], [0, 2]], np.float32)),
        executed=ExecutedActions(
            np.array([[[0.5], [1.5]], [[0.0], [2.5]]]), np.array([False, True])
        ),
    ),
}


def test_tables_cover_files() -> None:
    assert set(golden("arrays")) == set(ARRAYS)
    assert set(golden("readable")) == set(READABLE)
    assert set(golden("messages")) == set(MESSAGES)


@pytest.mark.parametrize("name", ARRAYS)
def test_writer_writes_golden_array(name: str) -> None:
    assert encode({"": ARRAYS[name]})[2:].hex() == golden("arrays")[name].hex()


@pytest.mark.parametrize("name", ARRAYS)
def test_reader_reads_golden_array(name: str) -> None:
    read = decode(golden("arrays")[name])
    assert same(read, ARRAYS[name])
    if isinstance(read, np.ndarray):
        assert read.flags.c_contiguous


@pytest.mark.parametrize("name", READABLE)
def test_reader_reads_unusual_array(name: str) -> None:
    read = decode(golden("readable")[name])
    assert read.tolist() == READABLE[name].tolist()
    assert read.dtype.kind == READABLE[name].dtype.kind


@pytest.mark.parametrize("name", MESSAGES)
def test_writer_writes_golden_message(name: str) -> None:
    assert encode(MESSAGES[name].to_wire()).hex() == golden("messages")[name].hex()


@pytest.mark.parametrize("name", MESSAGES)
def test_reader_reads_golden_message(name: str) -> None:
    kind = MessageType(name.split(",")[0])
    read = read_message(golden("messages")[name], kind)
    assert type(read) is type(MESSAGES[name])
    assert same(read.to_wire(), MESSAGES[name].to_wire())


@pytest.mark.parametrize("name", MESSAGES)
def test_reader_refuses_every_prefix_of_golden_message(name: str) -> None:
    frame = golden("messages")[name]
    kind = MessageType(name.split(",")[0])
    for length in range(len(frame)):
        with pytest.raises(RemoteProtocolError):
            read_message(frame[:length], kind)
    with pytest.raises(RemoteProtocolError):
        read_message(frame + b"\xc0", kind)
