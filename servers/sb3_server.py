"""Serve a learner of your own: copy this file and change what lies between the two rulers.

    python servers/sb3_server.py --port 8000
    python -m plugrl_gym.rollout CartPole-v1        in another terminal

Any on-policy algorithm of Stable-Baselines3 can take PPO's place. To serve a learner that is not
of Stable-Baselines3, write a class like plugrl_gym.agents.random_agent.RandomAgent.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys

from stable_baselines3 import PPO
from torch import nn

from plugrl_gym import PlugRLError, UsageError
from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.server import PlugRLServer

# ------------------------------------------------------------------------------- change from here


def make_agent(total_timesteps: int, run_dir: str | None) -> SB3Agent:
    """The learner; the envs' spaces reach it from the first client."""
    return SB3Agent(
        PPO,
        total_timesteps=total_timesteps,
        seed=0,
        preset="none",
        run_dir=run_dir,
        # From here on: arguments of PPO itself.
        n_steps=128,
        batch_size=256,
        learning_rate="lin_0.001",
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [128, 128]}, "activation_fn": nn.Tanh},
    )


# --------------------------------------------------------------------------------------- to here


def announce(server: PlugRLServer) -> None:
    """Tell the operator what to do next."""
    print(f"Now run:  python -m plugrl_gym.rollout CartPole-v1 --url {server.url}", flush=True)


def main() -> int:
    """Serve until the learner is done, or until Ctrl-C, which saves too."""
    parser = argparse.ArgumentParser(description="A PlugRL server around Stable-Baselines3's PPO.")
    where = "0.0.0.0 for other machines, with a key in the environment variable PLUGRL_API_KEY"
    parser.add_argument("--host", default="127.0.0.1", help=where)
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free port")
    parser.add_argument("--total-timesteps", type=int, default=100_000, help="env steps in all")
    parser.add_argument("--run-dir", help="gets model.zip and progress.csv (default: no files)")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        agent = make_agent(options.total_timesteps, options.run_dir)
        server = PlugRLServer(
            agent,
            options.host,
            options.port,
            api_key=os.environ.get("PLUGRL_API_KEY") or None,
            on_listening=announce,
        )
        finished = server.serve()
    except PlugRLError as error:
        print(f"sb3_server: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    run = server.statistics.snapshot()
    mean = "unknown" if run.mean_return is None else f"{run.mean_return:.1f}"
    print(f"{'Done' if finished else 'Stopped'}: {run.env_steps} env steps, mean return {mean}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
