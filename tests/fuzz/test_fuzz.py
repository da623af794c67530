"""A little of ``make fuzz``, and that it would find what it looks for."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from plugrl_gym.protocol import ServerProtocol
from tests.fuzz import __main__ as program
from tests.fuzz import reading
from tests.fuzz.__main__ import Findings, fuzz_memory, fuzz_server
from tests.fuzz.mutation import Mutator
from tests.fuzz.reading import good_frames, read_everywhere

MB = 2**20


def test_equal_seeds_give_equal_frames() -> None:
    one, two, other = (Mutator(good_frames(), seed) for seed in (7, 7, 8))
    frames = [one.frame() for _ in range(300)]
    assert frames == [two.frame() for _ in range(300)]
    assert frames != [other.frame() for _ in range(300)]


def test_some_frames_are_taken_and_most_are_refused() -> None:
    mutator = Mutator(good_frames(), 0)
    frames = [mutator.frame() for _ in range(500)]
    refused = sum(reading._refused(partial(reading.decode, frame)) for frame in frames)
    assert 150 < refused < 450


def test_protocol_survives_frames_in_memory() -> None:
    found = fuzz_memory(1500, seed=1)
    assert (found.frames, found.faults) == (1500, [])


def test_server_survives_frames_over_sockets_and_a_client_beside_it_notices_nothing() -> None:
    found = fuzz_server(150, seed=1)
    assert found.faults == []
    assert found.neighbour["connections"] == 1
    assert found.neighbour["env_steps"] > 0


def test_crash_of_a_reader_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = ServerProtocol.receive

    def fragile(self: ServerProtocol, frame: bytes) -> Any:
        if len(frame) % 5 == 0:
            raise KeyError("no such thing")
        return receive(self, frame)

    monkeypatch.setattr(ServerProtocol, "receive", fragile)
    faults = fuzz_memory(200, seed=1).faults
    assert faults
    assert faults[0].startswith("KeyError: 'no such thing': ")


def test_slow_reader_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_SLOW", 0.0)
    assert len(fuzz_memory(20, seed=1).faults) == 20


@pytest.mark.parametrize(("memory", "files"), [((100 * MB, 131 * MB), (0, 0)), ((0, 0), (20, 31))])
def test_reader_that_grows_is_a_fault(memory: Any, files: Any) -> None:
    found = Findings(memory=memory, files=files)
    found.check_growth()
    assert len(found.faults) == 1


@pytest.mark.parametrize(
    "told",
    [
        {"connections": 2, "errors": [], "dropped": {}},
        {"connections": 1, "errors": [], "dropped": {"resync": 1}},
        {"connections": 1, "errors": ["env steps 3 is not fed back 2"], "dropped": {}},
    ],
)
def test_neighbour_that_was_disturbed_is_a_fault(told: dict[str, Any]) -> None:
    found = Findings(neighbour=told)
    program._judge_neighbour(found)
    assert len(found.faults) == 1


@pytest.mark.parametrize("frame", good_frames())
def test_good_frames_are_read(frame: bytes) -> None:
    read_everywhere(frame)
