"""best_model.zip: the model with the weights that earned most in an evaluation."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import IO, Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy

from plugrl_gym.agents.sb3.runs import disk

__all__ = ["save_evaluated"]


def save_evaluated(model: BaseAlgorithm, policy: BasePolicy, timesteps: int, path: Path) -> None:
    """Write a model that plain SB3 loads: whole, then under its name; its directory is made.

    Args:
        model: The learner's; it may have learned on, or be learning, since ``policy`` was copied.
            What its optimizers remember belongs to later weights and is left out: who goes on
            learning from the file starts them anew.
        policy: The copy that was evaluated.
        timesteps: Env steps of the run when it was.
        path: Of the file.
    """
    parameters: dict[str, Any] = {
        name: {**state, "state": {}} if "param_groups" in state else state
        for name, state in model.get_parameters().items()
    }
    parameters["policy"] = policy.state_dict()
    twin = copy.copy(model)
    twin.num_timesteps = timesteps
    for name in ("ep_info_buffer", "ep_success_buffer"):  # grow while it learns
        setattr(twin, name, copy.copy(getattr(model, name)))
    twin.get_parameters = lambda: parameters  # type: ignore[method-assign]

    def write(file: IO[bytes]) -> None:
        twin.save(file, exclude=["get_parameters"])  # type: ignore[arg-type]  # any binary file

    disk.replace_file(path, write)
