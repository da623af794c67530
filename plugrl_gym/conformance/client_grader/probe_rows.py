"""One row of a probe client's feedback: which steps of its chunk were run, and what was told of it.

``t`` and ``a`` are two witnesses of the same thing. Where they disagree, the reward is a third.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plugrl_gym.conformance.client_grader.ledger import Held
from plugrl_gym.conformance.client_grader.witness import Witness

__all__ = ["ProbeRow", "Reading", "episode_length", "see_row"]

Array = npt.NDArray[Any]

_GARBLED: Final = ("4.17", "6.4.9")


def episode_length(env: int) -> int:
    """Steps in each episode of a probe env (SPEC 10.2)."""
    return 3 + 2 * (env % 3)


@dataclass
class Reading:
    """How the client reads actions, over all its runs.

    Attributes:
        wrong: It was seen to run another step than the one that was sent in an ordinary action;
            the same mistake is then not taken for one about a special action.
    """

    wrong: bool = False


@dataclass(frozen=True)
class ProbeRow:
    """What is known of one row.

    Attributes:
        index: Its position in the feedback.
        env: Whose it is.
        start: t when the env asked for the chunk.
        t, reward, terminated: As fed back.
        held: The chunk.
        returned: It is the env's first chunk after the client came back.
        a: The state ``a`` of all rows, [m, d].
        reset_first: The env asked with a terminal observation.
    """

    index: int
    env: int
    start: float
    t: float
    reward: float
    terminated: bool
    held: Held
    returned: bool
    a: Array
    reset_first: bool

    @property
    def length(self) -> int:
        """Steps in an episode of this env."""
        return episode_length(self.env)

    @property
    def horizon(self) -> int:
        """H of the chunk."""
        return len(self.held.chunk)

    @property
    def where(self) -> str:
        """For evidence."""
        return f"env {self.env}: t was {self.start:g}, an episode lasts {self.length}"

    @property
    def last(self) -> int | None:
        """Which step of the chunk was applied last, by ``a``; None if that is not plain."""
        steps = self.held.chunk.reshape(self.horizon, -1).astype(np.float64)
        if steps.shape[1:] != self.a.shape[1:]:
            return None
        found = np.flatnonzero((steps == self.a[self.index]).all(axis=1))
        return int(found[0]) if len(found) == 1 else None


def see_row(witness: Witness, row: ProbeRow, reading: Reading) -> int | None:
    """Check one row.

    Returns:
        How many steps were run; None if that is not plain.
    """
    if not (row.t.is_integer() and row.start.is_integer()):
        return None  # 6.2.15 and 10.4 tell of it
    if row.reset_first:
        expected = f"{row.where}; no step that only resets the env"
        witness.see("6.5.15", row.t > row.length, expected, f"t = {row.t:g}")
        return None
    witness.see("6.5.15", True)
    if _went_on(witness, row):
        return None
    if row.t == 0 and (row.start != 0 or row.terminated):
        witness.see("6.5.14", False, f"{row.where}; the terminal observation", "t = 0")
        return None
    if row.terminated:
        witness.see("6.5.14", True)
    count = _count(witness, row)
    if count is None or _is_stale(witness, row, count):
        return None
    if math.isfinite(row.reward):
        expected = f"{row.where}; reward {count}"
        witness.see("6.5.9", row.reward == count, expected, f"{row.reward:g} at t = {row.t:g}")
    _see_action(witness, row, count, reading)
    return count


def _went_on(witness: Witness, row: ProbeRow) -> bool:
    """Whether a chunk was run through the end of its episode (6.4.24)."""
    last = row.last
    # How many steps were run: as a tells, else as the reward does. With t set back on the way,
    # t alone does not show it; in some clients a reset costs a step of its own.
    ran = row.reward if last is None else last + 1
    if not (math.isfinite(ran) and row.start + ran >= row.length):
        return False
    reached = row.start + ran
    after = {reached - row.length, reached - row.length - 1} - {float(row.length)}
    if ran == row.horizon and row.terminated:
        after.add(reached)  # beyond the end, but with no other reason to stop there
    if ran == row.reward:
        after.add(float(row.length))
    through = reached > row.length and row.t in after
    got = f"{ran:g} steps of the chunk were run, t = {row.t:g}"
    witness.see("6.4.24", not through, f"{row.where}; the chunk ends with it", got)
    return through


def _count(witness: Witness, row: ProbeRow) -> int | None:
    """How many steps t tells of, if that is a number of steps that may be run."""
    count = row.t - row.start
    if not witness.see("6.4.22", count != 0, f"{row.where}; at least one step", "none"):
        return None
    expected = f"{row.where}; t {row.start + 1:g} or more"
    if not witness.see("6.5.13", count > 0, expected, f"t = {row.t:g}"):
        return None
    if row.t > row.length:
        witness.see("10.2", False, row.where, f"the episode went on to t = {row.t:g}")
        return None
    expected = f"{row.where}; {row.horizon} steps at most"
    within = witness.see("6.4.23", count <= row.horizon, expected, f"{count:g} steps")
    return int(count) if within else None


def _is_stale(witness: Witness, row: ProbeRow, count: int) -> bool:
    """Whether the observation is not the last one: a and the reward agree on another step."""
    last = row.last
    stale = last is not None and row.reward == last + 1 != count
    expected = f"{row.where}; t = {row.start + row.reward:g} after {row.reward:g} steps"
    witness.see("6.5.13", not stale, expected, f"t = {row.t:g}")
    return stale


def _see_action(witness: Witness, row: ProbeRow, count: int, reading: Reading) -> None:
    """Check that the action applied last is the env's own, of the last step that was run."""
    expected = row.held.chunk[count - 1].ravel().astype(np.float64)
    a = row.a[row.index]
    ok = a.shape == expected.shape and bool((a == expected).all())
    words = f"env {row.env} after {count} steps: a = {expected.tolist()}"
    special = tuple(c for c in row.held.sent.clauses if c != "6.1.6")  # not about its values
    if ok:
        kept = ("6.4.21", "4.9", *_GARBLED, *special, *(("8.41",) if row.returned else ()))
        for clause in kept:
            witness.see(clause, True)
    elif special and not reading.wrong:
        for clause in special:
            witness.see(clause, False, f"{words} ({row.held.sent.words})", a.tolist())
    else:
        blamed = _blame(row, reading)
        for clause in blamed:
            witness.see(clause, False, words, a.tolist())
        reading.wrong = reading.wrong or blamed not in (("4.9",), ("8.41",))


def _blame(row: ProbeRow, reading: Reading) -> tuple[str, ...]:
    """The clauses that a wrong ``a`` speaks of."""
    a = row.a
    columns = row.held.sent.action.reshape(-1, a.shape[1]).astype(np.float64)
    turned = a.reshape(a.shape[::-1]).T
    if min(a.shape) > 1 and any((turned[row.index] == column).all() for column in columns):
        return ("4.9",)
    if row.returned and not reading.wrong and row.last is not None:
        return ("8.41",)
    if any((a[row.index] == column).all() for column in columns):
        return ("6.4.21",)
    return _GARBLED
