"""What a server's agent was handed, row by row, as lines of JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from plugrl_gym.protocol import Feedback, Observation
from plugrl_gym.server import Agent, Client, Request
from tests.chaos.envs import read_tag

__all__ = ["Recorder", "vectors"]


def vectors(observation: Observation) -> npt.NDArray[Any]:
    """The observation vectors [n, d] of the one key that such envs have."""
    (array,) = observation.states.values()
    return array


class Recorder:
    """Looks over an agent's shoulder.

    Args:
        file: A descriptor; a pipe outlives this process whatever ends it, and is never full.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._open: dict[tuple[int, int], tuple[list[int], list[int]]] = {}

    def attach(self, agent: Agent) -> None:
        """Wrap the ``act`` and ``feedback`` of an agent."""
        self._act, self._feedback = agent.act, agent.feedback
        agent.act = self.act  # type: ignore[method-assign]
        agent.feedback = self.feedback  # type: ignore[method-assign]

    def act(self, requests: Sequence[Request]) -> list[npt.NDArray[Any]]:
        actions = self._act(requests)
        for request, chunk in zip(requests, actions, strict=True):
            rows = vectors(request.infer.observation)
            for k, env in enumerate(request.infer.env_indices.tolist()):
                asked = list(read_tag(rows[k]))
                self._open[request.client.number, env] = asked, chunk[:, k].reshape(-1).tolist()
        return actions

    def feedback(self, client: Client, feedback: Feedback) -> Mapping[str, int] | None:
        not_kept = self._feedback(client, feedback)
        rows = vectors(feedback.observation)
        assert feedback.chunk_steps is not None
        lines = []
        for k, env in enumerate(feedback.env_indices.tolist()):
            before, chunk = self._open.pop((client.number, env))
            row = {
                "connection": client.number,
                "before": before,
                "chunk": chunk,
                "steps": int(feedback.chunk_steps.steps[k]),
                "reward": float(feedback.rewards[k]),
                "terminated": bool(feedback.terminated[k]),
                "truncated": bool(feedback.truncated[k]),
                "after": list(read_tag(rows[k])),
            }
            lines.append(json.dumps(row))
        self.write("\n".join(lines))
        self.write(json.dumps({"message": len(lines), "not_kept": dict(not_kept or {})}))
        return not_kept

    def write(self, text: str) -> None:
        data = f"{text}\n".encode()
        while data:
            data = data[os.write(self._file, data) :]
