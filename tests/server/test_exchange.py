"""What a client sends reaches the agent, and the agent's answer that client (SPEC 5 and 6)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from plugrl_gym.protocol import GYM_SPACES, REUSE_FEEDBACK_OBS
from plugrl_gym.protocol.close import REASON_RESYNC
from tests.support.raw_client import declare, feedback_of, infer_of, raw_client, states
from tests.support.serving import FakeAgent, running


def test_server_speaks_first_and_completes_the_agents_metadata() -> None:
    with running(FakeAgent(horizon=3)) as run, raw_client(run.url) as client:
        said = client.metadata
    assert (said.protocol_version, said.server, said.algorithm) == (1, "plugrl-gym", "fake")
    assert (said.action_horizon, said.action_dim) == (3, 1)
    assert said.features == FakeAgent.features


def test_action_names_the_envs_of_its_infer_in_their_order() -> None:
    with running(FakeAgent(horizon=2)) as run, raw_client(run.url) as client:
        action = client.infer(7, 2, 5)
    assert action.env_ids is not None
    assert action.env_ids.tolist() == [7, 2, 5]
    assert action.action.shape == (2, 3)


def test_feedback_may_name_other_envs_than_its_infer() -> None:
    agent = FakeAgent()
    with running(agent) as run, raw_client(run.url) as client:
        client.infer(0, 1, 2)
        client.feed_back(2, 0, rewards=[3.0, 4.0])
        client.infer(0)
        client.feed_back(1)
        agent.wait_for_rows(3)
    envs = [feedback.env_indices.tolist() for _, feedback in agent.fed_back]
    assert envs == [[2, 0], [1]]
    assert agent.fed_back[0][1].rewards.tolist() == [3.0, 4.0]


def test_two_clients_with_equal_indices_are_kept_apart() -> None:
    agent = FakeAgent()
    with running(agent) as run, raw_client(run.url) as first, raw_client(run.url) as second:
        first.infer(0)
        second.ask(0)
        second.answer()
        second.feed_back(0, rewards=[2.0])
        agent.wait_for_rows(1)
        first.feed_back(0, rewards=[1.0])
        agent.wait_for_rows(2)
    assert [(number, f.rewards.tolist()) for number, f in agent.fed_back] == [
        (2, [2.0]),
        (1, [1.0]),
    ]


def test_agent_is_told_of_every_departure_once() -> None:
    agent = FakeAgent()
    with running(agent) as run:
        for _ in range(2):
            with raw_client(run.url) as client:
                client.exchange(0)
        with raw_client(run.url):
            pass  # never asked, so never joined
        agent.wait_for_departures(2)
    assert [client.number for client in agent.joined] == [1, 2]
    assert agent.left == [1, 2]
    assert agent.closed == 1


def test_last_feedback_counts_though_its_client_closes_at_once() -> None:
    agent = FakeAgent()
    with running(agent) as run:
        with raw_client(run.url) as client:
            client.exchange(0, terminated=[True])
        agent.wait_for_departures(1)
    assert agent.rows == 1


def test_feedback_of_an_env_that_holds_no_action_is_dropped_and_the_rest_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = FakeAgent()
    with running(agent) as run, raw_client(run.url) as client:
        client.infer(0, 1)
        client.say(feedback_of(0, 9, 1, rewards=[1.0, 2.0, 3.0]))
        client.infer(5)
        snapshot = run.server.statistics.snapshot()
    assert agent.fed_back[0][1].env_indices.tolist() == [0, 1]
    assert (snapshot.transitions, snapshot.stale, snapshot.dropped) == (2, 1, 1)
    assert "client 1 (127.0.0.1:" in caplog.text
    assert "dropped feedback of envs 9: they hold no action" in caplog.text


def test_row_that_is_not_finite_is_dropped_and_the_rest_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = FakeAgent()
    with running(agent) as run, raw_client(run.url) as client:
        client.infer(0, 1)
        observation = states(2)
        observation.states["obs"][1, 0] = np.nan
        feedback = feedback_of(0, 1, observation=observation)
        client.say(replace(feedback, step_ids=np.array([0, 7])))
        client.infer(5)
        snapshot = run.server.statistics.snapshot()
    assert [f.env_indices.tolist() for _, f in agent.fed_back] == [[0]]
    assert (snapshot.transitions, snapshot.non_finite) == (1, 1)
    assert "client 1 (127.0.0.1:" in caplog.text
    assert "dropped the chunk of env 1, step 7: states.obs is not finite" in caplog.text


def test_feedback_of_which_no_row_is_left_is_told_to_the_agent_as_such() -> None:
    agent = FakeAgent()
    with running(agent) as run, raw_client(run.url) as client:
        for feedback in (
            feedback_of(0, rewards=[np.nan]),
            feedback_of(7),
            feedback_of(0, 7, rewards=[1.0, np.nan]),
        ):
            client.say(infer_of(0))
            assert client.socket.recv(timeout=10)
            client.say(feedback)
        client.say(infer_of(0))
        assert client.socket.recv(timeout=10)
        snapshot = run.server.statistics.snapshot()
    assert agent.dropped == [1, 1]
    assert agent.rows == 1
    assert snapshot.book_errors == ()


def test_declaration_reaches_the_agent() -> None:
    agent = FakeAgent()
    with running(agent) as run, raw_client(run.url) as client:
        client.infer(0, spaces=declare(spaces.Discrete(2), mode="eval"))
    declared = agent.joined[0].declaration
    assert declared is not None
    assert (declared.env_id, agent.joined[0].learning) == ("Test-v0", False)


def test_declaration_is_no_business_of_an_agent_that_does_not_offer_the_feature() -> None:
    agent = FakeAgent()
    agent.features = (REUSE_FEEDBACK_OBS,)
    assert GYM_SPACES not in agent.features
    with running(agent) as run, raw_client(run.url) as client:
        client.say(infer_of(0, spaces=declare(spaces.Discrete(2))))
        assert client.socket.recv(timeout=10)
    assert agent.joined[0].declaration is None


def test_more_steps_than_the_chunk_had_are_a_protocol_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = FakeAgent(horizon=2)
    with running(agent) as run, raw_client(run.url) as client:
        client.infer(0, 1)
        client.say(feedback_of(0, 1, steps=[2, 3]))
        assert client.closed() == (1001, REASON_RESYNC)
    assert agent.rows == 0
    assert "resync: feedback.steps: 3 for env 1" in caplog.text
