"""Which algorithms there are, and what each of them refuses, in one sentence."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from sb3_contrib import ARS, TRPO, MaskablePPO, RecurrentPPO
from stable_baselines3 import DQN, SAC, HerReplayBuffer
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.noise import NormalActionNoise, VectorizedActionNoise

from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.agents.sb3.settings.algorithms import (
    ALGORITHMS,
    default_log_interval,
    find_algorithm,
)
from plugrl_gym.errors import UsageError
from plugrl_gym.protocol.close import fit_reason
from plugrl_gym.server.agent import Refusal
from tests.support.agent_peer import AgentPeer
from tests.support.lockstep import agent_weights, assert_same_weights, sb3_reference

SMALL = spaces.Box(-1.0, 1.0, (2,), np.float32)
IMAGE = spaces.Box(0, 255, (64, 64, 3), np.uint8)


def refusal(algorithm: Any, action: Any, observation: Any = SMALL, **settings: Any) -> str:
    """What a client with these spaces is told; the same as without a client."""
    agent = SB3Agent(algorithm, preset="none", **settings)
    peer = AgentPeer(agent, observation, action)
    with pytest.raises(Refusal) as refused:
        peer.request([0], np.zeros((1, *(observation.shape or ())), observation.dtype))
    said = str(refused.value)
    assert fit_reason(said) == said, "it is cut short in the close frame"
    with pytest.raises(UsageError) as early:
        SB3Agent(
            algorithm,
            preset="none",
            observation_space=observation,
            action_space=action,
            **settings,
        )
    assert str(early.value) == said
    return said


def test_trpo_in_lockstep_learns_the_very_weights_of_sb3() -> None:
    settings = {"n_steps": 64, "batch_size": 64}
    assert_same_weights(
        agent_weights("CartPole-v1", 8, 2, algorithm="trpo", **settings),
        sb3_reference("CartPole-v1", 8, 2, algorithm=TRPO, **settings),
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_name_is_an_algorithm_that_builds_a_model(name: str) -> None:
    discrete = name in ("dqn", "qrdqn")
    agent = SB3Agent(
        name.upper(),
        preset="none",
        num_envs=2,
        observation_space=SMALL,
        action_space=spaces.Discrete(3) if discrete else SMALL,
    )
    assert type(agent.model).__name__.lower() == name


@pytest.mark.parametrize("name", ["dqn", "qrdqn"])
def test_an_algorithm_of_discrete_actions_names_both_sides(name: str) -> None:
    box = spaces.Box(-1.0, 1.0, (1,))
    assert refusal(name, box) == f"{name} needs Discrete actions, env has Box(1,)"
    assert refusal(name, spaces.MultiDiscrete([2, 2])).endswith("env has MultiDiscrete([2,2])")


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg", "tqc", "crossq"])
def test_an_algorithm_of_continuous_actions_names_both_sides(name: str) -> None:
    discrete = spaces.Discrete(2)
    assert refusal(name, discrete) == f"{name} needs Box actions, env has Discrete(2)"


def test_an_infinite_bound_is_named() -> None:
    low = np.float32([-1, -np.inf])
    said = refusal("sac", spaces.Box(low, np.float32([1, 2])))
    assert said == "sac needs finite action bounds, env has Box(2,) from -inf to 2"
    largest = np.finfo(np.float32).max
    said = refusal("sac", spaces.Box(-largest, largest, (1,)))
    assert said.endswith("env has Box(1,) from -3.40282e+38 to 3.40282e+38")


def test_a_bound_that_leaves_no_choice_is_named() -> None:
    space = spaces.Box(np.float32([-1, 0.5]), np.float32([1, 0.5]))
    said = refusal("td3", space)
    assert said == (
        "td3 needs action bounds low < high, env has Box(2,) from 0.5 to 0.5 (number 1)"
    )


@pytest.mark.parametrize("name", ["ppo", "a2c", "trpo"])
def test_on_policy_algorithms_take_an_infinite_bound(name: str) -> None:
    agent = SB3Agent(
        name,
        num_envs=1,
        preset="none",
        observation_space=SMALL,
        action_space=spaces.Box(-np.inf, np.inf, (1,)),
    )
    assert agent.model is not None


def test_crossq_has_no_policy_for_images() -> None:
    assert refusal("crossq", SMALL, IMAGE) == "crossq has no CnnPolicy, env has Box(3,64,64)"


def test_a_missing_contrib_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    with pytest.raises(UsageError) as refused:
        find_algorithm("tqc")
    assert str(refused.value) == (
        'tqc needs sb3_contrib, which is not installed: pip install "plugrl-gym[contrib]"'
    )
    assert find_algorithm("sac") is SAC


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError, match="there is no algorithm 'foo'; there is a2c, crossq, ddpg"):
        find_algorithm("foo")


@pytest.mark.parametrize("algorithm", [RecurrentPPO, MaskablePPO])
def test_a_class_with_another_loop_is_refused(algorithm: Any) -> None:
    with pytest.raises(UsageError, match="collects rollouts in its own way"):
        find_algorithm(algorithm)


@pytest.mark.parametrize("algorithm", [ARS, int, 3])
def test_what_is_no_such_class_is_refused(algorithm: Any) -> None:
    with pytest.raises(UsageError, match="expected an on-policy or off-policy class"):
        find_algorithm(algorithm)


class Quieter(DQN):
    """Somebody's own class."""


