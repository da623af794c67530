"""The server's end: what it takes, what it drops and what it resyncs for (SPEC 5 to 9)."""

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
    ChunkSteps,
    ExecutedActions,
    Infer,
    Metadata,
    Observation,
    ReceivedFeedback,
    ServerProtocol,
    State,
    encode,
)
from tests.support.messages import EVERYTHING, acting, connect, feedback, infer, observation


def take(server: ServerProtocol, message: Any) -> Any:
    """Give the server a message that its own client would not send."""
    wire = message if isinstance(message, dict) else message.to_wire()
    return server.receive(encode(wire))


def test_server_takes_any_indices_in_any_order() -> None:
    client, server = connect()
    read = server.receive(client.send_infer(infer([2**40, 7, 0])))
    assert isinstance(read, Infer)
    assert read.env_indices.tolist() == [2**40, 7, 0]
    client.receive_action(server.send_action(np.zeros((1, 3))))
    assert server.holding == {2**40, 7, 0}


def test_server_takes_large_step_ids() -> None:
    client, server = connect()
    read = server.receive(client.send_infer(infer(step_ids=np.array([2**31 + 5, 2**62]))))
    assert isinstance(read, Infer)
    assert read.step_ids.tolist() == [2**31 + 5, 2**62]


@pytest.mark.parametrize("shape", [(1,), (), (0, 2), (1, 3), (1, 1, 2)])
def test_server_refuses_to_send_action_of_wrong_shape(shape: tuple[int, ...]) -> None:
    client, server = connect()
    server.receive(client.send_infer(infer([0, 1])))
    with pytest.raises(LocalProtocolError, match=r"action\.data\.action: expected .*H"):
        server.send_action(np.zeros(shape))
    assert server.state is State.DECIDING


def test_server_names_env_and_step_of_non_finite_action() -> None:
    client, server = connect()
    server.receive(client.send_infer(infer([4, 9])))
    action = np.zeros((3, 2, 1))
    action[2, 1, 0] = np.nan
    with pytest.raises(LocalProtocolError, match="the policy chose nan for env 9, step 2"):
        server.send_action(action)


@pytest.mark.parametrize("action", [np.array([[None]]), [[0.0]], None, np.array([["a"]])])
def test_server_refuses_to_send_what_is_no_array_of_numbers(action: Any) -> None:
    client, server = connect()
    server.receive(client.send_infer(infer([0])))
    with pytest.raises(LocalProtocolError, match="expected numeric"):
        server.send_action(action)


@pytest.mark.parametrize("known", [{"action_horizon": 4}, {"action_dim": 3}])
def test_server_keeps_to_what_it_declared(known: dict[str, int]) -> None:
    client, server = connect(**known)
    server.receive(client.send_infer(infer()))
    with pytest.raises(LocalProtocolError, match="the metadata declares"):
        server.send_action(np.zeros((2, 2, 2)))


def test_server_drops_stale_rows_and_keeps_the_others() -> None:
    _, server = acting([0, 1])
    got = take(server, feedback([5, 1, 6], rewards=np.array([7, 8, 9], np.float32)))
    assert isinstance(got, ReceivedFeedback)
    assert got.stale == (5, 6)
    assert got.feedback is not None
    assert got.feedback.env_indices.tolist() == [1]
    assert got.feedback.rewards.tolist() == [8]
    assert server.holding == {0}
    assert server.state is State.IDLE


def test_server_drops_row_that_was_fed_back_before() -> None:
    client, server = acting([0, 1])
    server.receive(client.send_feedback(feedback([0])))
    server.receive(client.send_infer(infer([0])))
    client.receive_action(server.send_action(np.zeros((1, 1))))
    server.receive(client.send_feedback(feedback([0])))
    take(server, infer([7]))
    server.send_action(np.zeros((1, 1)))
    got = take(server, feedback([0, 1]))
    assert got.stale == (0,)


