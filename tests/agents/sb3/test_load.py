"""A new run that begins with a model of plain Stable-Baselines3."""

from __future__ import annotations

import copy
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from sb3_contrib import QRDQN, TQC, TRPO, CrossQ, MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecNormalize

from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.agents.sb3.runs.loading import StoredModel
from plugrl_gym.errors import UsageError
from plugrl_gym.server.agent import Refusal
from tests.support.lockstep import assert_same_weights, drive, logless, make_envs, weights_of
from tests.support.resuming import Envs, stopped_run

PENDULUM, CARTPOLE = "Pendulum-v1", "CartPole-v1"
NET: dict[str, Any] = {"device": "cpu", "policy_kwargs": {"net_arch": [8]}}
ROLLOUTS: dict[str, Any] = {**NET, "n_steps": 16, "batch_size": 32, "n_epochs": 2, "seed": 5}
REPLAY: dict[str, Any] = {
    **NET,
    "learning_starts": 20,
    "batch_size": 8,
    "train_freq": 4,
    "buffer_size": 500,
    "seed": 5,
}


def saved(path: Path, algorithm: type[Any], env_id: str, envs: int = 2, **settings: Any) -> Path:
    """A model that plain SB3 has trained for 64 env steps and saved."""
    vector = make_vec_env(env_id, n_envs=envs, seed=1)
    model = algorithm("MlpPolicy", vector, **copy.deepcopy(settings))  # SB3 writes into dicts
    logless(model).learn(64)
    model.save(path)
    vector.close()
    return path


