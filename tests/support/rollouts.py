"""Clients that ask and answer in any groups, and the rollouts that an agent makes of it.

The observations of an env are 1000 * its number + t, and no t comes twice, so that every row of a
rollout tells whose it is. Whatever is estimated is calculated again here, from its definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from plugrl_gym.agents.sb3 import SB3Agent
from tests.support.agent_peer import AgentPeer

NUMBER = spaces.Box(-np.inf, np.inf, (1,), np.float64)
GAMMA, LAMBDA = 0.99, 0.9


@dataclass
class Kept:
    """The rollouts that an agent would have trained on, newest last."""

    rollouts: list[dict[str, np.ndarray]] = field(default_factory=list)


def make_agent(
    num_envs: int,
    n_steps: int,
    action_space: Any = None,
    *,
    algorithm: str = "ppo",
    observation_space: Any = NUMBER,
    total_timesteps: int = 10**9,
    **settings: Any,
) -> tuple[SB3Agent, Kept]:
    """An agent whose updates only copy the rollout buffer, so that its policy stays the same."""
    if algorithm == "ppo":
        settings = {"batch_size": num_envs * n_steps, **settings}
    agent = SB3Agent(
        algorithm,
        total_timesteps=total_timesteps,
        num_envs=num_envs,
        seed=3,
        observation_space=observation_space,
        action_space=spaces.Discrete(7) if action_space is None else action_space,
        **{"n_steps": n_steps, "gamma": GAMMA, "gae_lambda": LAMBDA, "device": "cpu", **settings},
    )
    kept, model = Kept(), agent.model
    assert model is not None

    def keep() -> None:
        buffer = model.rollout_buffer
        names = ("actions", "rewards", "episode_starts", "values", "log_probs")
        arrays = {name: getattr(buffer, name).copy() for name in (*names, "advantages", "returns")}
        seen = buffer.observations
        observations = (
            {f"observations.{key}": part.copy() for key, part in seen.items()}
            if (isinstance(seen, dict))
            else {"observations": seen.copy()}
        )
        kept.rollouts.append({**arrays, **observations})

    model.train = keep  # type: ignore[method-assign]
    return agent, kept


def connect(agent: SB3Agent, num_envs: int, **options: Any) -> AgentPeer:
    """A client that declares nothing, for the agent knows its spaces."""
    observation, action = agent._spaces[:2]
    return AgentPeer(agent, observation, action, num_envs=num_envs, declares=False, **options)


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float64)[:, None]


def critic_that_reads_the_observation(agent: SB3Agent) -> None:
    """V(o) = o, so that 2 and 50 show which observation was used."""
    agent.model.policy.predict_values = lambda obs: obs.float()


@dataclass
class Lane:
    """One env: observations 1000 * number + t, t never repeated; what it did, in order."""

    number: int
    t: int = 0
    action: list[int] | None = None
    chosen_at: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def observation(self) -> float:
        return 1000.0 * self.number + self.t


class RaggedClient:
    """Asks and answers in whatever groups a test wants, and writes down the truth.

    Step t of an env pays 0.001 * its observation.
    """

    def __init__(self, agent: SB3Agent, first: int, num_envs: int) -> None:
        self.agent = agent
        self.peer = connect(agent, num_envs)
        self.lanes = [Lane(first + k) for k in range(num_envs)]

    def ask(self, *envs: int) -> None:
        chunk = self.peer.ask(envs, column(*(self.lanes[env].observation for env in envs)))
        for env, action in zip(envs, np.swapaxes(chunk, 0, 1).tolist(), strict=True):
            self.lanes[env].action = action
            self.lanes[env].chosen_at = self.agent.counters.updates

    def tell(
        self,
        *envs: int,
        terminated: bool = False,
        truncated: bool = False,
        steps: Sequence[int] | None = None,
    ) -> None:
        """Feed back; ``steps`` has how many of its chunk each env has run (``gym-chunk-steps``)."""
        done, paid, seen = terminated or truncated, [], []
        for env, ran in zip(envs, steps or [1] * len(envs), strict=True):
            lane = self.lanes[env]
            row = {"obs": lane.observation, "action": lane.action, "done": done}
            row |= {"chosen_at": lane.chosen_at, "start": _starts(lane)}
            rewards = [0.001 * (lane.observation + k) for k in range(1, ran + 1)]
            lane.t += ran
            row |= {"next": lane.observation, "discount": GAMMA**ran, "steps": ran}
            row |= {"reward": sum(GAMMA**k * reward for k, reward in enumerate(rewards))}
            row |= {"truncated": truncated and not terminated}
            paid.append(rewards)
            seen.append(row["next"])
            lane.rows.append(row)
            lane.action = None
            lane.t += 10 * done  # the next episode begins elsewhere
        rewards = [sum(row) for row in paid]
        step_rewards = None if steps is None else paid
        following = column(*seen)
        self.peer.tell(envs, following, rewards, terminated, truncated, step_rewards=step_rewards)


def _starts(lane: Lane) -> bool:
    return not lane.rows or bool(lane.rows[-1]["done"])


def value_at(agent: SB3Agent, observation: float) -> float:
    with torch.no_grad():
        return float(agent.model.policy.predict_values(torch.tensor([[observation]]))[0, 0])


def check_against_truth(agent: SB3Agent, kept: Kept, lanes: list[Lane], size: int) -> int:
    """Every stored row is some lane's next row, whole; advantages follow from the rows alone."""
    following = {lane.number: 0 for lane in lanes}
    by_number = {lane.number: lane for lane in lanes}
    for rollout in kept.rollouts:
        flat = {
            name: array.swapaxes(0, 1).reshape(size, *array.shape[2:])
            for name, array in rollout.items()
        }
        numbers = (flat["observations"][:, 0] // 1000).astype(int)
        for number in dict.fromkeys(numbers.tolist()):
            (rows,) = np.nonzero(numbers == number)
            assert (np.diff(rows) == 1).all(), "the rows of one env lie together"
            begin = following[number]
            following[number] += len(rows)
            truth = by_number[number].rows[begin : following[number]]
            check_segment(agent, {name: array[rows] for name, array in flat.items()}, truth)
    return sum(following.values())


def check_segment(agent: SB3Agent, stored: dict[str, np.ndarray], truth: list[Any]) -> None:
    assert stored["observations"][:, 0].tolist() == [row["obs"] for row in truth]
    assert stored["actions"].tolist() == [row["action"] for row in truth]
    assert stored["episode_starts"].tolist() == [row["start"] for row in truth]
    rewards = [
        row["reward"] + row["truncated"] * row["discount"] * value_at(agent, row["next"])
        for row in truth
    ]
    np.testing.assert_allclose(stored["rewards"], rewards, rtol=1e-5)
    np.testing.assert_allclose(
        stored["values"], [value_at(agent, row["obs"]) for row in truth], rtol=1e-4, atol=1e-5
    )
    advantages = generalised_advantages(agent, stored["values"], rewards, truth)
    np.testing.assert_allclose(stored["advantages"], advantages, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        stored["returns"], stored["advantages"] + stored["values"], rtol=1e-5, atol=1e-6
    )


def generalised_advantages(
    agent: SB3Agent, values: np.ndarray, rewards: list[float], truth: list[Any]
) -> list[float]:
    """GAE from its definition: the sum of discounted one-step errors up to the episode's end.

    The discount is that of each row; lambda counts rows.
    """
    ahead = [*values[1:].tolist(), value_at(agent, truth[-1]["next"])]
    errors = [
        reward + row["discount"] * (0.0 if row["done"] else after) - value
        for reward, row, after, value in zip(rewards, truth, ahead, values.tolist(), strict=True)
    ]
    advantages = []
    for start in range(len(errors)):
        total, weight = 0.0, 1.0
        for error, row in zip(errors[start:], truth[start:], strict=True):
            total += weight * error
            weight *= row["discount"] * LAMBDA
            if row["done"]:
                break
        advantages.append(total)
    return advantages


def play_at_random(
    clients: list[RaggedClient], rng: np.random.Generator, messages: int, horizon: int = 1
) -> None:
    """Legal exchanges in random groups: each client asks for idle envs, then feeds some back."""
    for _ in range(messages):
        client = clients[rng.integers(len(clients))]
        idle = [k for k, lane in enumerate(client.lanes) if lane.action is None]
        client.ask(*rng.permutation(idle).tolist())
        busy = rng.permutation(len(client.lanes))[: rng.integers(1, len(client.lanes) + 1)]
        ran = rng.integers(1, horizon + 1, len(busy)).tolist()
        client.tell(
            *busy.tolist(),
            terminated=bool(rng.random() < 0.1),
            truncated=bool(rng.random() < 0.1),
            steps=None if horizon == 1 else ran,
        )
