"""A client of one agent in the same thread: whole frames through both protocol objects."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from plugrl_gym.protocol import (
    ChunkSteps,
    ClientProtocol,
    EpisodeStatistics,
    ExecutedActions,
    Feedback,
    Infer,
    ServerProtocol,
    SpaceDeclaration,
    encode,
)
from plugrl_gym.server.agent import Agent, Client, Request
from plugrl_gym.spaces import ActionLayout, ObservationLayout, describe_space

_numbers = itertools.count(1)


class AgentPeer:
    """One connection to an agent, without a server between.

    Args:
        agent: Called as the server would: joined at the first infer, taught when it is due.
        observation_space, action_space: Of a single env.
        num_envs: To declare.
        env_id, mode: To declare.
        declares: False for a client of plain version 1.
        learns: False leaves ``learn`` to the test.
        foreign: A client of somebody else's, which checks nothing that it sends.

    Attributes:
        left_out: How many rows of the last feedback the agent did not keep, by reason.
    """

    def __init__(
        self,
        agent: Agent,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        num_envs: int = 1,
        env_id: str | None = None,
        mode: str = "train",
        declares: bool = True,
        learns: bool = True,
        foreign: bool = False,
    ) -> None:
        self.agent = agent
        self.client = Client(next(_numbers), "127.0.0.1:1")
        self.observations = ObservationLayout(observation_space)
        self.actions = ActionLayout(action_space)
        self._learns = learns
        self._foreign = foreign
        self._declaration = SpaceDeclaration(
            env_id,
            num_envs,
            "same-step",
            describe_space(observation_space),
            describe_space(action_space),
            mode,
        )
        self._declares = declares
        self._joined = False
        self._server, self._local = ServerProtocol(), ClientProtocol()
        metadata = replace(agent.metadata(), protocol_version=1, features=tuple(agent.features))
        self._local.receive_metadata(self._server.send_metadata(metadata))
        self._step_ids: dict[int, int] = {}
        self.left_out: dict[str, int] = {}

    def request(self, envs: Sequence[int], observation: Any) -> Request:
        """Send an infer for a batch of observations, as far as the agent's ``prepare``."""
        infer = Infer(
            self.observations.encode(observation),
            np.array(envs, np.int64),
            np.array([self._step_ids.get(env, 0) for env in envs], np.int64),
            spaces=self._declaration if self._declares and not self._joined else None,
        )
        frame = encode(infer.to_wire()) if self._foreign else self._local.send_infer(infer)
        received = self._server.receive(frame)
        assert isinstance(received, Infer)
        if not self._joined:
            self.client.declaration = self._server.declaration
            self.agent.join(self.client)
            self._joined = True
        return Request(self.client, received, self.agent.prepare(self.client, received))

    def answer(self, action: Any) -> Any:
        """Take the agent's action for the last request, as the env's chunk [H, n, *da]."""
        frame = self._server.send_action(action)
        if self._foreign:
            return action
        return self.actions.decode(self._local.receive_action(frame).action)

    def ask(self, envs: Sequence[int], observation: Any) -> Any:
        """A whole exchange: observations [n, ...] of ``envs`` -> their chunk [H, n, *da]."""
        return self.answer(self.agent.act([self.request(envs, observation)])[0])

    def tell(
        self,
        envs: Sequence[int],
        observation: Any,
        rewards: Any,
        terminated: Any = False,
        truncated: Any = False,
        *,
        returns: Any = None,
        lengths: Any = 1,
        overridden: Sequence[bool] | None = None,
        executed: Any = None,
        step_rewards: Sequence[Sequence[float]] | None = None,
    ) -> None:
        """Send a feedback and let the agent learn if that is due.

        Args:
            envs: m of them.
            observation: [m, ...], terminal where the episode ended.
            rewards: [m], or one number for all.
            terminated, truncated: bool [m], or one for all.
            returns, lengths: Of the episodes so far, [m]; without returns no statistics go out.
            overridden: bool [m]; None sends no executed actions.
            executed: [K, m, *da], what ran where ``overridden`` is given; None for zeros.
            step_rewards: Of each row what every step of its chunk paid; None does not tell.
        """
        rows = len(envs)
        terminated, truncated = (
            np.broadcast_to(np.asarray(flag, bool), rows).copy() for flag in (terminated, truncated)
        )
        ended = terminated | truncated
        info = {}
        if returns is not None and ended.any():
            info["episode"] = EpisodeStatistics(
                np.where(ended, returns, 0.0), np.where(ended, lengths, 0), ended
            ).to_wire()
        told = None
        if overridden is not None:
            zeros = np.zeros((1, rows, *self.actions.shape), np.float32)
            ran = zeros if executed is None else np.asarray(executed)
            told = ExecutedActions(ran, np.array(overridden, bool))
        feedback = Feedback(
            np.array(envs, np.int64),
            np.array([self._step_ids.get(env, 0) for env in envs], np.int64),
            self.observations.encode(observation),
            np.broadcast_to(np.asarray(rewards, np.float32), rows).copy(),
            terminated,
            truncated,
            info,
            executed=told,
            chunk_steps=None if step_rewards is None else _chunk_steps(step_rewards),
        )
        for env, over in zip(envs, ended.tolist(), strict=True):
            self._step_ids[env] = 0 if over else self._step_ids.get(env, 0) + 1
        self._deliver(
            encode(feedback.to_wire()) if self._foreign else self._local.send_feedback(feedback)
        )

    def _deliver(self, frame: bytes) -> None:
        received = self._server.receive(frame)
        assert not isinstance(received, Infer)
        if received.feedback is not None:
            self.left_out = dict(self.agent.feedback(self.client, received.feedback) or {})
        agent = self.agent
        while self._learns and (agent.learning_due or agent.learning_wanted) and not agent.finished:
            agent.learn()

    def leave(self) -> None:
        """The connection ends."""
        self.agent.leave(self.client)


def _chunk_steps(step_rewards: Sequence[Sequence[float]]) -> ChunkSteps:
    steps = np.array([len(row) for row in step_rewards], np.int64)
    rewards = np.zeros((steps.max(), len(steps)), np.float32)
    for row, paid in enumerate(step_rewards):
        rewards[: len(paid), row] = paid
    return ChunkSteps(steps, rewards)
