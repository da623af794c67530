"""Off-policy agents whose updates are only counted, and what their replay buffers then hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from plugrl_gym.agents.sb3 import SB3Agent
from tests.support.rollouts import GAMMA, NUMBER, Lane

ONE = spaces.Box(-1.0, 1.0, (1,), np.float32)


def make_learner(
    algorithm: str = "dqn",
    *,
    num_envs: int = 1,
    action_space: Any = None,
    observation_space: Any = NUMBER,
    total_timesteps: int = 10**9,
    horizon: int = 1,
    normalize: bool = False,
    async_learn: bool = False,
    demonstrations_share: float = 0.0,
    **settings: Any,
) -> tuple[SB3Agent, list[int]]:
    """An agent, and a list that gets the gradient steps of each of its updates."""
    if action_space is None:
        action_space = spaces.Discrete(7) if algorithm in ("dqn", "qrdqn") else ONE
    agent = SB3Agent(
        algorithm,
        total_timesteps=total_timesteps,
        num_envs=num_envs,
        seed=3,
        preset="none",
        horizon=horizon,
        normalize=normalize,
        async_learn=async_learn,
        demonstrations_share=demonstrations_share,
        observation_space=observation_space,
        action_space=action_space,
        hyperparameters={
            "gamma": GAMMA,
            "device": "cpu",
            "learning_starts": 0,
            "buffer_size": 1000,
            "train_freq": 1,
            "policy_kwargs": {"net_arch": [8]},
            **settings,
        },
    )
    updates: list[int] = []

    def count(gradient_steps: int, batch_size: int) -> None:
        updates.append(gradient_steps)

    agent.model.train = count  # type: ignore[method-assign,union-attr]
    return agent, updates


def stored(agent: SB3Agent) -> dict[str, Any]:
    """The filled part of the replay buffer, one row for each transition, oldest first."""
    buffer = agent.model.replay_buffer  # type: ignore[union-attr]
    names: tuple[str, ...] = ("observations", "next_observations", "actions", "rewards")
    names += ("dones", "timeouts")
    names = tuple(name for name in names if hasattr(buffer, name))
    order = np.arange(buffer.size())
    if buffer.full:
        order = (order + buffer.pos) % buffer.buffer_size
    names += ("discounts",) if hasattr(buffer, "discounts") else ()
    rows = {name: getattr(buffer, name)[order] for name in names}
    flat = {name: array.reshape(len(order) * buffer.n_envs, -1) for name, array in rows.items()}
    return {name: array[:, 0] if array.shape[1] == 1 else array for name, array in flat.items()}


def check_stored(agent: SB3Agent, lanes: list[Lane]) -> int:
    """Every stored row is some lane's next row, whole; returns how many there are."""
    rows = stored(agent)
    numbers = (rows["observations"] // 1000).astype(int)
    for lane in lanes:
        mine = {name: column[numbers == lane.number] for name, column in rows.items()}
        truth = lane.rows
        assert mine["observations"].tolist() == [row["obs"] for row in truth]
        assert mine["next_observations"].tolist() == [row["next"] for row in truth]
        assert mine["dones"].tolist() == [row["done"] for row in truth]
        assert mine["timeouts"].tolist() == [row["truncated"] for row in truth]
        np.testing.assert_allclose(mine["rewards"], [row["reward"] for row in truth], rtol=1e-5)
        if isinstance(agent.model.action_space, spaces.Discrete):  # type: ignore[union-attr]
            assert mine["actions"].tolist() == [row["action"][0] for row in truth]
        if "discounts" in mine:
            np.testing.assert_allclose(mine["discounts"], [row["discount"] for row in truth])
    return len(numbers)
