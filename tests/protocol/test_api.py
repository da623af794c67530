"""What other parts may import, and that the examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import plugrl_gym.protocol
import plugrl_gym.spaces


def modules() -> Iterator[str]:
    for package in (plugrl_gym.protocol, plugrl_gym.spaces):
        yield package.__name__
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield found.name


def test_protocol_exports_exactly_these_names() -> None:
    assert plugrl_gym.protocol.__all__ == [
        "CHUNK_STEPS",
        "EXECUTED_ACTIONS",
        "GYM_SPACES",
        "PROTOCOL_VERSION",
        "REUSE_FEEDBACK_OBS",
        "SENDER",
        "TRANSITIONS",
        "Action",
        "ChunkSteps",
        "ClientProtocol",
        "EpisodeStatistics",
        "ExecutedActions",
        "Feedback",
        "Infer",
        "MessageType",
        "Metadata",
        "Observation",
        "ReceivedFeedback",
        "Role",
        "ServerProtocol",
        "SpaceDeclaration",
        "State",
        "check_encodable",
        "decode",
        "encode",
    ]


def test_spaces_export_exactly_these_names() -> None:
    assert plugrl_gym.spaces.__all__ == [
        "ActionLayout",
        "ObservationLayout",
        "build_space",
        "describe_space",
        "standard_space",
    ]


@pytest.mark.parametrize("name", list(modules()))
def test_module_has_what_it_exports_and_its_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    for exported in module.__all__:
        assert hasattr(module, exported)
    assert doctest.testmod(module).failed == 0
