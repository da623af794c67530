"""Acting while the learner trains: the copy that acts, what waits meanwhile, and SB3's ratio."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise

from plugrl_gym import PlugRLVectorEnv
from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.agents.sb3.learners.asynchronous import MOST_BEHIND
from plugrl_gym.errors import UsageError
from tests.support.agent_peer import AgentPeer
from tests.support.lockstep import assert_same_weights, drive, make_envs, sb3_model, weights_of
from tests.support.replays import ONE, check_stored, make_learner
from tests.support.resuming import checkpoints
from tests.support.rollouts import NUMBER, RaggedClient, column, connect, play_at_random
from tests.support.serving import running

SMALL: dict[str, Any] = {
    "learning_starts": 40,
    "batch_size": 16,
    "policy_kwargs": {"net_arch": [16]},
}
NOISE = OrnsteinUhlenbeckActionNoise(np.zeros(1), np.full(1, 0.5))


@pytest.mark.parametrize(
    ("algorithm", "env_id", "n_envs", "settings"),
    [
        (SAC, "Pendulum-v1", 1, {}),
        (TD3, "Pendulum-v1", 4, {"action_noise": NOISE, "gradient_steps": -1}),
        (DQN, "CartPole-v1", 4, {"exploration_fraction": 0.6}),
    ],
)
def test_where_nothing_overlaps_the_weights_are_those_of_sb3(
    algorithm: Any, env_id: str, n_envs: int, settings: dict[str, Any]
) -> None:
    settings = {**SMALL, **settings}
    expected = sb3_model(env_id, n_envs, 160, algorithm, **settings)
    agent = SB3Agent(
        algorithm,
        total_timesteps=160,
        seed=0,
        preset="none",
        async_learn=True,
        hyperparameters={"device": "cpu", **settings},
    )
    drive(agent, make_envs(env_id, n_envs), env_id=env_id, seed=0)
    assert agent.model is not None
    assert_same_weights(weights_of(agent.model), weights_of(expected))


@contextmanager
def at_work(agent: SB3Agent, train: Callable[..., None]) -> Iterator[threading.Event]:
    """While the block runs, the agent is inside ``model.train``, between two calls of ``train``.

    The event that it gives lets the agent go on.
    """
    began, may_end = threading.Event(), threading.Event()

    def slow(gradient_steps: int, batch_size: int) -> None:
        train()
        began.set()
        assert may_end.wait(30)
        train()

    agent.model.train = slow  # type: ignore[method-assign,union-attr]
    thread = threading.Thread(target=agent.learn)
    thread.start()
    try:
        assert began.wait(30)
        yield may_end
    finally:
        may_end.set()
        thread.join(30)
    assert not thread.is_alive()


def still_exploring(**settings: Any) -> SB3Agent:
    """Epsilon 0, so that an action tells the weights."""
    agent, _ = make_learner(async_learn=True, action_space=spaces.Discrete(1000), **settings)
    agent.model.exploration_schedule = lambda remaining: 0.0  # type: ignore[union-attr]
    agent.model.exploration_rate = 0.0  # type: ignore[union-attr]
    return agent


def move(model: Any) -> None:
    """Let another action be the best one, in every layer's place."""
    with torch.no_grad():
        for parameter in model.q_net.parameters():
            parameter.copy_(torch.randn_like(parameter))


def test_actions_come_from_the_last_whole_weights_while_the_model_trains() -> None:
    agent = still_exploring()
    peer = connect(agent, 1, learns=False)
    where = column(0.3)
    before = peer.ask([0], where)
    peer.tell([0], where, 1.0)
    with at_work(agent, lambda: move(agent.model)):
        meanwhile = peer.ask([0], where)
        changed, _ = agent.model.predict(where, deterministic=True)  # type: ignore[union-attr]
    peer.tell([0], where, 1.0)
    after = peer.ask([0], where)
    peer.tell([0], where, 1.0)
    assert meanwhile.item() == before.item()
    assert changed.item() != before.item()
    assert after.item() == agent.model.predict(where, deterministic=True)[0].item()  # type: ignore[union-attr]
    assert after.item() != changed.item()


def test_what_comes_during_an_update_is_stored_before_the_next() -> None:
    agent = still_exploring()
    client = RaggedClient(agent, 0, 2)
    client.peer._learns = False
    client.ask(0, 1)
    client.tell(0)
    sizes = []
    buffer = agent.model.replay_buffer  # type: ignore[union-attr]
    with at_work(agent, lambda: sizes.append(buffer.size())):
        client.ask(0)
        client.tell(1)
        client.ask(1)
        client.tell(0)
        assert buffer.size() == 1
        assert agent.learning_wanted
    agent.model.train = lambda **_: sizes.append(buffer.size())  # type: ignore[method-assign,union-attr]
    while agent.learning_wanted:
        agent.learn()
    assert sizes == [1, 1, 3, 3]
    assert agent.counters.transitions_stored == check_stored(agent, client.lanes) == 3