def test_a_class_of_ones_own_is_served_and_has_the_limits_of_its_kind() -> None:
    assert find_algorithm(Quieter) is Quieter
    assert refusal(Quieter, SMALL) == "quieter needs Discrete actions, env has Box(2,)"


def test_the_log_interval_is_sb3s_own() -> None:
    found = {name: default_log_interval(find_algorithm(name)) for name in ("ppo", "a2c", "dqn")}
    assert found == {"ppo": 1, "a2c": 100, "dqn": 4}


# -- settings that cannot be --------------------------------------------------------------------


class OwnNStep(NStepReplayBuffer):
    """Knows nothing of links."""


class Own(ReplayBuffer):
    """Knows nothing of discounts."""


VECTORIZED = VectorizedActionNoise(NormalActionNoise(np.zeros(2), np.ones(2)), 3)


@pytest.mark.parametrize(
    ("algorithm", "settings", "expected"),
    [
        ("dqn", {"horizon": 2}, "dqn takes one step at a time: --horizon 1"),
        ("qrdqn", {"horizon": 2}, "qrdqn takes one step at a time: --horizon 1"),
        ("sac", {"horizon": 2, "n_steps": 3}, "n_steps needs --horizon 1"),
        ("sac", {"horizon": 2, "replay_buffer_class": Own}, "Own knows no discount per row"),
        ("sac", {"replay_buffer_class": HerReplayBuffer}, "HerReplayBuffer computes rewards in"),
        ("sac", {"replay_buffer_class": OwnNStep}, "OwnNStep cannot tell the trajectories"),
        (
            "sac",
            {"train_freq": (2, "episode"), "num_envs": 3},
            "train_freq in episodes needs one env, here are 3; (n, 'step') takes more",
        ),
        (
            "td3",
            {"action_noise": VECTORIZED, "num_envs": 2},
            "action_noise is for 3 envs, here are 2",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_found_before_a_client_comes(
    algorithm: str, settings: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UsageError) as refused:
        SB3Agent(algorithm, preset="none", **settings)
    assert expected in str(refused.value)


def test_noise_of_another_shape_than_the_actions_is_refused() -> None:
    noise = NormalActionNoise(np.zeros(3), np.ones(3))
    said = refusal("td3", SMALL, action_noise=noise)
    assert said == "action_noise: expected noise of shape (2,), got (3,)"


def test_counting_episodes_of_several_envs_is_refused_at_the_first_client() -> None:
    agent = SB3Agent("sac", preset="none", train_freq=(1, "episode"))
    peer = AgentPeer(agent, SMALL, SMALL, num_envs=2)
    with pytest.raises(Refusal, match="train_freq in episodes needs one env, here are 2"):
        peer.request([0, 1], np.zeros((2, 2), np.float32))
