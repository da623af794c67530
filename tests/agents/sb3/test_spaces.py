"""Every space that a client may declare trains, or is refused in one sentence."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import NatureCNN

from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.errors import RemoteProtocolError, UnsupportedSpace, UsageError
from plugrl_gym.protocol import Observation
from plugrl_gym.server.agent import Refusal
from tests.support.agent_peer import AgentPeer

NUMBERS = spaces.Box(-1.0, 1.0, (3,), np.float32)
SETTINGS: dict[str, Any] = {"n_steps": 4, "batch_size": 8, "n_epochs": 1, "device": "cpu"}


def make_agent(**settings: Any) -> SB3Agent:
    return SB3Agent("ppo", total_timesteps=16, seed=0, **{**SETTINGS, **settings})


def train(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], **settings: Any
) -> tuple[SB3Agent, list[Any]]:
    """Two updates on sampled observations; the agent, and all actions as an env would get them."""
    agent = make_agent(**settings)
    peer = AgentPeer(agent, observation_space, action_space, num_envs=2)
    observation_space.seed(1)
    executed = []
    while not agent.finished:
        actions = peer.ask(range(2), sample(observation_space))[0]
        executed.extend(actions)
        assert all(action in action_space for action in actions)
        peer.tell(range(2), sample(observation_space), 1.0, truncated=[False, True])
    assert agent.counters.updates == 2
    assert all(torch.isfinite(p).all() for p in agent.model.policy.parameters())
    return agent, executed


def sample(space: spaces.Space[Any]) -> Any:
    return gym.vector.utils.batch_space(space, 2).sample()


# -- actions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([2, 5]),
        spaces.MultiDiscrete([2, 2], start=[10, 20]),
        spaces.MultiBinary(3),
        spaces.Box(0.0, 10.0, (2,), np.float32),
        spaces.Box(-1.0, 1.0, (2, 3), np.float64),
        spaces.Box(-2, 2, (2,), np.int64),
        spaces.Box(-np.inf, np.inf, (2,), np.float32),
        spaces.Box(0.5, 0.5, (1,), np.float32),
    ],
    ids=str,
)
def test_every_action_lies_in_the_clients_space(space: spaces.Space[Any]) -> None:
    agent, _ = train(NUMBERS, space)
    assert agent.metadata().action_dim == int(np.prod(space.shape or (1,)))


def test_a_box_is_clipped_on_the_wire_and_raw_in_the_buffer() -> None:
    agent = make_agent()
    peer = AgentPeer(agent, NUMBERS, spaces.Box(0.0, 10.0, (1,), np.float32), num_envs=2)
    sent, stored = [], []
    for step in range(3):
        sent.append(peer.ask(range(2), np.zeros((2, 3), np.float32))[0])
        if step == 0:
            stored = agent._learner._rollout.parts
        peer.tell(range(2), np.zeros((2, 3), np.float32), 1.0)
    raw = np.stack([part.decision.action for part in stored])
    assert (raw < 0).any(), "a policy around 0 draws negative numbers"
    np.testing.assert_array_equal(np.stack(sent), np.clip(raw, 0.0, 10.0))


def test_a_discrete_space_that_starts_elsewhere_is_shifted_on_the_wire_alone() -> None:
    _, executed = train(NUMBERS, spaces.Discrete(2, start=5))
    assert set(np.array(executed).tolist()) == {5, 6}


# -- observations ---------------------------------------------------------------------------------

IMAGE = spaces.Box(0, 255, (40, 36, 3), np.uint8)
SMALL = spaces.Box(0, 255, (10, 10, 3), np.uint8)


@pytest.mark.parametrize(
    ("space", "policy"),
    [
        (spaces.Box(-np.inf, np.inf, (4,), np.float64), "MlpPolicy"),
        (spaces.Box(-1.0, 1.0, (), np.float32), "MlpPolicy"),
        (spaces.Box(-1.0, 1.0, (2, 3), np.float16), "MlpPolicy"),
        (spaces.Box(0, 255, (128,), np.uint8), "MlpPolicy"),
        (spaces.Box(0, 60000, (3,), np.uint16), "MlpPolicy"),
        (spaces.Box(-5, 5, (3,), np.int64), "MlpPolicy"),
        (spaces.Box(0.0, 1.0, (12, 12, 3), np.float32), "MlpPolicy"),
        (spaces.Discrete(4, start=2), "MlpPolicy"),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), "MlpPolicy"),
        (spaces.MultiBinary((2, 2)), "MlpPolicy"),
        (IMAGE, "CnnPolicy"),
        (spaces.Box(0, 255, (84, 84), np.uint8), "CnnPolicy"),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), "CnnPolicy"),
        (SMALL, "MlpPolicy"),
        (spaces.Dict(a=NUMBERS, b=spaces.Discrete(3, start=1)), "MultiInputPolicy"),
        (spaces.Dict(view=IMAGE, near=SMALL, speed=NUMBERS), "MultiInputPolicy"),
        (spaces.Dict(arm=spaces.Dict(joint=NUMBERS), task=spaces.Text(9)), "MultiInputPolicy"),
        (spaces.Tuple([NUMBERS, spaces.Discrete(2)]), "MultiInputPolicy"),
        (spaces.Dict({"camera.left": SMALL, "a/b": NUMBERS, "keys": NUMBERS}), "MultiInputPolicy"),
    ],
    ids=str,
)
def test_every_observation_trains(space: spaces.Space[Any], policy: str) -> None:
    agent, _ = train(space, spaces.Discrete(2))
    assert agent.metadata().policy == policy


def test_float64_states_reach_a_float32_space() -> None:
    """States travel as float64 by custom, whatever the env has (D07)."""
    agent = make_agent(observation_space=NUMBERS, action_space=spaces.Discrete(2), num_envs=2)
    wide = spaces.Box(-1.0, 1.0, (3,), np.float64)
    peer = AgentPeer(agent, wide, spaces.Discrete(2), declares=False)
    while not agent.finished:
        peer.ask(range(2), np.full((2, 3), 1e-9))
        peer.tell(range(2), np.full((2, 3), 16777217.0), 1.0, truncated=True)
    assert agent.model.rollout_buffer.observations.dtype == np.float32


@pytest.mark.parametrize(
    "space", [IMAGE, SMALL, spaces.Dict(a=IMAGE), spaces.Dict(a=SMALL)], ids=str
)
def test_the_network_sees_pixels_between_zero_and_one_exactly_once(
    space: spaces.Space[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make_agent()
    peer = AgentPeer(agent, space, spaces.Discrete(2), num_envs=2)
    peer.request(range(2), sample(space))
    extractor = agent.model.policy.features_extractor
    seen: list[torch.Tensor] = []
    extractor.register_forward_pre_hook(
        lambda _, inputs: seen.extend(
            inputs[0].values() if isinstance(inputs[0], dict) else [inputs[0]]
        )
    )
    white = sample(space)
    for part in white.values() if isinstance(white, dict) else [white]:
        part[:] = 255
    request = AgentPeer(agent, space, spaces.Discrete(2), num_envs=2).request(range(2), white)
    agent.act([request])
    assert [float(part.min()) for part in seen] == [1.0]
    assert [float(part.max()) for part in seen] == [1.0]


def test_an_observation_outside_its_discrete_space_closes_only_its_client() -> None:
    agent = make_agent(observation_space=spaces.Discrete(3), action_space=spaces.Discrete(2))
    peer = AgentPeer(agent, spaces.Discrete(4), spaces.Discrete(2), declares=False)
    with pytest.raises(RemoteProtocolError, match=r"infer.data.states.obs: .* outside Discrete"):
        peer.request([0], np.array([3]))


@pytest.mark.parametrize(("dtype", "number"), [(np.float64, 1e39), (np.float32, 1e38)])
def test_a_number_too_large_for_the_network_closes_only_its_client(
    dtype: Any, number: float
) -> None:
    space = spaces.Box(-np.inf, np.inf, (1,), dtype)
    agent = make_agent(observation_space=space, action_space=spaces.Discrete(2))
    peer = AgentPeer(agent, space, spaces.Discrete(2), declares=False)
    with pytest.raises(RemoteProtocolError, match=r"states.obs: a network cannot .* with \d"):
        peer.request([0], np.array([[number]], dtype))


def test_a_dict_keeps_its_order_of_keys() -> None:
    agent, _ = train(spaces.Dict([("z", NUMBERS), ("a", NUMBERS)]), spaces.Discrete(2))
    assert list(agent.model.observation_space.spaces) == ["z", "a"]


# -- refusals -------------------------------------------------------------------------------------


def refusal(
    observation: spaces.Space[Any], action: spaces.Space[Any], agent: SB3Agent | None = None
) -> str:
    peer = AgentPeer(agent or make_agent(), observation, action)
    with pytest.raises(Refusal) as caught:
        peer.request([0], gym.vector.utils.batch_space(observation, 1).sample())
    text = str(caught.value)
    assert len(text.encode()) <= 123
    assert "\n" not in text
    return text


def test_two_dimensional_counts_are_refused() -> None:
    assert refusal(NUMBERS, spaces.MultiBinary((2, 2))) == (
        "ppo takes Box, Discrete, 1-d MultiDiscrete or MultiBinary actions, "
        "env has MultiBinary((2,2))"
    )


@pytest.mark.parametrize("space", [spaces.Dict(a=spaces.Discrete(2)), spaces.Text(4)])
def test_actions_without_an_encoding_are_a_usage_error_where_they_are_given(space: Any) -> None:
    with pytest.raises(UnsupportedSpace, match=r"ppo takes Box, .* env has (Dict\(a\)|Text)"):
        make_agent(observation_space=NUMBERS, action_space=space)


def test_text_alone_is_refused() -> None:
    text = refusal(spaces.Text(8), spaces.Discrete(2))
    assert text == "the policy reads no text, and the env has Text observations alone"


def test_other_spaces_than_the_first_clients_are_refused_and_the_same_are_served() -> None:
    agent, _ = train(NUMBERS, spaces.Discrete(2))
    assert refusal(spaces.Box(-1, 1, (5,)), spaces.Discrete(2), agent) == (
        "this run has observations Box(3,), env has Box(5,)"
    )
    assert refusal(NUMBERS, spaces.Discrete(3), agent) == (
        "this run has actions Discrete(2), env has Discrete(3)"
    )
    assert refusal(spaces.Box(-2, 2, (3,)), spaces.Discrete(2), agent) == (
        "this run has observations Box(3,), env has Box(3,) of other bounds or type"
    )
    AgentPeer(agent, NUMBERS, spaces.Discrete(2)).ask([0], np.zeros((1, 3)))


def test_a_client_that_declares_nothing_needs_a_server_that_knows_the_spaces() -> None:
    peer = AgentPeer(make_agent(), NUMBERS, spaces.Discrete(2), declares=False)
    with pytest.raises(Refusal, match=r"this ppo server knows no spaces and the client declares"):
        peer.request([0], np.zeros((1, 3)))


def test_a_refused_first_client_decides_nothing() -> None:
    agent = make_agent()
    refusal(NUMBERS, spaces.MultiBinary((2, 2)), agent)
    refusal(spaces.Text(4), spaces.Discrete(2), agent)
    AgentPeer(agent, NUMBERS, spaces.Discrete(2)).ask([0], np.zeros((1, 3)))


def test_what_sb3_refuses_is_one_sentence() -> None:
    agent = make_agent(use_sde=True)
    text = refusal(NUMBERS, spaces.Discrete(2), agent)
    assert text.startswith("ppo cannot be built: generalized State-Dependent Exploration")


@pytest.mark.parametrize(
    ("policy", "space", "sentence"),
    [
        ("CnnPolicy", SMALL, "CnnPolicy takes uint8 images from 36x36 up, env has Box(3,10,10); "),
        ("CnnPolicy", NUMBERS, "CnnPolicy takes uint8 images from 36x36 up, env has Box(3,); "),
        ("MlpPolicy", spaces.Dict(a=NUMBERS), "MlpPolicy takes no Dict(a); MultiInputPolicy does"),
        ("MultiInputPolicy", NUMBERS, "MultiInputPolicy takes a Dict, env has Box(3,)"),
    ],
)
def test_a_policy_that_cannot_see_the_observations_is_refused(
    policy: str, space: spaces.Space[Any], sentence: str
) -> None:
    assert refusal(space, spaces.Discrete(2), make_agent(policy=policy)).startswith(sentence)


def test_a_network_of_ones_own_gets_small_images_as_images() -> None:
    class Small(NatureCNN):
        def __init__(self, observation_space: spaces.Box) -> None:
            torch.nn.Module.__init__(self)
            self._features_dim = 300
            self.cnn = torch.nn.Flatten()
            self.linear = torch.nn.Identity()

    agent, _ = train(
        SMALL,
        spaces.Discrete(2),
        policy="CnnPolicy",
        policy_kwargs={"features_extractor_class": Small},
    )
    assert agent.model.observation_space.dtype == np.uint8


def test_a_model_of_given_spaces_stands_before_any_client_comes() -> None:
    agent = make_agent(observation_space=NUMBERS, action_space=spaces.Discrete(4), num_envs=3)
    assert isinstance(agent.model, PPO)
    assert agent.model.n_envs == 3
    metadata = agent.metadata()
    assert (metadata.algorithm, metadata.policy) == ("PPO", "MlpPolicy")
    assert (metadata.action_horizon, metadata.action_dim) == (1, 1)


@pytest.mark.parametrize(
    "space", [spaces.MultiBinary(3), spaces.MultiBinary((3,)), spaces.Discrete(2, start=1)], ids=str
)
def test_given_spaces_are_those_of_a_client_that_declares_the_same(space: Any) -> None:
    agent = make_agent(observation_space=NUMBERS, action_space=space)
    AgentPeer(agent, NUMBERS, space).ask([0], np.zeros((1, 3)))


def test_without_spaces_the_metadata_leave_out_what_is_not_known() -> None:
    metadata = make_agent().metadata()
    assert (metadata.algorithm, metadata.action_horizon) == ("PPO", 1)
    assert (metadata.policy, metadata.action_dim) == (None, None)


def test_one_space_alone_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="both observation_space and action_space"):
        make_agent(observation_space=NUMBERS)


def test_an_undeclared_observation_that_does_not_fit_is_the_clients_fault() -> None:
    agent = make_agent(observation_space=NUMBERS, action_space=spaces.Discrete(2))
    peer = AgentPeer(agent, NUMBERS, spaces.Discrete(2), declares=False)
    peer.ask([0], np.zeros((1, 3)))
    observation = Observation(states={"other": np.zeros((1, 3))}, text=[""])
    peer.observations.encode = lambda _: observation  # type: ignore[method-assign]
    with pytest.raises(RemoteProtocolError, match=r"feedback.data.obs.states.obs: missing"):
        peer.tell([0], None, 1.0)
    peer.leave()
    assert agent.counters.chunks_dropped == 1
