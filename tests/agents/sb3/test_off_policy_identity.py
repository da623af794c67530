"""Design rule 7 for off-policy algorithms: in lockstep they learn SB3's very weights."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from sb3_contrib import QRDQN, TQC, CrossQ
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise

from plugrl_gym.agents.sb3 import SB3Agent
from tests.support.lockstep import (
    agent_after,
    assert_different_weights,
    assert_same_weights,
    drive,
    logless,
    make_envs,
    sb3_model,
    weights_of,
)

PENDULUM, CARTPOLE = "Pendulum-v1", "CartPole-v1"
STEPS = 160
#: Small networks, for speed alone.
COMMON: dict[str, Any] = {
    "learning_starts": 60,
    "batch_size": 16,
    "policy_kwargs": {"net_arch": [16]},
}
NORMAL = NormalActionNoise(np.zeros(1), np.full(1, 0.3))
RED = OrnsteinUhlenbeckActionNoise(np.zeros(1), np.full(1, 0.5))
GREEDY: dict[str, Any] = {"exploration_fraction": 0.6, "target_update_interval": 16}
SDE: dict[str, Any] = {"use_sde": True, "train_freq": 8, "gradient_steps": 4}
NO_TIMEOUTS = {"handle_timeout_termination": False}
CROSSQ = {"policy_kwargs": {"net_arch": {"pi": [16], "qf": [32]}}}

CASES: dict[str, tuple[type[Any], str, int, dict[str, Any]]] = {
    "sac": (SAC, PENDULUM, 1, {}),
    "sac-4": (SAC, PENDULUM, 4, {}),
    "sac-rollouts": (SAC, PENDULUM, 4, {"train_freq": 3, "gradient_steps": -1}),
    "sac-fixed-entropy": (SAC, PENDULUM, 1, {"ent_coef": 0.1, "gradient_steps": 2}),
    "sac-noise": (SAC, PENDULUM, 4, {"action_noise": RED}),
    "sac-gsde": (SAC, PENDULUM, 1, SDE),
    "sac-gsde-4": (SAC, PENDULUM, 4, {**SDE, "sde_sample_freq": 3, "use_sde_at_warmup": True}),
    "sac-episodes": (SAC, PENDULUM, 1, {"train_freq": (1, "episode"), "gradient_steps": 9}),
    "sac-n-step": (SAC, PENDULUM, 4, {"n_steps": 3}),
    "sac-full-buffer": (SAC, PENDULUM, 4, {"buffer_size": 90}),
    "sac-optimized-memory": (
        SAC,
        PENDULUM,
        2,
        {"buffer_size": 90, "optimize_memory_usage": True, "replay_buffer_kwargs": NO_TIMEOUTS},
    ),
    "td3": (TD3, PENDULUM, 1, {"action_noise": NORMAL}),
    "td3-red-noise": (TD3, PENDULUM, 1, {"action_noise": RED}),
    "td3-4": (TD3, PENDULUM, 4, {"action_noise": RED}),
    "ddpg": (DDPG, PENDULUM, 1, {"action_noise": NORMAL}),
    "ddpg-4": (DDPG, PENDULUM, 4, {}),
    "dqn": (DQN, CARTPOLE, 1, GREEDY),
    "dqn-4": (DQN, CARTPOLE, 4, GREEDY),
    "tqc": (TQC, PENDULUM, 1, {}),
    "tqc-4": (TQC, PENDULUM, 4, {}),
    "qrdqn": (QRDQN, CARTPOLE, 1, GREEDY),
    "qrdqn-4": (QRDQN, CARTPOLE, 4, GREEDY),
    "crossq": (CrossQ, PENDULUM, 1, CROSSQ),
    "crossq-4": (CrossQ, PENDULUM, 4, CROSSQ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_algorithm_in_lockstep_learns_the_very_weights_of_sb3(case: str) -> None:
    algorithm, env_id, n_envs, settings = CASES[case]
    settings = {**COMMON, **settings}
    expected = sb3_model(env_id, n_envs, STEPS, algorithm, **settings)
    agent = agent_after(env_id, n_envs, STEPS, algorithm.__name__.lower(), **settings)
    assert agent.model is not None
    assert_same_weights(weights_of(agent.model), weights_of(expected))
    assert agent.model._n_updates == expected._n_updates > 0
    assert agent.timesteps == expected.num_timesteps


@pytest.mark.parametrize("case", ["sac", "td3", "dqn"])
def test_another_seed_learns_other_weights(case: str) -> None:
    algorithm, env_id, n_envs, settings = CASES[case]
    settings = {**COMMON, **settings}
    first, second = (
        agent_after(env_id, n_envs, STEPS, algorithm, seed=seed, **settings) for seed in (0, 1)
    )
    assert first.model is not None
    assert second.model is not None
    assert_different_weights(weights_of(first.model), weights_of(second.model))


@pytest.mark.parametrize(("case", "n_envs"), [("dqn", 1), ("dqn-4", 4)])
def test_the_log_is_that_of_sb3(case: str, n_envs: int) -> None:
    algorithm, env_id, _, settings = CASES[case]
    settings = {**COMMON, **settings}
    expected = sb3_model(env_id, n_envs, STEPS, algorithm, **settings)
    agent = agent_after(env_id, n_envs, STEPS, algorithm, **settings)
    assert agent.model is not None
    assert agent.model._episode_num == expected._episode_num
    assert agent.model.exploration_rate == expected.exploration_rate
    ours, theirs = (list(model.ep_info_buffer) for model in (agent.model, expected))
    assert [episode["l"] for episode in ours] == [episode["l"] for episode in theirs]


def test_learning_steps_that_begin_late_begin_when_they_do_in_sb3() -> None:
    """The last rollout of the warm-up is passed over; the one after it trains."""
    settings = {**COMMON, "learning_starts": 72, "train_freq": 6}
    for steps, updates in ((72, 0), (96, 1)):
        expected = sb3_model(PENDULUM, 4, steps, SAC, **settings)
        agent = agent_after(PENDULUM, 4, steps, "sac", **settings)
        assert agent.model is not None
        assert agent.counters.updates == expected._n_updates == updates
        assert_same_weights(weights_of(agent.model), weights_of(expected))


class Rooms(gym.Env[Any, Any]):
    """Numbers beside a number of a room; an episode ends both ways."""

    def __init__(self, dictionary: bool, render_mode: str | None = None) -> None:
        room, place = spaces.Discrete(5), spaces.Box(-1, 1, (3,), np.float64)
        self.observation_space = spaces.Dict(room=room, place=place) if dictionary else room
        self.action_space = spaces.Discrete(3, start=2)

    def _observe(self) -> Any:
        room = int(self.np_random.integers(5))
        if not isinstance(self.observation_space, spaces.Dict):
            return room
        return {"room": room, "place": self.np_random.random(3)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.steps += 1
        fallen = self.steps >= 4 and bool(self.np_random.random() < 0.2)
        return self._observe(), float(action), fallen, self.steps >= 9, {}


class FromZero(gym.ActionWrapper[Any, Any, Any]):
    """SB3 itself takes no Discrete space that begins elsewhere."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = spaces.Discrete(3)

    def action(self, action: Any) -> Any:
        return np.int64(action + 2)


