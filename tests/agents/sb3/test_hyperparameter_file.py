"""A user's file of settings, as rl-baselines3-zoo has them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise
from torch import nn

from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.agents.sb3.settings.hyperparameter_file import HyperparameterFile
from plugrl_gym.agents.sb3.settings.presets import Preset
from plugrl_gym.errors import UsageError
from plugrl_gym.server.agent import Refusal
from tests.support.agent_peer import AgentPeer

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file into the working directory."""
    monkeypatch.chdir(tmp_path)

    def write_text(text: str, name: str = "my.yml") -> Path:
        Path(name).write_text(text, encoding="utf-8")
        return Path(name)

    return write_text


def read(path: Path, env_id: str | None = "CartPole-v1") -> Preset:
    preset = HyperparameterFile(path).settings_for("ppo", env_id)
    assert preset is not None
    return preset


def refused(path: Path, env_id: str | None = "CartPole-v1", algorithm: str = "ppo") -> str:
    with pytest.raises(UsageError) as caught:
        SB3Agent(algorithm, hyperparameter_file=path, env_id=env_id)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def first_client(agent: SB3Agent, env_id: str = "CartPole-v1", num_envs: int = 2) -> Any:
    env = gym.make(env_id)
    peer = AgentPeer(
        agent, env.observation_space, env.action_space, num_envs=num_envs, env_id=env_id
    )
    peer.request(range(num_envs), np.zeros((num_envs, *env.observation_space.shape)))
    return agent.model


ZOO = """
CartPole-v1: &defaults
  normalize: "dict(norm_obs=True, norm_reward=False)"
  n_envs: 8
  n_timesteps: !!float 1e5
  policy: 'MlpPolicy'
  n_steps: 32
  learning_rate: 1e-3
  clip_range: lin_0.2
  policy_kwargs: "dict(log_std_init=-2,
                       net_arch=[64, 64],
                       activation_fn=nn.ReLU)"

Acrobot-v1:
  <<: *defaults
  n_steps: 64
"""


def test_a_file_of_the_zoo_is_understood(write: Write) -> None:
    assert read(write(ZOO)) == Preset(
        algorithm="ppo",
        env_id="CartPole-v1",
        source="my.yml, CartPole-v1",
        num_envs=8,
        total_timesteps=100_000,
        policy="MlpPolicy",
        normalize="dict(norm_obs=True, norm_reward=False)",
        hyperparameters={
            "n_steps": 32,
            "learning_rate": 0.001,
            "clip_range": "lin_0.2",
            "policy_kwargs": "dict(log_std_init=-2, net_arch=[64, 64], activation_fn=nn.ReLU)",
        },
    )


def test_a_file_may_hold_the_settings_of_one_env_alone(write: Write) -> None:
    preset = read(write("n_steps: 128\npolicy_kwargs: {net_arch: [8]}\n"), None)
    assert preset.hyperparameters == {"n_steps": 128, "policy_kwargs": {"net_arch": [8]}}
    assert preset.source == "my.yml"
    only = read(write("policy_kwargs: {net_arch: [8]}"))
    assert only.hyperparameters == {"policy_kwargs": {"net_arch": [8]}}


def test_a_file_may_be_toml(write: Write) -> None:
    preset = read(write('["CartPole-v1"]\nn_steps = 8\n', "my.toml"))
    assert preset.hyperparameters == {"n_steps": 8}


def test_the_settings_reach_the_model(write: Write) -> None:
    agent = SB3Agent("ppo", hyperparameter_file=write(ZOO.replace("normalize", "#")))
    model = first_client(agent)
    assert (model.n_steps, model.learning_rate, model.clip_range(0.5)) == (32, 0.001, 0.1)
    assert model.policy_kwargs["activation_fn"] is nn.ReLU
    assert agent.total_timesteps == 100_000


