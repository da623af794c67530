"""What one checkpoint holds: everything that learning needs to go on as if nothing had happened.

``model.zip`` and ``vecnormalize.pkl`` are files of plain SB3. ``replay_buffer.npz`` holds NumPy
arrays; ``state.pkl`` is a pickle, read only from a directory that the operator has named.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from plugrl_gym.agents.sb3.learners.learner import Learner
from plugrl_gym.agents.sb3.normalization import Normalizer
from plugrl_gym.agents.sb3.runs.counters import Counters
from plugrl_gym.agents.sb3.runs.generators import generator_state, restore_generators
from plugrl_gym.agents.sb3.runs.loading import NORMALIZER
from plugrl_gym.agents.sb3.runs.replay import buffer_state, read_buffer, write_buffer

__all__ = [
    "MODEL",
    "read_state",
    "restore_learner",
    "restore_model",
    "state_of",
    "write_snapshot",
]

MODEL: Final = "model.zip"
_REPLAY: Final = "replay_buffer.npz"
_STATE: Final = "state.pkl"


def state_of(learner: Learner[Any, Any], counters: Counters) -> dict[str, Any]:
    """What a checkpoint holds beside files of SB3 and arrays.

    Args:
        learner: No update is under way, and none is due. What its model counts may change by this.
        counters: Of the run.
    """
    return {
        "learner": learner.state(),
        "counters": asdict(counters),
        "generators": generator_state(learner.model),
    }


def write_snapshot(directory: Path, model: BaseAlgorithm, state: dict[str, Any]) -> None:
    """Write all files of a checkpoint.

    Args:
        directory: Empty.
        model: Not trained since ``state`` was asked for.
        state: From :func:`state_of`.

    Raises:
        OSError: There is no room for them.
    """
    with (directory / MODEL).open("wb") as file:
        model.save(file)
    normalizer = Normalizer.of(model)
    if normalizer is not None:
        normalizer.save(directory / NORMALIZER)
    buffer = model.replay_buffer if isinstance(model, OffPolicyAlgorithm) else None
    if buffer is not None:
        state["replay_buffer"] = buffer_state(buffer)
        with (directory / _REPLAY).open("wb") as arrays:
            write_buffer(buffer, arrays)
    (directory / _STATE).write_bytes(pickle.dumps(state, pickle.HIGHEST_PROTOCOL))


def read_state(directory: Path) -> dict[str, Any]:
    """What a checkpoint holds beside files of SB3 and arrays."""
    state: dict[str, Any] = pickle.loads((directory / _STATE).read_bytes())
    return state


def restore_model(directory: Path, state: Mapping[str, Any], model: BaseAlgorithm) -> None:
    """Give a model that was loaded from a checkpoint what its own file does not hold."""
    normalizer = Normalizer.of(model)
    if normalizer is not None:
        normalizer.load(directory / NORMALIZER)
    if isinstance(model, OffPolicyAlgorithm) and "replay_buffer" in state:
        assert model.replay_buffer is not None  # load() has set it up
        with (directory / _REPLAY).open("rb") as file:
            model.replay_buffer = read_buffer(model.replay_buffer, state["replay_buffer"], file)


def restore_learner(
    state: Mapping[str, Any], learner: Learner[Any, Any], counters: Counters
) -> None:
    """Let a new learner of a restored model go on; nothing may be drawn at random after it."""
    for name, value in state["counters"].items():
        setattr(counters, name, value)
    learner.restore(state["learner"])
    restore_generators(learner.model, state["generators"])
