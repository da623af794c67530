"""The client's end: what it refuses to send, and what it refuses to take (SPEC 5 to 9)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plugrl_gym.errors import LocalProtocolError, RemoteProtocolError
from plugrl_gym.protocol import (
    CHUNK_STEPS,
    EXECUTED_ACTIONS,
    GYM_SPACES,
    REUSE_FEEDBACK_OBS,
    Action,
    ChunkSteps,
    ClientProtocol,
    ExecutedActions,
    Metadata,
    SpaceDeclaration,
    State,
    encode,
)
from plugrl_gym.protocol.features.gym_spaces import DiscreteSpec
from tests.support.messages import EVERYTHING, acting, connect, feedback, infer, observation

SPACES = SpaceDeclaration(
    "Env-v0", 2, "disabled", DiscreteSpec(2, 0, "<i8"), DiscreteSpec(2, 0, "<i8")
)


def frame(action: Any, env_ids: Any = None) -> bytes:
    return encode(Action(np.asarray(action), env_ids).to_wire())


def deciding(envs: Any = (3, 1), **known: Any) -> ClientProtocol:
    client, _ = connect(**known)
    client.send_infer(infer(envs))
    return client


def test_client_takes_metadata_of_version_1_or_none() -> None:
    for version in (None, 1):
        client = ClientProtocol()
        client.receive_metadata(encode(Metadata(protocol_version=version).to_wire()))
        assert client.state is State.IDLE


def test_client_refuses_another_version_and_names_both() -> None:
    client = ClientProtocol()
    with pytest.raises(RemoteProtocolError, match=r"version 2; this client speaks 1"):
        client.receive_metadata(encode(Metadata(protocol_version=2).to_wire()))
    assert client.state is State.GREETING


def test_client_names_openpi_server() -> None:
    with pytest.raises(RemoteProtocolError, match="openpi"):
        ClientProtocol().receive_metadata(encode({"action_dim": 7, "norm_stats": {}}))


def test_client_refuses_text_frame_instead_of_action() -> None:
    client = deciding()
    with pytest.raises(RemoteProtocolError, match="text frame"):
        client.receive_action("Traceback")
    assert client.state is State.DECIDING
    assert client.holding == set()


def test_client_takes_action_without_env_ids() -> None:
    client = deciding()
    assert client.receive_action(frame(np.zeros((2, 2, 1)))).env_ids is None
    assert client.holding == {1, 3}


@pytest.mark.parametrize("code", ["i", "q", "B", ">i", ">Q"])
def test_client_takes_env_ids_of_any_width(code: str) -> None:
    deciding().receive_action(frame(np.zeros((2, 2)), np.array([3, 1], dtype=code)))


@pytest.mark.parametrize("envs", [[1, 3], [3], [3, 1, 0], [3, 2], []])
def test_client_refuses_env_ids_that_are_not_its_own(envs: list[int]) -> None:
    with pytest.raises(RemoteProtocolError, match=r"env_ids: expected \[3, 1\], got"):
        deciding().receive_action(frame(np.zeros((2, 2)), np.array(envs, np.int64)))


@pytest.mark.parametrize("shape", [(1, 1), (1, 3, 1), (1, 0), (2, 4, 2)])
def test_client_refuses_another_number_of_rows(shape: tuple[int, ...]) -> None:
    expected = r"action: expected \[H, 2, \.\.\.\] for 2 envs, got \[" + str(shape[0])
    with pytest.raises(RemoteProtocolError, match=expected):
        deciding().receive_action(frame(np.zeros(shape)))


def test_client_holds_server_to_its_declared_horizon() -> None:
    client = deciding(action_horizon=4)
    with pytest.raises(RemoteProtocolError, match="declares action_horizon 4, got shape"):
        client.receive_action(frame(np.zeros((3, 2, 1))))
    client.receive_action(frame(np.zeros((4, 2, 1))))


@pytest.mark.parametrize(("dim", "shape"), [(1, (1, 2)), (1, (1, 2, 1)), (6, (1, 2, 2, 3))])
def test_client_counts_declared_dim_over_all_axes(dim: int, shape: tuple[int, ...]) -> None:
    deciding(action_dim=dim).receive_action(frame(np.zeros(shape)))
    with pytest.raises(RemoteProtocolError, match=f"declares action_dim {dim + 1}"):
        deciding(action_dim=dim + 1).receive_action(frame(np.zeros(shape)))


def test_client_takes_any_horizon_where_none_is_declared() -> None:
    client, server = connect()
    for horizon in (1, 5, 2):
        server.receive(client.send_infer(infer()))
        client.receive_action(server.send_action(np.zeros((horizon, 2))))
        server.receive(client.send_feedback(feedback()))


def test_client_remembers_what_it_asked_whatever_the_caller_does_to_it() -> None:
    client, _ = connect()
    envs = np.array([3, 1])
    client.send_infer(infer(env_indices=envs))
    envs[:] = 0
    client.receive_action(frame(np.zeros((1, 2)), np.array([3, 1])))


def test_client_refuses_infer_for_env_that_holds_an_action() -> None:
    client, server = acting([0, 1])
    server.receive(client.send_feedback(feedback([0])))
    with pytest.raises(LocalProtocolError, match=r"infer for envs \[1\], which hold an action"):
        client.send_infer(infer([0, 1]))
    client.send_infer(infer([0]))


def test_client_refuses_feedback_for_env_that_holds_none() -> None:
    client, _ = acting([0, 1])
    with pytest.raises(LocalProtocolError, match=r"feedback for envs \[2\], which hold no action"):
        client.send_feedback(feedback([1, 2]))


def test_client_refuses_to_send_non_finite_observation() -> None:
    bad = observation(2, speed=np.array([[0.0], [np.nan]]))
    client, _ = connect()
    with pytest.raises(LocalProtocolError, match=r"states\.speed: not finite for env 7"):
        client.send_infer(infer([5, 7], observation=bad))
    client, _ = acting([5, 7])
    with pytest.raises(LocalProtocolError, match=r"states\.speed: not finite for env 7"):
        client.send_feedback(feedback([5, 7], observation=bad))


def test_client_names_the_env_of_a_non_finite_row_among_reused_ones() -> None:
    client, server = acting([5, 7, 9])
    server.receive(client.send_feedback(feedback([5, 7, 9], ended=[False, False, True])))
    bad = observation(1, obs=np.array([[0.0, np.inf]]))
    with pytest.raises(LocalProtocolError, match="not finite for env 9"):
        client.send_infer(infer([5, 9, 7], observation=bad, reuse=np.array([True, False, True])))


@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf])
def test_client_refuses_to_send_non_finite_reward(reward: float) -> None:
    client, _ = acting([5, 7])
    with pytest.raises(LocalProtocolError, match="rewards: not finite for env 7"):
        client.send_feedback(feedback([5, 7], rewards=np.array([0, reward], np.float32)))
    assert client.holding == {5, 7}


def test_client_refuses_to_send_non_finite_step_reward_or_action() -> None:
    client, _ = acting([5, 7])
    steps = ChunkSteps(np.ones(2, int), np.array([[0, np.nan]], np.float32))
    with pytest.raises(LocalProtocolError, match="step_rewards: not finite for env 7"):
        client.send_feedback(feedback([5, 7], chunk_steps=steps))
    done = ExecutedActions(np.array([[[np.nan], [0]]]), np.zeros(2, bool))
    with pytest.raises(LocalProtocolError, match="actions: not finite for env 5"):
        client.send_feedback(feedback([5, 7], executed=done))


WITHOUT = {
    REUSE_FEEDBACK_OBS: {"reuse": np.zeros(2, np.bool_)},
    GYM_SPACES: {"spaces": SPACES},
}


@pytest.mark.parametrize("feature", WITHOUT)
def test_client_uses_no_feature_that_is_not_offered(feature: str) -> None:
    client, _ = connect([name for name in EVERYTHING if name != feature])
    with pytest.raises(LocalProtocolError, match=f"does not offer {feature}"):
        client.send_infer(infer(**WITHOUT[feature]))


@pytest.mark.parametrize(
    ("feature", "parts"),
    [
        (CHUNK_STEPS, {"chunk_steps": ChunkSteps(np.ones(2, int), np.ones((1, 2), np.float32))}),
        (EXECUTED_ACTIONS, {"executed": ExecutedActions(np.ones((1, 2, 1)), np.zeros(2, bool))}),
    ],
)
def test_client_reports_nothing_that_is_not_asked_for(feature: str, parts: Any) -> None:
    client, _ = acting(features=[name for name in EVERYTHING if name != feature])
    with pytest.raises(LocalProtocolError, match=f"does not offer {feature}"):
        client.send_feedback(feedback(**parts))
    client, server = acting(features=[feature])
    server.receive(client.send_feedback(feedback(**parts)))


def test_client_declares_spaces_once() -> None:
    client, server = connect()
    server.receive(client.send_infer(infer(spaces=SPACES)))
    assert server.declaration is not None
    client.receive_action(server.send_action(np.zeros((1, 2))))
    server.receive(client.send_feedback(feedback()))
    with pytest.raises(LocalProtocolError, match="only a connection's first infer has spaces"):
        client.send_infer(infer(spaces=SPACES))


def test_client_reuses_only_what_it_has_fed_back() -> None:
    client, server = acting([0, 1, 2])
    server.receive(client.send_feedback(feedback([0, 1], ended=[False, True])))
    for env in (1, 3):
        with pytest.raises(LocalProtocolError, match=rf"reuse for envs \[{env}\]"):
            client.send_infer(
                infer([0, env], observation=observation(0), reuse=np.ones(2, np.bool_))
            )
    client.send_infer(infer([0], observation=observation(0), reuse=np.ones(1, np.bool_)))


def test_client_refuses_to_report_more_steps_than_its_chunk_has() -> None:
    client, _ = acting([0, 1], horizon=2)
    steps = ChunkSteps(np.array([1, 3]), np.array([[1, 1], [0, 1], [0, 1]], np.float32))
    with pytest.raises(
        LocalProtocolError, match=r"feedback\.steps: 3 for env 1, whose chunk has 2"
    ):
        client.send_feedback(feedback(chunk_steps=steps))
    done = ExecutedActions(np.zeros((3, 2)), np.zeros(2, bool))
    with pytest.raises(LocalProtocolError, match=r"covers 3 steps, the longest chunk has 2"):
        client.send_feedback(feedback(executed=done))


def test_client_refuses_steps_and_actions_that_disagree() -> None:
    client, _ = acting([0, 1], horizon=2)
    steps = ChunkSteps(np.array([1, 1]), np.ones((1, 2), np.float32))
    done = ExecutedActions(np.zeros((2, 2)), np.zeros(2, bool))
    with pytest.raises(LocalProtocolError, match=r"feedback\.actions: covers 2 steps"):
        client.send_feedback(feedback(chunk_steps=steps, executed=done))


def test_client_may_answer_many_infers_by_ragged_feedback() -> None:
    client, server = acting([0, 1, 2], horizon=4)
    server.receive(client.send_feedback(feedback([1])))
    server.receive(client.send_infer(infer([1])))
    client.receive_action(server.send_action(np.zeros((4, 1, 1))))
    server.receive(client.send_feedback(feedback([2, 0])))
    server.receive(client.send_infer(infer([0, 2, 8])))
    assert client.holding == server.holding == {1}
