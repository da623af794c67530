"""What one step of a vector env comes to, gathered row by row (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from plugrl_gym.broker import trees
from plugrl_gym.broker.batch import Batch
from plugrl_gym.broker.info import join_info, split_info
from plugrl_gym.spaces.observations import select_row

__all__ = ["StepRecord"]


class StepRecord:
    """One step of n envs, under way.

    Args:
        space: Of a single env's observation.
        shown: What the envs showed before, n rows.
        num_envs: n.

    Attributes:
        observation: n rows: what an env shows now, or showed last.
        terminated, truncated: bool [n].
        disconnected: bool [n], rows that no env made.
        done: Envs that have their row.
        asking: Those of them that wait for their next action.
    """

    def __init__(self, space: spaces.Space[Any], shown: Any, num_envs: int) -> None:
        self.observation = shown
        self.reward = np.zeros(num_envs, np.float64)
        self.terminated, self.truncated, self.disconnected = np.zeros((3, num_envs), np.bool_)
        self.done: set[int] = set()
        self.asking: set[int] = set()
        self._space = space
        self._before = shown
        self._infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]

    @property
    def ended(self) -> Any:
        """bool [n]: whether the episode is over."""
        return self.terminated | self.truncated

    def enter(self, batch: Batch, rows: Mapping[int, int]) -> None:
        """Take rows of a batch.

        Args:
            batch: What was collected.
            rows: Env -> its row.
        """
        if list(rows) == list(range(len(self.reward))) == list(rows.values()):
            self.observation = batch.observation  # all of them, in order: nothing is copied
        elif rows:
            shown = trees.take(self._space, batch.observation, list(rows.values()))
            self.show(list(rows), shown)
        infos = split_info(batch.info, len(batch)) if batch.info else None
        for env, row in rows.items():
            if batch.waiting[row]:
                self.asking.add(env)
            if batch.first[row]:
                self.lose(env)
                continue
            self.done.add(env)
            self.reward[env] = batch.reward[row]
            self.terminated[env] = batch.terminated[row]
            self.truncated[env] = batch.truncated[row]
            self._infos[env] = {} if infos is None else infos[row]
            if not batch.waiting[row] and not self.ended[env]:
                self.truncated[env] = True
                self._infos[env]["final_obs"] = select_row(self._space, batch.observation, row)

    def lose(self, env: int) -> None:
        """The step of ``env`` is lost, or there was none: its row is cut off where it was."""
        self.done.add(env)
        self.truncated[env] = self.disconnected[env] = True
        self._infos[env] = {"final_obs": select_row(self._space, self._before, env)}

    def show(self, envs: Sequence[int], shown: Any) -> None:
        """``envs`` show something else, a row for each."""
        self.observation = trees.put(self._space, self.observation, envs, shown)

    def handed_out(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Observation, reward, terminated, truncated and info, as SAME_STEP has it.

        What is told of an episode's last step is in ``final_info``; it would be that of the next
        episode's reset otherwise.
        """
        ended = self.ended
        final: list[dict[str, Any]] = [{} for _ in self._infos]
        for env in np.flatnonzero(ended).tolist():
            final[env] = self._infos[env]
            self._infos[env] = {"final_obs": final[env].pop("final_obs")}
        info = join_info(self._infos)
        if ended.any():
            info.update(final_info=join_info(final), _final_info=ended)
        info["disconnected"] = self.disconnected
        shown = trees.copy(self._space, self.observation)
        return shown, self.reward, self.terminated, self.truncated, info
