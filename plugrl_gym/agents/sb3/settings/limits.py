"""What an algorithm cannot do, each in one sentence of at most 123 bytes (SPEC 8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import (
    DictReplayBuffer,
    NStepReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
)
from stable_baselines3.common.noise import ActionNoise, VectorizedActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import TrainFreq

from plugrl_gym.agents.sb3.settings.algorithms import is_a
from plugrl_gym.errors import UnsupportedSpace, UsageError
from plugrl_gym.spaces.naming import brief

__all__ = [
    "check_actions",
    "check_demonstrations",
    "check_noise",
    "check_num_envs",
    "check_rollout_buffer",
    "check_settings",
    "limited_settings",
]


def check_actions(algorithm: type[BaseAlgorithm], space: spaces.Space[Any]) -> None:
    """Find out whether an algorithm can choose from an env's actions.

    Raises:
        UnsupportedSpace: It cannot.
    """
    name = algorithm.__name__.lower()
    if is_a(algorithm, "DQN", "QRDQN") and not isinstance(space, spaces.Discrete):
        raise UnsupportedSpace(f"{name} needs Discrete actions, env has {brief(space)}")
    if not is_a(algorithm, "SAC", "TD3", "TQC", "CrossQ"):
        return
    if not isinstance(space, spaces.Box):
        raise UnsupportedSpace(f"{name} needs Box actions, env has {brief(space)}")
    low, high = (bound.reshape(-1) + 0.0 for bound in (space.low, space.high))  # 0 for -0
    with np.errstate(over="ignore"):
        width = high.astype(np.float32) - low.astype(np.float32)
    for at in np.flatnonzero(~np.isfinite(width))[:1].tolist():
        raise UnsupportedSpace(
            f"{name} needs finite action bounds, env has {brief(space)} from {low[at]:g} to "
            f"{high[at]:g}"
        )
    for at in np.flatnonzero(width <= 0)[:1].tolist():
        raise UnsupportedSpace(
            f"{name} needs action bounds low < high, env has {brief(space)} from {low[at]:g} to "
            f"{high[at]:g} (number {at})"
        )


def check_settings(
    algorithm: type[BaseAlgorithm], hyperparameters: Mapping[str, Any], horizon: int = 1
) -> None:
    """Find out whether an algorithm can be served with these settings.

    Raises:
        UsageError: It cannot.
    """
    if not issubclass(algorithm, OffPolicyAlgorithm):
        check_rollout_buffer(hyperparameters.get("rollout_buffer_class"), horizon)
        return
    name = algorithm.__name__.lower()
    if horizon > 1 and is_a(algorithm, "DQN", "QRDQN"):
        raise UsageError(f"{name} takes one step at a time: --horizon 1")
    if horizon > 1:
        for setting, common in (("n_steps", 1), ("optimize_memory_usage", False)):
            if hyperparameters.get(setting, common) != common:
                raise UsageError(f"{setting} needs --horizon 1")
    _check_buffer(hyperparameters.get("replay_buffer_class"), horizon)


def limited_settings(model: BaseAlgorithm) -> dict[str, Any]:
    """Those settings of a model that the checks here ask for, wherever they came from."""
    names = ("n_steps", "optimize_memory_usage", "replay_buffer_class", "rollout_buffer_class")
    settings = {name: getattr(model, name) for name in names if hasattr(model, name)}
    frequency = getattr(model, "train_freq", None)
    if isinstance(frequency, TrainFreq):
        settings["train_freq"] = (frequency.frequency, frequency.unit.value)
    return settings


def check_rollout_buffer(kind: type[RolloutBuffer] | None, horizon: int) -> None:
    """Find out whether a class of rollout buffer can be given a discount for each row.

    Raises:
        UsageError: It cannot, and the horizon is above 1.
    """
    own = kind is not None and (
        kind.compute_returns_and_advantage is not RolloutBuffer.compute_returns_and_advantage
    )
    if horizon > 1 and own:
        assert kind is not None
        raise UsageError(
            f"rollout_buffer_class {kind.__name__} estimates returns in its own way, which knows "
            "no discount per row: --horizon 1"
        )


def _check_buffer(kind: type[ReplayBuffer] | None, horizon: int) -> None:
    if kind is None:
        return
    if issubclass(kind, HerReplayBuffer):
        raise UsageError(f"{kind.__name__} computes rewards in the env, which is at the client")
    if issubclass(kind, NStepReplayBuffer) and kind is not NStepReplayBuffer:
        raise UsageError(
            f"{kind.__name__} cannot tell the trajectories of several clients apart; "
            "NStepReplayBuffer itself can be served"
        )
    if horizon > 1 and kind not in (ReplayBuffer, DictReplayBuffer):
        raise UsageError(f"{kind.__name__} knows no discount per row: --horizon 1")


def check_demonstrations(
    algorithm: type[BaseAlgorithm], hyperparameters: Mapping[str, Any], share: float
) -> None:
    """Find out whether batches can have a share of demonstrations.

    Raises:
        UsageError: They cannot, and ``share`` is not 0.
    """
    if not 0.0 <= share <= 1.0:
        raise UsageError(f"demonstrations_share: expected 0 to 1, got {share}")
    if share == 0.0:
        return
    if not issubclass(algorithm, OffPolicyAlgorithm):
        raise UsageError(
            f"{algorithm.__name__.lower()} cannot learn from demonstrations, sac or dqn can: "
            "no demonstrations_share"
        )
    for setting, common in (("n_steps", 1), ("optimize_memory_usage", False)):
        if hyperparameters.get(setting, common) != common:
            raise UsageError(f"{setting} does not go with demonstrations_share")
    kind = hyperparameters.get("replay_buffer_class")
    if kind not in (None, ReplayBuffer, DictReplayBuffer):
        raise UsageError(f"{kind.__name__} knows no demonstrations: no demonstrations_share")


def check_num_envs(hyperparameters: Mapping[str, Any], num_envs: int) -> None:
    """Find out whether the settings allow as many envs.

    SB3 counts the episodes of one env only, and noise may have been made for a number of envs.

    Raises:
        UsageError: They do not.
    """
    noise = hyperparameters.get("action_noise")
    if isinstance(noise, VectorizedActionNoise) and noise.n_envs != num_envs:
        raise UsageError(f"action_noise is for {noise.n_envs} envs, here are {num_envs}")
    frequency = hyperparameters.get("train_freq")
    if isinstance(frequency, tuple | list) and "episode" in frequency and num_envs > 1:
        raise UsageError(
            f"train_freq in episodes needs one env, here are {num_envs}; (n, 'step') takes more"
        )


def check_noise(noise: ActionNoise, space: spaces.Space[Any], num_envs: int) -> None:
    """Find out whether exploration noise is of the actions' shape; draws from it once.

    Raises:
        UsageError: It is not.
    """
    expected = tuple(space.shape or ())
    if isinstance(noise, VectorizedActionNoise):
        expected = (num_envs, *expected)
    given = np.shape(noise())
    if given != expected:
        raise UsageError(f"action_noise: expected noise of shape {expected}, got {given}")
