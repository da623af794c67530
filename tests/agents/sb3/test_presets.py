"""The settings that come with the package."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any

import gymnasium as gym
import pytest
from gymnasium import spaces

from plugrl_gym.agents.sb3 import Preset, load_preset, preset_names
from plugrl_gym.agents.sb3.model import ModelPlan
from plugrl_gym.agents.sb3.normalization import normalize_arguments
from plugrl_gym.agents.sb3.settings.algorithms import ALGORITHMS, find_algorithm
from plugrl_gym.agents.sb3.settings.hyperparameters import check_hyperparameters
from tests.support.commands import ROOT

PRESETS = [
    pytest.param(algorithm, env_id, id=f"{algorithm}-{env_id}")
    for algorithm in ALGORITHMS
    for env_id in preset_names(algorithm)
]
OFF_POLICY = ("crossq", "ddpg", "dqn", "qrdqn", "sac", "td3", "tqc")
# What needs no more than the least room, to be built fast.
SMALL = {"buffer_size": 10}


@cache
def spaces_of(env_id: str) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    with gym.make(env_id) as env:
        return env.observation_space, env.action_space


def preset_of(algorithm: str, env_id: str) -> Preset:
    preset = load_preset(algorithm, env_id)
    assert preset is not None
    return preset


@pytest.mark.parametrize(("algorithm", "env_id"), PRESETS)
def test_every_preset_builds_a_model_for_its_env(algorithm: str, env_id: str) -> None:
    preset = preset_of(algorithm, env_id)
    cls = find_algorithm(algorithm)
    small = SMALL if "buffer_size" in preset.hyperparameters or algorithm in OFF_POLICY else {}
    plan = ModelPlan(cls, small).over(preset)
    observations, actions = (plan.observations, plan.actions)
    seen, chosen = spaces_of(env_id)
    assert preset.num_envs is not None
    model = plan.build(observations(seen).space, actions(chosen).space, preset.num_envs)
    assert model.n_envs == preset.num_envs
    for name, value in check_hyperparameters(cls, {**preset.hyperparameters, **small}).items():
        if isinstance(value, int | float) and name != "train_freq" and hasattr(model, name):
            taken = getattr(model, name)
            assert (taken(1.0) if callable(taken) else taken) == value, name


@pytest.mark.parametrize(("algorithm", "env_id"), PRESETS)
def test_every_preset_says_how_many_envs_and_steps(algorithm: str, env_id: str) -> None:
    preset = preset_of(algorithm, env_id)
    assert preset.num_envs in range(1, 33)
    assert preset.total_timesteps in range(20_000, 200_000_001)
    normalize_arguments(preset.normalize)


@pytest.mark.parametrize(
    ("algorithm", "env_ids"),
    [
        ("ppo", {"CartPole-v1", "Pendulum-v1", "LunarLander-v3", "HalfCheetah-v5", "Reacher-v5"}),
        ("dqn", {"CartPole-v1", "Acrobot-v1", "MountainCar-v0", "LunarLander-v3"}),
        ("qrdqn", {"CartPole-v1", "Acrobot-v1", "MountainCar-v0", "LunarLander-v3"}),
        ("sac", {"Pendulum-v1", "BipedalWalker-v3", "HalfCheetah-v5", "Humanoid-v5"}),
        ("crossq", {"Pendulum-v1", "LunarLanderContinuous-v3", "Ant-v5"}),
    ],
)
def test_there_are_presets_for_the_common_envs(algorithm: str, env_ids: set[str]) -> None:
    assert env_ids <= set(preset_names(algorithm))


def test_every_algorithm_has_presets_for_each_family_it_can_solve() -> None:
    for algorithm in ALGORITHMS:
        names = set(preset_names(algorithm))
        assert names & {"CartPole-v1", "Pendulum-v1"}
        assert names & {"LunarLander-v3", "LunarLanderContinuous-v3"}
        assert (algorithm in ("dqn", "qrdqn")) != ("HalfCheetah-v5" in names)


def test_a_preset_like_another_has_its_settings_and_its_own() -> None:
    like, other = preset_of("td3", "Swimmer-v5"), preset_of("td3", "HalfCheetah-v5")
    assert like.hyperparameters == {**other.hyperparameters, "gamma": 0.9999}
    assert like.total_timesteps == other.total_timesteps == 1_000_000


def test_a_preset_may_have_noise_and_normalize() -> None:
    assert preset_of("td3", "Pendulum-v1").hyperparameters["action_noise"] == "normal:0.1"
    assert preset_of("a2c", "Pendulum-v1").normalize is True
    assert preset_of("ppo", "CartPole-v1").normalize is None


def test_a_preset_says_where_it_comes_from() -> None:
    assert preset_of("ppo", "CartPole-v1").source == (
        "preset CartPole-v1 for ppo (rl-baselines3-zoo; --preset none turns it off)"
    )
    assert "plugrl-gym" in preset_of("ppo", "Pendulum-v1").source


def test_presets_go_by_the_exact_env_id() -> None:
    assert load_preset("ppo", "NoSuchEnv-v0") is None
    assert load_preset("ppo", "source") is None
    assert load_preset("ppo", None) is None
    assert load_preset("random", "CartPole-v1") is None
    assert preset_names("random") == []


def test_reading_presets_loads_no_torch() -> None:
    program = (
        "import sys; from plugrl_gym.agents.sb3 import load_preset, preset_names; "
        "[load_preset('ppo', name) for name in preset_names('ppo')]; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_files_of_the_presets_are_in_the_package() -> None:
    found = {path.stem for path in (ROOT / "plugrl_gym/agents/sb3/settings/presets").glob("*.toml")}
    assert found == set(ALGORITHMS)