def test_server_with_stale_rows_alone_learns_nothing() -> None:
    _, server = acting([0])
    got = take(server, feedback([3]))
    assert got.feedback is None
    assert got.stale == (3,)


def test_server_drops_many_stale_rows_in_no_time() -> None:
    _, server = acting([0])
    envs = range(1, 100_001)
    got = take(server, feedback(envs))
    assert len(got.stale) == 100_000


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_server_drops_non_finite_rows_and_keeps_the_others(value: float) -> None:
    _, server = acting([0, 1, 2, 3], horizon=1)
    states = np.zeros((4, 2), np.float32)
    states[1, 1] = value
    rewards = np.array([value, 1, 2, 3], np.float32)
    got = take(server, feedback(range(4), observation=observation(4, x=states), rewards=rewards))
    assert got.non_finite == ((1, 0, "states.x"), (0, 0, "rewards"))
    assert got.feedback is not None
    assert got.feedback.env_indices.tolist() == [2, 3]
    assert got.feedback.rewards.tolist() == [2, 3]
    assert server.holding == set()


def test_server_drops_rows_with_non_finite_step_rewards_and_actions() -> None:
    _, server = acting([0, 1, 2])
    got = take(
        server,
        feedback(
            range(3),
            chunk_steps=ChunkSteps(np.ones(3, int), np.array([[np.nan, 1, 1]], np.float32)),
            executed=ExecutedActions(np.array([[[0], [np.inf], [0]]]), np.zeros(3, bool)),
        ),
    )
    assert got.non_finite == ((0, 0, "step_rewards"), (1, 0, "actions"))
    assert got.feedback is not None
    assert got.feedback.env_indices.tolist() == [2]
    assert got.feedback.chunk_steps is not None
    assert got.feedback.chunk_steps.rewards.tolist() == [[1]]


def test_server_drops_row_whose_float64_step_reward_is_too_large_for_float32() -> None:
    _, server = acting([0, 1])
    wire = feedback().to_wire()
    wire.update(steps=np.ones(2, int), step_rewards=np.array([[1e300, 1.0]]))
    got = take(server, wire)
    assert got.non_finite == ((0, 0, "step_rewards"),)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_server_resyncs_for_non_finite_infer(value: float) -> None:
    _, server = connect()
    bad = observation(2, x=np.array([[0.0], [value]]))
    with pytest.raises(RemoteProtocolError, match=r"infer\.data\.states\.x: not finite for env 8"):
        take(server, infer([4, 8], observation=bad))
    assert server.state is State.IDLE


def test_server_resyncs_for_reused_row_that_is_not_finite() -> None:
    _, server = acting([0])
    take(server, feedback([0], observation=observation(1, x=np.array([[np.nan]]))))
    with pytest.raises(RemoteProtocolError, match="not finite for env 0"):
        take(server, infer([0], observation=observation(0), reuse=np.ones(1, np.bool_)))


def test_server_lets_new_action_replace_old() -> None:
    _, server = acting([0, 1], horizon=2)
    take(server, feedback([0]))
    take(server, infer([0, 1]))
    server.send_action(np.zeros((5, 2, 1)))
    assert server.holding == {0, 1}
    steps = ChunkSteps(np.array([5]), np.ones((5, 1), np.float32))
    got = take(server, feedback([1], chunk_steps=steps))
    assert got.feedback is not None


def test_server_resyncs_for_more_steps_than_the_chunk_has() -> None:
    _, server = acting([0, 1], horizon=2)
    steps = ChunkSteps(np.array([3, 1]), np.array([[1, 1], [1, 0], [1, 0]], np.float32))
    with pytest.raises(
        RemoteProtocolError, match=r"feedback\.steps: 3 for env 0, whose chunk has 2"
    ):
        take(server, feedback(chunk_steps=steps))
    done = ExecutedActions(np.zeros((3, 2, 1)), np.zeros(2, bool))
    with pytest.raises(RemoteProtocolError, match="covers 3 steps"):
        take(server, feedback(executed=done))
    assert server.holding == {0, 1}


