"""A trained model that serves and learns nothing."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from plugrl_gym import ServerRefused, UsageError
from plugrl_gym.agents.sb3 import SB3Agent, SB3PolicyAgent
from plugrl_gym.client import PlugRLVectorEnv, evaluate
from plugrl_gym.server import Refusal
from tests.support.agent_peer import AgentPeer
from tests.support.lockstep import (
    assert_different_weights,
    assert_same_weights,
    drive,
    logless,
    make_envs,
    weights_of,
)
from tests.support.serving import running

CARTPOLE = gym.make("CartPole-v1")
PENDULUM = gym.make("Pendulum-v1")
DISCRETE = ("ppo", "a2c", "trpo", "dqn", "qrdqn")
CONTINUOUS = ("ppo", "a2c", "trpo", "sac", "td3", "ddpg", "tqc", "crossq")


def algorithm(name: str) -> Any:
    contrib = name in ("trpo", "qrdqn", "tqc", "crossq")
    package = importlib.import_module("sb3_contrib" if contrib else "stable_baselines3")
    return getattr(package, {"crossq": "CrossQ"}.get(name, name.upper()))


def make_model(name: str, env: gym.Env[Any, Any], seed: int = 0, **settings: Any) -> BaseAlgorithm:
    """An untrained model of plain SB3, whose random weights are as good as any."""
    small = {} if name in ("ppo", "a2c", "trpo") else {"buffer_size": 10}
    policy = "MultiInputPolicy" if isinstance(env.observation_space, spaces.Dict) else "MlpPolicy"
    return algorithm(name)(policy, env, seed=seed, device="cpu", **{**small, **settings})


def peer_of(agent: SB3PolicyAgent, env: gym.Env[Any, Any], **options: Any) -> AgentPeer:
    return AgentPeer(agent, env.observation_space, env.action_space, **options)


def observations(env: gym.Env[Any, Any], n: int) -> Any:
    space = env.observation_space
    finite = spaces.Box(-1.0, 1.0, space.shape, np.float32)
    finite.seed(0)
    return np.stack([finite.sample() for _ in range(n)])


@pytest.mark.parametrize(
    ("name", "env"),
    [*((name, CARTPOLE) for name in DISCRETE), *((name, PENDULUM) for name in CONTINUOUS)],
    ids=[*(f"{name}-discrete" for name in DISCRETE), *(f"{name}-box" for name in CONTINUOUS)],
)
def test_a_saved_model_of_any_algorithm_gives_the_actions_that_its_predict_gives(
    name: str, env: gym.Env[Any, Any], tmp_path: Path
) -> None:
    make_model(name, env).save(tmp_path / "model.zip")
    seen = observations(env, 16)
    expected, _ = (
        algorithm(name).load(tmp_path / "model", device="cpu").predict(seen, deterministic=True)
    )
    agent = SB3PolicyAgent(tmp_path / "model", algorithm=name, device="cpu")
    chunk = peer_of(agent, env, num_envs=16).ask(range(16), seen)
    np.testing.assert_array_equal(chunk, expected[None])


def test_the_file_tells_its_algorithm(tmp_path: Path) -> None:
    make_model("sac", PENDULUM).save(tmp_path / "model.zip")
    assert SB3PolicyAgent(tmp_path / "model.zip").metadata().algorithm == "SAC"
    with pytest.raises(UsageError, match="holds a model of SAC, not of PPO"):
        SB3PolicyAgent(tmp_path / "model.zip", algorithm="ppo")


def test_serving_changes_no_weight_and_no_generator() -> None:
    model = make_model("ppo", CARTPOLE)
    before = weights_of(model)
    python, numpy = torch.get_rng_state(), np.random.get_state()[1].copy()
    agent = SB3PolicyAgent(model)
    for mode in ("train", "eval"):
        drive(agent, make_envs("CartPole-v1", 3), mode=mode, max_steps=40, seed=0)
    assert_same_weights(weights_of(model), before)
    assert torch.equal(torch.get_rng_state(), python)
    assert np.array_equal(np.random.get_state()[1], numpy)
    assert agent.timesteps == 120
    assert_different_weights(weights_of(make_model("ppo", CARTPOLE, seed=1)), before)


def test_a_stochastic_server_draws_for_ordinary_clients_only() -> None:
    model = make_model("ppo", CARTPOLE)
    agent = SB3PolicyAgent(model, stochastic=True, seed=0)
    same = np.repeat(observations(CARTPOLE, 1), 64, axis=0)
    evaluating = peer_of(agent, CARTPOLE, num_envs=64, mode="eval")
    ordinary = peer_of(agent, CARTPOLE, num_envs=64)
    requests = [peer.request(range(64), same) for peer in (evaluating, ordinary)]
    fixed, drawn = agent.act(requests)
    assert len(np.unique(fixed)) == 1
    assert len(np.unique(drawn)) == 2


def test_a_stochastic_server_of_gsde_draws_anew_each_time() -> None:
    model = make_model("ppo", PENDULUM, use_sde=True)
    agent = SB3PolicyAgent(model, stochastic=True, seed=0)
    peer = peer_of(agent, PENDULUM, num_envs=2)
    seen = observations(PENDULUM, 2)
    first = peer.ask(range(2), seen)
    peer.tell(range(2), seen, 0.0)
    assert not np.array_equal(peer.ask(range(2), seen), first)


def test_requests_of_several_clients_share_a_pass_and_get_their_own_rows() -> None:
    model = make_model("dqn", CARTPOLE)
    agent = SB3PolicyAgent(model)
    seen = observations(CARTPOLE, 5)
    few, many = peer_of(agent, CARTPOLE, num_envs=2), peer_of(agent, CARTPOLE, num_envs=3)
    chunks = agent.act([few.request(range(2), seen[:2]), many.request(range(3), seen[2:])])
    expected, _ = model.predict(seen, deterministic=True)
    np.testing.assert_array_equal(np.concatenate(chunks, axis=1), expected[None])


class Kinds(gym.Env[Any, Any]):
    """All kinds of observations, and actions that count from 3."""

    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (40, 40, 3), np.uint8),
        small=spaces.Box(0, 255, (8, 8, 3), np.uint8),
        number=spaces.Box(-1.0, 1.0, (), np.float64),
        gear=spaces.Discrete(3, start=2),
    )
    action_space = spaces.Discrete(4, start=3)


def test_a_model_that_we_trained_is_served_to_the_same_envs(tmp_path: Path) -> None:
    env = Kinds()
    learner = SB3Agent("ppo", num_envs=1, preset="none", seed=0, n_steps=16, device="cpu")
    env.observation_space.seed(0)
    rows = [env.observation_space.sample() for _ in range(4)]
    seen = {key: np.stack([row[key] for row in rows]) for key in env.observation_space}
    evaluating = AgentPeer(
        learner, env.observation_space, env.action_space, num_envs=4, mode="eval"
    )
    expected = evaluating.ask(range(4), seen)
    assert learner.model is not None
    learner.model.save(tmp_path / "model.zip")
    agent = SB3PolicyAgent(tmp_path / "model.zip", device="cpu")
    np.testing.assert_array_equal(peer_of(agent, env, num_envs=4).ask(range(4), seen), expected)


def test_other_observations_or_actions_are_refused_in_a_sentence_that_names_both() -> None:
    agent = SB3PolicyAgent(make_model("ppo", CARTPOLE))
    for observation, action, said in (
        (PENDULUM.observation_space, CARTPOLE.action_space, r"observations Box\(4,\), env has Box"),
        (CARTPOLE.observation_space, spaces.Discrete(3), r"Discrete\(2\), env has Discrete\(3\)"),
        (spaces.Box(-9, 9, (4,), np.float32), CARTPOLE.action_space, "of other bounds or type"),
    ):
        peer = AgentPeer(agent, observation, action)
        with pytest.raises(Refusal, match=f"^this model has .*{said}"):
            peer.ask([0], np.zeros((1, *observation.shape), np.float32))


def test_a_client_over_the_wire_is_told_why_it_is_refused() -> None:
    agent = SB3PolicyAgent(make_model("ppo", CARTPOLE))
    with (
        running(agent) as server,
        PlugRLVectorEnv(make_envs("Acrobot-v1", 1), server.url) as envs,
        pytest.raises(ServerRefused, match=r"this model has actions Discrete\(2\), env has Disc"),
    ):
        envs.run(max_steps=1)


def test_a_client_of_plain_version_1_is_taken_to_have_the_models_spaces() -> None:
    model = make_model("ppo", CARTPOLE)
    peer = peer_of(SB3PolicyAgent(model), CARTPOLE, declares=False)
    seen = observations(CARTPOLE, 1)
    np.testing.assert_array_equal(peer.ask([0], seen), model.predict(seen, deterministic=True)[0:1])


def test_a_horizon_gives_chunks_of_a_model_that_was_trained_with_it() -> None:
    class Stacked(gym.Env[Any, Any]):
        observation_space = CARTPOLE.observation_space
        action_space = spaces.MultiDiscrete([2, 2, 2, 2])

    model = make_model("ppo", Stacked())
    agent = SB3PolicyAgent(model, horizon=4)
    seen = observations(CARTPOLE, 3)
    chunk = peer_of(agent, CARTPOLE, num_envs=3).ask(range(3), seen)
    np.testing.assert_array_equal(chunk, model.predict(seen, deterministic=True)[0].T)
    assert agent.metadata().action_horizon == 4
    with pytest.raises(Refusal, match="start the server with an env id"):
        peer_of(agent, CARTPOLE, declares=False).ask([0], seen[:1])
    with pytest.raises(Refusal, match=r"actions MultiDiscrete\(\[2,?2,?2,?2\]\), env has Discrete"):
        peer_of(SB3PolicyAgent(model), CARTPOLE).ask([0], seen[:1])


@pytest.mark.parametrize("names", [("model", "vecnormalize"), ("best_model", "best_vecnormalize")])
def test_the_normaliser_beside_the_model_is_used_and_left_alone(
    names: tuple[str, str], tmp_path: Path
) -> None:
    envs = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1")]))
    model = PPO("MlpPolicy", envs, n_steps=64, batch_size=64, seed=0, device="cpu")
    logless(model).learn(64)
    model.save(tmp_path / f"{names[0]}.zip")
    envs.save(str(tmp_path / f"{names[1]}.pkl"))
    agent = SB3PolicyAgent(tmp_path / f"{names[0]}.zip", device="cpu")
    peer = peer_of(agent, PENDULUM, num_envs=4)
    seen = observations(PENDULUM, 4)
    expected, _ = model.predict(envs.normalize_obs(seen), deterministic=True)
    for _ in range(2):
        np.testing.assert_array_equal(peer.ask(range(4), seen), expected[None])
        peer.tell(range(4), seen, 1.0)
    raw, _ = model.predict(seen, deterministic=True)
    assert not np.array_equal(raw, expected)


def test_a_normaliser_of_other_observations_is_refused(tmp_path: Path) -> None:
    VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1")])).save(str(tmp_path / "other.pkl"))
    with pytest.raises(UsageError, match=r"other\.pkl has observations \(3,\)"):
        SB3PolicyAgent(make_model("ppo", CARTPOLE), normalizer=tmp_path / "other.pkl")


def test_the_run_is_over_after_the_total_of_ordinary_steps() -> None:
    agent = SB3PolicyAgent(make_model("a2c", CARTPOLE), total_timesteps=30)
    with running(agent) as server:
        with PlugRLVectorEnv(make_envs("CartPole-v1", 2), server.url, mode="eval") as envs:
            assert len(evaluate(envs, 4, seed=0).returns) == 4
        with PlugRLVectorEnv(make_envs("CartPole-v1", 2), server.url) as envs:
            summary = envs.run(seed=0)
        assert server.ended() is True
    assert (summary.env_steps, summary.finished) == (30, True)


def test_a_model_that_remembers_is_refused() -> None:
    recurrent = importlib.import_module("sb3_contrib").RecurrentPPO
    model = recurrent("MlpLstmPolicy", CARTPOLE, n_steps=8, device="cpu")
    with pytest.raises(UsageError, match="RecurrentPPO remembers earlier steps"):
        SB3PolicyAgent(model)


def test_counts_below_one_are_refused() -> None:
    model = make_model("ppo", CARTPOLE)
    for name in ("horizon", "total_timesteps"):
        with pytest.raises(UsageError, match=f"{name}: expected at least 1, got 0"):
            SB3PolicyAgent(model, **{name: 0})
