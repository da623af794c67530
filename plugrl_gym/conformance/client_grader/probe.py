"""The probe environment seen from outside: what each feedback says was done with each action.

An observation of a probe env tells how many steps its episode has (``t``) and which action came
last (``a``). The actions that a grader sends are all different, so a feedback shows which steps of
which chunk were run (SPEC 10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plugrl_gym.conformance.client_grader.ledger import Held
from plugrl_gym.conformance.client_grader.messages import FeedbackSeen, InferSeen, ObservationSeen
from plugrl_gym.conformance.client_grader.probe_rows import (
    ProbeRow,
    Reading,
    episode_length,
    see_row,
)
from plugrl_gym.conformance.client_grader.witness import Witness

__all__ = ["MAX_DIM", "ProbeOracle", "pattern"]

Array = npt.NDArray[Any]

#: More numbers than this have no place in the pattern of SPEC 10.9.
MAX_DIM: Final = 10


def pattern(envs: list[int], horizon: int, dim: int, typestr: str) -> Array:
    """The actions for these envs: [H, n, dim] of 10000 k + 10 e + j (SPEC 10.9).

    A type that cannot hold these numbers gets their remainders by a prime that it can hold, so
    that the steps of a chunk still differ.
    """
    steps = np.arange(horizon, dtype=np.int64)[:, None, None]
    rows = np.array(envs, dtype=np.int64)[None, :, None]
    numbers = 10000 * steps + 10 * rows + np.arange(dim, dtype=np.int64)[None, None, :]
    dtype = np.dtype(typestr)
    if dtype.kind == "b":
        numbers = (steps + numbers) % 2
    prime = _LARGEST.get(dtype.str[1:])
    if prime is not None and numbers.max() > prime:
        numbers %= prime
    chunk: Array = numbers.astype(dtype)
    return chunk


_LARGEST: Final = {"u1": 251, "i1": 127, "u2": 65521, "i2": 32749, "f2": 2039}


@dataclass
class _Known:
    """An env when it was last seen, and what it may have done since.

    Attributes:
        t: Of its last observation.
        ended: Whether its episode is over; None where t and the flags disagree.
        steps: At most this many since then, of a chunk that a close swallowed.
        flagged: What the flags said.
        terminal: It asked with a terminal observation.
    """

    t: float
    ended: bool | None = False
    steps: int = 0
    flagged: bool = False
    terminal: bool = False


class ProbeOracle:
    """Checks that a client which runs the probe environment does what it is told.

    Args:
        dim: Numbers in one action.
        reading: How the client reads actions, as far as that is known from other runs.
    """

    def __init__(self, dim: int, reading: Reading) -> None:
        self._dim = dim
        self._reading = reading
        self._known: dict[int, _Known] = {}
        self._acted = False

    # -- infer

    def see_infer(
        self, witness: Witness, infer: InferSeen, first: set[int], declared: bool
    ) -> dict[int, bool]:
        """Check where the envs stand.

        Args:
            witness: Gathers the verdicts.
            infer: The message.
            first: Its envs that had no feedback on this connection.
            declared: The metadata told the number of elements of an action.

        Returns:
            Env -> whether it is at the beginning of an episode.
        """
        self._see_indices(witness, infer.envs)
        fresh: dict[int, bool] = {}
        if not self._see_layout(witness, infer.observation, declared or self._acted):
            return fresh
        times = iter(infer.observation.states["t"][:, 0].tolist())
        for row, env in enumerate(infer.envs):
            if infer.reuse[row]:
                fresh[env] = False
                continue
            t = float(next(times))
            fresh[env] = t == 0
            known = self._known.get(env)
            self._see_start(witness, env, t, env in first)
            if known is not None and known.ended is False and env not in first and t != 0:
                continue  # where it differs, the observation of the feedback is the env's own
            terminal = known is not None and t >= episode_length(env)
            self._known[env] = _Known(t, terminal=terminal)
        return fresh

    @staticmethod
    def _see_indices(witness: Witness, envs: list[int]) -> None:
        witness.see("10.1", max(envs) < 1000, "indices below 1000", envs)

    def _see_layout(
        self, witness: Witness, observation: ObservationSeen, width_known: bool = True
    ) -> bool:
        exact = not observation.images and sorted(observation.states) == ["a", "t"]
        exact = exact and not any(observation.text)
        got = [sorted(observation.images), sorted(observation.states), list(observation.text)]
        witness.see("10.3", exact, "states t and a, no images, no text", got)
        if not {"a", "t"} <= set(observation.states):
            return False
        t, a = observation.states["t"], observation.states["a"]
        ok = witness.see("10.4", _is_double(t, 1), "t: float64 [n, 1]", _words(t))
        whole = not np.isfinite(t).all() or bool((t == np.trunc(t)).all() and (t >= 0).all())
        witness.see("10.4", whole, "t: whole numbers of steps", t)
        fits = _is_double(a, self._dim if width_known else a.shape[1])
        witness.see("10.5", fits, f"a: float64 [n, {self._dim}]", _words(a))
        return ok and fits

    def _see_start(self, witness: Witness, env: int, t: float, first: bool) -> None:
        """Check an infer's t against all that the env can have done since it was last seen."""
        known, length = self._known.get(env), episode_length(env)
        if not t.is_integer():
            return  # 6.2.15 or 10.4 tells of it
        if known is None:
            witness.see("10.4", t == 0, f"env {env}: t = 0 before its first action", t)
        elif known.ended is None:
            self._see_doubt(witness, env, t, known)
        elif known.ended:
            witness.see("8.44", t == 0, f"env {env}: t = 0, its episode ended", t)
        elif not first:
            # 5.25 compares the observations; a t of 0 tells why they differ.
            reset = t == 0 and known.t != 0
            witness.see("8.37", not reset, f"env {env}: t = {known.t:g}, in mid-episode", t)
        else:
            self._see_return(witness, env, t, known)
            if known.t + known.steps >= length:
                # The episode may have ended in the chunk that the close swallowed.
                expected = f"env {env}: t below {length}, or 0 where the episode ended"
                witness.see("8.44", t < length, expected, t)

    def _see_doubt(self, witness: Witness, env: int, t: float, known: _Known) -> None:
        """The flags of its last feedback were wrong, or its episode had another length."""
        flags = t == 0 if not known.flagged else t != 0
        got = f"terminated {known.flagged} at t = {known.t:g}, then t = {t:g}"
        clause = "6.5.12" if flags else "10.2"
        witness.see(clause, False, f"env {env}: {episode_length(env)} steps in an episode", got)

    def _see_return(self, witness: Witness, env: int, t: float, known: _Known) -> None:
        """Check the t of an env that comes back in mid-episode after a close."""
        most = known.t + known.steps
        if t == 0 and known.t > 0:
            ended = most >= episode_length(env)
            witness.see("8.43", ended, f"env {env}: goes on at t = {known.t:g}", "t = 0: a reset")
            return
        expected = f"env {env}: t from {known.t:g} to {most:g}"
        witness.see("8.43", known.t <= t, expected, t)
        witness.see("8.41", t <= most, expected, t)

    # -- feedback

    def see_feedback(
        self, witness: Witness, feedback: FeedbackSeen, holding: dict[int, Held], later: bool
    ) -> tuple[list[int] | None, list[bool | None]]:
        """Check what was run.

        Args:
            witness: Gathers the verdicts.
            feedback: The message.
            holding: The chunks that the envs hold.
            later: The connection is not the client's first.

        Returns:
            Steps run in each row, None unless all are plain; and for each row whether its episode
            is over, None where t and the flags disagree.
        """
        self._see_indices(witness, feedback.envs)
        got = [env for env, flag in zip(feedback.envs, feedback.truncated, strict=True) if flag]
        witness.see("10.8", not got, "truncated false", f"true for {got[:8]}")
        ended: list[bool | None] = [feedback.ended(row) for row in range(len(feedback.envs))]
        if not self._see_layout(witness, feedback.observation):
            return None, ended
        self._acted = True
        steps: list[int] = []
        for index, env in enumerate(feedback.envs):
            held = holding.get(env)
            if held is None:
                continue
            row = self._row(index, feedback, held, later and held.first)
            count = see_row(witness, row, self._reading)
            if count is not None:
                steps.append(count)
                ended[index] = self._see_flags(witness, row, feedback.ended(index))
            self._known[env] = _Known(row.t, ended[index], flagged=row.terminated)
        return steps if len(steps) == len(feedback.envs) else None, ended

    def _row(self, index: int, feedback: FeedbackSeen, held: Held, returned: bool) -> ProbeRow:
        env, states = feedback.envs[index], feedback.observation.states
        known = self._known.get(env, _Known(0.0))
        return ProbeRow(
            index,
            env,
            known.t,
            float(states["t"][index, 0]),
            float(feedback.rewards[index]),
            feedback.terminated[index],
            held,
            returned,
            states["a"],
            known.terminal,
        )

    def _see_flags(self, witness: Witness, row: ProbeRow, flagged: bool) -> bool | None:
        """Check the flags of a row; returns whether its episode is over, None if in doubt."""
        due = row.t == row.length
        got = f"terminated {row.terminated} at t = {row.t:g}"
        witness.see("10.7", row.terminated == due, f"{row.where}; terminated {due}", got)
        if flagged != due or row.terminated != due:
            return None  # the env's next infer tells whether the flags or the length were wrong
        witness.see("6.5.12", True)
        if due:
            witness.see("10.2", True)
        return due

    def see_episodes(
        self, witness: Witness, feedback: FeedbackSeen, ended: list[bool | None]
    ) -> None:
        """Check the statistics of finished episodes: a probe episode returns its length."""
        episode: Any = feedback.message["data"]["info"]
        episode = episode.get("episode") if isinstance(episode, dict) else None
        if not isinstance(episode, dict) or witness.broken("6.5.21", "6.5.22"):
            return
        for row, env in enumerate(feedback.envs):
            length = episode_length(env)
            known = self._known.get(env)
            if ended[row] and known is not None and known.t == length:
                got = [float(episode[key][row]) for key in ("r", "l")]
                expected = f"env {env}: r = {length} and l = {length}"
                witness.see("6.5.21", got == [length, length], expected, got)

    # -- close

    def close(self, holding: dict[int, Held]) -> None:
        """The connection ended: what is held may have been run, or not."""
        for env, held in holding.items():
            if env in self._known:
                self._known[env].steps = len(held.chunk)

    def near_end(self, holding: dict[int, Held]) -> bool:
        """Whether an episode can end within the chunks that are held."""
        return any(
            self._known[env].t + len(held.chunk) >= episode_length(env)
            for env, held in holding.items()
            if env in self._known
        )

    def mid_episode(self, holding: dict[int, Held]) -> bool:
        """Whether an env that holds no action is in the middle of an episode."""
        return any(
            known.t > 0 and known.ended is False
            for env, known in self._known.items()
            if env not in holding
        )


def _is_double(array: Array, width: int) -> bool:
    return array.dtype.str[1:] == "f8" and array.shape[1] == width


def _words(array: Array) -> str:
    return f"{array.dtype.name} {list(array.shape)}"
