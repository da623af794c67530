"""SB3's own learning beside learning over the protocol, and the comparison of the two.

:func:`sb3_reference` is one process with SB3's own loop; :func:`drive` steps a Gymnasium vector
env and speaks to an agent in whole frames, with no socket. Both end in the weights that
:func:`weights_of` reads and :func:`assert_same_weights` compares byte for byte.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger

from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.server.agent import Agent
from tests.support.agent_peer import AgentPeer

Weights = Mapping[str, torch.Tensor]
M = TypeVar("M", bound=BaseAlgorithm)


def logless(model: M) -> M:
    """The model, with a log in memory: SB3's own leaves a directory among the temporary files."""
    model.set_logger(Logger(None, []))
    return model


def weights_of(model: BaseAlgorithm) -> dict[str, torch.Tensor]:
    """Every parameter and every tensor of the optimizers' state, by name."""
    found: dict[str, torch.Tensor] = {}
    for part, state in model.get_parameters().items():
        _collect(part, state, found)
    return found


def _collect(name: str, value: Any, found: dict[str, torch.Tensor]) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _collect(f"{name}.{key}", item, found)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _collect(f"{name}.{number}", item, found)
    elif isinstance(value, torch.Tensor):
        found[name] = value.detach().clone()
    elif isinstance(value, int | float):
        found[name] = torch.tensor(value, dtype=torch.float64)


def assert_same_weights(left: Weights, right: Weights) -> None:
    """The same names, and under each the same bytes."""
    assert left.keys() == right.keys()
    different = [name for name in left if _bytes(left[name]) != _bytes(right[name])]
    assert not different, f"{len(different)} of {len(left)} tensors differ: {different[:4]}"


def assert_different_weights(left: Weights, right: Weights) -> None:
    """At least one tensor differs: proof that the comparison can fail."""
    assert any(_bytes(left[name]) != _bytes(right[name]) for name in left)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().contiguous().numpy().tobytes()


def sb3_reference(
    env_id: str,
    n_envs: int,
    updates: int,
    *,
    algorithm: type[Any] = PPO,
    policy: str = "MlpPolicy",
    seed: int = 0,
    env_kwargs: dict[str, Any] | None = None,
    **hyperparameters: Any,
) -> dict[str, torch.Tensor]:
    """Weights after SB3's own ``learn()``, in one process.

    Args:
        env_id: A registered env.
        n_envs: Envs in its DummyVecEnv.
        updates: Rollouts to train on.
        algorithm, policy, seed, hyperparameters: For SB3's constructor.
        env_kwargs: For the env.
    """
    envs = make_vec_env(env_id, n_envs=n_envs, seed=seed, env_kwargs=env_kwargs)
    model = algorithm(policy, envs, seed=seed, device="cpu", **hyperparameters)
    logless(model).learn(updates * n_envs * model.n_steps)
    envs.close()
    return weights_of(model)


def agent_weights(
    env_id: str,
    n_envs: int,
    updates: int,
    *,
    algorithm: Any = "ppo",
    policy: str | None = None,
    seed: int = 0,
    env_kwargs: dict[str, Any] | None = None,
    **hyperparameters: Any,
) -> dict[str, torch.Tensor]:
    """As :func:`sb3_reference`, over the protocol; ``n_steps`` must be among the arguments."""
    agent = SB3Agent(
        algorithm,
        total_timesteps=updates * n_envs * hyperparameters["n_steps"],
        policy=policy,
        seed=seed,
        preset="none",
        hyperparameters={"device": "cpu", **hyperparameters},
    )
    envs = make_envs(env_id, n_envs, **(env_kwargs or {}))
    drive(agent, envs, env_id=env_id, seed=seed)
    assert agent.counters.updates == updates
    assert agent.model is not None
    return weights_of(agent.model)


def sb3_model(
    env_id: str,
    n_envs: int,
    timesteps: int,
    algorithm: type[Any],
    *,
    policy: str = "MlpPolicy",
    seed: int = 0,
    env_kwargs: dict[str, Any] | None = None,
    **hyperparameters: Any,
) -> Any:
    """The model after SB3's own ``learn(timesteps)``, in one process; as :func:`sb3_reference`."""
    envs = make_vec_env(env_id, n_envs=n_envs, seed=seed, env_kwargs=env_kwargs)
    hyperparameters = copy.deepcopy(hyperparameters)  # action noise has a state
    model = algorithm(policy, envs, seed=seed, device="cpu", **hyperparameters)
    logless(model).learn(timesteps)
    envs.close()
    return model


def agent_after(
    env_id: str,
    n_envs: int,
    timesteps: int,
    algorithm: Any,
    *,
    policy: str | None = None,
    seed: int = 0,
    env_kwargs: dict[str, Any] | None = None,
    **hyperparameters: Any,
) -> SB3Agent:
    """As :func:`sb3_model`, over the protocol; its ``model`` has learned."""
    agent = SB3Agent(
        algorithm,
        total_timesteps=timesteps,
        policy=policy,
        seed=seed,
        preset="none",
        hyperparameters={"device": "cpu", **hyperparameters},
    )
    drive(agent, make_envs(env_id, n_envs, **(env_kwargs or {})), env_id=env_id, seed=seed)
    assert agent.finished
    return agent


def make_envs(env_id: str, n_envs: int, **env_kwargs: Any) -> VectorEnv[Any, Any, Any]:
    """Sync envs with SAME_STEP resets, as the commands make them."""
    return gym.make_vec(
        env_id,
        num_envs=n_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
        **env_kwargs,
    )


def drive(
    agent: Agent,
    envs: VectorEnv[Any, Any, Any],
    *,
    env_id: str | None = None,
    seed: int | None = None,
    max_steps: int | None = None,
    mode: str = "train",
) -> list[float]:
    """Step SAME_STEP envs with an agent's actions until the agent has finished.

    Args:
        agent: Served over the protocol, in this thread.
        envs: Closed at the end.
        env_id, mode: To declare.
        seed: Of the first reset.
        max_steps: Vector steps after which to stop anyway.

    Returns:
        The returns of all episodes, in the order in which they ended.
    """
    peer = AgentPeer(
        agent,
        envs.single_observation_space,
        envs.single_action_space,
        num_envs=envs.num_envs,
        env_id=env_id,
        mode=mode,
    )
    every = range(envs.num_envs)
    observation, _ = envs.reset(seed=seed)
    returns: list[float] = []
    so_far, lengths, steps = np.zeros(envs.num_envs), np.zeros(envs.num_envs, np.int64), 0
    while not agent.finished and (max_steps is None or steps < max_steps):
        actions = peer.ask(every, observation)[0]
        observation, reward, terminated, truncated, info = envs.step(actions)
        so_far += reward
        lengths += 1
        ended = terminated | truncated
        terminal = terminal_batch(observation, info, ended)
        peer.tell(every, terminal, reward, terminated, truncated, returns=so_far, lengths=lengths)
        returns.extend(so_far[ended].tolist())
        so_far[ended], lengths[ended] = 0.0, 0
        steps += 1
    peer.leave()
    envs.close()
    return returns


def terminal_batch(observation: Any, info: dict[str, Any], ended: Any) -> Any:
    """The batch with each finished env's last observation in place of the next first one."""
    if not ended.any():
        return observation
    if isinstance(observation, dict):
        parts = {key: part.copy() for key, part in observation.items()}
        for row in np.flatnonzero(ended):
            for key, part in parts.items():
                part[row] = info["final_obs"][row][key]
        return parts
    batch = observation.copy()
    for row in np.flatnonzero(ended):
        batch[row] = info["final_obs"][row]
    return batch
