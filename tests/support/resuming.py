"""A run that is left and gone on with: envs that outlive their server, and what a run leaves."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.server.agent import Agent
from tests.support.agent_peer import AgentPeer
from tests.support.lockstep import make_envs, terminal_batch

#: Columns of progress.csv that no two runs have in common.
CLOCK = {"time/fps", "time/time_elapsed"}


class Envs:
    """SAME_STEP envs that go on with another connection, or another server, where they were.

    Args:
        env_id, num_envs: As for ``make_envs``.
        seed: Of the first reset.

    Attributes:
        steps: Env steps run so far.
    """

    def __init__(self, env_id: str, num_envs: int, seed: int = 0) -> None:
        self.env_id = env_id
        self.steps = 0
        self._envs = make_envs(env_id, num_envs)
        self._every = range(num_envs)
        self._observation, _ = self._envs.reset(seed=seed)
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)

    def __enter__(self) -> Envs:
        return self

    def __exit__(self, *exc: object) -> None:
        self._envs.close()

    def connect(self, agent: Agent, learns: bool = True) -> AgentPeer:
        """A connection for all envs."""
        spaces = self._envs.single_observation_space, self._envs.single_action_space
        every = len(self._every)
        return AgentPeer(agent, *spaces, num_envs=every, env_id=self.env_id, learns=learns)

    def ask(self, peer: AgentPeer) -> Any:
        """Ask for actions."""
        return peer.ask(self._every, self._observation)[0]

    def step(self, peer: AgentPeer) -> None:
        """Ask for actions, run them and tell what came of them."""
        self._observation, reward, terminated, truncated, info = self._envs.step(self.ask(peer))
        self._returns += reward
        self._lengths += 1
        ended = terminated | truncated
        self.steps += len(self._every)
        peer.tell(
            self._every,
            terminal_batch(self._observation, info, ended),
            reward,
            terminated,
            truncated,
            returns=self._returns,
            lengths=self._lengths,
        )
        self._returns[ended], self._lengths[ended] = 0.0, 0

    def run(self, agent: Agent, until: int | None = None) -> None:
        """One connection: until that many env steps, or until the agent has finished."""
        peer = self.connect(agent)
        while not agent.finished and (until is None or self.steps < until):
            self.step(peer)
        peer.leave()


def progress(run_dir: Path) -> list[dict[str, str]]:
    """The lines of progress.csv, without what a clock wrote."""
    with (run_dir / "progress.csv").open(newline="", encoding="utf-8") as file:
        return [
            {name: value for name, value in line.items() if name not in CLOCK}
            for line in csv.DictReader(file)
        ]


def checkpoints(run_dir: Path) -> list[int]:
    """Env steps of the checkpoints that are there; one half written has a hidden name."""
    names = [path.name for path in (run_dir / "checkpoints").iterdir()]
    return sorted(int(name) for name in names if not name.startswith("."))


def killed(run_dir: Path, left: Path) -> Path:
    """What a server that is killed now would leave, as a directory of its own."""
    return Path(shutil.copytree(run_dir, left))


def stopped_run(run_dir: Path, algorithm: str = "ppo", steps: int = 64, **settings: Any) -> Path:
    """A run of 2 CartPole envs, stopped after ``steps`` of 1,000 env steps."""
    agent = small_agent(run_dir, algorithm, **settings)
    with Envs("CartPole-v1", 2) as envs:
        envs.run(agent, until=steps)
    agent.close()
    return run_dir


def small_agent(run_dir: Path | None, algorithm: str = "ppo", **settings: Any) -> SB3Agent:
    """An agent that learns quickly from 2 CartPole envs."""
    small = {"n_steps": 16, "batch_size": 16, "n_epochs": 1}
    if algorithm == "dqn":
        small = {"learning_starts": 8, "batch_size": 8, "train_freq": 4, "buffer_size": 500}
    defaults: dict[str, Any] = {
        "total_timesteps": 1000,
        "seed": 0,
        "preset": "none",
        "hyperparameters": {"device": "cpu", "policy_kwargs": {"net_arch": [8]}, **small},
    }
    return SB3Agent(algorithm, run_dir=run_dir, **{**defaults, **settings})
