"""Evaluating clients: rounds under one policy, what is logged of them, and the best model."""

from __future__ import annotations

import csv
import errno
import importlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise, VectorizedActionNoise

from plugrl_gym.agents.sb3 import SB3Agent, SB3PolicyAgent, evaluation
from plugrl_gym.agents.sb3.acting import choose, frozen_copy
from plugrl_gym.agents.sb3.runs.best_model import save_evaluated
from plugrl_gym.agents.sb3.runs.evaluations import Evaluation, Evaluations
from plugrl_gym.errors import RemoteProtocolError, UsageError
from plugrl_gym.server.agent import Refusal
from tests.support.agent_peer import AgentPeer
from tests.support.lockstep import (
    assert_different_weights,
    assert_same_weights,
    drive,
    logless,
    make_envs,
    weights_of,
)

NUMBER = spaces.Box(-10.0, 10.0, (1,), np.float32)
SPIN = spaces.Box(-1.0, 1.0, (1,), np.float32)


_made: list[SB3Agent] = []


@pytest.fixture(autouse=True)
def _close_agents() -> Iterator[None]:
    yield
    while _made:
        _made.pop().close()


def make_agent(**settings: Any) -> SB3Agent:
    """Of plain PPO with small rollouts; closed after the test."""
    given = {"seed": 0, "preset": "none", "n_steps": 8, "batch_size": 8, "device": "cpu"}
    _made.append(SB3Agent("ppo", **{**given, **settings}))
    return _made[-1]


def peer_of(agent: SB3Agent, num_envs: int = 1, mode: str = "eval", **options: Any) -> AgentPeer:
    return AgentPeer(agent, NUMBER, SPIN, num_envs=num_envs, mode=mode, **options)


def seen(*numbers: float) -> Any:
    return np.array(numbers, np.float32)[:, None]


def play(peer: AgentPeer, envs: Sequence[int], ended: Sequence[bool], rewards: Any = 1.0) -> Any:
    """One step of some envs; returns the actions."""
    observation = seen(*(float(env) for env in envs))
    actions = peer.ask(envs, observation)
    peer.tell(envs, observation, rewards, terminated=list(ended))
    return actions


def train(agent: SB3Agent, steps: int = 8) -> None:
    peer = peer_of(agent, mode="train")
    for _ in range(steps):
        play(peer, [0], [False])
    peer.leave()


# -- Rounds -------------------------------------------------------------------------------


def test_a_round_keeps_its_policy_while_the_learner_goes_on() -> None:
    agent = make_agent()
    evaluating = peer_of(agent)
    first = play(evaluating, [0], [False])
    train(agent)
    assert agent.counters.updates == 1
    np.testing.assert_array_equal(play(evaluating, [0], [False]), first)
    np.testing.assert_raises(
        AssertionError, np.testing.assert_array_equal, play(peer_of(agent), [0], [False]), first
    )


def test_the_next_round_begins_with_the_policy_of_then() -> None:
    agent = make_agent(eval_episodes=1)
    evaluating = peer_of(agent)
    first = play(evaluating, [0], [True])
    np.testing.assert_array_equal(play(evaluating, [0], [True]), first)
    train(agent)
    assert not np.array_equal(play(evaluating, [0], [True]), first)
    assert agent.evaluations.last == Evaluation(8, (1.0,), (1,))
    assert agent.evaluations.number == 3


def test_clients_share_a_copy_and_it_is_made_only_where_weights_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies = []

    def counting(policy: Any) -> Any:
        copies.append(policy)
        return frozen_copy(policy)

    for module in ("evaluation", "learners.learner"):
        monkeypatch.setattr(f"plugrl_gym.agents.sb3.{module}.frozen_copy", counting)
    agent = make_agent(eval_episodes=1)
    clients = [peer_of(agent), peer_of(agent)]
    for client in clients * 3:
        play(client, [0], [True])
    assert len(copies) == 1
    train(agent)
    for client in clients * 3:
        play(client, [0], [True])
    assert len(copies) == 2


