"""Which env runs which chunk, what it earned, and whose turn it is on the wire (pure).

An env is in one of three phases. READY: it needs a chunk before the next step. RUNNING: it has
steps of a chunk left. RESETTING: the next step is not its own (NEXT_STEP's ignored step, or an
env that masks itself). The rows of a finished chunk are held until their env is READY, so that
the envs of a feedback are those of the next infer; that makes every exchange alternate, as
SPEC 5 demands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plugrl_gym.client.info import InfoRow
from plugrl_gym.client.rows import Rows
from plugrl_gym.protocol import Observation

__all__ = ["READY", "RESETTING", "RUNNING", "Chunks", "Open", "StepRecord"]


# Plain numbers, for they are compared in every step.
READY: Final = 0
RUNNING: Final = 1
RESETTING: Final = 2


@dataclass(frozen=True, slots=True)
class Open:
    """What a broken connection would cost: nothing of it would ever be sent.

    Attributes:
        chunks: Chunks that were received and not fed back.
        steps: Env steps run for these chunks.
    """

    chunks: int
    steps: int


@dataclass(frozen=True, slots=True, eq=False)
class StepRecord:
    """One step of the wrapped env, in the terms of the bookkeeping; n envs.

    Attributes:
        rewards: float64 [n].
        terminated, truncated: bool [n]; false where the step was not the env's own.
        observation: n rows: the terminal observation where an episode ended, else the current.
        actions: [n, *da], executed.
        resetting: bool [n]: the next step is not this env's own.
        returns, lengths: float64 and int64 [n]: of the episode that ended, zero elsewhere.
        success: float64 [n], NaN where not known.
        info: n maps of values to forward.
    """

    rewards: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    observation: Observation
    actions: npt.NDArray[Any]
    resetting: npt.NDArray[np.bool_]
    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    success: npt.NDArray[np.float64]
    info: list[InfoRow]


class Chunks:
    """The bookkeeping of one vector env over one connection after another.

    Args:
        num_envs: n.
        action_shape: da.
        action_dtype: The action space's dtype.

    Attributes:
        phase: int8 [n], READY, RUNNING or RESETTING.
        step_ids: int64 [n], completed chunks in the current episode.
        acting: A feedback must be sent before the next infer (SPEC 5, state acting).
    """

    def __init__(
        self, num_envs: int, action_shape: tuple[int, ...], action_dtype: np.dtype[Any]
    ) -> None:
        self.phase = np.full(num_envs, READY, dtype=np.int8)
        self.step_ids = np.zeros(num_envs, dtype=np.int64)
        self.acting = False
        self._all = np.arange(num_envs)
        self._plan = np.zeros((1, num_envs, *action_shape), action_dtype)
        self._actions = self._plan.copy()
        self._rewards = np.zeros((1, num_envs))
        self._clipped = np.zeros((1, num_envs), dtype=np.bool_)
        self._length = np.zeros(num_envs, dtype=np.int64)
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._overridden = np.zeros(num_envs, dtype=np.bool_)
        self._held: list[Rows] = []

    @property
    def ready(self) -> npt.NDArray[np.int64]:
        """Envs that need an action before the next step."""
        return np.flatnonzero(self.phase == READY)

    @property
    def askable(self) -> npt.NDArray[np.int64]:
        """READY envs whose last chunk has been fed back; the others' rows must go first.

        An env that the caller resets while its row is held is READY and not askable (SPEC 5.22).
        """
        ready = self.ready
        if not self._held:
            return ready
        waiting = np.concatenate([piece.envs for piece in self._held])
        return ready[~np.isin(ready, waiting)]

    @property
    def running(self) -> npt.NDArray[np.bool_]:
        """bool [n]: the next step of the env is one of its chunk's."""
        mask: npt.NDArray[np.bool_] = self.phase == RUNNING
        return mask

    def assign(
        self,
        envs: npt.NDArray[np.int64],
        chunk: npt.NDArray[Any],
        clipped: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Take the answer to an infer.

        Args:
            envs: int64 [m].
            chunk: [H, m, *da].
            clipped: bool [H, m], the steps that are not what the server sent; None for none.
        """
        horizon = len(chunk)
        if horizon > len(self._plan):
            self._grow(horizon)
        self._plan[:horizon, envs] = chunk
        self._clipped[:horizon, envs] = False if clipped is None else clipped
        self._length[envs] = horizon
        self._steps[envs] = 0
        self._rewards[:, envs] = 0.0
        self._overridden[envs] = False
        self.phase[envs] = RUNNING
        self.acting = True

    def _grow(self, horizon: int) -> None:
        for name in ("_plan", "_actions", "_rewards", "_clipped"):
            old = getattr(self, name)
            new = np.zeros((horizon, *old.shape[1:]), old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def next_actions(self, placeholder: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[n, *da]: the step that each RUNNING env is at; ``placeholder`` [n, *da] elsewhere."""
        steps = np.minimum(self._steps, self._length - 1)
        actions: npt.NDArray[Any] = self._plan[steps, self._all]
        idle = ~self.running
        if idle.any():
            actions[idle] = placeholder[idle]
        return actions

    def record(self, step: StepRecord, overridden: npt.NDArray[np.bool_]) -> int:
        """Enter one step of the wrapped env.

        Args:
            step: What it gave.
            overridden: bool [n]: the caller's action differed from the server's.

        Returns:
            How many envs ran another action than the one that the server sent, for whatever reason.
        """
        ran = self.running
        at = self._steps[ran]
        self._rewards[at, ran] = step.rewards[ran]
        self._actions[at, ran] = step.actions[ran]
        overridden = overridden & ran
        overridden[ran] |= self._clipped[at, ran]
        self._overridden |= overridden
        self._steps[ran] += 1
        ended = (step.terminated | step.truncated) & ran
        finished = ran & (ended | (self._steps == self._length))
        self.phase[finished] = READY
        self.phase[self.phase == RESETTING] = READY
        # Only an env that is between episodes can be resetting; a running chunk goes on.
        self.phase[step.resetting & (self.phase == READY)] = RESETTING
        if finished.any():
            self._hold(np.flatnonzero(finished), step, ended)
        return int(np.count_nonzero(overridden))

    def _hold(
        self, envs: npt.NDArray[np.int64], step: StepRecord, ended: npt.NDArray[np.bool_]
    ) -> None:
        over = ended[envs]
        rows = replace(
            self._rows(envs, step.observation),
            terminated=step.terminated[envs],
            truncated=step.truncated[envs],
            returns=np.where(over, step.returns[envs], 0.0),
            lengths=np.where(over, step.lengths[envs], 0),
            success=step.success[envs],
            info=[step.info[env] for env in envs.tolist()],
        )
        self.step_ids[envs] = np.where(over, 0, self.step_ids[envs] + 1)
        self._held.append(rows)

    def _rows(self, envs: npt.NDArray[np.int64], observation: Observation) -> Rows:
        longest = int(self._steps[envs].max())
        beyond = np.arange(longest)[:, None] >= self._steps[envs][None, :]
        actions = self._actions[:longest, envs]
        actions[beyond] = 0
        step_rewards = self._rewards[:longest, envs]
        step_rewards[beyond] = 0.0
        none = np.zeros(len(envs), dtype=np.bool_)
        return Rows(
            envs=envs,
            step_ids=self.step_ids[envs],
            observation=observation if len(envs) == observation.rows else observation.select(envs),
            rewards=step_rewards.sum(axis=0),
            terminated=none,
            truncated=none,
            steps=self._steps[envs],
            step_rewards=step_rewards,
            actions=actions,
            overridden=self._overridden[envs],
            returns=np.zeros(len(envs)),
            lengths=np.zeros(len(envs), dtype=np.int64),
            success=np.full(len(envs), np.nan),
            info=[{}] * len(envs),
        )

    def release(self) -> Rows | None:
        """The rows to feed back at the end of this step; None where nothing is due yet.

        Rows whose env is READY are due. Rows of RESETTING envs go too where no env runs a chunk
        and none is READY: nothing could follow before their reset, and the server's feedback
        timeout must not run out while the caller pauses.
        """
        if not self.acting or not self._held:
            return None
        due: list[Rows] = []
        kept: list[Rows] = []
        for piece in self._held:
            ready = self.phase[piece.envs] == READY
            if ready.all():
                due.append(piece)
            elif not ready.any():
                kept.append(piece)
            else:
                due.append(piece.select(ready))
                kept.append(piece.select(~ready))
        if not due:
            if (self.phase != RESETTING).any():
                return None
            due, kept = kept, []
        self._held = kept
        self.acting = False
        return Rows.join(due)

    def settle(self, current: Observation) -> Rows | None:
        """The rows that may be fed back now so that an infer may follow.

        Called where an infer is due but a feedback must come first: held rows, else one running
        chunk cut short (a legal re-plan, SPEC 6.4), the one with the fewest steps left.

        Args:
            current: n rows, each env's current observation.

        Returns:
            None where no chunk has run a step: only a new connection helps.
        """
        if self._held:
            due, self._held = self._held, []
            self.acting = False
            return Rows.join(due)
        started = self.running & (self._steps > 0)
        if not started.any():
            return None
        left = np.where(started, self._length - self._steps, np.iinfo(np.int64).max)
        return self.cut(np.array([int(left.argmin())]), current)

    def cut(self, envs: npt.NDArray[np.int64], current: Observation) -> Rows:
        """End the running chunks of ``envs`` after the steps that they have run."""
        rows = self._rows(envs, current)
        self.step_ids[envs] += 1
        self.phase[envs] = READY
        self.acting = False
        return rows

    def flush(self, current: Observation) -> Rows | None:
        """All that can legally be fed back before a close: held rows and chunks begun."""
        if not self.acting:
            return None
        pieces, self._held = self._held, []
        begun = np.flatnonzero(self.running & (self._steps > 0))
        if len(begun):
            pieces = [*pieces, self.cut(begun, current)]
        self.acting = False
        return Rows.join(pieces) if pieces else None

    def take_held(self) -> Rows | None:
        """Held rows only; running chunks are left as they are."""
        if not self.acting or not self._held:
            return None
        pieces, self._held = self._held, []
        self.acting = False
        return Rows.join(pieces)

    def open(self) -> Open:
        """Chunks that run, and rows that are held."""
        running = self.running
        held_steps = sum(int(piece.steps.sum()) for piece in self._held)
        return Open(
            chunks=int(running.sum()) + sum(len(piece) for piece in self._held),
            steps=int(self._steps[running].sum()) + held_steps,
        )

    def drop(self) -> Open:
        """The connection is gone: forget held rows and un-run steps (SPEC 8)."""
        dropped = self.open()
        self.phase[self.running] = READY
        self._held = []
        self.acting = False
        return dropped

    def reset(self, envs: npt.NDArray[np.bool_]) -> None:
        """Envs ``envs`` bool [n] were reset by the caller; none of them runs a chunk."""
        self.phase[envs] = READY
        self.step_ids[envs] = 0
