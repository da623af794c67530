"""A server in memory: the real protocol on both ends, no socket, faults on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plugrl_gym.errors import ConnectionLost, RunFinished
from plugrl_gym.protocol import (
    Action,
    ClientProtocol,
    Feedback,
    Infer,
    Metadata,
    Observation,
    ReceivedFeedback,
    ServerProtocol,
)


def first_leaf(observation: Observation, row: int) -> Any:
    """One row of the first image, or else the first state, of an observation."""
    leaves = [*observation.images.values(), *observation.states.values()]
    return leaves[0][row].copy()


@dataclass
class Row:
    """One chunk of one env as the server saw it, from infer to feedback."""

    connection: int
    env: int
    step_id: int
    first: np.ndarray
    chunk: np.ndarray
    last: np.ndarray
    reward: float
    terminated: bool
    truncated: bool
    steps: int | None
    executed: np.ndarray | None
    overridden: bool | None
    episode: tuple[float, int] | None


@dataclass
class MemoryServer:
    """Answers every infer and remembers every row.

    Attributes:
        choose: (envs) -> chunk [H, n, *da].
        fault: Called before each message with its name; returns an exception to break with.
        view: (observation, row) -> what to keep of it.
        rows: What was fed back.
        held: (connection, env) -> what was asked and answered, not fed back yet.
        closes: Close codes that clients sent (None: without a close frame).
    """

    choose: Callable[[np.ndarray], np.ndarray]
    metadata: Metadata = field(default_factory=Metadata)
    fault: Callable[[str], Exception | None] = lambda message: None
    view: Callable[[Observation, int], Any] = first_leaf
    rows: list[Row] = field(default_factory=list)
    held: dict[tuple[int, int], tuple[int, np.ndarray, np.ndarray]] = field(default_factory=dict)
    infers: list[Infer] = field(default_factory=list)
    feedbacks: list[Feedback] = field(default_factory=list)
    closes: list[int | None] = field(default_factory=list)
    connections: int = 0
    lost_rows: int = 0

    def connect(self, endpoint: Any, timeout: float) -> MemoryConnection:
        """Stands in for the class Connection."""
        error = self.fault("connect")
        if error is not None:
            raise error
        self.connections += 1
        return MemoryConnection(self, self.connections)


class MemoryConnection:
    """The interface of client.connection.Connection over a :class:`MemoryServer`."""

    def __init__(self, server: MemoryServer, number: int) -> None:
        self._server, self._number = server, number
        self._client, self._peer = ClientProtocol(), ServerProtocol()
        self._open = True
        self.metadata = self._client.receive_metadata(self._peer.send_metadata(server.metadata))

    @property
    def features(self) -> tuple[str, ...]:
        return self.metadata.features

    @property
    def declaration(self) -> Any:
        return self._peer.declaration

    def _fault(self, message: str) -> None:
        assert self._open, f"{message} on a closed connection"
        error = self._server.fault(message)
        if error is not None:
            raise error

    def infer(self, infer: Infer, accept: Callable[[Action], Any]) -> Any:
        frame = self._client.send_infer(infer)
        self._fault("infer")
        received = self._peer.receive(frame)
        assert isinstance(received, Infer)
        self._server.infers.append(infer)
        chunk = self._server.choose(received.env_indices)
        for column, env in enumerate(received.env_indices.tolist()):
            assert (self._number, env) not in self._server.held, "an env asked twice"
            first = self._server.view(received.observation, column)
            step_id = int(received.step_ids[column])
            self._server.held[self._number, env] = (step_id, first, chunk[:, column].copy())
        reply = self._peer.send_action(chunk)
        self._fault("action")
        return accept(self._client.receive_action(reply))

    def feedback(self, feedback: Feedback) -> None:
        frame = self._client.send_feedback(feedback)
        self._fault("feedback")
        received = self._peer.receive(frame)
        assert isinstance(received, ReceivedFeedback)
        assert received.feedback is not None
        assert not received.stale
        self._server.feedbacks.append(received.feedback)
        for row in range(len(received.feedback.env_indices)):
            self._store(received.feedback, row)

    def _store(self, message: Feedback, row: int) -> None:
        env = int(message.env_indices[row])
        step_id, first, chunk = self._server.held.pop((self._number, env))
        assert step_id == message.step_ids[row]
        steps, executed, episode = message.chunk_steps, message.executed, message.episode
        count = None if steps is None else int(steps.steps[row])
        if steps is not None:
            assert float(steps.rewards[:, row].sum()) == float(message.rewards[row])
        told = episode is not None and episode.mask[row]
        self._server.rows.append(
            Row(
                connection=self._number,
                env=env,
                step_id=step_id,
                first=first,
                chunk=chunk,
                last=self._server.view(message.observation, row),
                reward=float(message.rewards[row]),
                terminated=bool(message.terminated[row]),
                truncated=bool(message.truncated[row]),
                steps=count,
                executed=None if executed is None else executed.actions[:count, row].copy(),
                overridden=None if executed is None else bool(executed.overridden[row]),
                episode=(float(episode.returns[row]), int(episode.lengths[row])) if told else None,
            )
        )

    def close(self) -> None:
        self._end(1000)

    def abort(self, code: int | None = None, reason: str = "") -> None:
        self._end(code)

    def _end(self, code: int | None) -> None:
        if self._open:
            self._open = False
            self._server.closes.append(code)
            mine = [key for key in self._server.held if key[0] == self._number]
            for key in mine:
                del self._server.held[key]


def lost() -> Exception:
    """What a broken connection raises."""
    return ConnectionLost("the test cut the connection")


def finished() -> Exception:
    """What a stopped run raises."""
    return RunFinished("the server ended the run")