def test_clients_in_rounds_of_different_policies_are_answered_in_one_batch() -> None:
    agent = make_agent()
    early = peer_of(agent)
    before = play(early, [0], [False])
    train(agent)
    late = peer_of(agent)
    after = play(late, [0], [False])
    requests = [late.request([0], seen(0.0)), early.request([0], seen(0.0))]
    answers = [
        peer.answer(action) for peer, action in zip((late, early), agent.act(requests), strict=True)
    ]
    np.testing.assert_array_equal(answers, [after, before])


def test_each_env_contributes_an_equal_share_of_its_first_episodes() -> None:
    agent = make_agent(eval_episodes=4)
    peer = peer_of(agent, 2)
    for step in range(6):  # env 0 ends an episode at every step, env 1 at every third
        assert agent.evaluations.number == 0
        play(peer, [0, 1], [True, step % 3 == 2], [1.0, 10.0])
    assert agent.evaluations.last == Evaluation(0, (1.0, 1.0, 30.0, 30.0), (1, 1, 3, 3))


def test_with_more_envs_than_episodes_the_last_ones_contribute() -> None:
    agent = make_agent(eval_episodes=2)
    peer = peer_of(agent, 3)
    play(peer, [0, 1, 2], [True, True, False], [5.0, 6.0, 7.0])
    assert agent.evaluations.number == 0
    play(peer, [0, 1, 2], [True, True, True], [5.0, 6.0, 7.0])
    assert agent.evaluations.last == Evaluation(0, (6.0, 14.0), (1, 2))


def test_an_episode_that_began_under_the_policy_before_does_not_count() -> None:
    agent = make_agent(eval_episodes=2)
    peer = peer_of(agent, 2)
    play(peer, [0, 1], [True, True])
    play(peer, [0, 1], [True, False])  # env 0 finishes its share of the second round
    play(peer, [0, 1], [True, False])
    play(peer, [0, 1], [False, True])  # and with this env 1; env 0 is in mid episode
    assert agent.evaluations.last == Evaluation(0, (1.0, 3.0), (1, 3))
    play(peer, [0, 1], [True, True], 100.0)  # so for the third round only env 1 counts
    assert agent.evaluations.number == 2
    play(peer, [0, 1], [True, True], 5.0)
    assert agent.evaluations.last == Evaluation(0, (100.0, 5.0), (1, 1))


def test_an_episode_whose_beginning_nobody_saw_does_not_count() -> None:
    agent = make_agent(eval_episodes=1)
    before = peer_of(agent)
    play(before, [0], [False])
    before.leave()
    after = peer_of(agent)
    after._step_ids = before._step_ids  # the env goes on where the connection was lost
    play(after, [0], [True], 100.0)
    assert agent.evaluations.number == 0
    play(after, [0], [True], 1.0)
    assert agent.evaluations.last == Evaluation(0, (1.0,), (1,))


def test_an_episode_of_which_a_row_was_dropped_does_not_count() -> None:
    agent = make_agent(eval_episodes=1)
    peer = peer_of(agent, foreign=True)
    play(peer, [0], [False], np.nan)
    play(peer, [0], [True], 100.0)
    assert agent.evaluations.number == 0
    play(peer, [0], [True], 1.0)
    assert agent.evaluations.last == Evaluation(0, (1.0,), (1,))


def test_the_statistics_that_a_client_sends_win_over_our_own_sums() -> None:
    agent = make_agent(eval_episodes=1)
    peer = peer_of(agent)
    peer.ask([0], seen(0.0))
    peer.tell([0], seen(0.0), 0.5, terminated=True, returns=np.array([77.0]), lengths=[33])
    assert agent.evaluations.last == Evaluation(0, (77.0,), (33,))


def test_what_a_client_has_finished_when_it_leaves_is_an_evaluation_too() -> None:
    agent = make_agent(eval_episodes=10)
    peer = peer_of(agent)
    for reward in (1.0, 3.0):
        play(peer, [0], [True], reward)
    assert agent.evaluations.number == 0
    peer.leave()
    assert agent.evaluations.last == Evaluation(0, (1.0, 3.0), (1, 1), complete=False)


