"""Frames in memory: every state of both ends gets each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from plugrl_gym.errors import RemoteProtocolError, UnsupportedSpace
from plugrl_gym.protocol import (
    ClientProtocol,
    Infer,
    Metadata,
    ReceivedFeedback,
    ServerProtocol,
    decode,
)
from plugrl_gym.spaces import ActionLayout, ObservationLayout, build_space
from tests.support.golden import golden, spec_golden
from tests.support.messages import acting, connect, feedback, infer

__all__ = ["good_frames", "read_everywhere"]


def good_frames() -> list[bytes]:
    """The golden messages of tests/golden/ and of SPEC.md."""
    spec = [frame for name, frame in spec_golden().items() if "-" not in name]
    return [*golden("messages").values(), *spec]


def read_everywhere(frame: bytes) -> None:
    """Give ``frame`` to both ends in each state.

    Raises:
        Exception: Anything but a typed refusal: what was looked for.
    """
    if not _refused(lambda: decode(frame)):
        for place in (_by_client_that_greets, _by_server_that_idles, _in_mid_exchange):
            place(frame)


def _refused(read: Callable[[], object]) -> bool:
    """Whether the peer is told that it broke the protocol, in one readable line."""
    try:
        read()
    except RemoteProtocolError as error:
        text = str(error)
        assert text.isprintable(), repr(text)
        assert 5 < len(text) < 600, text
        return True
    return False


def _by_client_that_greets(frame: bytes) -> None:
    client = ClientProtocol()
    _refused(lambda: client.receive_metadata(frame))


def _by_server_that_idles(frame: bytes) -> None:
    server = ServerProtocol()
    server.send_metadata(Metadata(features=("reuse-feedback-obs", "gym-spaces")))
    received: list[Infer | ReceivedFeedback] = []
    if _refused(lambda: received.append(server.receive(frame))):
        return
    message = received[0]
    assert isinstance(message, Infer)
    if message.spaces is not None:
        with contextlib.suppress(UnsupportedSpace):
            ActionLayout(build_space(message.spaces.action))
        with contextlib.suppress(UnsupportedSpace):
            layout = ObservationLayout(build_space(message.spaces.observation))
            _refused(lambda: layout.decode(message.observation))


def _in_mid_exchange(frame: bytes) -> None:
    client, server = connect()
    server.receive(client.send_infer(infer([0, 3])))
    _refused(lambda: client.receive_action(frame))
    client, server = acting([0, 3], horizon=2)
    if not _refused(lambda: server.receive(frame)):
        assert server.holding <= {0, 3}
        _refused(lambda: server.receive(client.send_feedback(feedback([0, 3]))))
