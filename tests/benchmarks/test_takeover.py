"""The env, the expert and the table of the program takeover."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from tests.benchmarks.shows import main
from tests.benchmarks.sparse_mountain_car import SPARSE, push_along
from tests.benchmarks.takeover import Takeover


def played(act: Any) -> tuple[list[float], bool]:
    env = gym.make(SPARSE)
    observation, _ = env.reset(seed=0)
    rewards, terminated, truncated = [], False, False
    while not (terminated or truncated):
        observation, reward, terminated, truncated, _ = env.step(act(observation))
        rewards.append(float(reward))
    env.close()
    return rewards, terminated


def test_the_expert_reaches_the_goal_which_alone_pays() -> None:
    rewards, reached = played(lambda seen: push_along(seen[None], np.zeros((1, 1), np.float32))[0])
    assert reached
    assert rewards[-1] == 100.0
    assert set(rewards[:-1]) == {0.0}
    assert len(rewards) < 200


def test_whoever_does_nothing_gets_nothing() -> None:
    rewards, reached = played(lambda seen: np.zeros(1, np.float32))
    assert not reached
    assert rewards == [0.0] * 999


def test_the_table_counts_final_models_and_not_training(tmp_path: Path) -> None:
    options = ["--seeds", "0", "1", "--out", str(tmp_path)]
    show = Takeover()
    parser = argparse.ArgumentParser()
    show.add_options(parser)
    tasks = show.tasks(parser.parse_args(options[:3]))
    setup = {"versions": {}, "python": "3.11", "machine": "one"}
    found = {"takeover/alone/0": (0.0, 100.0), "takeover/expert/0": (100.0, 0.0)}
    found |= {"takeover/alone/1": (94.9, 100.0), "takeover/expert/1": (95.0, 0.0)}
    lines = [
        {"key": task.key, "settings": task.settings, **setup, "env_steps": 8000}
        | {"overridden_share": 0.25 * ("expert" in task.key)}
        | dict(zip(("evaluation", "mean_return"), found[task.key], strict=True))
        for task in tasks
    ]
    (tmp_path / "records.jsonl").write_text("\n".join(map(json.dumps, lines)))
    results = tmp_path / "RESULTS.md"
    results.write_text("<!-- takeover --><!-- /takeover -->")
    assert main(show, [*options, "--table", "--results", str(results)]) == 0
    alone, expert = results.read_text().splitlines()[-4:-2]
    assert alone.startswith("| alone | 2 | 0 of 2 | 47.5 (0.0 to 94.9) |")
    assert expert.startswith("| with an expert in 20% of the steps | 2 | 2 of 2 | 97.5 (95.0 to ")
    assert expert.endswith("| 8,000 | 25.0% |")
