"""SB3's callbacks from Python: called as in SB3's own loop, for both kinds of algorithms."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CheckpointCallback,
    StopTrainingOnMaxEpisodes,
)
from stable_baselines3.common.env_util import make_vec_env

from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.errors import RunFailed
from tests.support.lockstep import drive, logless, make_envs
from tests.support.resuming import Envs, small_agent


class Case(NamedTuple):
    algorithm: type[BaseAlgorithm]
    env_id: str
    n_envs: int
    timesteps: int
    settings: dict[str, Any]


CASES = [
    pytest.param(
        Case(
            *(PPO, "CartPole-v1", 4, 384),
            {"n_steps": 32, "batch_size": 64, "n_epochs": 1, "policy_kwargs": {"net_arch": [8]}},
        ),
        id="ppo",
    ),
    pytest.param(
        Case(
            *(SAC, "Pendulum-v1", 2, 820),
            {
                "learning_starts": 780,
                "batch_size": 8,
                "buffer_size": 900,
                "train_freq": 8,
                "policy_kwargs": {"net_arch": [8], "activation_fn": torch.nn.Tanh},
            },
        ),
        id="sac",
    ),
]


class Diary(BaseCallback):
    """Writes down what it is called for, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple[str, int, int]] = []

    def _enter(self, event: str) -> bool:
        self.entries.append((event, self.n_calls, self.model.num_timesteps))
        return True

    def _on_training_start(self) -> None:
        self._enter("training start")

    def _on_rollout_start(self) -> None:
        self._enter("rollout start")

    def _on_step(self) -> bool:
        assert len(self.locals["rewards"]) == len(self.locals["dones"])
        return self._enter("step")

    def _on_rollout_end(self) -> None:
        self._enter("rollout end")

    def _on_training_end(self) -> None:
        self._enter("training end")


def ours(case: Case, callback: Any) -> BaseAlgorithm:
    agent = SB3Agent(
        case.algorithm,
        total_timesteps=case.timesteps,
        seed=0,
        preset="none",
        callback=callback,
        **case.settings,
    )
    drive(agent, make_envs(case.env_id, case.n_envs), env_id=case.env_id, seed=0)
    agent.close()
    assert agent.finished
    assert agent.model is not None
    return agent.model


def theirs(case: Case, callback: Any) -> BaseAlgorithm:
    envs = make_vec_env(case.env_id, n_envs=case.n_envs, seed=0)
    model = case.algorithm("MlpPolicy", envs, seed=0, **case.settings)
    return logless(model).learn(case.timesteps, callback=callback)


@pytest.mark.parametrize("case", CASES)
def test_a_callback_hears_what_it_hears_in_sb3(case: Case) -> None:
    own, reference = Diary(), Diary()
    ours(case, own)
    theirs(case, reference)
    assert own.entries == reference.entries
    assert {event for event, _, _ in own.entries} == {
        "training start",
        "rollout start",
        "step",
        "rollout end",
        "training end",
    }


@pytest.mark.parametrize("case", CASES)
def test_all_callbacks_of_a_list_are_called(case: Case) -> None:
    first, second, calls = Diary(), Diary(), []

    def function(locals_: dict[str, Any], globals_: dict[str, Any]) -> bool:
        calls.append(len(locals_["infos"]))
        return True

    ours(case, [first, second])
    assert first.entries == second.entries != []
    ours(case, function)
    steps = [entry for entry in first.entries if entry[0] == "step"]
    assert calls == [case.n_envs] * len(steps)


@pytest.mark.parametrize("case", CASES)
def test_checkpoint_callback_writes_the_files_of_sb3(case: Case, tmp_path: Path) -> None:
    written = {}
    for learn in (ours, theirs):
        directory = tmp_path / learn.__name__
        learn(case, CheckpointCallback(save_freq=40, save_path=str(directory)))
        written[learn.__name__] = sorted(path.name for path in directory.iterdir())
    assert written["ours"] == written["theirs"] != []
    first = f"rl_model_{40 * case.n_envs}_steps.zip"
    assert case.algorithm.load(tmp_path / "ours" / first).num_timesteps == 40 * case.n_envs


@pytest.mark.parametrize("case", CASES)
def test_stop_training_on_max_episodes_ends_the_run(case: Case) -> None:
    ended = [
        learn(case, StopTrainingOnMaxEpisodes(max_episodes=1)).num_timesteps
        for learn in (ours, theirs)
    ]
    assert ended[0] == ended[1] < case.timesteps


def test_a_callback_that_cannot_begin_ends_the_run() -> None:
    class Broken(Diary):
        def _on_training_start(self) -> None:
            raise ZeroDivisionError("of nothing")

    with Envs("CartPole-v1", 2) as envs, pytest.raises(RunFailed) as caught:
        envs.run(small_agent(None, callback=Broken()))
    assert str(caught.value) == "the run cannot begin: ZeroDivisionError: of nothing"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_what_a_callback_stops_at_was_fed_back_and_is_not_dropped(algorithm: str) -> None:
    agent = small_agent(None, algorithm, callback=lambda _locals, _globals: False)
    with Envs("CartPole-v1", 2) as envs:
        envs.run(agent)
    assert agent.finished
    assert agent.counters.chunks_dropped == agent.counters.transitions_stored == 0


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_callback_that_fails_in_a_step_leaves_the_checkpoint_before_it(
    algorithm: str, tmp_path: Path
) -> None:
    class Broken(Diary):
        def _on_step(self) -> bool:
            return self.n_calls < 20 or bool(1 / 0)

    agent = small_agent(tmp_path, algorithm, callback=Broken(), save_every=10)
    with Envs("CartPole-v1", 2) as envs, pytest.raises(ZeroDivisionError):
        envs.run(agent)
    agent.close()
    again = SB3Agent(resume=tmp_path)
    # What the 20th step brought was counted, and not stored.
    assert again.timesteps == again.counters.transitions_stored == 30
    again.close()


def test_a_callback_that_fails_at_the_end_costs_no_checkpoint(tmp_path: Path) -> None:
    class Broken(Diary):
        def _on_training_end(self) -> None:
            raise ZeroDivisionError("of nothing")

    agent = small_agent(tmp_path, callback=Broken())
    with Envs("CartPole-v1", 2) as envs:
        envs.run(agent)
        with pytest.raises(ZeroDivisionError):
            agent.close()
    assert PPO.load(tmp_path / "model.zip").num_timesteps == agent.timesteps > 0
