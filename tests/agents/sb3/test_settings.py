"""Algorithms, hyperparameters, presets and the files of a run."""

from __future__ import annotations

import csv
import io
import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import LinearSchedule

from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.errors import RunFailed, UsageError
from plugrl_gym.server.agent import Refusal
from tests.support.agent_peer import AgentPeer
from tests.support.lockstep import drive, logless, make_envs


def usage_error(*args: Any, **settings: Any) -> str:
    with pytest.raises(UsageError) as caught:
        SB3Agent(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_unknown_algorithm_is_refused_with_those_that_exist() -> None:
    assert usage_error("pp0").startswith("there is no algorithm 'pp0'; there is a2c, crossq, ")


def test_a_class_that_learns_in_another_way_is_refused() -> None:
    assert usage_error(int).startswith("expected an on-policy or off-policy class of ")

    class Recurrent(PPO):
        def collect_rollouts(self, *args: Any, **kwargs: Any) -> bool:
            return True

    assert usage_error(Recurrent).startswith("Recurrent collects rollouts in its own way")


def test_an_unknown_hyperparameter_is_refused_with_those_that_exist() -> None:
    text = usage_error("ppo", hyperparameters={"layers": 3})
    assert text.startswith("PPO has no hyperparameter 'layers'; it has learning_rate, n_steps, ")
    assert "policy" not in text.split("it has ")[1].split(", ")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("n_steps", "many", "n_steps of PPO: expected int, got 'many'"),
        ("n_steps", 2.5, "n_steps of PPO: expected int, got 2.5"),
        ("n_steps", True, "n_steps of PPO: expected int, got True"),
        ("gamma", None, "gamma of PPO: expected float, got None"),
        ("gamma", float("nan"), "gamma of PPO: nan is not a finite number"),
        ("use_sde", 1, "use_sde of PPO: expected bool, got 1"),
        ("target_kl", "x", "target_kl of PPO: expected float or None, got 'x'"),
        (
            "learning_rate",
            "fast",
            "learning_rate of PPO: expected float or a schedule (a function, or as 'lin_0.001'), "
            "got 'fast'",
        ),
        ("seed", 3, "seed is no hyperparameter here: it is the argument seed (--seed)"),
        ("env", "CartPole-v1", "env is no hyperparameter here: the envs are at the clients"),
    ],
)
def test_a_hyperparameter_of_another_type_is_refused(
    name: str, value: object, sentence: str
) -> None:
    assert usage_error("ppo", hyperparameters={name: value}) == sentence


def test_what_sb3_refuses_is_found_before_any_client_comes() -> None:
    assert usage_error("ppo", batch_size=1).startswith(
        "ppo cannot be built: `batch_size` must be greater than 1."
    )
    assert usage_error("ppo", policy_kwargs={"activation_fn": "Linear"}).startswith(
        "ppo cannot be built: Linear.__init__() missing 2 required positional arguments"
    )
    assert usage_error("dqn", buffer_size=10**15).startswith(
        "dqn cannot be built: Unable to allocate"
    )


@pytest.mark.parametrize("name", ["total_timesteps", "num_envs", "log_interval"])
def test_counts_are_at_least_one(name: str) -> None:
    assert usage_error("ppo", **{name: 0}) == f"{name}: expected at least 1, got 0"


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seed_is_what_sb3_takes(seed: int) -> None:
    assert usage_error("ppo", seed=seed) == f"seed: expected 0 to 4294967295, got {seed}"


def test_an_unknown_policy_is_refused_with_those_that_exist() -> None:
    assert usage_error("ppo", policy="Mlp") == (
        "PPO has no policy 'Mlp'; it has MlpPolicy, CnnPolicy, MultiInputPolicy"
    )


def test_checking_the_settings_draws_from_no_global_generator() -> None:
    import torch

    np.random.seed(5)
    torch.manual_seed(5)
    state = np.random.get_state()[1].copy(), torch.get_rng_state()
    SB3Agent("ppo", seed=1)
    assert (np.random.get_state()[1] == state[0]).all()
    assert torch.equal(torch.get_rng_state(), state[1])


# -- presets -----------------------------------------------------------------------------------


def first_client(agent: SB3Agent, env_id: str = "CartPole-v1", num_envs: int = 8) -> AgentPeer:
    env = gym.make(env_id)
    peer = AgentPeer(
        agent, env.observation_space, env.action_space, num_envs=num_envs, env_id=env_id
    )
    peer.request(range(num_envs), np.zeros((num_envs, *env.observation_space.shape)))
    return peer


