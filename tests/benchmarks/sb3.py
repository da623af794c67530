"""The yardstick: Stable-Baselines3 alone, in this process, with no part of this project."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv

from tests.benchmarks.cases import Case

__all__ = ["Learned", "digest", "evaluate", "find_class", "learn", "learn_over"]

#: Episodes of an evaluation, each in an env of its own, and the seed of the first.
_EPISODES: Final = 20
_EVALUATION_SEED: Final = 10_000


@dataclass(frozen=True)
class Learned:
    """What SB3's ``learn()`` came to.

    Attributes:
        env_steps, episodes: In all.
        mean_return: Of the last 100 episodes; None before the first ends.
        wall_seconds: Of ``learn()`` alone.
    """

    model: BaseAlgorithm
    env_steps: int
    episodes: int
    mean_return: float | None
    wall_seconds: float


def find_class(algo: str) -> type[Any]:
    """The class of an algorithm."""
    found: type[Any] = getattr(stable_baselines3, algo.upper())
    return found


def learn(case: Case, seed: int, total_timesteps: int) -> Learned:
    """Train as somebody would who has never heard of this project."""
    envs = make_vec_env(case.env_id, n_envs=case.num_envs, seed=seed)
    model = _make(envs, case, seed)
    began = time.monotonic()
    model.learn(total_timesteps)
    seconds = time.monotonic() - began
    episodes = sum(len(returns) for returns in envs.env_method("get_episode_rewards"))
    envs.close()
    last = [episode["r"] for episode in model.ep_info_buffer]
    mean = float(np.mean(last)) if last else None
    return Learned(model, model.num_timesteps, episodes, mean, seconds)


def learn_over(envs: VecEnv, case: Case, seed: int, total_timesteps: int) -> BaseAlgorithm:
    """Likewise, over envs of any other make; returns the model."""
    model = _make(envs, case, seed)
    return model.learn(total_timesteps)


def _make(envs: VecEnv, case: Case, seed: int) -> BaseAlgorithm:
    arguments = _arguments(case.settings, envs)
    model: BaseAlgorithm = find_class(case.algo)(
        "MlpPolicy", envs, seed=seed, device="cpu", **arguments
    )
    model.set_logger(Logger(None, []))  # SB3's own makes a directory that nobody reads
    return model


def _arguments(settings: Mapping[str, Any], envs: VecEnv) -> dict[str, Any]:
    """The settings of a case, which are spelled as ``serve -P`` takes them, as objects of SB3."""
    arguments = dict(settings)
    for name, value in settings.items():
        if isinstance(value, str) and value.startswith("lin_"):
            arguments[name] = LinearSchedule(float(value.removeprefix("lin_")), 0.0, 1.0)
        elif name == "action_noise":
            sigma = float(value.removeprefix("normal:"))
            shape = envs.action_space.shape or ()
            arguments[name] = NormalActionNoise(np.zeros(shape), np.full(shape, sigma))
    return arguments


def evaluate(path: Path, case: Case) -> list[float]:
    """Load a model.zip and run it deterministically; the returns of the episodes."""
    model = find_class(case.algo).load(path, device="cpu")
    envs = make_vec_env(case.env_id, n_envs=_EPISODES, seed=_EVALUATION_SEED)
    returns, _ = evaluate_policy(
        model, envs, n_eval_episodes=_EPISODES, deterministic=True, return_episode_rewards=True
    )
    envs.close()
    return [float(value) for value in np.ravel(returns)]


def digest(path: Path) -> str:
    """SHA-256 of every number that a model.zip has learned: parameters and optimizers' states."""
    _, parameters, variables = load_from_zip_file(path, load_data=False, device="cpu")
    found = hashlib.sha256()
    _feed(found, "parameters", parameters)
    _feed(found, "variables", variables or {})
    return found.hexdigest()


def _feed(found: Any, name: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            _feed(found, f"{name}.{key}", value[key])
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _feed(found, f"{name}.{number}", item)
    elif isinstance(value, torch.Tensor):
        array = value.detach().cpu().contiguous().numpy()
        found.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        found.update(array.tobytes())
    else:
        found.update(f"{name} {value!r} ".encode())