def test_a_client_that_finished_nothing_leaves_no_evaluation() -> None:
    agent = make_agent(eval_episodes=1)
    idle, playing, done = peer_of(agent), peer_of(agent), peer_of(agent)
    idle.request([0], seen(0.0))
    play(playing, [0], [False])
    play(done, [0], [True])
    play(done, [0], [False])
    for peer in (idle, playing, done):
        peer.leave()
    assert agent.evaluations.number == 1


def test_a_client_may_declare_any_number_of_envs() -> None:
    agent = make_agent(num_envs=1, eval_episodes=2)
    peer = peer_of(agent, 2**60)
    play(peer, [0, 2**60 - 1], [True, True])
    peer.leave()
    assert agent.evaluations.last == Evaluation(0, (1.0,), (1,), complete=False)


@pytest.mark.parametrize("n_envs", [1, 3])
def test_an_evaluation_is_that_of_sb3s_evaluate_policy(n_envs: int, tmp_path: Path) -> None:
    agent = make_agent(eval_episodes=7, seed=6, run_dir=tmp_path)
    drive(agent, make_envs("CartPole-v1", n_envs), seed=5, max_steps=400, mode="eval")
    model = PPO("MlpPolicy", "CartPole-v1", seed=6, device="cpu")
    envs = make_vec_env("CartPole-v1", n_envs, seed=5)
    returns, lengths = evaluate_policy(model, envs, 7, return_episode_rewards=True)
    first, second, *_ = lines(tmp_path / "evaluations.csv")
    assert first["returns"] == " ".join(map(str, returns))
    assert first["lengths"] == " ".join(map(str, lengths))
    assert second["returns"] != first["returns"]


# -- The learner sees nothing of it -------------------------------------------------------


def trained_beside(evaluating: bool, **settings: Any) -> tuple[SB3Agent, list[Any]]:
    """A training client, and after each of its steps one of an evaluating client."""
    agent = make_agent(total_timesteps=64, eval_episodes=2, **settings)
    trainer, judge, step = peer_of(agent, mode="train"), peer_of(agent, 2), 0
    while not agent.finished:
        play(trainer, [0], [step % 5 == 4], np.sin(step))
        step += 1
        if evaluating:
            play(judge, [0, 1], [step % 3 == 0, step % 4 == 0], np.cos(step))
    return agent, [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()]


@pytest.mark.parametrize("settings", [{}, {"use_sde": True, "sde_sample_freq": 3}])
def test_an_evaluating_client_changes_neither_weights_nor_generators(
    settings: dict[str, Any],
) -> None:
    alone, expected = trained_beside(False, **settings)
    watched, generators = trained_beside(True, **settings)
    assert (alone.evaluations.number, watched.evaluations.number > 3) == (0, True)
    assert alone.model is not None
    assert watched.model is not None
    assert_same_weights(weights_of(watched.model), weights_of(alone.model))
    assert generators == expected
    other, _ = trained_beside(True, **{**settings, "seed": 1})
    assert other.model is not None
    assert_different_weights(weights_of(other.model), weights_of(alone.model))


def test_a_normaliser_is_used_as_it_was_and_counts_nothing_of_an_evaluation(
    tmp_path: Path,
) -> None:
    agent = make_agent(run_dir=tmp_path, normalize=True, eval_episodes=1)
    train(agent, 16)
    assert agent.model is not None
    envs = agent.model.get_vec_normalize_env()
    assert envs is not None
    counted = envs.obs_rms.count
    judge = peer_of(agent, 3)
    first = play(judge, [0, 1, 2], [False] * 3)
    assert envs.obs_rms.count == counted
    expected, _ = agent.model.predict(envs.normalize_obs(seen(0.0, 1.0, 2.0)), deterministic=True)
    np.testing.assert_array_equal(first[0], expected)
    trainer = peer_of(agent, mode="train")  # the statistics go on, the weights do not
    trainer.ask([0], seen(9.0))
    assert envs.obs_rms.count > counted
    np.testing.assert_array_equal(play(judge, [0, 1, 2], [True] * 3), first)
    served = SB3PolicyAgent(tmp_path / "best_model.zip", device="cpu")
    np.testing.assert_array_equal(
        AgentPeer(served, NUMBER, SPIN, num_envs=3).ask(range(3), seen(0.0, 1.0, 2.0)), first
    )