@pytest.mark.parametrize(
    ("algorithm", "env_id", "settings"), [(PPO, CARTPOLE, ROLLOUTS), (SAC, PENDULUM, REPLAY)]
)
def test_a_loaded_model_learns_on_as_in_plain_sb3(
    algorithm: type[Any], env_id: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    path = saved(tmp_path / "model.zip", algorithm, env_id, **settings)
    envs = make_vec_env(env_id, n_envs=2)  # load() gives them the model's seed
    expected = algorithm.load(path, envs, device="cpu")
    logless(expected).learn(96)
    envs.close()
    agent = SB3Agent(load=path, total_timesteps=96, device="cpu")
    drive(agent, make_envs(env_id, 2), env_id=env_id, seed=5)
    assert agent.timesteps == expected.num_timesteps == 96
    assert_same_weights(weights_of(agent.model), weights_of(expected))


def test_hyperparameters_and_seed_win_over_the_models_own(tmp_path: Path) -> None:
    path = saved(tmp_path / "model", PPO, CARTPOLE, **ROLLOUTS)
    agent = SB3Agent(load=path, n_steps=8, learning_rate="lin_0.1", seed=6, stats_window_size=7)
    with closing(agent), Envs(CARTPOLE, 2) as envs:
        envs.run(agent, until=20)
    model = agent.model
    assert (model.n_steps, model.batch_size, model.seed) == (8, 32, 6)
    assert (model.learning_rate.start, model._stats_window_size) == (0.1, 7)
    assert agent.counters.updates == 1


def test_a_loaded_run_leaves_files_that_go_on(tmp_path: Path) -> None:
    path = saved(tmp_path / "model.zip", PPO, CARTPOLE, **ROLLOUTS)
    with closing(SB3Agent(load=path, run_dir=tmp_path / "run")) as agent, Envs(CARTPOLE, 2) as envs:
        envs.run(agent, until=40)
    with closing(SB3Agent(resume=tmp_path / "run")) as resumed:
        assert resumed.timesteps == 40
        assert_same_weights(weights_of(resumed.model), weights_of(agent.model))


def test_no_preset_comes_over_a_loaded_model_unasked(tmp_path: Path) -> None:
    path = saved(tmp_path / "model.zip", PPO, CARTPOLE, **ROLLOUTS)
    for preset, gamma in (("auto", 0.99), (CARTPOLE, 0.98)):
        with closing(SB3Agent(load=path, preset=preset)) as agent, Envs(CARTPOLE, 2) as envs:
            envs.ask(envs.connect(agent))
            assert agent.model.gamma == gamma


def test_statistics_beside_the_model_are_taken_over(tmp_path: Path) -> None:
    envs = VecNormalize(make_vec_env(CARTPOLE, n_envs=2, seed=1), norm_reward=False)
    model = PPO("MlpPolicy", envs, **copy.deepcopy(ROLLOUTS))
    logless(model).learn(64)
    model.save(tmp_path / "model.zip")
    envs.save(str(tmp_path / "vecnormalize.pkl"))
    envs.close()
    with closing(SB3Agent(load=tmp_path / "model.zip")) as agent, Envs(CARTPOLE, 2) as ours:
        ours.ask(ours.connect(agent))
        taken = agent.model.get_vec_normalize_env()
    assert not taken.norm_reward
    assert taken.obs_rms.count == pytest.approx(envs.obs_rms.count + 2)


@pytest.mark.parametrize(("settings", "gamma"), [({}, 0.9), ({"gamma": 0.8}, 0.8)])
def test_statistics_that_begin_with_a_loaded_model_have_its_discount(
    settings: dict[str, Any], gamma: float, tmp_path: Path
) -> None:
    path = saved(tmp_path / "model.zip", PPO, CARTPOLE, **ROLLOUTS, gamma=0.9)
    with closing(SB3Agent(load=path, normalize=True, **settings)) as agent, Envs(CARTPOLE, 2) as e:
        e.ask(e.connect(agent))
        assert agent.model.get_vec_normalize_env().gamma == agent.model.gamma == gamma


def test_what_is_said_of_normalizing_wins_over_the_file_beside_the_model(tmp_path: Path) -> None:
    envs = VecNormalize(make_vec_env(CARTPOLE, n_envs=2, seed=1), norm_reward=False, clip_obs=3.0)
    model = PPO("MlpPolicy", envs, **copy.deepcopy(ROLLOUTS))
    logless(model).learn(64)
    model.save(tmp_path / "model.zip")
    envs.save(str(tmp_path / "vecnormalize.pkl"))
    envs.close()
    said = {"normalize": {"clip_obs": 5.0}, "gamma": 0.8}
    with closing(SB3Agent(load=tmp_path / "model.zip", **said)) as agent, Envs(CARTPOLE, 2) as ours:
        ours.ask(ours.connect(agent))
        taken = agent.model.get_vec_normalize_env()
    assert (taken.clip_obs, taken.gamma, taken.norm_reward) == (5.0, 0.8, False)
    assert taken.obs_rms.count == pytest.approx(envs.obs_rms.count + 2)


@pytest.mark.parametrize("envs", [1, 2, 3])
def test_a_model_with_noise_for_some_envs_learns_on_with_others(envs: int, tmp_path: Path) -> None:
    noise = NormalActionNoise(np.zeros(1), np.full(1, 0.1))
    path = saved(tmp_path / "model.zip", TD3, PENDULUM, 2, **REPLAY, action_noise=noise)
    agent = SB3Agent(load=path, total_timesteps=96)
    drive(agent, make_envs(PENDULUM, envs), env_id=PENDULUM, seed=5)
    assert agent.finished
    assert np.shape(agent.model.action_noise()) == ((1,) if envs == 1 else (envs, 1))


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        (PPO, "ppo"),
        (A2C, "a2c"),
        (TRPO, "trpo"),
        (SAC, "sac"),
        (TD3, "td3"),
        (DDPG, "td3"),
        (DQN, "dqn"),
        (TQC, "tqc"),
        (QRDQN, "qrdqn"),
        (CrossQ, "crossq"),
    ],
)
def test_a_file_shows_which_algorithm_it_is_of(
    algorithm: type[Any], name: str, tmp_path: Path
) -> None:
    env = gym.make(CARTPOLE if algorithm in (DQN, QRDQN) else PENDULUM)
    algorithm("MlpPolicy", env).save(tmp_path / "model.zip")
    assert StoredModel(tmp_path / "model.zip").algorithm == name


