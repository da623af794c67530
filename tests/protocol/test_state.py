"""Every pair of state and message that SPEC 5 leaves out is an error, of the side to blame."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from plugrl_gym.errors import LocalProtocolError, RemoteProtocolError
from plugrl_gym.protocol import (
    SENDER,
    TRANSITIONS,
    Action,
    ClientProtocol,
    MessageType,
    Metadata,
    Role,
    ServerProtocol,
    State,
    encode,
)
from tests.support.messages import acting, connect, feedback, infer

PAIRS = list(itertools.product(State, MessageType))
ABSENT = [pair for pair in PAIRS if pair not in TRANSITIONS]

FRAMES = {
    MessageType.METADATA: encode(Metadata().to_wire()),
    MessageType.INFER: encode(infer().to_wire()),
    MessageType.ACTION: encode(Action(np.zeros((1, 2)), np.array([0, 1])).to_wire()),
    MessageType.FEEDBACK: encode(feedback().to_wire()),
}


def at(state: State) -> tuple[ClientProtocol, ServerProtocol]:
    """Both ends in ``state``, by the legal way there."""
    match state:
        case State.GREETING:
            return ClientProtocol(), ServerProtocol()
        case State.IDLE:
            return connect()
        case State.DECIDING:
            client, server = connect()
            server.receive(client.send_infer(infer()))
            return client, server
        case State.ACTING:
            return acting()
        case State.CLOSED:
            client, server = connect()
            client.state = server.state = State.CLOSED
            return client, server


def sending(kind: MessageType, client: ClientProtocol, server: ServerProtocol) -> Callable[[], Any]:
    return {
        MessageType.METADATA: lambda: server.send_metadata(Metadata()),
        MessageType.INFER: lambda: client.send_infer(infer()),
        MessageType.ACTION: lambda: server.send_action(np.zeros((1, 2))),
        MessageType.FEEDBACK: lambda: client.send_feedback(feedback()),
    }[kind]


def receiving(
    kind: MessageType, client: ClientProtocol, server: ServerProtocol
) -> Callable[[], Any]:
    frame = FRAMES[kind]
    return {
        MessageType.METADATA: lambda: client.receive_metadata(frame),
        MessageType.INFER: lambda: server.receive(frame),
        MessageType.ACTION: lambda: client.receive_action(frame),
        MessageType.FEEDBACK: lambda: server.receive(frame),
    }[kind]


@pytest.mark.parametrize(("state", "kind"), TRANSITIONS)
def test_both_ends_follow_transition(state: State, kind: MessageType) -> None:
    client, server = at(state)
    frame = sending(kind, client, server)()
    sender, receiver = (client, server) if SENDER[kind] is Role.CLIENT else (server, client)
    assert sender.state is TRANSITIONS[state, kind]
    assert receiver.state is state
    receiving_end: Any = receiver
    read = getattr(receiving_end, "receive", None) or getattr(
        receiving_end, f"receive_{kind}", None
    )
    assert read is not None
    read(frame)
    assert receiver.state is TRANSITIONS[state, kind]


@pytest.mark.parametrize(("state", "kind"), ABSENT)
def test_sender_refuses_absent_pair(state: State, kind: MessageType) -> None:
    client, server = at(state)
    with pytest.raises(LocalProtocolError, match=f"{kind} in the state {state}"):
        sending(kind, client, server)()
    assert client.state is server.state is state


@pytest.mark.parametrize(("state", "kind"), ABSENT)
def test_receiver_blames_peer_for_absent_pair(state: State, kind: MessageType) -> None:
    client, server = at(state)
    with pytest.raises(RemoteProtocolError):
        receiving(kind, client, server)()
    assert client.state is server.state is state


@pytest.mark.parametrize("kind", [MessageType.METADATA, MessageType.ACTION])
@pytest.mark.parametrize("state", State)
def test_server_blames_client_for_server_message(state: State, kind: MessageType) -> None:
    _, server = at(state)
    with pytest.raises(RemoteProtocolError):
        server.receive(FRAMES[kind])


@pytest.mark.parametrize("kind", [MessageType.INFER, MessageType.FEEDBACK])
def test_client_blames_server_for_client_message(kind: MessageType) -> None:
    client, _ = at(State.DECIDING)
    with pytest.raises(
        RemoteProtocolError, match=f"expected action, got message_type str '{kind}'"
    ):
        client.receive_action(FRAMES[kind])
    with pytest.raises(RemoteProtocolError, match="expected metadata"):
        ClientProtocol().receive_metadata(FRAMES[kind])


def test_server_refuses_second_infer_in_a_row() -> None:
    _, server = at(State.DECIDING)
    with pytest.raises(RemoteProtocolError, match="in the state deciding"):
        server.receive(FRAMES[MessageType.INFER])


def test_failed_send_leaves_exchange_where_it_was() -> None:
    client, server = at(State.IDLE)
    with pytest.raises(LocalProtocolError):
        client.send_infer(infer([0, 0]))
    server.receive(client.send_infer(infer()))
    with pytest.raises(LocalProtocolError):
        server.send_action(np.zeros((1, 3)))
    client.receive_action(server.send_action(np.zeros((1, 2))))
    with pytest.raises(LocalProtocolError):
        client.send_feedback(feedback([0, 5]))
    assert client.holding == server.holding == {0, 1}
    server.receive(client.send_feedback(feedback()))
    assert client.holding == server.holding == set()


def test_failed_receive_leaves_exchange_where_it_was() -> None:
    client, server = at(State.IDLE)
    with pytest.raises(RemoteProtocolError):
        server.receive(b"\xc1")
    server.receive(client.send_infer(infer()))
    with pytest.raises(RemoteProtocolError):
        client.receive_action(b"\xc1")
    client.receive_action(server.send_action(np.zeros((1, 2))))
    with pytest.raises(RemoteProtocolError):
        server.receive(b"\xc1")
    assert server.state is State.ACTING
    assert server.holding == {0, 1}