def test_chunks_of_several_steps_are_evaluated_too() -> None:
    agent = make_agent(horizon=3, eval_episodes=1)
    chunk = play(peer_of(agent), [0], [True], 6.0)
    assert agent.model is not None
    expected, _ = agent.model.predict(seen(0.0), deterministic=True)
    np.testing.assert_array_equal(chunk, expected.reshape(3, 1, 1))
    assert agent.evaluations.last == Evaluation(0, (6.0,), (3,))


def test_nothing_of_an_evaluating_client_is_stored() -> None:
    agent = make_agent()
    drive(agent, make_envs("CartPole-v1", 2), mode="eval", max_steps=30, seed=0)
    assert (agent.counters.transitions_stored, agent.timesteps) == (0, 0)


# -- Copies of policies -------------------------------------------------------------------

ALGORITHMS = {
    "ppo": ("CartPole-v1", {"n_steps": 8, "batch_size": 8}),
    "a2c": ("Pendulum-v1", {"n_steps": 8}),
    "ppo-gsde": ("Pendulum-v1", {"n_steps": 8, "batch_size": 8, "use_sde": True}),
    "trpo": ("CartPole-v1", {"n_steps": 8, "batch_size": 8}),
    "sac": ("Pendulum-v1", {}),
    "sac-gsde": ("Pendulum-v1", {"use_sde": True}),
    "sac-fixed": ("Pendulum-v1", {"ent_coef": 0.1}),
    "td3": ("Pendulum-v1", {}),
    "ddpg": ("Pendulum-v1", {}),
    "dqn": ("CartPole-v1", {"train_freq": 1}),
    "tqc": ("Pendulum-v1", {}),
    "qrdqn": ("CartPole-v1", {"train_freq": 1}),
    "crossq": ("Pendulum-v1", {}),
}


def trained_model(case: str) -> BaseAlgorithm:
    name = case.partition("-")[0]
    env_id, settings = ALGORITHMS[case]
    contrib = name in ("trpo", "tqc", "qrdqn", "crossq")
    package = importlib.import_module("sb3_contrib" if contrib else "stable_baselines3")
    algorithm = getattr(package, {"crossq": "CrossQ"}.get(name, name.upper()))
    given = {"policy_kwargs": {"net_arch": [16, 16]}, **settings}
    if "n_steps" not in settings:
        given |= {"learning_starts": 8, "batch_size": 8, "buffer_size": 50}
    model: BaseAlgorithm = algorithm("MlpPolicy", env_id, seed=0, device="cpu", **given)
    return logless(model).learn(16)


