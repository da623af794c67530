"""Trainers of other people's making over remote envs: PPO in one file, SB3's learn(), a broker.

``ppo`` is ``servers/ppo_trainer.py`` with its envs at two clients. ``sb3`` is Stable-Baselines3's
own ``learn()`` over a RemoteVectorEnv of two clients, and over envs in its own process: the weights
are compared. ``speeds`` is an EnvBroker whose trainer answers whatever has arrived, with a client
whose env takes 5 ms for a step, alone, beside one whose env takes 100 ms, and alone again.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from plugrl_gym import EnvBroker, RemoteVectorEnv
from tests.benchmarks.cases import find_case
from tests.benchmarks.learning import spread
from tests.benchmarks.processes import Process, wait_for
from tests.benchmarks.shows import Record, Show, Task, main, setup_line, table

__all__ = ["Trainers"]

_SECONDS: Final = 3600.0
_START_SECONDS: Final = 120.0
_PPO_GOAL: Final = 475.0
_CASE: Final = find_case("cartpole-ppo")
_FAST, _SLOW = 0.005, 0.1
_KEPT: Final = 0.9
_NAMES: Final = ("ppo", "sb3", "speeds")


@contextlib.contextmanager
def clients(url: str, seed: int, folder: Path, envs: RemoteVectorEnv | None) -> Iterator[None]:
    """Two processes, each with half of the case's envs; together seeded as one vector env is.

    Args:
        url: Of the trainer.
        seed: Of the first env; that of each further one is one more.
        folder: Gets their logs.
        envs: Whose seats the first takes before the second comes, so that all are in their order.
    """
    half = _CASE.num_envs // 2
    with contextlib.ExitStack() as stack:
        for number in range(2):
            options = [_CASE.env_id, "--url", url, "--num-envs", half, "--seed"]
            process = Process(
                "plugrl_gym.rollout",
                [*options, seed + number * half],
                folder / f"client-{number}.log",
            )
            stack.enter_context(process)
            if envs is not None:
                _wait_for_envs(envs, half * (number + 1))
        yield


def _wait_for_envs(envs: RemoteVectorEnv, number: int) -> None:
    def joined() -> bool | None:
        return envs.broker.statistics.snapshot().envs >= number or None

    wait_for(joined, _START_SECONDS, "the client")


def run_ppo(seed: int, total_timesteps: int, folder: Path) -> dict[str, Any]:
    """The trainer in one file, with its envs in two client processes."""
    options = [_CASE.env_id, "--port", 0, "--num-envs", _CASE.num_envs, "--seed", seed]
    options += ["--total-timesteps", total_timesteps, "--goal", _PPO_GOAL]
    began = time.monotonic()
    with Process("servers.ppo_trainer", options, folder / "trainer.log") as trainer:
        url = wait_for(lambda: _found(r"at (ws://\S+)", trainer), _START_SECONDS, "the trainer")
        with clients(url, 1000 * (seed + 1), folder, None):
            trainer.finish(_SECONDS, (0, 1))
    last = re.search(r"Done: (\d+) env steps, mean return (\S+)", trainer.output)
    assert last is not None  # it ended in good order
    return {
        "env_steps": int(last[1]),
        "mean_return": float(last[2]),
        "wall_seconds": round(time.monotonic() - began, 1),
    }


def _found(pattern: str, process: Process) -> str | None:
    match = re.search(pattern, process.output)
    return None if match is None else match[1]


def run_sb3(seed: int, total_timesteps: int, folder: Path) -> dict[str, Any]:
    """SB3's learn() over remote envs and over its own, with one torch thread."""
    import torch

    from tests.benchmarks import sb3

    torch.set_num_threads(1)
    local = sb3.learn(_CASE, seed, total_timesteps).model
    with RemoteVectorEnv(_CASE.num_envs, port=0) as envs, clients(envs.url, seed, folder, envs):
        remote = sb3.learn_over(envs.as_sb3_vec_env(), _CASE, seed, total_timesteps)
    found = {"local": local, "remote": remote}
    for name, model in found.items():
        model.save(folder / name)
    digests = {name: sb3.digest(folder / f"{name}.zip") for name in found}
    returns = sb3.evaluate(folder / "remote.zip", _CASE)
    return {
        "env_steps": remote.num_timesteps,
        "same_weights": digests["local"] == digests["remote"],
        "evaluation": sum(returns) / len(returns),
    }


