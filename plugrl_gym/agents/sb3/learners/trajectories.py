"""Transitions as they arrive, env by env, until a rollout is complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from plugrl_gym.agents.sb3.policy_spaces import PolicyArray, PolicyObservation

__all__ = [
    "Decision",
    "Rollout",
    "Steps",
    "Tail",
    "concatenate",
    "gather",
    "pick",
    "take",
]


def take(
    observation: PolicyObservation, index: slice | npt.NDArray[np.intp] | list[int]
) -> PolicyObservation:
    """Some rows of an observation."""
    if isinstance(observation, dict):
        return {name: part[index] for name, part in observation.items()}
    rows: PolicyArray = observation[index]
    return rows


def pick(observation: PolicyObservation, row: int) -> PolicyObservation:
    """One row of an observation, without the batch axis (views)."""
    if isinstance(observation, dict):
        return {name: part[row] for name, part in observation.items()}
    one: PolicyArray = observation[row]
    return one


def concatenate(parts: Sequence[PolicyObservation]) -> PolicyObservation:
    """Observations one after the other; a single one as it is."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, dict):
        return {name: np.concatenate([_of(part, name) for part in parts]) for name in first}
    return np.concatenate([_of(part) for part in parts])


def gather(sources: Sequence[tuple[PolicyObservation, int]]) -> PolicyObservation:
    """One row of each source; a source that is asked for whole and in order, as it is."""
    first = sources[0][0]
    if all(source is first and row == k for k, (source, row) in enumerate(sources)) and (
        _rows(first) == len(sources)
    ):
        return first
    if isinstance(first, dict):
        return {
            name: np.stack([_of(source, name)[row] for source, row in sources]) for name in first
        }
    return np.stack([_of(source)[row] for source, row in sources])


def _of(observation: PolicyObservation, name: str | None = None) -> PolicyArray:
    """One array of an observation; all observations of a run are of the same kind."""
    if name is None:
        assert not isinstance(observation, dict)
        return observation
    assert isinstance(observation, dict)
    return observation[name]


def _rows(observation: PolicyObservation) -> int:
    return len(next(iter(observation.values())) if isinstance(observation, dict) else observation)


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """One forward pass: what a batch of envs saw, and what the policy made of it.

    Attributes:
        observation: n rows.
        action: [n, *da], raw: not clipped.
        value: float32 [n].
        log_prob: float32 [n].
        version: int64 [n], updates that the policy had learned from.
    """

    observation: PolicyObservation
    action: PolicyArray
    value: npt.NDArray[np.float32]
    log_prob: npt.NDArray[np.float32]
    version: npt.NDArray[np.int64]

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[Decision, int]]) -> Decision:
        """Rows of several decisions as one; one that is asked for whole and in order, as it is."""
        first = rows[0][0]
        if len(rows) == len(first.value) and all(
            decision is first and row == k for k, (decision, row) in enumerate(rows)
        ):
            return first
        return cls(
            gather([(decision.observation, row) for decision, row in rows]),
            np.stack([decision.action[row] for decision, row in rows]),
            np.array([decision.value[row] for decision, row in rows], np.float32),
            np.array([decision.log_prob[row] for decision, row in rows], np.float32),
            np.array([decision.version[row] for decision, row in rows], np.int64),
        )

    def select(self, index: slice | npt.NDArray[np.intp]) -> Decision:
        """Some of the rows."""
        return Decision(
            take(self.observation, index),
            self.action[index],
            self.value[index],
            self.log_prob[index],
            self.version[index],
        )

    @classmethod
    def joined(cls, parts: Sequence[Decision]) -> Decision:
        """The rows of several, one after the other."""
        return cls(
            concatenate([part.observation for part in parts]),
            np.concatenate([part.action for part in parts]),
            np.concatenate([part.value for part in parts]),
            np.concatenate([part.log_prob for part in parts]),
            np.concatenate([part.version for part in parts]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Transitions that arrived together, at most one of each trajectory.

    Attributes:
        trajectory: int64 [m].
        decision: m rows.
        reward: float32 [m], with the value of what a truncation cut off.
        discount: float64 [m], what the value of ``following`` counts.
        episode_start: bool [m].
        done: bool [m], the episode ended here.
        following: What was observed next, m rows; None once a rollout has kept it as tails.
    """

    trajectory: npt.NDArray[np.int64]
    decision: Decision
    reward: npt.NDArray[np.float32]
    discount: npt.NDArray[np.float64]
    episode_start: npt.NDArray[np.bool_]
    done: npt.NDArray[np.bool_]
    following: PolicyObservation | None

    def __len__(self) -> int:
        return len(self.trajectory)

    def select(self, index: slice | npt.NDArray[np.intp]) -> Steps:
        """Some of the rows."""
        return Steps(
            self.trajectory[index],
            self.decision.select(index),
            self.reward[index],
            self.discount[index],
            self.episode_start[index],
            self.done[index],
            None if self.following is None else take(self.following, index),
        )

    @classmethod
    def joined(cls, parts: Sequence[Steps]) -> Steps:
        """The rows of several, one after the other, without ``following``."""
        return cls(
            np.concatenate([part.trajectory for part in parts]),
            Decision.joined([part.decision for part in parts]),
            np.concatenate([part.reward for part in parts]),
            np.concatenate([part.discount for part in parts]),
            np.concatenate([part.episode_start for part in parts]),
            np.concatenate([part.done for part in parts]),
            None,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """What followed the last transition of a trajectory: row ``row`` of ``observation``."""

    observation: PolicyObservation
    row: int
    done: bool


class Rollout:
    """Exactly ``size`` transitions, whichever env they come from; more wait in ``beyond``.

    Attributes:
        parts: The transitions in order of arrival.
        tails: trajectory -> what followed its last transition here.
        beyond: Transitions that came after the last that fitted, for the next rollout.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.stored = 0
        self.parts: list[Steps] = []
        self.tails: dict[int, Tail] = {}
        self.beyond: list[Steps] = []

    @property
    def full(self) -> bool:
        """Whether it is complete."""
        return self.stored == self.size

    def updates_before(self, further: int) -> int:
        """Updates until the transition is learned from that arrives after ``further`` others."""
        waiting = self.stored + sum(len(steps) for steps in self.beyond)
        return (waiting + further) // self.size

    def add(self, steps: Steps) -> int:
        """Take transitions; returns how many of them fitted."""
        room = self.size - self.stored
        if len(steps) > room:
            self.beyond.append(steps.select(slice(room, None)))
            steps = steps.select(slice(0, room))
        if len(steps):
            assert steps.following is not None
            for row, trajectory in enumerate(steps.trajectory.tolist()):
                self.tails[trajectory] = Tail(steps.following, row, bool(steps.done[row]))
            self.parts.append(replace(steps, following=None))
            self.stored += len(steps)
        return len(steps)

    def in_lockstep(self, columns: int) -> bool:
        """Whether the same ``columns`` trajectories moved on together at every step."""
        first = self.parts[0].trajectory
        return len(first) == columns and all(
            np.array_equal(part.trajectory, first) for part in self.parts
        )
