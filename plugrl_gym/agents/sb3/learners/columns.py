"""How many envs a model believes in, and with them the columns of its buffer."""

from __future__ import annotations

from collections.abc import Sequence

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from plugrl_gym.agents.sb3.learners.replay_buffers import make_replay_buffer
from plugrl_gym.agents.sb3.learners.rollout_buffers import make_buffer

__all__ = ["set_num_envs"]


def set_num_envs(model: OnPolicyAlgorithm | OffPolicyAlgorithm, num_envs: int) -> None:
    """Let a model's buffer have another number of columns; a filled replay buffer stays."""
    assert model.env is not None
    for envs in _layers(model.env):
        envs.num_envs = num_envs
    model.n_envs = num_envs
    if isinstance(model, OnPolicyAlgorithm):
        model.rollout_buffer = make_buffer(model, model.n_steps, num_envs)
    elif model.replay_buffer is None or model.replay_buffer.size() == 0:
        model.replay_buffer = make_replay_buffer(model, num_envs)


def _layers(envs: VecEnv) -> Sequence[VecEnv]:
    inner = getattr(envs, "venv", None)
    return [envs] if inner is None else [envs, *_layers(inner)]