def test_explicit_arguments_win_over_a_file_and_a_file_over_a_preset(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = write("n_steps: 64\ngamma: 0.5\nn_timesteps: 900\n")
    agent = SB3Agent("ppo", hyperparameter_file=path, gamma=0.7)
    model = first_client(agent)
    assert isinstance(model, PPO)
    assert (model.gamma, model.n_steps, model.n_epochs, model.vf_coef) == (0.7, 64, 20, 0.5)
    assert agent.total_timesteps == 900
    filed, preset = (r.getMessage() for r in caplog.records if r.levelno == logging.INFO)
    assert filed == "my.yml: n_steps=64"
    assert preset.startswith("preset CartPole-v1 for ppo ")
    assert "n_epochs=20" in preset
    assert "gamma" not in preset


def test_a_policy_named_by_the_user_wins_over_the_files(write: Write) -> None:
    path = write("policy: CnnPolicy\n")
    assert type(first_client(SB3Agent("ppo", hyperparameter_file=path, policy="MlpPolicy")).policy)
    with pytest.raises(Refusal, match="CnnPolicy takes uint8 images"):
        first_client(SB3Agent("ppo", hyperparameter_file=path))


def test_noise_goes_by_type_and_scale(write: Write) -> None:
    text = "noise_type: ornstein-uhlenbeck\nnoise_std: 0.5\ntrain_freq: [1, step]\nbuffer_size: 9\n"
    agent = SB3Agent("td3", hyperparameter_file=write(text))
    model = first_client(agent, "Pendulum-v1", 1)
    assert isinstance(model.action_noise, OrnsteinUhlenbeckActionNoise)
    assert model.action_noise._sigma == 0.5
    assert model.train_freq.frequency == 1


@pytest.mark.parametrize("name", ["default", "atari"])
def test_an_env_that_is_not_listed_takes_the_defaults(write: Write, name: str) -> None:
    env_id = {"default": "Own-v0", "atari": "ALE/Pong-v5"}[name]
    path = write("default: {n_steps: 8}\natari: {n_steps: 9}\nCartPole-v1: {n_steps: 10}\n")
    preset = read(path, env_id)
    assert preset.source == f"my.yml, {name}"
    assert preset.hyperparameters == {"n_steps": {"default": 8, "atari": 9}[name]}


def test_settings_by_env_wait_for_the_first_client(write: Write) -> None:
    file = HyperparameterFile(write(ZOO))
    assert file.settings_for("ppo", None) is None


# -- refusals: file, key, expected, got --------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "CartPole-v1: {n_steps: many}",
            "my.yml, CartPole-v1: n_steps of PPO: expected int, got 'many'",
        ),
        (
            "n_step: 3",
            "my.yml: PPO has no hyperparameter 'n_step'; did you mean 'n_steps'?",
        ),
        (
            'policy_kwargs: "dict(net_arc=[3])"',
            "my.yml: policy_kwargs of PPO has no 'net_arc'; did you mean 'net_arch'?",
        ),
        (
            "policy_kwargs: {activation_fn: nn.Relu}",
            "my.yml: activation_fn in policy_kwargs of PPO: torch.nn has no Module named 'Relu'; "
            "did you mean 'ReLU'?",
        ),
        (
            "policy: rl_zoo3.Own",
            "my.yml: PPO has no policy 'rl_zoo3.Own'; it has MlpPolicy, CnnPolicy, "
            "MultiInputPolicy",
        ),
        ("n_envs: 0", "my.yml: n_envs: expected a whole number from 1 up, got 0"),
        ("n_timesteps: 1.5", "my.yml: n_timesteps: expected a whole number from 1 up, got 1.5"),
        ("n_timesteps: soon", "my.yml: n_timesteps: expected a whole number from 1 up, got 'soon'"),
        (
            "frame_stack: 4",
            "my.yml: frame_stack changes the envs, which are at the client: give it there",
        ),
        (
            "CartPole-v1: {env_wrapper: [a.B]}",
            "my.yml, CartPole-v1: env_wrapper changes the envs, which are at the client: "
            "give it there",
        ),
        ("callback: [a.B]", "my.yml: callback can only be given in Python, to SB3Agent"),
        ("noise_std: 0.1", "my.yml: noise_type and noise_std go together"),
        (
            "CartPole-v0: {n_steps: 3}",
            "my.yml has no settings for 'CartPole-v1'; did you mean 'CartPole-v0'?",
        ),
        (
            "Pendulum-v1: {n_steps: 3}",
            "my.yml has no settings for 'CartPole-v1'; it has Pendulum-v1",
        ),
        ("", "my.yml: expected settings, as 'n_steps: 128', got None"),
        ("- n_steps", "my.yml: expected settings, as 'n_steps: 128', got ['n_steps']"),
        ("1: 2", "my.yml: expected settings, as 'n_steps: 128', got {1: 2}"),
        ("a: [1", "my.yml, line 1: expected ',' or ']', but got '<stream end>'"),
        (
            "a: !!python/object/apply:os.system ['true']",
            "my.yml, line 1: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/object/apply:os.system'",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(write: Write, text: str, sentence: str) -> None:
    assert refused(write(text)) == sentence


def test_a_sentence_about_toml_names_the_file(write: Write) -> None:
    assert refused(write("a = ", "my.toml")).startswith("my.toml: Invalid value")


def test_a_file_that_is_not_there_is_named(write: Write) -> None:
    assert refused(Path("nowhere.yml")) == "nowhere.yml: No such file or directory"


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.yml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "can't decode byte" in refused(path)


def test_noise_of_another_kind_is_refused(write: Write) -> None:
    text = "noise_type: gauss\nnoise_std: 0.1\n"
    assert refused(write(text), None, "td3").startswith(
        "my.yml: action_noise of TD3: expected action noise"
    )


def test_yaml_without_its_package_says_what_to_install(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    assert refused(write("n_steps: 3")).endswith('pip install "plugrl-gym[sb3]"')
