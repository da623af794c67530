"""What messages mean together: who holds an action, who may reuse what, which step id is due.

:class:`History` lives as long as the client does, :class:`Ledger` as long as a connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from plugrl_gym.conformance.client_grader.messages import FeedbackSeen, InferSeen, ObservationSeen
from plugrl_gym.conformance.client_grader.witness import Witness

__all__ = ["Held", "History", "Ledger", "SentAction"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class SentAction:
    """One answer of the grader.

    Attributes:
        envs: In the order of the infer.
        action: [H, n, *da], as it was sent.
        clauses: What a client keeps that can read this answer; empty for an ordinary one.
        words: What was sent, for evidence.
    """

    envs: list[int]
    action: Array
    clauses: tuple[str, ...]
    words: str


@dataclass(frozen=True)
class Held:
    """An env's chunk, from the action until the feedback.

    Attributes:
        chunk: [H, *da].
        sent: The answer that it came with.
        row: Its row there.
        step_id: As the infer had it.
        first: Whether it is the env's first chunk on its connection.
    """

    chunk: Array
    sent: SentAction
    row: int
    step_id: int
    first: bool


@dataclass
class _Past:
    """One env over all connections: chunks completed in its episode, and what is open."""

    count: int = 0
    ended: bool = False
    swallowed: bool = False


@dataclass
class History:
    """What is known of a client's envs over all its connections."""

    envs: dict[int, _Past] = field(default_factory=dict)


@dataclass
class _Last:
    """An env's last feedback on this connection."""

    observation: ObservationSeen
    row: int
    ended: bool | None  # None where the probe's t and the flags disagree


class Ledger:
    """One connection's account.

    Args:
        history: The client's.

    Attributes:
        holding: Env -> the chunk that it holds.
        infers: How many came.
        named: Every env that was named.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._last: dict[int, _Last] = {}
        self.holding: dict[int, Held] = {}
        self.infers = 0
        self.named: set[int] = set()

    # -- infer

    def see_free(self, witness: Witness, infer: InferSeen) -> bool:
        """Check that no env of an infer holds an action; otherwise nothing adds up any more."""
        held = [env for env in infer.envs if env in self.holding]
        return witness.see("5.22", not held, "no env that holds an action", f"{held[:16]} do")

    def see_infer(self, witness: Witness, infer: InferSeen, restarted: dict[int, bool]) -> None:
        """Check an infer against what went before.

        Args:
            witness: Gathers the verdicts.
            infer: The message.
            restarted: Env -> whether its observation is the first of an episode, where the
                probe's ``t`` tells.
        """
        self.infers += 1
        sent_rows = iter(range(len(infer.envs)))
        for row, env in enumerate(infer.envs):
            source = None if infer.reuse[row] else next(sent_rows)
            self._see_observation(witness, env, infer.observation, source)
            self._see_step_id(witness, env, infer.step_ids[row], restarted.get(env))
        if any(infer.reuse):
            self._see_merge(witness, infer)
        self.named.update(infer.envs)

    def _see_observation(
        self, witness: Witness, env: int, sent: ObservationSeen, row: int | None
    ) -> None:
        last = self._last.get(env)
        if row is None:
            known = witness.see("9.2.5", last is not None, f"env {env}: a feedback first", "none")
            if known and last is not None and last.ended is not None:
                got = "its last feedback ended the episode"
                witness.see("9.2.6", not last.ended, f"env {env}: not reused", got)
        elif last is not None and last.ended is False:
            before, now = last.observation.row(last.row), sent.row(row)
            ok = _same(before, now)
            witness.see("5.25", ok, f"env {env} as in its feedback: {_words(before)}", _words(now))

    def _see_step_id(
        self, witness: Witness, env: int, step_id: int, restarted: bool | None
    ) -> None:
        past = self._history.envs.setdefault(env, _Past())
        last = self._last.get(env)
        if last is not None and last.ended is None:
            past.count, past.ended = step_id, False
            return
        allowed = self._step_ids(env, past, restarted)
        expected = " or ".join(str(number) for number in sorted(allowed))
        witness.see("6.3.5", step_id in allowed, f"env {env}: step id {expected}", step_id)
        past.count, past.ended, past.swallowed = step_id, False, False

    def _step_ids(self, env: int, past: _Past, restarted: bool | None) -> set[int]:
        """Every step id that the env's infer may have."""
        if past.ended:
            return {0}
        if env in self._last:
            return {past.count, 0} if restarted else {past.count}
        if restarted:
            return {0}
        # Whether a chunk that a close swallowed counts as completed is the client's affair, and
        # without the probe's t nobody knows whether the episode ended meanwhile.
        swallowed = {past.count + 1} if past.swallowed else set()
        return {past.count} | swallowed | ({0} if restarted is None else set())

    def _see_merge(self, witness: Witness, infer: InferSeen) -> None:
        """Whether rows that are remembered and rows that are sent fit together (9.2.8)."""
        reused = [env for env, flag in zip(infer.envs, infer.reuse, strict=True) if flag]
        layouts = [self._last[e].observation.layout() for e in reused if e in self._last]
        if not all(infer.reuse):
            layouts.append(infer.observation.layout())
        alike = all(layout == layouts[0] for layout in layouts)
        witness.see("9.2.8", alike, "rows of one layout", layouts[:4])

    def unheard(self, envs: list[int]) -> set[int]:
        """Those of the envs that had no feedback on this connection."""
        return {env for env in envs if env not in self._last}

    # -- action

    def give(self, infer: InferSeen, sent: SentAction) -> None:
        """Record that an answer went out."""
        for row, env in enumerate(infer.envs):
            self.holding[env] = Held(
                sent.action[:, row], sent, row, infer.step_ids[row], first=env not in self._last
            )

    # -- feedback

    def see_feedback(self, witness: Witness, feedback: FeedbackSeen, former: bool) -> None:
        """Check a feedback against what is held; ``former``: earlier connections gave actions."""
        for row, env in enumerate(feedback.envs):
            held = self.holding.get(env)
            expected = f"only envs that hold an action: {sorted(self.holding)[:16]}"
            witness.see("5.21", held is not None, expected, feedback.envs)
            if held is None:
                before = former and self._history.envs.get(env, _Past()).swallowed
                if before:
                    expected = f"env {env}: an action of this connection first"
                    witness.see("8.40", False, expected, "feedback for an earlier one")
                continue
            step_id = feedback.step_ids[row]
            witness.see("6.5.4", step_id == held.step_id, f"step id {held.step_id}", step_id)

    def settle(self, feedback: FeedbackSeen, ended: list[bool | None]) -> None:
        """Take over what a feedback reports; ``ended`` as its flags say, or as is known better."""
        for row, env in enumerate(feedback.envs):
            if self.holding.pop(env, None) is None:
                continue
            past = self._history.envs.setdefault(env, _Past())
            past.ended = bool(ended[row])
            past.count = 0 if past.ended else past.count + 1
            self._last[env] = _Last(feedback.observation, row, ended[row])
        self.named.update(feedback.envs)

    # -- close

    def close(self) -> None:
        """The connection ended: what is held is swallowed (SPEC 8.38)."""
        for env in self.holding:
            self._history.envs.setdefault(env, _Past()).swallowed = True


def _same(before: dict[str, Any], now: dict[str, Any]) -> bool:
    return before.keys() == now.keys() and all(
        np.array_equal(np.asarray(before[name]), np.asarray(now[name])) for name in before
    )


def _words(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "text" or value}