def test_acting_waits_where_learning_falls_too_far_behind() -> None:
    agent = still_exploring()
    client = RaggedClient(agent, 0, 1)
    client.peer._learns = False
    for _ in range(MOST_BEHIND):
        client.ask(0)
        client.tell(0)
        assert agent.learning_wanted
        assert not agent.learning_due
    client.ask(0)
    client.tell(0)
    assert agent.learning_due
    agent.learn()
    assert not agent.learning_due


def test_the_ratio_of_gradient_steps_is_kept() -> None:
    agent, updates = make_learner("sac", num_envs=5, train_freq=2, async_learn=True)
    left, right = RaggedClient(agent, 0, 2), RaggedClient(agent, 2, 3)
    for client in (left, right):
        client.peer._learns = False
    rng = np.random.default_rng(0)
    for _ in range(20):
        play_at_random([left, right], rng, 5)
        while agent.learning_due:
            agent.learn()
    while agent.learning_wanted:
        agent.learn()
    steps = sum(len(lane.rows) for lane in left.lanes + right.lanes)
    assert agent.timesteps == steps
    assert updates == [1] * (steps // 10)


def test_rows_that_wait_at_the_end_are_stored() -> None:
    agent, updates = make_learner("sac", num_envs=1, total_timesteps=1, async_learn=True)
    client = RaggedClient(agent, 0, 3)
    client.peer._learns = False
    client.ask(0, 1, 2)
    client.tell(0)
    client.ask(0)
    client.tell(1, 2)
    agent.learn()
    assert agent.finished
    agent.close()
    assert updates == [1]
    assert agent.counters.transitions_stored == check_stored(agent, client.lanes) == 3


def test_a_callback_that_stops_the_run_loses_nothing_that_was_taken() -> None:
    agent = SB3Agent(
        "sac",
        total_timesteps=100,
        num_envs=1,
        preset="none",
        async_learn=True,
        observation_space=NUMBER,
        action_space=ONE,
        callback=lambda *_: False,
    )
    client = RaggedClient(agent, 0, 2)
    client.peer._learns = False
    for _ in range(2):
        client.ask(0, 1)
        client.tell(0, 1)
    agent.learn()
    assert agent.finished
    agent.close()
    assert agent.counters.transitions_stored == check_stored(agent, client.lanes) == 4


def test_an_evaluation_takes_no_policy_that_is_in_training() -> None:
    agent = still_exploring()
    learner = connect(agent, 1, learns=False)
    learner.ask([0], column(0))
    learner.tell([0], column(1), 1.0)
    observation, action = agent._spaces[:2]  # type: ignore[index]
    watchers = [AgentPeer(agent, observation, action, mode="eval") for _ in range(2)]
    before, _ = agent.model.predict(column(0.3), deterministic=True)  # type: ignore[union-attr]
    with at_work(agent, lambda: move(agent.model)):
        meanwhile = watchers[0].ask([0], column(0.3))  # it does not wait either
        changed, _ = agent.model.predict(column(0.3), deterministic=True)  # type: ignore[union-attr]
    after = watchers[1].ask([0], column(0.3))
    assert meanwhile.item() == before.item() != changed.item()
    assert after.item() == agent.model.predict(column(0.3), deterministic=True)[0].item()  # type: ignore[union-attr]


def test_the_best_model_is_saved_while_the_model_trains_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = SB3Agent(
        "dqn",
        run_dir=tmp_path,
        eval_episodes=1,
        async_learn=True,
        num_envs=1,
        seed=0,
        preset="none",
        observation_space=NUMBER,
        action_space=spaces.Discrete(7),
        hyperparameters={**SMALL, "device": "cpu", "learning_starts": 0, "train_freq": 1},
    )
    began, may_end = threading.Event(), threading.Event()

    def slow(model: DQN, gradient_steps: int, batch_size: int) -> None:
        move(model)
        began.set()
        assert may_end.wait(30)

    monkeypatch.setattr(DQN, "train", slow)
    learner = connect(agent, 1, learns=False)
    learner.ask([0], column(0))
    learner.tell([0], column(1), 1.0)
    assert agent.model is not None
    before = {name: part.clone() for name, part in agent.model.policy.state_dict().items()}
    thread = threading.Thread(target=agent.learn)
    thread.start()
    assert began.wait(30)
    watcher = AgentPeer(agent, NUMBER, spaces.Discrete(7), mode="eval")
    watcher.ask([0], column(0))
    watcher.tell([0], column(0), 1.0, terminated=True)
    may_end.set()
    thread.join(30)
    assert agent.evaluations.number == 1
    best = DQN.load(tmp_path / "best_model.zip", device="cpu").policy.state_dict()
    after = agent.model.policy.state_dict()
    assert all(torch.equal(part, before[name]) for name, part in best.items())
    assert any(not torch.equal(part, after[name]) for name, part in best.items())
    agent.close()


def test_clients_act_on_while_the_server_trains() -> None:
    """The first ``train`` ends only after the client has had three more actions."""
    agent = SB3Agent(
        "sac",
        total_timesteps=120,
        seed=0,
        preset="none",
        async_learn=True,
        observation_space=spaces.Box(-np.float32([1, 1, 8]), np.float32([1, 1, 8])),
        action_space=spaces.Box(-2.0, 2.0, (1,)),
        num_envs=1,
        hyperparameters={"device": "cpu", "train_freq": 4, **SMALL},
    )
    model = agent.model
    assert model is not None
    acted, waited = threading.Semaphore(0), []
    act, train = agent.act, model.train

    def counted(requests: Any) -> Any:
        acted.release()
        return act(requests)

    def slow(**arguments: Any) -> None:
        if not waited:
            while acted.acquire(blocking=False):
                pass  # those before
            waited.extend(acted.acquire(timeout=30) for _ in range(3))
        train(**arguments)

    agent.act = counted  # type: ignore[method-assign]
    model.train = slow  # type: ignore[method-assign]
    with running(agent) as run, PlugRLVectorEnv(make_envs("Pendulum-v1", 1), run.url) as envs:
        summary = envs.run(seed=0)
        assert run.ended() is True
    assert waited == [True, True, True]
    assert summary.finished
    assert agent.counters.updates == 20
    assert agent.counters.stale > 0


def test_checkpoints_are_written_beside_acting_and_go_on(tmp_path: Path) -> None:
    agent = SB3Agent(
        "sac",
        total_timesteps=120,
        seed=0,
        preset="none",
        async_learn=True,
        run_dir=tmp_path,
        save_every=50,
        keep=9,
        hyperparameters={"device": "cpu", **SMALL},
    )
    with running(agent) as run, PlugRLVectorEnv(make_envs("Pendulum-v1", 1), run.url) as envs:
        envs.run(seed=0)
        assert run.ended() is True
    saved = checkpoints(tmp_path)
    assert saved[0] == 0
    assert saved[-1] == agent.timesteps >= 120
    assert len(saved) >= 4
    again = SB3Agent(resume=tmp_path, total_timesteps=160, async_learn=True)
    assert again.timesteps == agent.timesteps
    assert again.model is not None
    assert again.model.replay_buffer.size() == agent.counters.transitions_stored  # type: ignore[union-attr]
    drive(again, make_envs("Pendulum-v1", 1), env_id="Pendulum-v1")
    again.close()
    assert again.timesteps == again.model.replay_buffer.size() >= 160  # type: ignore[union-attr]
    assert again.counters.updates == 120


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "trpo"])
def test_on_policy_algorithms_do_not_learn_beside_acting(algorithm: str) -> None:
    with pytest.raises(UsageError, match=f"{algorithm} learns from what its newest policy did"):
        SB3Agent(algorithm, preset="none", async_learn=True)