@pytest.mark.parametrize("case", ALGORITHMS)
def test_a_copied_policy_stays_as_it_is_and_its_saved_model_is_plain_sb3s(
    case: str, tmp_path: Path
) -> None:
    model = trained_model(case)
    generator, mode = torch.get_rng_state(), model.policy.training
    observation = np.stack([model.observation_space.sample() for _ in range(4)])
    expected = choose(model.policy, observation)
    weights = {name: value.clone() for name, value in model.policy.state_dict().items()}
    twin = frozen_copy(model.policy)
    assert torch.equal(torch.get_rng_state(), generator)
    assert model.policy.training == mode
    parts = [part for module in twin.modules() for part in vars(module).values()]
    assert not [part for part in parts if isinstance(part, torch.optim.Optimizer)]

    model.learn(32, reset_num_timesteps=False)
    assert any(not torch.equal(v, weights[n]) for n, v in model.policy.state_dict().items())
    np.testing.assert_array_equal(choose(twin, observation), expected)

    updates = model._n_updates
    save_evaluated(model, twin, 16, tmp_path / "best_model.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["best_model.zip"]
    loaded = type(model).load(tmp_path / "best_model", env=model.get_env(), device="cpu")
    assert (loaded.num_timesteps, model.num_timesteps, model._n_updates) == (16, 48, updates)
    assert "get_parameters" not in vars(loaded)
    assert all(torch.equal(v, weights[n]) for n, v in loaded.policy.state_dict().items())
    logless(loaded).learn(16, reset_num_timesteps=False)
    assert loaded.num_timesteps == 32


# -- What is kept of it -------------------------------------------------------------------


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_evaluations_have_lines_of_their_own_in_the_log(tmp_path: Path) -> None:
    agent = make_agent(run_dir=tmp_path, eval_episodes=2)
    train(agent, 16)
    judge = peer_of(agent)
    for reward in (2.0, 4.0):
        play(judge, [0], [True], reward)
    train(agent, 8)
    agent.close()
    first, second, evaluation, third = lines(tmp_path / "progress.csv")
    assert {name: value for name, value in evaluation.items() if value} == {
        "eval/mean_reward": "3.0",
        "eval/std_reward": "1.0",
        "eval/mean_ep_length": "1.0",
        "eval/episodes": "2",
        "time/total_timesteps": "16",
    }
    assert [line["time/total_timesteps"] for line in (first, second, third)] == ["8", "16", "24"]
    assert not first["train/loss"]  # the first line comes before the first update
    assert second["train/loss"]
    assert third["train/loss"]  # what waited for it when the evaluation was logged


def test_evaluations_reach_tensorboard(tmp_path: Path) -> None:
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    agent = make_agent(run_dir=tmp_path, eval_episodes=1)
    train(agent)
    play(peer_of(agent), [0], [True], 5.0)
    agent.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("eval/mean_reward")] == [(8, 5.0)]
    assert "eval/episodes" in events.Tags()["scalars"]
    assert "time/total_timesteps" not in events.Tags()["scalars"]


def test_evaluations_csv_tells_every_episode(tmp_path: Path) -> None:
    agent = make_agent(run_dir=tmp_path, eval_episodes=2)
    judge = peer_of(agent)
    for reward in (2.0, 4.0, 7.5):
        play(judge, [0], [True], reward)
    judge.leave()
    whole, part = lines(tmp_path / "evaluations.csv")
    assert whole == {
        "timesteps": "0",
        "mean_reward": "3.0",
        "std_reward": "1.0",
        "mean_ep_length": "1.0",
        "episodes": "2",
        "complete": "1",
        "returns": "2.0 4.0",
        "lengths": "1 1",
    }
    assert (part["returns"], part["complete"]) == ("7.5", "0")


def test_the_best_model_is_the_one_that_earned_most(tmp_path: Path) -> None:
    agent = make_agent(run_dir=tmp_path, eval_episodes=1)
    judge, weights = peer_of(agent), []
    for reward in (1.0, 5.0, 3.0):
        train(agent)
        assert agent.model is not None
        weights.append(
            {name: value.clone() for name, value in agent.model.policy.state_dict().items()}
        )
        play(judge, [0], [True], reward)
    best = PPO.load(tmp_path / "best_model.zip", device="cpu")
    assert best.num_timesteps == 16
    assert all(torch.equal(v, weights[1][n]) for n, v in best.policy.state_dict().items())
    assert any(not torch.equal(v, weights[2][n]) for n, v in best.policy.state_dict().items())
    assert agent.evaluations.summary() == {
        "evaluations": 3,
        "last_mean_reward": 3.0,
        "last_std_reward": 0.0,
        "last_timesteps": 24,
        "best_mean_reward": 5.0,
        "best_std_reward": 0.0,
        "best_timesteps": 16,
    }


