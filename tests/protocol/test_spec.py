"""SPEC.md says what the code does: its golden bytes and its state table."""

from __future__ import annotations

import msgpack
import pytest

from plugrl_gym.protocol import TRANSITIONS, MessageType, State, decode, encode
from plugrl_gym.protocol.messages import read_message
from tests.support.golden import golden, spec_golden, spec_state_table

SPEC = spec_golden()
KINDS = [kind.value for kind in MessageType]


def test_spec_has_an_example_of_every_message() -> None:
    assert set(KINDS) <= set(SPEC)
    assert len(SPEC) >= 10


@pytest.mark.parametrize("name", SPEC)
def test_spec_golden_bytes_survive_decoding_and_encoding(name: str) -> None:
    value = decode(SPEC[name])
    again = encode(value) if isinstance(value, dict) else encode({"": value})[2:]
    assert again.hex() == SPEC[name].hex()


@pytest.mark.parametrize("kind", KINDS)
def test_spec_golden_message_is_what_the_writer_writes(kind: str) -> None:
    message = read_message(SPEC[kind], MessageType(kind))
    written = encode(message.to_wire())
    if kind == "metadata":  # its keys have no order of their own
        assert sorted(msgpack.unpackb(written)["data"]) == sorted(
            msgpack.unpackb(SPEC[kind])["data"]
        )
    else:
        assert written.hex() == SPEC[kind].hex()


def test_spec_worked_example_is_the_golden_file() -> None:
    assert SPEC["array-float32"] == golden("arrays")["float32"]


def test_spec_state_table_equals_transitions() -> None:
    code = {(str(state), str(kind)): str(to) for (state, kind), to in TRANSITIONS.items()}
    assert spec_state_table() == code


def test_spec_state_table_has_every_open_state() -> None:
    states = {state for state, _ in spec_state_table()}
    assert states == {str(state) for state in State} - {"closed"}