def test_noise_and_normaliser_of_the_copy_are_its_own() -> None:
    agent, _ = make_learner("sac", num_envs=2, use_sde=True, normalize=True, async_learn=True)
    client = RaggedClient(agent, 0, 2)
    for _ in range(5):
        client.ask(0, 1)
        client.tell(0, 1)
    learner: Any = agent._learner
    assert learner._actor.model.actor is not agent.model.actor  # type: ignore[union-attr]
    assert learner._actor._weights.normalizer._envs is not learner._normalizer._envs
    assert learner._normalizer._envs.obs_rms.count == pytest.approx(10, abs=0.01)


def test_the_run_ends_with_its_last_update_though_nobody_is_left_to_evaluate() -> None:
    agent = SB3Agent(
        "sac",
        total_timesteps=8,
        seed=0,
        preset="none",
        async_learn=True,
        final_evaluation=True,
        hyperparameters={"device": "cpu", **SMALL, "learning_starts": 2},
    )
    learn, may_learn = agent.learn, threading.Event()

    def learn_once_alone() -> None:
        assert may_learn.wait(30)
        learn()

    agent.learn = learn_once_alone  # type: ignore[method-assign]
    leave, left = agent.leave, threading.Event()

    def note_leaving(client: Any) -> None:
        leave(client)
        left.set()

    agent.leave = note_leaving  # type: ignore[method-assign]
    with running(agent) as run:
        with PlugRLVectorEnv(make_envs("Pendulum-v1", 8), run.url) as envs:
            envs.reset(seed=0)
            envs.step()
        assert left.wait(30)
        may_learn.set()
        assert run.ended() is True
    assert agent.timesteps == 8
