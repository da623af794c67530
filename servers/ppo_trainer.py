"""PPO in one file, for any vector env with Discrete actions: envs here, or at clients elsewhere.

    python servers/ppo_trainer.py CartPole-v1                    envs in this process
    python servers/ppo_trainer.py CartPole-v1 --port 8000        envs of clients, started by
    python -m plugrl_gym.rollout CartPole-v1 --num-envs 4        this, in other terminals

Where the envs are changes one line, in ``make_envs``; nothing else here knows of it. Copy the file
and change what you like.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections import deque
from typing import Any, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor, nn

from plugrl_gym import RemoteVectorEnv

STEPS, EPOCHS, MINIBATCH = 32, 20, 256
GAMMA, LAMBDA, CLIP = 0.98, 0.8, 0.2
LEARNING_RATE, MAX_GRADIENT, VALUE_WEIGHT = 1e-3, 0.5, 0.5


class ActorCritic(nn.Module):
    """Two networks of the same shape: one chooses, one tells what a state is worth."""

    def __init__(self, numbers: int, actions: int) -> None:
        super().__init__()
        self.actor = mlp(numbers, actions, last=0.01)
        self.critic = mlp(numbers, 1, last=1.0)

    def act(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Draw actions int64 [n]; also their log-probabilities [n]."""
        logits = self.actor(observation)
        action = torch.multinomial(logits.softmax(-1), 1).squeeze(-1)
        return action, log_probability(logits, action)

    def value(self, observation: Tensor) -> Tensor:
        """What states [..., numbers] are worth, [...]."""
        worth: Tensor = self.critic(observation).squeeze(-1)
        return worth


def log_probability(logits: Tensor, action: Tensor) -> Tensor:
    """Of actions int64 [n] where the actor gives logits [n, actions]; [n]."""
    return logits.log_softmax(-1).gather(-1, action[:, None]).squeeze(-1)