def refused(**settings: Any) -> str:
    with pytest.raises(UsageError) as caught:
        SB3Agent(**settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_model_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "model.zip", DQN, CARTPOLE, **REPLAY)
    assert refused(algorithm="ppo", load=path) == f"{path} holds a model of DQN, not of PPO"


@pytest.mark.parametrize("algorithm", [RecurrentPPO, MaskablePPO])
def test_a_model_that_cannot_be_served_is_refused(algorithm: type[Any], tmp_path: Path) -> None:
    policy = "MlpLstmPolicy" if algorithm is RecurrentPPO else "MlpPolicy"
    path = tmp_path / "model.zip"
    algorithm(policy, CARTPOLE).save(path)
    assert refused(load=path).startswith(
        f"{path} holds a model that cannot be served, with a policy of sb3_contrib."
    )


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    assert refused(load=path) == f"there is no file {path}"
    path.write_text("text")
    assert refused(load=path) == (
        f"{path} is no model that Stable-Baselines3 has saved (File is not a zip file)"
    )
    np.savez(path.with_name("arrays.npz"), a=np.zeros(3))
    assert "is no model that Stable-Baselines3 has saved" in refused(
        load=path.with_name("arrays.npz")
    )
    content = saved(path, PPO, CARTPOLE, **ROLLOUTS).read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert "is no model that Stable-Baselines3 has saved" in refused(load=path)


def test_settings_that_the_model_cannot_take_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "model.zip", PPO, CARTPOLE, **ROLLOUTS)
    assert refused(load=path, policy="MlpPolicy") == (
        f"{path} brings its own policy; leave out policy (--policy)"
    )
    assert refused(load=path, policy_kwargs={"net_arch": [9]}).startswith(
        f"{path} cannot be loaded: The specified policy kwargs do not equal"
    )
    assert refused(load=path, resume=tmp_path) == (
        "a run either goes on (resume) or begins with a model (load), not both"
    )


def test_a_client_with_other_spaces_than_the_models_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "model.zip", PPO, CARTPOLE, **ROLLOUTS)
    with Envs("Acrobot-v1", 2) as envs, pytest.raises(Refusal) as caught:
        envs.run(SB3Agent(load=path))
    assert str(caught.value) == f"{path} has observations Box(4,), env has Box(6,)"


def test_a_model_that_learns_after_each_episode_takes_one_env(tmp_path: Path) -> None:
    settings = {**REPLAY, "train_freq": (1, "episode")}
    path = saved(tmp_path / "model.zip", TD3, PENDULUM, envs=1, **settings)
    with Envs(PENDULUM, 2) as envs, pytest.raises(Refusal) as caught:
        envs.run(SB3Agent(load=path))
    assert str(caught.value) == (
        "train_freq in episodes needs one env, here are 2; (n, 'step') takes more"
    )
    with closing(SB3Agent(load=path, train_freq=4)) as agent, Envs(PENDULUM, 2) as envs:
        envs.run(agent, until=40)
        assert agent.counters.updates > 0


def test_a_model_with_n_step_returns_takes_no_chunks(tmp_path: Path) -> None:
    path = saved(tmp_path / "model.zip", TD3, PENDULUM, n_steps=3, **REPLAY)
    assert refused(load=path, horizon=2) == "n_steps needs --horizon 1"


def test_a_learner_s_own_model_may_begin_another_run(tmp_path: Path) -> None:
    path = stopped_run(tmp_path, "dqn") / "model.zip"
    with closing(SB3Agent(load=path, seed=1)) as second, Envs(CARTPOLE, 2) as envs:
        envs.run(second, until=40)
    assert second.metadata().algorithm == "DQN"
    assert second.timesteps == 40
