"""Executed actions are held against the chunk that was given (SPEC 9.5.2)."""

from __future__ import annotations

import numpy as np
import pytest

from plugrl_gym.errors import LocalProtocolError, RemoteProtocolError
from plugrl_gym.protocol import (
    EXECUTED_ACTIONS,
    ClientProtocol,
    ExecutedActions,
    Feedback,
    Infer,
    Metadata,
    Observation,
    ServerProtocol,
    encode,
)

SEEN = Observation(states={"obs": np.zeros((2, 3))}, text=["", ""])
ENVS = np.arange(2)


def acting() -> tuple[ServerProtocol, ClientProtocol]:
    server, client = ServerProtocol(), ClientProtocol()
    client.receive_metadata(server.send_metadata(Metadata(features=(EXECUTED_ACTIONS,))))
    server.receive(client.send_infer(Infer(SEEN, ENVS, np.zeros(2, np.int64))))
    client.receive_action(server.send_action(np.zeros((2, 2, 3))))
    return server, client


def feedback(*shape: int) -> Feedback:
    flags = np.zeros(2, np.bool_)
    return Feedback(
        ENVS,
        np.zeros(2, np.int64),
        SEEN,
        np.zeros(2, np.float32),
        flags,
        flags,
        executed=ExecutedActions(np.zeros(shape), flags),
    )


@pytest.mark.parametrize("shape", [(2, 2), (2, 2, 1), (2, 2, 6), (2, 2, 3, 1)])
def test_server_refuses_executed_actions_of_another_shape(shape: tuple[int, ...]) -> None:
    server, _ = acting()
    with pytest.raises(RemoteProtocolError, match=r"feedback\.actions: expected \[K, m, 3\]"):
        server.receive(encode(feedback(*shape).to_wire()))


def test_client_sends_no_executed_actions_of_another_shape() -> None:
    server, client = acting()
    with pytest.raises(LocalProtocolError, match=r"feedback\.actions: expected \[K, m, 3\]"):
        client.send_feedback(feedback(2, 2, 6))
    assert server.receive(client.send_feedback(feedback(1, 2, 3)))