def test_an_evaluation_counts_though_its_model_cannot_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    agent = make_agent(run_dir=tmp_path, eval_episodes=1)
    judge = peer_of(agent)
    monkeypatch.setattr(evaluation, "save_evaluated", full)
    train(agent)
    play(judge, [0], [True], 5.0)
    assert "the best model at step 8 was not saved: [Errno 28]" in caplog.text
    assert [row["mean_reward"] for row in lines(tmp_path / "evaluations.csv")] == ["5.0"]


def test_the_best_model_has_the_weights_that_were_evaluated_not_later_ones(tmp_path: Path) -> None:
    agent = make_agent(run_dir=tmp_path, eval_episodes=1)
    judge = peer_of(agent)
    play(judge, [0], [False])
    assert agent.model is not None
    weights = {name: value.clone() for name, value in agent.model.policy.state_dict().items()}
    train(agent)
    play(judge, [0], [True])
    best = PPO.load(tmp_path / "best_model.zip", device="cpu")
    assert best.num_timesteps == 0
    assert all(torch.equal(v, weights[n]) for n, v in best.policy.state_dict().items())


@pytest.mark.parametrize(
    ("challenger", "champion", "wins"),
    [
        (Evaluation(0, (1.0,), (1,)), None, True),
        (Evaluation(0, (2.0,), (1,)), Evaluation(0, (1.0,), (1,)), True),
        (Evaluation(0, (1.0,), (1,)), Evaluation(0, (1.0,), (1,)), False),
        (Evaluation(0, (9.0,), (1,), False), Evaluation(0, (1.0,), (1,)), False),
        (Evaluation(0, (1.0,), (1,)), Evaluation(0, (9.0,), (1,), False), True),
    ],
    ids=["first", "higher", "equal", "in part", "whole after part"],
)
def test_a_whole_evaluation_with_a_higher_mean_is_better(
    challenger: Evaluation, champion: Evaluation | None, wins: bool
) -> None:
    assert challenger.beats(champion) is wins


def test_a_run_that_goes_on_knows_its_evaluations(tmp_path: Path) -> None:
    before = Evaluations(tmp_path)
    for timesteps, reward in ((10, 2.0), (20, 9.0), (30, 4.0)):
        before.enter(Evaluation(timesteps, (reward, reward), (7, 8)), None)
    with (tmp_path / "evaluations.csv").open("a") as file:
        file.write("40,5.0,")  # the crash
    after = Evaluations(tmp_path, known=15)
    assert (after.best, after.number) == (Evaluation(20, (9.0, 9.0), (7, 8)), 2)
    after.enter(Evaluation(16, (3.0,), (1,)), None)
    told = [line["timesteps"] for line in lines(tmp_path / "evaluations.csv")]
    assert told == ["10", "20", "16"]  # 20 is the best, whose model is still there


def test_an_evaluation_of_many_episodes_is_known_too(tmp_path: Path) -> None:
    long = Evaluation(8, (-1234.567890123,) * 10_000, (1000,) * 10_000)
    Evaluations(tmp_path).enter(long, None)
    assert Evaluations(tmp_path, known=8).last == long


@pytest.mark.parametrize(
    "line",
    [
        "eight,3.0,0.0,1.0,1,1,3.0,1",
        "8,3.0,0.0,1.0,1,1,three,1",
        "8,3.0,0.0,1.0,1,1,3.0 4.0,1",
        "8,3.0,0.0,1.0,0,1,,",
        "8,3.0",
    ],
)
def test_evaluations_that_somebody_has_edited_amiss_are_named_by_their_line(
    line: str, tmp_path: Path
) -> None:
    path = tmp_path / "evaluations.csv"
    Evaluations(tmp_path).enter(Evaluation(8, (3.0,), (1,), True), None)
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(UsageError, match=r"evaluations\.csv, line 3: expected timesteps, .*mend"):
        Evaluations(tmp_path, known=8)


def test_a_new_run_overwrites_the_evaluations_of_another(tmp_path: Path) -> None:
    for reward in (9.0, 1.0):
        evaluations = Evaluations(tmp_path)
        assert evaluations.enter(Evaluation(0, (reward,), (1,)), None)
    assert [line["mean_reward"] for line in lines(tmp_path / "evaluations.csv")] == ["1.0"]