def mlp(numbers: int, outputs: int, last: float) -> nn.Sequential:
    """Two hidden layers of 64; orthogonal weights, those of the last layer scaled by ``last``."""
    layers = nn.Linear(numbers, 64), nn.Linear(64, 64), nn.Linear(64, outputs)
    for layer, gain in zip(layers, (2**0.5, 2**0.5, last), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class Rollout(NamedTuple):
    """What n envs did in T steps; all [T, n], observations with their numbers behind.

    Attributes:
        following: What a step led to; the last observation of an episode that it ended.
    """

    observation: Tensor
    action: Tensor
    log_prob: Tensor
    reward: Tensor
    following: Tensor
    terminated: Tensor
    ended: Tensor


class Collector:
    """Steps a vector env with the agent's actions.

    Attributes:
        env_steps: Over all envs.
        returns: Of the last 100 episodes.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], agent: ActorCritic, seed: int) -> None:
        self.envs, self.agent = envs, agent
        self.env_steps = 0
        self.returns: deque[float] = deque(maxlen=100)
        self._running = np.zeros(envs.num_envs)
        self._observation, _ = envs.reset(seed=seed)

    def collect(self) -> Rollout:
        """The next steps of all envs."""
        steps = [self._step() for _ in range(STEPS)]
        return Rollout(*(torch.stack(part) for part in zip(*steps, strict=True)))

    def _step(self) -> tuple[Tensor, ...]:
        before = numbers(self._observation)
        with torch.no_grad():
            action, log_prob = self.agent.act(before)
        start = getattr(self.envs.single_action_space, "start", 0)
        self._observation, reward, terminated, truncated, info = self.envs.step(
            action.numpy() + start
        )
        ended = terminated | truncated
        following = np.array(self._observation)
        for env in np.flatnonzero(ended):
            following[env] = info["final_obs"][env]
        self._count(reward, ended)
        flags = torch.as_tensor(terminated), torch.as_tensor(ended)
        paid = torch.as_tensor(reward, dtype=torch.float32)
        return before, action, log_prob, paid, numbers(following), *flags

    def _count(self, reward: Any, ended: Any) -> None:
        self.env_steps += self.envs.num_envs
        self._running += reward
        self.returns.extend(self._running[ended].tolist())
        self._running[ended] = 0.0


def numbers(observation: Any) -> Tensor:
    """Observations [n, ...] as float32 [n, numbers]."""
    return torch.as_tensor(observation, dtype=torch.float32).flatten(1)


def advantages(rollout: Rollout, value: Tensor, following: Tensor) -> Tensor:
    """Generalised advantages [T, n]: a truncation leaves what follows its worth, an end does not.

    Args:
        rollout: T steps.
        value: [T, n], what the states were worth in which the agent acted.
        following: [T, n], what those are worth to which that led.
    """
    errors = rollout.reward + GAMMA * following * ~rollout.terminated - value
    found = torch.zeros_like(errors)
    ahead = torch.zeros_like(errors[0])
    for step in reversed(range(len(errors))):
        ahead = errors[step] + GAMMA * LAMBDA * ahead * ~rollout.ended[step]
        found[step] = ahead
    return found


def learn(agent: ActorCritic, optimizer: torch.optim.Optimizer, rollout: Rollout) -> None:
    """Some epochs over one rollout."""
    with torch.no_grad():
        value, following = agent.value(rollout.observation), agent.value(rollout.following)
        advantage = advantages(rollout, value, following)
    observation, action, old = (part.flatten(0, 1) for part in rollout[:3])
    advantage, target = advantage.flatten(), (advantage + value).flatten()
    for _ in range(EPOCHS):
        order = torch.randperm(len(action))
        for start in range(0, len(order), MINIBATCH):
            rows = order[start : start + MINIBATCH]
            gain = advantage[rows]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            log_prob = log_probability(agent.actor(observation[rows]), action[rows])
            ratio = (log_prob - old[rows]).exp()
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            loss = -torch.min(ratio * gain, clipped * gain).mean()
            missed = (agent.value(observation[rows]) - target[rows]).square().mean()
            optimizer.zero_grad()
            (loss + VALUE_WEIGHT * missed).backward()  # type: ignore[no-untyped-call]  # torch
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRADIENT)
            optimizer.step()


def train(envs: VectorEnv[Any, Any, Any], options: argparse.Namespace) -> float | None:
    """Train until the goal or the last step; the mean return of the last episodes, if any ended."""
    torch.manual_seed(options.seed)
    space = envs.single_action_space
    if not isinstance(space, gym.spaces.Discrete):
        refuse(f"chooses among Discrete actions only, the envs have {space}")
    seen = envs.single_observation_space.shape or ()
    agent = ActorCritic(math.prod(seen), int(space.n))
    optimizer = torch.optim.Adam(agent.parameters(), LEARNING_RATE, eps=1e-5)
    collector = Collector(envs, agent, options.seed)
    mean, update = None, 0
    while collector.env_steps < options.total_timesteps:
        left = 1.0 - collector.env_steps / options.total_timesteps
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * left
        learn(agent, optimizer, collector.collect())
        update += 1
        if collector.returns:
            mean = float(np.mean(collector.returns))
        if update % 20 == 0:
            print(f"{collector.env_steps:,} env steps, mean return {mean}", flush=True)
        if mean is not None and len(collector.returns) == 100 and mean >= options.goal:
            break
    print(f"Done: {collector.env_steps} env steps, mean return {mean}", flush=True)
    if options.save is not None:
        torch.save(agent.state_dict(), options.save)
    return mean


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="PPO in one file, envs here or at clients.")
    add = parser.add_argument
    add("env_id", help="of an env with Discrete actions; clients must run the same")
    add(
        "--port",
        type=int,
        help="wait for clients there; 0 takes any free one (default: no clients)",
    )
    add("--num-envs", type=int, default=8, help="of all clients together (%(default)s)")
    add("--total-timesteps", type=int, default=150_000, help="env steps at most (%(default)s)")
    add("--goal", type=float, default=475.0, help="mean return of 100 episodes (%(default)s)")
    add("--seed", type=int, default=0, help="of the weights and actions, and of envs here")
    add("--save", metavar="FILE", help="gets the weights")
    return parser.parse_args(arguments)


def refuse(sentence: object) -> NoReturn:
    """End with what the user got wrong."""
    print(f"ppo_trainer: {sentence}", file=sys.stderr)
    sys.exit(2)


def make_envs(options: argparse.Namespace) -> VectorEnv[Any, Any, Any]:
    """Envs in this process, or at clients."""
    if options.port is None:
        mode = {"autoreset_mode": AutoresetMode.SAME_STEP}
        return gym.make_vec(options.env_id, options.num_envs, "sync", vector_kwargs=mode)
    envs = RemoteVectorEnv(options.num_envs, port=options.port, ignore_seed=True)
    print(f"Waiting for {options.num_envs} envs at {envs.url}", flush=True)
    return envs


def main(arguments: list[str] | None = None) -> int:
    """Train; 0 where the goal was reached, 1 where it was not, 130 after Ctrl-C."""
    options = parse(arguments)
    if options.num_envs < 1:
        refuse(f"--num-envs: expected at least 1, got {options.num_envs}")
    torch.set_num_threads(1)
    try:
        envs = make_envs(options)
    except (ValueError, OSError, gym.error.Error) as error:
        refuse(error)  # no such env, no such port, or one in use
    with contextlib.closing(envs):
        try:
            mean = train(envs, options)
        except KeyboardInterrupt:
            print("Stopped.", flush=True)
            return 130
    return 0 if mean is not None and mean >= options.goal else 1


if __name__ == "__main__":
    sys.exit(main())
