"""The random agent's draws, its spaces and whom it serves (SPEC 6.4, 9.3)."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from plugrl_gym.agents.random_agent import RandomAgent
from plugrl_gym.errors import RemoteProtocolError, UnsupportedSpace, UsageError
from plugrl_gym.protocol import Observation, SpaceDeclaration
from plugrl_gym.protocol.close import REASON_RESYNC, REASON_STOP
from plugrl_gym.protocol.features.gym_spaces import DiscreteSpec, TextSpec
from plugrl_gym.server import Client, Refusal, Request
from tests.support.raw_client import BOX, declare, feedback_of, infer_of, raw_client, states
from tests.support.serving import running

INF = np.inf
SPACES: dict[str, spaces.Space[Any]] = {
    "box": spaces.Box(-2.0, 3.0, (2, 3), np.float32),
    "scalar box": spaces.Box(0.0, 1.0, (), np.float64),
    "huge box": spaces.Box(-1.7e308, 1.7e308, (4,), np.float64),
    "float16 box": spaces.Box(-1.0, 1.0, (4,), np.float16),
    "unbounded": spaces.Box(-INF, INF, (3,), np.float32),
    "half bounded": spaces.Box(np.array([5, -INF]), np.array([INF, -5]), dtype=np.float64),
    "degenerate": spaces.Box(2.0, 2.0, (2,), np.float32),
    "int box": spaces.Box(-3, 4, (2,), np.int8),
    "uint64 box": spaces.Box(0, 2**64 - 1, (2,), np.uint64),
    "discrete": spaces.Discrete(5),
    "discrete from": spaces.Discrete(3, start=-7),
    "multi discrete": spaces.MultiDiscrete([2, 3, 9]),
    "multi discrete from": spaces.MultiDiscrete(np.array([[2, 3]]), start=np.array([[4, -5]])),
    "multi binary": spaces.MultiBinary(4),
    "multi binary 2d": spaces.MultiBinary((2, 2)),
}


def _client(number: int = 1, declaration: SpaceDeclaration | None = None) -> Client:
    return Client(number, "here", declaration)


def _act(agent: RandomAgent, n: int, client: Client | None = None) -> np.ndarray[Any, Any]:
    client = client or _client()
    if client.state is None:
        agent.join(client)
    infer = infer_of(*range(n))
    agent.prepare(client, infer)
    (action,) = agent.act([Request(client, infer, None)])
    return action


@pytest.mark.parametrize("horizon", [1, 5])
@pytest.mark.parametrize("name", SPACES)
def test_every_draw_lies_in_the_space_and_has_its_dtype(name: str, horizon: int) -> None:
    space = SPACES[name]
    action = _act(RandomAgent(space, horizon=horizon, seed=0), 40)
    assert action.shape == (horizon, 40, *(space.shape or ()))
    assert action.dtype == space.dtype
    for step in action:
        for one in step:
            single = np.int64(one) if isinstance(space, spaces.Discrete) else np.asarray(one)
            assert space.contains(single)


@pytest.mark.parametrize("name", SPACES)
def test_constant_action_lies_in_the_space_and_never_changes(name: str) -> None:
    space = SPACES[name]
    agent = RandomAgent(space, horizon=2, deterministic=True)
    first, second = _act(agent, 3), _act(agent, 3)
    assert first.shape == (2, 3, *(space.shape or ()))
    assert first.dtype == space.dtype
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("discrete", set(range(5))),
        ("discrete from", {-7, -6, -5}),
        ("multi binary", {0, 1}),
        ("int box", set(range(-3, 5))),
    ],
)
def test_every_value_of_a_finite_space_comes_up(name: str, values: set[int]) -> None:
    action = _act(RandomAgent(SPACES[name], seed=0), 400)
    assert set(action.ravel().tolist()) == values


def test_bounded_numbers_are_uniform_and_free_ones_normal() -> None:
    bounded = _act(RandomAgent(spaces.Box(-2.0, 4.0, (1,)), seed=0), 20_000)
    assert bounded.mean() == pytest.approx(1.0, abs=0.05)
    assert bounded.std() == pytest.approx(6 / np.sqrt(12), abs=0.05)
    free = _act(RandomAgent(SPACES["unbounded"], seed=0), 20_000)
    assert free.mean() == pytest.approx(0.0, abs=0.05)
    assert free.std() == pytest.approx(1.0, abs=0.05)


def test_steps_of_a_chunk_and_envs_are_drawn_independently() -> None:
    action = _act(RandomAgent(spaces.Box(0.0, 1.0, (1,)), horizon=4, seed=0), 5)
    assert len(np.unique(action)) == 20


def test_seed_decides_every_draw_and_the_global_generator_none() -> None:
    first = _act(RandomAgent(SPACES["box"], seed=3), 4)
    before = pickle.dumps(np.random.get_state())
    np.testing.assert_array_equal(first, _act(RandomAgent(SPACES["box"], seed=3), 4))
    assert pickle.dumps(np.random.get_state()) == before
    assert not np.array_equal(first, _act(RandomAgent(SPACES["box"], seed=4), 4))


def test_first_declaration_fixes_the_action_space() -> None:
    agent = RandomAgent()
    assert agent.metadata().action_dim is None
    agent.join(_client(1, declare(SPACES["box"])))
    assert agent.metadata().action_dim == 6
    agent.join(_client(2, declare(SPACES["box"])))
    agent.join(_client(3))
    with pytest.raises(Refusal, match=r"random acts in Box.*, env has Discrete\(5\)"):
        agent.join(_client(4, declare(SPACES["discrete"])))


def test_own_space_refuses_another_declaration() -> None:
    with pytest.raises(Refusal, match=r"acts in Discrete\(5\), env has Discrete\(3"):
        RandomAgent(SPACES["discrete"]).join(_client(1, declare(SPACES["discrete from"])))


def test_client_without_a_space_is_refused_where_none_is_known() -> None:
    with pytest.raises(Refusal) as refused:
        RandomAgent().join(_client())
    assert "--env-id or --action-space" in str(refused.value)
    assert len(str(refused.value).encode()) <= 123


def test_actions_without_encoding_are_refused() -> None:
    space = spaces.Dict(a=spaces.Discrete(2))
    with pytest.raises(UnsupportedSpace):
        RandomAgent(space)
    with pytest.raises(Refusal, match="Dict"):
        RandomAgent().join(_client(1, declare(space)))


def test_declaration_that_no_space_can_hold_is_refused() -> None:
    declared = SpaceDeclaration(
        "Odd-v0", 1, "same-step", TextSpec(0, 5, ""), DiscreteSpec(2**63 - 1, 2**62, "<i8")
    )
    with pytest.raises(Refusal, match="does not fit its dtype"):
        RandomAgent().join(_client(1, declared))


def test_evaluating_client_gets_the_constant_action() -> None:
    agent = RandomAgent(seed=0)
    client = _client(1, declare(SPACES["box"], mode="eval"))
    assert not _act(agent, 3, client).any()
    agent.feedback(client, feedback_of(0, 1, 2))
    assert agent.timesteps == 0


@pytest.mark.parametrize(
    "observation",
    [
        Observation(text=[""]),
        Observation(states={"obs": np.zeros((1, 3))}, text=[""]),
        Observation(images={"obs": np.zeros((1, 2, 2, 3), np.uint8)}, text=[""]),
    ],
)
def test_declared_observation_must_come_as_declared(observation: Observation) -> None:
    agent = RandomAgent()
    client = _client(1, declare(SPACES["box"]))
    agent.join(client)
    agent.prepare(client, infer_of(0))
    with pytest.raises(RemoteProtocolError, match=r"infer\.data\.states\.obs"):
        agent.prepare(client, infer_of(0, observation=observation))
    with pytest.raises(RemoteProtocolError, match=r"feedback\.data\.obs\.states\.obs"):
        agent.feedback(client, feedback_of(0, observation=observation))


def test_undeclared_observation_is_free_unless_a_space_was_given() -> None:
    odd = Observation(states={"odd": np.zeros((1, 9))}, text=[""])
    free, strict = RandomAgent(SPACES["box"]), RandomAgent(SPACES["box"], BOX)
    for agent in (free, strict):
        client = _client()
        agent.join(client)
        agent.prepare(client, infer_of(0, observation=states(1)))
    free.prepare(_client(), infer_of(0, observation=odd))
    with pytest.raises(RemoteProtocolError):
        strict.prepare(client, infer_of(0, observation=odd))


def test_run_is_over_after_the_env_steps_that_were_run() -> None:
    agent = RandomAgent(SPACES["discrete"], horizon=4, total_timesteps=10)
    client = _client()
    agent.join(client)
    agent.feedback(client, feedback_of(0, 1, steps=[1, 2]))
    assert (agent.timesteps, agent.finished) == (3, False)
    agent.feedback(client, feedback_of(0))
    assert (agent.timesteps, agent.finished) == (7, False)
    agent.feedback(client, feedback_of(0))
    assert (agent.timesteps, agent.finished) == (11, True)


def test_horizon_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match="horizon"):
        RandomAgent(horizon=0)


def test_random_agent_serves_a_declared_client_to_the_end() -> None:
    agent = RandomAgent(horizon=3, total_timesteps=12, seed=0)
    with running(agent) as run, raw_client(run.url) as client:
        assert client.infer(0, 1, spaces=declare(SPACES["discrete"])).action.shape == (3, 2)
        client.feed_back(0, 1)
        client.exchange(0, 1)
        assert client.closed() == (1001, REASON_STOP)
        assert run.ended() is True
        assert run.server.statistics.snapshot().env_steps == 12


def test_random_agent_that_knows_no_space_resyncs_a_plain_client() -> None:
    with running(RandomAgent()) as run, raw_client(run.url) as client:
        client.ask(0)
        assert client.closed() == (1001, REASON_RESYNC)
