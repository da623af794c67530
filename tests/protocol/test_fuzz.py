"""Whatever arrives, the outcome is a typed message or a typed protocol error (SPEC 3.13)."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugrl_gym.errors import RemoteProtocolError, UnsupportedSpace
from plugrl_gym.protocol import (
    Action,
    ClientProtocol,
    Feedback,
    Infer,
    MessageType,
    Metadata,
    ReceivedFeedback,
    ServerProtocol,
    decode,
    encode,
)
from plugrl_gym.protocol.messages import read_message
from plugrl_gym.spaces import ActionLayout, ObservationLayout, build_space
from tests.support.fuzzing import fuzz, junk, mutated, spliced
from tests.support.golden import golden, spec_golden
from tests.support.messages import acting, connect, feedback, infer, same

FRAMES = {**golden("messages"), **{k: v for k, v in spec_golden().items() if "-" not in k}}
BY_KIND = {
    kind: [frame for name, frame in FRAMES.items() if name.split(",")[0] == kind]
    for kind in MessageType
}


def checked(error: RemoteProtocolError) -> None:
    """One line, not too long, without control characters."""
    text = str(error)
    assert text.isprintable(), text
    assert 5 < len(text) < 600, text


def read(frame: bytes, kind: MessageType) -> None:
    """Read ``frame``; what is accepted must be usable, and be accepted again when sent on."""
    try:
        message = read_message(frame, kind)
    except RemoteProtocolError as error:
        checked(error)
        return
    assert isinstance(message, Metadata | Infer | Action | Feedback)
    again = read_message(encode(message.to_wire()), kind)
    assert same(again.to_wire(), message.to_wire())
    if isinstance(message, Feedback):
        rows = list(range(len(message.env_indices)))
        assert message.select(rows[::-1]).observation.rows == len(rows)
        assert set(message.non_finite_rows()) <= set(rows)
        assert message.ended.shape == (len(rows),)
    if isinstance(message, Infer) and message.spaces is not None:
        use(message)


def use(message: Infer) -> None:
    """Spaces that were accepted become Gymnasium spaces and layouts, or are refused by type."""
    assert message.spaces is not None
    with contextlib.suppress(UnsupportedSpace):
        assert ActionLayout(build_space(message.spaces.action)).dim >= 1
    with contextlib.suppress(UnsupportedSpace):
        layout = ObservationLayout(build_space(message.spaces.observation))
        assert layout.policy_space is not None
        try:
            layout.decode(message.observation)
        except RemoteProtocolError as error:
            checked(error)


def exchange(frame: bytes) -> None:
    """Give ``frame`` to each end in each state in which something may arrive."""
    client = ClientProtocol()
    with contextlib.suppress(RemoteProtocolError):
        assert isinstance(client.receive_metadata(frame), Metadata)
    client, server = connect()
    with contextlib.suppress(RemoteProtocolError):
        assert isinstance(server.receive(frame), Infer)
        return
    server.receive(client.send_infer(infer([0, 3])))
    with contextlib.suppress(RemoteProtocolError):
        assert isinstance(client.receive_action(frame), Action)
    client, server = connect()
    server.receive(client.send_infer(infer([0, 3])))
    client.receive_action(server.send_action(np.zeros((2, 2, 1))))
    with contextlib.suppress(RemoteProtocolError):
        assert isinstance(server.receive(frame), ReceivedFeedback)
        return
    server.receive(client.send_feedback(feedback([0, 3])))
    with contextlib.suppress(RemoteProtocolError):
        assert isinstance(server.receive(frame), Infer)


@given(st.binary(max_size=64))
@fuzz(500)
def test_reader_survives_any_bytes(frame: bytes) -> None:
    try:
        decode(frame)
    except RemoteProtocolError as error:
        checked(error)


@given(junk())
@fuzz(200)
def test_reader_survives_any_value(value: Any) -> None:
    frame = msgpack.packb(value)
    try:
        decode(frame)
    except RemoteProtocolError as error:
        checked(error)
    for kind in MessageType:
        read(frame, kind)


@pytest.mark.parametrize("kind", MessageType)
@given(data=st.data())
@fuzz(100)
def test_reader_survives_mutated_message(kind: MessageType, data: st.DataObject) -> None:
    frame = data.draw(mutated(data.draw(st.sampled_from(BY_KIND[kind]))))
    read(frame, kind)


@pytest.mark.parametrize("kind", MessageType)
@given(data=st.data())
@fuzz(150)
def test_reader_survives_spliced_frame(kind: MessageType, data: st.DataObject) -> None:
    frame = data.draw(spliced(data.draw(st.sampled_from(BY_KIND[kind]))))
    read(frame, kind)


@given(st.data())
@fuzz(100)
def test_both_ends_survive_mutated_message_in_any_state(data: st.DataObject) -> None:
    exchange(data.draw(mutated(data.draw(st.sampled_from(list(FRAMES.values()))))))


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", MessageType)
@given(data=st.data())
@fuzz(10_000)
def test_reader_survives_many_mutated_messages(kind: MessageType, data: st.DataObject) -> None:
    read(data.draw(mutated(data.draw(st.sampled_from(BY_KIND[kind])))), kind)


@pytest.mark.parametrize("name", FRAMES)
def test_reader_survives_every_single_byte_changed(name: str) -> None:
    kind = MessageType(name.split(",")[0])
    frame = FRAMES[name]
    for place in range(0, len(frame), 1 + len(frame) // 400):
        for value in (0x00, 0x7F, 0x80, 0x90, 0xC0, 0xC1, 0xC7, 0xD6, 0xDD, 0xDF, 0xFF):
            read(frame[:place] + bytes([value]) + frame[place + 1 :], kind)


@pytest.mark.parametrize("name", golden("hostile"))
def test_hostile_frame_is_refused(name: str) -> None:
    frame = golden("hostile")[name]
    with pytest.raises(RemoteProtocolError) as refused:
        decode(frame)
    checked(refused.value)
    exchange(frame)


def test_client_outcome_is_typed_for_every_prefix() -> None:
    for frame in BY_KIND[MessageType.METADATA]:
        for length in range(len(frame)):
            with pytest.raises(RemoteProtocolError):
                ClientProtocol().receive_metadata(frame[:length])
    client, server = connect()
    server.receive(client.send_infer(infer([0, 3])))
    for frame in BY_KIND[MessageType.ACTION]:
        for length in range(len(frame)):
            with pytest.raises(RemoteProtocolError):
                client.receive_action(frame[:length])


def test_server_outcome_is_typed_for_every_prefix() -> None:
    _, server = connect()
    assert isinstance(server, ServerProtocol)
    for frame in BY_KIND[MessageType.INFER]:
        for length in range(len(frame)):
            with pytest.raises(RemoteProtocolError):
                server.receive(frame[:length])
    _, server = acting([0, 3])
    for frame in BY_KIND[MessageType.FEEDBACK]:
        for length in range(len(frame)):
            with pytest.raises(RemoteProtocolError):
                server.receive(frame[:length])