def test_server_checks_steps_of_no_stale_row() -> None:
    _, server = acting([0], horizon=1)
    steps = ChunkSteps(np.array([1, 3]), np.array([[1, 1], [0, 1], [0, 1]], np.float32))
    got = take(server, feedback([0, 5], chunk_steps=steps))
    assert got.stale == (5,)
    assert got.feedback.chunk_steps.rewards.tolist() == [[1]]


JUNK: dict[str, list[tuple[str, dict[str, Any]]]] = {
    REUSE_FEEDBACK_OBS: [("infer", {"reuse": "junk"})],
    GYM_SPACES: [("infer", {"spaces": 5})],
    CHUNK_STEPS: [("feedback", {"steps": "junk"}), ("feedback", {"step_rewards": 1})],
    EXECUTED_ACTIONS: [("feedback", {"actions": None}), ("feedback", {"overridden": {}})],
}


@pytest.mark.parametrize("feature", JUNK)
def test_server_ignores_keys_of_features_that_it_does_not_offer(feature: str) -> None:
    others = [name for name in EVERYTHING if name != feature]
    for kind, keys in JUNK[feature]:
        _, server = connect(others) if kind == "infer" else acting(features=others)
        message = infer() if kind == "infer" else feedback()
        read = take(server, {**message.to_wire(), **keys})
        assert isinstance(read, Infer) or read.feedback is not None
        _, server = connect(EVERYTHING) if kind == "infer" else acting()
        with pytest.raises(RemoteProtocolError):
            take(server, {**message.to_wire(), **keys})
    if feature == GYM_SPACES:
        assert server.declaration is None


def test_server_refuses_spaces_in_later_infer() -> None:
    spaces = {
        "env_id": None, "num_envs": 1, "autoreset": "disabled",
        "observation": {"type": "Discrete", "n": 2}, "action": {"type": "Discrete", "n": 2},
    }  # fmt: skip
    _, server = acting([0])
    assert server.declaration is None
    take(server, feedback([0]))
    with pytest.raises(RemoteProtocolError, match="only a connection's first infer has it"):
        take(server, {**infer([0]).to_wire(), "spaces": spaces})
    _, server = connect()
    take(server, {**infer([0]).to_wire(), "spaces": spaces})
    assert server.declaration is not None


def test_server_declaration_waits_for_a_valid_infer() -> None:
    spaces = {
        "env_id": None, "num_envs": 1, "autoreset": "disabled",
        "observation": {"type": "Discrete", "n": 2}, "action": {"type": "Discrete", "n": 2},
    }  # fmt: skip
    _, server = connect()
    bad = infer([0], observation=observation(1, x=np.array([[np.nan]]))).to_wire()
    with pytest.raises(RemoteProtocolError):
        take(server, {**bad, "spaces": spaces})
    assert server.declaration is None


def test_server_names_openpi_client() -> None:
    _, server = connect()
    with pytest.raises(RemoteProtocolError, match="openpi"):
        take(server, {"observation/state": np.zeros(8), "prompt": "fold"})


def test_server_refuses_message_before_its_metadata() -> None:
    with pytest.raises(RemoteProtocolError, match="in the state greeting"):
        take(ServerProtocol(), infer())


def test_server_refuses_to_greet_twice() -> None:
    _, server = connect()
    with pytest.raises(LocalProtocolError, match="metadata in the state idle"):
        server.send_metadata(Metadata())


def test_server_takes_images_whose_names_come_and_go() -> None:
    client, server = connect()
    for names in (("a",), (), ("a", "b")):
        cams = {name: np.zeros((1, 2, 2, 3), np.uint8) for name in names}
        seen = Observation(images=cams, text=[""])
        read = server.receive(client.send_infer(infer([0], observation=seen)))
        assert isinstance(read, Infer)
        assert set(read.observation.images) == set(names)
        client.receive_action(server.send_action(np.zeros((1, 1))))
        server.receive(client.send_feedback(feedback([0], observation=seen)))
