"""A client of raw messages: what a test needs to say anything, legal or not, to a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium import spaces
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from plugrl_gym.protocol import (
    Action,
    ChunkSteps,
    ClientProtocol,
    Feedback,
    Infer,
    Observation,
    SpaceDeclaration,
    State,
    encode,
)
from plugrl_gym.spaces import describe_space

DEADLINE = 10.0
BOX = spaces.Box(-10.0, 10.0, (2,), np.float32)


def states(n: int, value: float = 0.0) -> Observation:
    """n rows of the state ``obs``, float32 [n, 2]."""
    return Observation(states={"obs": np.full((n, 2), value, np.float32)}, text=[""] * n)


def declare(
    action: spaces.Space[Any], observation: spaces.Space[Any] = BOX, mode: str = "train"
) -> SpaceDeclaration:
    """A declaration of one env called Test-v0."""
    return SpaceDeclaration(
        "Test-v0", 1, "same-step", describe_space(observation), describe_space(action), mode
    )


def infer_of(
    *envs: int,
    observation: Observation | None = None,
    step_ids: Sequence[int] | None = None,
    spaces: SpaceDeclaration | None = None,
) -> Infer:
    """An infer for ``envs``."""
    return Infer(
        observation=states(len(envs)) if observation is None else observation,
        env_indices=np.array(envs, np.int64),
        step_ids=np.array([0] * len(envs) if step_ids is None else step_ids, np.int64),
        spaces=spaces,
    )


def feedback_of(
    *envs: int,
    rewards: Sequence[float] | None = None,
    terminated: Sequence[bool] | None = None,
    truncated: Sequence[bool] | None = None,
    info: dict[str, Any] | None = None,
    steps: Sequence[int] | None = None,
    observation: Observation | None = None,
) -> Feedback:
    """A feedback of ``envs``; with ``steps`` it uses gym-chunk-steps."""
    n = len(envs)
    chunk_steps = None
    if steps is not None:
        counts = np.array(steps, np.int64)
        chunk_steps = ChunkSteps(counts, np.zeros((counts.max(), n), np.float32))
    return Feedback(
        env_indices=np.array(envs, np.int64),
        step_ids=np.zeros(n, np.int64),
        observation=states(n) if observation is None else observation,
        rewards=np.array([1.0] * n if rewards is None else rewards, np.float32),
        terminated=np.array([False] * n if terminated is None else terminated),
        truncated=np.array([False] * n if truncated is None else truncated),
        info=info or {},
        chunk_steps=chunk_steps,
    )


class RawClient:
    """One connection that has read its metadata."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.protocol = ClientProtocol()
        self.metadata = self.protocol.receive_metadata(socket.recv(timeout=DEADLINE))

    def ask(self, *envs: int, **fields: Any) -> None:
        """Send an infer, and do not wait."""
        self.socket.send(self.protocol.send_infer(infer_of(*envs, **fields)))

    def answer(self) -> Action:
        """Receive the action of the last :meth:`ask`."""
        return self.protocol.receive_action(self.socket.recv(timeout=DEADLINE))

    def infer(self, *envs: int, **fields: Any) -> Action:
        """Ask and receive."""
        self.ask(*envs, **fields)
        return self.answer()

    def feed_back(self, *envs: int, **fields: Any) -> None:
        """Send a feedback."""
        self.socket.send(self.protocol.send_feedback(feedback_of(*envs, **fields)))

    def say(self, message: Infer | Feedback) -> None:
        """Send a message that :class:`ClientProtocol` would refuse to."""
        self.socket.send(encode(message.to_wire()))
        self.protocol.state = State.DECIDING if isinstance(message, Infer) else State.IDLE

    def exchange(self, *envs: int, **fields: Any) -> Action:
        """Infer, receive the action, feed back."""
        action = self.infer(*envs)
        self.feed_back(*envs, **fields)
        return action

    def closed(self, timeout: float = DEADLINE) -> tuple[int, str]:
        """Read on until the server's close.

        Returns:
            Its code and reason.

        Raises:
            TimeoutError: The connection is still open after ``timeout`` seconds.
        """
        try:
            while True:
                self.socket.recv(timeout=timeout)
        except ConnectionClosed as error:
            frame = error.rcvd
        assert frame is not None, "the connection broke without a close frame"
        return frame.code, frame.reason


@contextmanager
def raw_client(url: str) -> Iterator[RawClient]:
    """Connect, read the metadata, and close with 1000 at the end."""
    with connect(
        url, compression=None, max_size=None, ping_interval=None, open_timeout=DEADLINE
    ) as socket:
        yield RawClient(socket)
