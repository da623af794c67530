"""What is trained beside Stable-Baselines3: envs, algorithms, published settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["CASES", "Case", "find_case"]

_ZOO: Final = "rl-baselines3-zoo 22e3ff2, hyperparams"


@dataclass(frozen=True)
class Case:
    """One env with one algorithm.

    Attributes:
        name: For the command line.
        env_id: As registered with Gymnasium.
        algo: As for ``serve --algo``.
        num_envs: E, of the run in one process and of the client in lockstep.
        total_timesteps: Env steps of a run.
        settings: Arguments of the algorithm as ``serve -P`` takes them.
        clients: Envs of each of the three clients that join and leave.
        source: Where the settings were published, and what differs here.
    """

    name: str
    env_id: str
    algo: str
    num_envs: int
    total_timesteps: int
    settings: Mapping[str, Any]
    clients: tuple[int, int, int]
    source: str

    def server_options(self, seed: int, total_timesteps: int) -> list[object]:
        """Options of ``serve`` that say all of this, and take no preset."""
        options: list[object] = ["--algo", self.algo, "--preset", "none", "--seed", seed]
        options += ["--num-envs", self.num_envs, "--total-timesteps", total_timesteps]
        for name, value in self.settings.items():
            options += ["-P", f"{name}={value}" if isinstance(value, str) else f"{name}={value!r}"]
        return options


CASES: Final = (
    Case(
        "cartpole-ppo",
        "CartPole-v1",
        "ppo",
        num_envs=8,
        total_timesteps=100_000,
        settings={
            "n_steps": 32,
            "batch_size": 256,
            "n_epochs": 20,
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "ent_coef": 0.0,
            "learning_rate": "lin_0.001",
            "clip_range": "lin_0.2",
        },
        clients=(4, 2, 2),
        source=f"{_ZOO}/ppo.yml",
    ),
    Case(
        "cartpole-dqn",
        "CartPole-v1",
        "dqn",
        num_envs=1,
        total_timesteps=50_000,
        settings={
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1000,
            "gamma": 0.99,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
        clients=(1, 1, 1),
        source=f"{_ZOO}/dqn.yml",
    ),
    Case(
        "pendulum-sac",
        "Pendulum-v1",
        "sac",
        num_envs=1,
        total_timesteps=5_000,
        settings={"learning_rate": 1e-3},
        clients=(1, 1, 1),
        source=f"{_ZOO}/sac.yml; 5,000 steps in place of 20,000",
    ),
    Case(
        "pendulum-td3",
        "Pendulum-v1",
        "td3",
        num_envs=1,
        total_timesteps=15_000,
        settings={
            "gamma": 0.98,
            "buffer_size": 200_000,
            "learning_starts": 10_000,
            "action_noise": "normal:0.1",
            "gradient_steps": 1,
            "train_freq": 1,
            "learning_rate": 1e-3,
            "policy_kwargs": {"net_arch": [400, 300]},
        },
        clients=(1, 1, 1),
        source=f"{_ZOO}/td3.yml; 15,000 steps in place of 20,000",
    ),
    Case(
        "halfcheetah-ppo",
        "HalfCheetah-v5",
        "ppo",
        num_envs=4,
        total_timesteps=200_000,
        settings={
            "n_steps": 512,
            "gamma": 0.98,
            "gae_lambda": 0.92,
            "ent_coef": 0.000401762,
            "vf_coef": 0.58096,
            "max_grad_norm": 0.8,
            "policy_kwargs": {"log_std_init": -2, "ortho_init": False},
        },
        clients=(2, 1, 1),
        source=f"{_ZOO}/ppo.yml, HalfCheetah-v4; learning rate, clip range, epochs and networks "
        "as SB3 has them, 4 x 512 steps in a rollout, nothing normalized",
    ),
)


def find_case(name: str) -> Case:
    """The case of that name."""
    return next(case for case in CASES if case.name == name)
