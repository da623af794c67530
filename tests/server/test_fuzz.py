"""Whole connections of broken peers to a live server, beside a good one (SPEC 8.4 to 8.7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from plugrl_gym.protocol import MessageType, encode
from plugrl_gym.protocol.close import REASON_RESYNC
from tests.support.fuzzing import fuzz, junk, mutated, spliced
from tests.support.golden import golden
from tests.support.raw_client import RawClient, feedback_of, infer_of, raw_client
from tests.support.serving import FakeAgent, Running, running

MESSAGES = list(golden("messages").values())
INFER, FEEDBACK = encode(infer_of(0, 1).to_wire()), encode(feedback_of(0, 1).to_wire())
HOSTILE = list(golden("hostile").values())


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Running, RawClient]]:
    """A server, and a good client of it that stays."""
    with running(FakeAgent(), max_resync_delay=0.0) as run, raw_client(run.url) as good:
        yield run, good


def frames() -> st.SearchStrategy[Any]:
    """What a peer may send next: good frames, almost good ones, and anything."""
    good = st.sampled_from([INFER, FEEDBACK])
    return st.one_of(
        good,
        good,
        st.sampled_from(MESSAGES).flatmap(mutated),
        st.sampled_from(MESSAGES).flatmap(spliced),
        st.sampled_from(HOSTILE),
        junk().map(msgpack.packb),
        st.binary(max_size=40),
        st.text(max_size=10),
    )


def talk(url: str, said: list[bytes | str]) -> tuple[int, str] | None:
    """Say everything, then what no server takes; the server's close, None where it ended so."""
    with raw_client(url) as peer:
        try:
            for frame in said:
                peer.socket.send(frame)
            peer.socket.send(b"\xc1")
        except ConnectionClosed as closed:
            frame = closed.rcvd
            return None if frame is None else (frame.code, frame.reason)
        return peer.closed()


@given(said=st.lists(frames(), max_size=3))
@fuzz(60)
def test_whole_connection_of_a_broken_peer_ends_in_a_resync_and_harms_nobody(
    server: tuple[Running, RawClient], said: list[bytes | str]
) -> None:
    run, good = server
    assert talk(run.url, said) in ((1001, REASON_RESYNC), None)
    good.exchange(0)
    assert run.result is None
    assert run.server.statistics.snapshot().book_errors == ()


@pytest.mark.parametrize("kind", [MessageType.INFER, MessageType.FEEDBACK])
def test_every_part_of_a_message_ends_in_a_resync(
    server: tuple[Running, RawClient], kind: MessageType
) -> None:
    run, good = server
    whole = INFER if kind is MessageType.INFER else FEEDBACK
    before = [] if kind is MessageType.INFER else [INFER]
    for length in range(0, len(whole), 7):
        assert talk(run.url, [*before, whole[:length]]) == (1001, REASON_RESYNC)
    good.exchange(0)