@pytest.mark.parametrize("dictionary", [True, False], ids=["dict", "discrete"])
def test_observations_that_are_no_plain_numbers_are_stored_as_in_sb3(dictionary: bool) -> None:
    gym.register("test/Rooms-v0", Rooms)
    gym.register("test/RoomsFromZero-v0", lambda **given: FromZero(Rooms(**given)))
    try:
        policy = "MultiInputPolicy" if dictionary else "MlpPolicy"
        settings = {**COMMON, **GREEDY, "env_kwargs": {"dictionary": dictionary}}
        expected = sb3_model("test/RoomsFromZero-v0", 4, STEPS, DQN, policy=policy, **settings)
        agent = agent_after("test/Rooms-v0", 4, STEPS, "dqn", **settings)
        assert agent.model is not None
        assert_same_weights(weights_of(agent.model), weights_of(expected))
    finally:
        del gym.registry["test/Rooms-v0"], gym.registry["test/RoomsFromZero-v0"]


class Recorder(BaseCallback):
    """Writes down what it is told, and stops after some calls."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls
        self.heard: list[Any] = []

    def _on_rollout_start(self) -> None:
        self.heard.append("start")

    def _on_rollout_end(self) -> None:
        self.heard.append("end")

    def _on_step(self) -> bool:
        told = self.locals
        flags = [info["TimeLimit.truncated"] for info in told["infos"]]
        self.heard.append((self.num_timesteps, told["dones"].tolist(), flags))
        return self.n_calls < self.calls


@pytest.mark.parametrize("calls", [70, 1000], ids=["that stops the run", "that does not"])
def test_a_callback_hears_what_it_hears_in_sb3(calls: int) -> None:
    settings = {**COMMON, **GREEDY, "train_freq": 3}
    theirs, ours = Recorder(calls), Recorder(calls)
    envs = gym.make(CARTPOLE)
    model = DQN("MlpPolicy", envs, seed=0, device="cpu", **settings)
    logless(model).learn(STEPS, callback=theirs)
    envs.close()
    agent = SB3Agent(
        "dqn", total_timesteps=STEPS, seed=0, preset="none", callback=ours, hyperparameters=settings
    )
    drive(agent, make_envs(CARTPOLE, 1), seed=0)
    assert ours.heard == theirs.heard
    assert agent.finished
    assert agent.model is not None
    assert_same_weights(weights_of(agent.model), weights_of(model))