class Answering:
    """A trainer that answers whatever has arrived, and counts the steps of each slot."""

    def __init__(self, broker: EnvBroker) -> None:
        self._broker = broker
        self._joined: list[int] = []
        self._steps: Counter[int] = Counter()

    def until(self, joined: int) -> int:
        """Answer until so many envs have come since the start; returns the slot of the last."""
        deadline = time.monotonic() + _START_SECONDS
        while len(self._joined) < joined:
            if time.monotonic() > deadline:
                raise TimeoutError(f"env {joined} did not come in {_START_SECONDS:g} s")
            self._answer()
        return self._joined[joined - 1]

    def rates(self, seconds: float) -> dict[int, float]:
        """Answer for a while; env steps per second of each slot."""
        before, began = self._steps.copy(), time.monotonic()
        while time.monotonic() < began + seconds:
            self._answer()
        lasted = time.monotonic() - began
        return {slot: (n - before[slot]) / lasted for slot, n in self._steps.items()}

    def _answer(self) -> None:
        batch = self._broker.collect_async(min_envs=1, timeout=0.1)
        self._joined += batch.joined
        self._steps.update(batch.slots[~batch.first].tolist())
        slots = batch.slots[batch.waiting]
        self._broker.step_async(slots, np.zeros(len(slots), np.int64))


def run_speeds(seconds: float, folder: Path) -> dict[str, Any]:
    """A fast client alone, beside a slow one, and alone again."""

    def client(name: str, pace: float) -> Process:
        options = ["tests.benchmarks.paced:Paced-v0", "--num-envs", 1, "--url", broker.url]
        options += ["--env-kwargs", f"seconds={pace}"]
        return Process("plugrl_gym.rollout", options, folder / f"{name}.log")

    with EnvBroker() as broker, client("fast", _FAST):
        trainer = Answering(broker)
        fast = trainer.until(1)
        trainer.rates(1.0)  # both have found their stride
        before = trainer.rates(seconds)[fast]
        with client("slow", _SLOW):
            slow = trainer.until(2)
            trainer.rates(1.0)
            beside = trainer.rates(seconds)
        after = trainer.rates(seconds)[fast]
    return {"alone": [before, after], "beside": beside[fast], "slow": beside[slow]}


class Trainers(Show):
    """All three, for some seeds."""

    name = "trainers"
    module = "tests.benchmarks.trainers"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--trainer", nargs="+", choices=_NAMES, default=list(_NAMES), dest="trainers")
        add("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], metavar="N")
        add("--timesteps", type=int, metavar="N", help="env steps at most, to try the program out")
        add("--seconds", type=float, default=20.0, help="of each measurement (%(default)s)")

    def tasks(self, options: argparse.Namespace) -> list[Task]:
        return [
            self._task(name, seed, options) for name in options.trainers for seed in options.seeds
        ]

    def _task(self, name: str, seed: int, options: argparse.Namespace) -> Task:
        if name == "speeds":
            seconds = options.seconds
            settings: dict[str, Any] = {"seconds": seconds, "fast": _FAST, "slow": _SLOW}
            return Task(f"trainers/speeds/{seed}", settings, lambda f: run_speeds(seconds, f))
        run = run_ppo if name == "ppo" else run_sb3
        total = options.timesteps or (150_000 if name == "ppo" else _CASE.total_timesteps)
        settings = {"total_timesteps": total, "num_envs": _CASE.num_envs}
        return Task(f"trainers/{name}/{seed}", settings, lambda f: run(seed, total, f))

    def section(self, records: Mapping[str, Record]) -> str:
        parts = [setup_line(records.values())]
        for name, show in (("ppo", _ppo), ("sb3", _sb3), ("speeds", _speeds)):
            found = [record for key, record in records.items() if f"/{name}/" in key]
            if found:
                parts.append(show(found))
        return "\n\n".join(parts)


def _ppo(records: list[Record]) -> str:
    reached = [record for record in records if record["mean_return"] >= _PPO_GOAL]
    row = (
        "servers/ppo_trainer.py, CartPole-v1, 2 clients of 4 envs",
        f"{len(reached)} of {len(records)}",
        spread([record["env_steps"] for record in reached]),
        spread([record["wall_seconds"] for record in records]),
    )
    head = ("trainer", f"seeds that reached {_PPO_GOAL:g}", "after env steps", "seconds in all")
    return table(head, [row])


def _sb3(records: list[Record]) -> str:
    same = sum(record["same_weights"] for record in records)
    row = (
        "`PPO(...).learn()`, CartPole-v1, 2 clients of 4 envs",
        f"{max(record['env_steps'] for record in records):,}",
        f"{same} of {len(records)}",
        spread([record["evaluation"] for record in records]),
    )
    head = ("trainer", "env steps", "same weights as with local envs", "evaluation")
    return table(head, [row])


def _speeds(records: list[Record]) -> str:
    kept = [2 * record["beside"] / sum(record["alone"]) for record in records]
    row = (
        f"{_FAST * 1000:g} ms and {_SLOW * 1000:g} ms for a step",
        spread([rate for record in records for rate in record["alone"]]),
        spread([record["beside"] for record in records]),
        spread([record["slow"] for record in records]),
        f"{sum(share >= _KEPT for share in kept)} of {len(kept)}, least {min(kept):.0%}",
    )
    head = (
        "envs",
        "steps/s of the fast one alone",
        "beside the slow one",
        "steps/s of the slow one",
        f"measurements in which it kept {_KEPT:.0%}",
    )
    return table(head, [row])


if __name__ == "__main__":
    sys.exit(main(Trainers()))