def test_a_declared_env_takes_its_preset_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    agent = SB3Agent("ppo")
    first_client(agent)
    model = agent.model
    assert isinstance(model, PPO)
    assert (model.n_steps, model.batch_size, model.n_epochs) == (32, 256, 20)
    assert (model.gamma, model.gae_lambda, model.ent_coef) == (0.98, 0.8, 0.0)
    assert (model.lr_schedule(1.0), model.lr_schedule(0.5)) == (0.001, 0.0005)
    assert model.clip_range(0.25) == pytest.approx(0.05)
    assert model.lr_schedule(-0.001) == 0.0
    assert agent.total_timesteps == 100_000
    lines = [record.getMessage() for record in caplog.records if "preset" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith(
        "preset CartPole-v1 for ppo (rl-baselines3-zoo; --preset none turns it off): n_steps=32, "
    )


def test_explicit_hyperparameters_win_over_a_preset() -> None:
    agent = SB3Agent("ppo", hyperparameters={"n_steps": 16}, batch_size=64, total_timesteps=500)
    first_client(agent)
    assert (agent.model.n_steps, agent.model.batch_size, agent.model.n_epochs) == (16, 64, 20)
    assert agent.total_timesteps == 500


def test_preset_none_takes_none() -> None:
    agent = SB3Agent("ppo", preset="none")
    first_client(agent)
    assert agent.model.n_steps == 2048
    assert agent.total_timesteps == 1_000_000


def test_a_named_preset_is_taken_for_any_env() -> None:
    agent = SB3Agent("ppo", preset="CartPole-v1")
    first_client(agent, "Acrobot-v1")
    assert agent.model.n_steps == 32


def test_an_env_id_stands_in_for_a_clients_declaration() -> None:
    env = gym.make("Pendulum-v1")
    agent = SB3Agent(
        "ppo",
        env_id="Pendulum-v1",
        observation_space=env.observation_space,
        action_space=env.action_space,
    )
    peer = AgentPeer(agent, env.observation_space, env.action_space, declares=False)
    peer.ask(range(3), np.zeros((3, 3)))
    assert agent.model.use_sde
    assert agent.model.n_envs == 3


def test_an_unknown_preset_is_refused_with_those_that_exist() -> None:
    assert usage_error("ppo", preset="CartPole-v0") == (
        "ppo has no preset 'CartPole-v0'; did you mean 'CartPole-v1'?"
    )


def test_sb3s_advice_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    first_client(SB3Agent("ppo"), num_envs=3)
    assert "You have specified a mini-batch size of 256" in caplog.text


# -- the number of envs --------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "expected"), [(None, 8), (5, 5)])
def test_a_rollout_is_measured_by_the_option_or_the_first_client(
    given: int | None, expected: int
) -> None:
    agent = SB3Agent("ppo", num_envs=given, n_steps=16, preset="none")
    first_client(agent)
    assert agent.model.rollout_buffer.n_envs == expected
    assert agent.model.n_envs == agent.model.env.num_envs == expected


def test_an_absurd_number_of_envs_is_refused() -> None:
    env = gym.make("CartPole-v1")
    peer = AgentPeer(SB3Agent("ppo"), env.observation_space, env.action_space, num_envs=2**60)
    with pytest.raises(Refusal, match=r"a client's rollouts span at most 65536 envs, it has 1152"):
        peer.request([0], np.zeros((1, 4)))


# -- files ---------------------------------------------------------------------------------------


def short_run(run_dir: Path | None, **settings: Any) -> SB3Agent:
    agent = SB3Agent(
        "ppo", total_timesteps=96, seed=0, run_dir=run_dir, n_steps=16, batch_size=16, **settings
    )
    drive(agent, make_envs("CartPole-v1", 2), env_id="CartPole-v1", seed=0)
    agent.close()
    return agent


def test_the_model_loads_in_plain_sb3(tmp_path: Path) -> None:
    agent = short_run(tmp_path / "runs" / "one")
    assert agent.model_path == tmp_path / "runs" / "one" / "model.zip"
    loaded = PPO.load(agent.model_path, device="cpu")
    observation = np.linspace(-1, 1, 40, dtype=np.float32).reshape(10, 4)
    np.testing.assert_array_equal(
        loaded.predict(observation, deterministic=True)[0],
        agent.model.predict(observation, deterministic=True)[0],
    )
    assert loaded.num_timesteps == 96
    assert not list(agent.model_path.parent.glob(".*"))


def test_plain_sb3_goes_on_learning_from_the_model(tmp_path: Path) -> None:
    agent = short_run(tmp_path)
    loaded = PPO.load(agent.model_path, env=gym.make("CartPole-v1"), device="cpu")
    logless(loaded).learn(32, reset_num_timesteps=False)
    assert loaded.num_timesteps >= 128


def test_a_failed_save_leaves_the_last_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = short_run(tmp_path)
    before = agent.model_path.read_bytes()

    def fail(self: OnPolicyAlgorithm, file: io.BufferedIOBase) -> None:
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(PPO, "save", fail)
    with pytest.raises(RunFailed, match="no space left"):
        agent.save()
    assert agent.model_path.read_bytes() == before


def test_progress_has_a_line_for_each_update(tmp_path: Path) -> None:
    short_run(tmp_path)
    with (tmp_path / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["time/total_timesteps"] for row in rows] == ["32", "64", "96"]
    assert float(rows[-1]["rollout/ep_rew_mean"]) > 5
    assert rows[-1]["rollout/ep_rew_mean"] == rows[-1]["rollout/ep_len_mean"]
    assert {"time/fps", "train/value_loss", "train/n_updates"} <= rows[0].keys()


def test_the_console_gets_sb3s_table_where_one_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    console = io.StringIO()
    short_run(None, console=console)
    assert "total_timesteps" in console.getvalue()
    assert capsys.readouterr().out == ""


def test_a_run_without_a_directory_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    agent = short_run(None)
    assert agent.model_path is None
    assert list(tmp_path.iterdir()) == []


def test_an_agent_that_met_no_client_closes_quietly(tmp_path: Path) -> None:
    SB3Agent("ppo", run_dir=tmp_path / "run").close()
    assert not (tmp_path / "run").exists()


def test_counters_tell_what_happened(tmp_path: Path) -> None:
    agent = short_run(tmp_path)
    counters = agent.counters
    assert (counters.updates, counters.transitions_stored, agent.timesteps) == (3, 96, 96)
    assert (counters.chunks_dropped, counters.overridden) == (0, 0)


def test_a_schedule_given_as_text_is_sb3s_own_class() -> None:
    agent = SB3Agent("ppo", learning_rate="lin_3e-4")
    first_client(agent)
    assert isinstance(agent.model.learning_rate, LinearSchedule)
