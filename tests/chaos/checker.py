"""Joins what the envs did with what the agent was handed, and both with the books (pure)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tests.chaos.envs import Tag

__all__ = [
    "Life",
    "Step",
    "Truth",
    "Verdict",
    "check_buffer",
    "check_rows",
    "read_life",
    "read_lines",
    "read_truth",
]

_Place = tuple[int, int, int, int]


class Step(NamedTuple):
    """One env step as the env itself saw it."""

    action: int
    reward: float
    terminated: bool
    truncated: bool


Truth = dict[_Place, Step]


@dataclass
class Life:
    """What one server process wrote down.

    Attributes:
        rows: Transitions that the agent was handed, in order.
        messages: (rows, reason -> rows not kept) of each feedback message.
        buffer: Rows of the learner's own buffers; those of a rollout that was under way when the
            process before ended are in the buffers of both.
        resumed_at: Env steps that it knew of when it started; None if it died before.
    """

    rows: list[Mapping[str, Any]] = field(default_factory=list)
    messages: list[tuple[int, Mapping[str, int]]] = field(default_factory=list)
    buffer: list[Mapping[str, Any]] = field(default_factory=list)
    resumed_at: int | None = None

    @property
    def steps(self) -> int:
        """Env steps of all rows."""
        return sum(row["steps"] for row in self.rows)

    @property
    def not_kept(self) -> int:
        return sum(sum(reasons.values()) for _, reasons in self.messages)


@dataclass
class Verdict:
    """What the join found.

    Attributes:
        true_rows: Transitions that happened just so.
        stored_steps: The env steps of these.
        false: A sentence for each that did not.
        twice: Env steps that two transitions have.
    """

    true_rows: int = 0
    stored_steps: Counter[int] = field(default_factory=Counter)
    false: list[str] = field(default_factory=list)
    twice: int = 0


def read_lines(data: bytes) -> Iterator[Any]:
    """Lines of JSON; a last one that its writer's end has cut short is left out."""
    whole, _, _ = data.rpartition(b"\n")
    return (json.loads(line) for line in whole.splitlines() if line)


def read_truth(data: bytes) -> Truth:
    """The log of one client's envs.

    Raises:
        ValueError: A step is in it twice.
    """
    truth: Truth = {}
    for client, env, episode, step, action, reward, terminated, truncated in read_lines(data):
        place = client, env, episode, step
        if place in truth:
            raise ValueError(f"the env took step {place} twice")
        truth[place] = Step(action, reward, bool(terminated), bool(truncated))
    return truth


def read_life(data: bytes) -> Life:
    """The log of one server process."""
    life = Life()
    for line in read_lines(data):
        if "before" in line:
            life.rows.append(line)
        elif "stored" in line:
            life.buffer.append(line)
        elif "message" in line:
            life.messages.append((line["message"], line["not_kept"]))
        else:
            life.resumed_at = line["resumed_at"]
    return life


def check_rows(rows: Iterable[Mapping[str, Any]], truth: Truth) -> Verdict:
    """Hold transitions against the steps that envs took."""
    verdict = Verdict()
    told: set[_Place] = set()
    for row in rows:
        fault = _fault(row, truth)
        if fault:
            verdict.false.append(f"{fault}: {row}")
            continue
        before = Tag(*row["before"])
        places = [(*before[:3], before.step + k) for k in range(row["steps"])]
        verdict.twice += len(told.intersection(places))
        told.update(places)
        verdict.true_rows += 1
        verdict.stored_steps[before.client] += len(places)
    return verdict


def check_buffer(rows: Iterable[Mapping[str, Any]], truth: Truth) -> Verdict:
    """Hold a learner's own buffer, of one env step a row, against the steps that envs took."""
    verdict = Verdict()
    told: set[_Place] = set()
    for row in rows:
        before = Tag(*row["stored"])
        place = before[:4]
        step = truth.get(place)
        wrong = (
            step is None
            or step.action != row["action"]
            # The value of what a truncation cut off is part of its reward in a rollout.
            or (step.reward != row["reward"] and not (step.truncated and row["after"] is None))
            or row["after"] not in (None, [*place[:3], before.step + 1, row["action"]])
        )
        if wrong:
            verdict.false.append(f"the buffer has what did not happen: {row}")
            continue
        verdict.twice += place in told
        told.add(place)
        verdict.true_rows += 1
    return verdict


def _fault(row: Mapping[str, Any], truth: Truth) -> str:
    """What of a transition did not happen; empty where all of it did."""
    before, after, count = Tag(*row["before"]), Tag(*row["after"]), row["steps"]
    if before[:3] != after[:3] or after.step != before.step + count:
        return "it leads from one place to another that does not follow it"
    ran = [truth.get((*before[:3], before.step + k)) for k in range(count)]
    steps = [step for step in ran if step is not None]
    if len(steps) < count or not steps:
        return "a step of it never happened"
    if before.step:
        earlier = truth.get((*before[:3], before.step - 1))
        if earlier is None or earlier.action != before.echo:
            return "another action led to where it begins"
    elif before.echo != -1:
        return "it begins with an action before the first"
    if [step.action for step in steps] != row["chunk"][:count] or after.echo != steps[-1].action:
        return "other actions were executed"
    if np.float32(sum(step.reward for step in steps)) != np.float32(row["reward"]):
        return "another reward was earned"
    if any(step.terminated or step.truncated for step in steps[:-1]):
        return "it goes on after the end of the episode"
    if (steps[-1].terminated, steps[-1].truncated) != (row["terminated"], row["truncated"]):
        return "the episode ended otherwise"
    return ""
