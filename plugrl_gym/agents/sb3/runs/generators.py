"""The state of every generator of random numbers that learning draws from."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm

__all__ = ["generator_state", "restore_generators"]


def generator_state(model: BaseAlgorithm) -> dict[str, Any]:
    """Python's, NumPy's and torch's global generators, and that of the model's action space."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.random.get_rng_state().numpy(),
        "action_space": model.action_space.np_random.bit_generator.state,
    }
    if torch.cuda.is_available():
        state["cuda"] = [each.numpy() for each in torch.cuda.get_rng_state_all()]
    return state


def restore_generators(model: BaseAlgorithm, state: Mapping[str, Any]) -> None:
    """Go on from :func:`generator_state`; a GPU that is not there any more is left out."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.random.set_rng_state(torch.from_numpy(state["torch"].copy()))
    model.action_space.np_random.bit_generator.state = state["action_space"]
    cuda = [torch.from_numpy(each.copy()) for each in state.get("cuda", ())]
    if torch.cuda.is_available() and len(cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(cuda)
