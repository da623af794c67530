"""The envs that are served now: one track for each env of each connection.

The transitions of a track make up **trajectories**: a new one begins where a transition is missing
between two others, so that nothing is ever estimated across a gap. A trajectory may hold several
episodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from plugrl_gym.agents.sb3.runs.counters import Counters
from plugrl_gym.protocol import Feedback
from plugrl_gym.server.agent import Client, Request

__all__ = ["Track", "Tracks"]

D = TypeVar("D")


@dataclass(slots=True)
class Track(Generic[D]):
    """One env of one connection.

    Attributes:
        slot: Its number among the envs that are served now, from 0; reused.
        trajectory: The trajectory that its next transition belongs to; never reused.
        episode_start: Whether that transition begins an episode.
        pending: The decision that no feedback has answered yet.
        episode_return, episode_length: Of the episode so far; the length in env steps.
        running_return: Of the episode so far, older rewards discounted (by which rewards are
            normalised).
    """

    slot: int
    trajectory: int
    episode_start: bool = True
    pending: D | None = None
    episode_return: float = 0.0
    episode_length: int = 0
    running_return: float = 0.0

    def begin_episode(self) -> None:
        """Nothing was earned in the next episode yet."""
        self.episode_return, self.episode_length, self.running_return = 0.0, 0, 0.0


class Tracks(Generic[D]):
    """The tracks of all clients; those of one client are in its ``state``.

    Args:
        counters: Are told of decisions that no feedback answered.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._trajectories = 0
        self._slots: dict[int, Track[D]] = {}
        self._free: list[int] = []  # a heap: with those in use all numbers from 0 up

    def asked(self, requests: Sequence[Request]) -> list[Track[D]]:
        """The tracks of the envs of some requests, in their order; made where an env is new."""
        return [track for request in requests for track in self._asked(request)]

    def _asked(self, request: Request) -> list[Track[D]]:
        client, infer = request.client, request.infer
        tracks = self._of(client)
        for env, step_id in zip(infer.env_indices.tolist(), infer.step_ids.tolist(), strict=True):
            track = tracks.get(env)
            if track is None:
                tracks[env] = self._new()
            elif track.pending is not None:
                # The server left out the feedback row: it was not finite.
                self._counters.chunks_dropped += 1
                track.pending = None
                self.cut(track)
                track.episode_start = step_id == 0
                if track.episode_start:
                    track.begin_episode()
        return [tracks[env] for env in infer.env_indices.tolist()]

    def answered(self, client: Client, feedback: Feedback) -> list[Track[D]]:
        """The tracks of a feedback's rows, in its order."""
        tracks = self._of(client)
        return [tracks[env] for env in feedback.env_indices.tolist()]

    def cut(self, track: Track[D]) -> None:
        """Begin a new trajectory: the transition that would come next in this one is missing."""
        track.trajectory = self._next_trajectory()

    def leave(self, client: Client) -> list[Track[D]]:
        """Forget a client; what it has not fed back is dropped. Returns the tracks that it had."""
        tracks = self._of(client)
        for track in tracks.values():
            del self._slots[track.slot]
            heapq.heappush(self._free, track.slot)
        client.state = None
        self._counters.chunks_dropped += _unanswered(tracks)
        return list(tracks.values())

    def state(self) -> dict[str, int]:
        """What a run needs to know that goes on without these clients."""
        return {"trajectories": self._trajectories, "unanswered": _unanswered(self._slots)}

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on from :meth:`state`: no client, and no trajectory twice."""
        self._trajectories = state["trajectories"]
        self._counters.chunks_dropped += state["unanswered"]

    def _of(self, client: Client) -> dict[int, Track[D]]:
        if client.state is None:
            client.state = {}
        tracks: dict[int, Track[D]] = client.state
        return tracks

    def _next_trajectory(self) -> int:
        self._trajectories += 1
        return self._trajectories

    def _new(self) -> Track[D]:
        slot = heapq.heappop(self._free) if self._free else len(self._slots)
        track: Track[D] = Track(slot, self._next_trajectory())
        self._slots[slot] = track
        return track


def _unanswered(tracks: Mapping[int, Track[Any]]) -> int:
    # Of a copy: an asynchronous learner asks while clients come and go.
    return sum(track.pending is not None for track in list(tracks.values()))
