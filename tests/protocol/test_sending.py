"""What is about to be sent goes through the checks of the receiver, as our own error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from plugrl_gym.errors import LocalProtocolError
from plugrl_gym.protocol import Action, Metadata, Observation
from plugrl_gym.protocol.messages import checked_wire
from tests.support.messages import feedback, infer, observation

I2 = np.arange(2)
F2 = np.zeros(2, np.float32)

NOT_ALIKE: list[tuple[Callable[[], Any], str]] = [
    (lambda: infer([0, 0]), r"infer\.env_indices: names an env twice"),
    (lambda: infer([-1]), r"infer\.env_indices: -1 is negative"),
    (lambda: infer([]), r"infer\.env_indices: names no env"),
    (lambda: infer(env_indices=[0, 1]), r"infer\.env_indices: expected an int64 vector, got list"),
    (lambda: infer(env_indices=np.zeros(2)), r"infer\.env_indices: expected an int64 vector"),
    (lambda: infer(step_ids=np.arange(3)), r"infer\.step_ids: expected 2 entries"),
    (lambda: infer(observation=observation(3)), r"infer\.data\.states\.obs: expected 2 rows"),
    (lambda: infer(reuse=np.array([True])), r"infer\.reuse: expected bool \[2\]"),
    (lambda: infer(observation=observation(2, a=np.zeros(2))), r"infer\.data\.states\.a: expected"),
    (lambda: infer(observation=observation(2, a=np.array([[None]] * 2))), r"infer\.data\.st"),
    (lambda: infer(observation=Observation({"i": np.zeros((2, 1, 1, 1))}, {}, ["", ""])),
     r"infer\.data\.images\.i: expected uint8"),
    (lambda: infer(observation=Observation(states={1: np.zeros((2, 1))}, text=["", ""])),  # type: ignore[dict-item]
     "states has the name 1"),
    (lambda: infer(observation=observation(2, __ndarray__=np.zeros((2, 1)))),
     "states has the name '__ndarray__'"),
    (lambda: infer(observation=Observation(text=["a", None])), r"text\[1\]: expected a str"),  # type: ignore[list-item]
    (lambda: feedback(rewards=np.ones(3)), r"feedback\.data\.rewards: expected float \[2\]"),
    (lambda: feedback(rewards=np.ones(2, int)), r"feedback\.data\.rewards: expected float \[2\]"),
    (lambda: feedback(terminated=np.zeros(2)), r"feedback\.data\.terminated: expected bool"),
    (lambda: feedback(truncated=[True, False]), r"feedback\.data\.truncated: expected bool"),
    (lambda: feedback(info={"a": 1}), r"feedback\.data\.info: cannot be split"),
    (lambda: feedback(info={"a": F2, "f": len}), r"feedback\.data\.info\.f is a builtin"),
    (lambda: Metadata(action_horizon=0), r"metadata\.data\.action_horizon: expected a positive"),
    (lambda: Metadata(server=1), r"metadata\.data\.server: expected a str"),  # type: ignore[arg-type]
    (lambda: Metadata(extra={"features": 5}), r"metadata\.data\.features: expected a list"),
    (lambda: Metadata(extra={"f": len}), r"metadata\.data\.f is a builtin"),
    (lambda: Action(np.zeros(2), I2), r"action\.data\.action: expected numeric"),
    (lambda: Action(np.full((1, 2), np.nan), I2), r"action\.data\.action\[0, 0\]: nan"),
    (lambda: Action(np.zeros((1, 2), np.complex64), I2), r"action\.data\.action: expected numeric"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "text"), NOT_ALIKE)
def test_sender_refuses_what_receiver_would(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(LocalProtocolError, match=f"^{text}"):
        checked_wire(make())


@pytest.mark.parametrize("code", ["b", "h", "i", "q", "B", "H", "I", ">i", ">q"])
def test_sender_sends_indices_as_int64(code: str) -> None:
    ids = np.array([5, 3], dtype=code)
    for message in (infer(env_indices=ids, step_ids=ids), feedback(env_indices=ids, step_ids=ids)):
        wire = checked_wire(message)
        assert wire["env_indices"].dtype.str == wire["step_ids"].dtype.str == "<i8"
    assert Action(np.zeros((1, 2)), ids).to_wire()["data"]["env_ids"].dtype.str == "<i8"