def test_a_run_without_a_directory_still_knows_the_best() -> None:
    agent = make_agent(eval_episodes=1)
    play(peer_of(agent), [0], [True], 5.0)
    assert agent.evaluations.best == Evaluation(0, (5.0,), (1,))


def test_noise_for_other_envs_is_refused_whoever_came_first() -> None:
    noise = VectorizedActionNoise(NormalActionNoise(np.zeros(1), np.ones(1)), 4)
    agent = SB3Agent("td3", buffer_size=500, action_noise=noise, preset="none")
    env = gym.make("Pendulum-v1")
    single = env.observation_space, env.action_space
    judge = AgentPeer(agent, *single, num_envs=2, mode="eval")
    judge.ask(range(2), np.zeros((2, 3), np.float32))
    for number in (3, 4):
        peer = AgentPeer(agent, *single, num_envs=number)
        if number == 4:
            peer.ask(range(4), np.zeros((4, 3), np.float32))
            continue
        with pytest.raises(Refusal) as caught:
            peer.ask(range(number), np.zeros((number, 3), np.float32))
        assert str(caught.value) == "action_noise is for 4 envs, here are 3"
    env.close()


def test_how_many_envs_evaluate_first_does_not_decide_who_may_learn() -> None:
    settings = {"train_freq": (1, "episode"), "policy_kwargs": {"net_arch": [8]}}
    agent = SB3Agent("ddpg", buffer_size=500, device="cpu", **settings)
    env = gym.make("Pendulum-v1")
    single = env.observation_space, env.action_space

    def ask(envs: int, mode: str) -> Any:
        peer = AgentPeer(agent, *single, num_envs=envs, mode=mode)
        return peer.ask(range(envs), np.zeros((envs, 3), np.float32))

    assert ask(3, "eval").shape == (1, 3, 1)
    for number, sentence in (
        (2, "train_freq in episodes needs one env, here are 2; (n, 'step') takes more"),
        (65_537, "a client's rollouts span at most 65536 envs, it has 65537"),
    ):
        with pytest.raises(Refusal) as caught:
            ask(number, "train")
        assert str(caught.value) == sentence
    assert ask(1, "train").shape == (1, 1, 1)
    env.close()


def test_an_evaluation_that_found_no_room_is_written_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluations = Evaluations(tmp_path)
    made = [Evaluation(8 * k, (float(k),), (k,)) for k in (1, 2, 3)]
    evaluations.enter(made[0], None)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(OSError, match="No space"):
            evaluations.enter(made[1], None)
    evaluations.enter(made[2], None)
    assert [row["timesteps"] for row in lines(tmp_path / "evaluations.csv")] == ["8", "16", "24"]
    assert Evaluations(tmp_path, known=24).last == made[2]


def test_a_reward_that_no_sum_can_take_is_refused_from_those_who_evaluate_too() -> None:
    agent = make_agent(eval_episodes=1)
    judge = peer_of(agent)
    judge.ask([0], seen(0.0))
    with pytest.raises(RemoteProtocolError, match=r"cannot calculate with 3\.39"):
        judge.tell([0], seen(0.0), np.array([3.4e38]), True)
    assert agent.evaluations.number == 0


def full_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_line_that_a_crash_cut_short_does_not_count(tmp_path: Path) -> None:
    before = Evaluations(tmp_path)
    before.enter(Evaluation(8, (1.0, 2.0), (3, 14), True), None)
    before.enter(Evaluation(9, (5.0, 6.0), (3, 145), True), None)
    path = tmp_path / "evaluations.csv"
    path.write_bytes(path.read_bytes().rstrip()[:-1])  # "3 14", a whole pair by its looks
    after = Evaluations(tmp_path, known=10)
    assert (after.number, after.last) == (1, Evaluation(8, (1.0, 2.0), (3, 14), True))
