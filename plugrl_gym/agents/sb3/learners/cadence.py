"""When an off-policy algorithm updates: SB3's ratio, however raggedly the env steps come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit

__all__ = ["Cadence"]


class Cadence:
    """Counts what the envs ran, and what of it is still to be answered by updates.

    Every ``train_freq`` steps of E envs an update is due, and every E steps a tick, which is one
    ``step`` of a vector env in SB3. What is more than that is carried over.

    Args:
        model: Whose ``train_freq``.
        num_envs: E.
    """

    def __init__(self, model: OffPolicyAlgorithm, num_envs: int) -> None:
        frequency: Any = model.train_freq
        assert isinstance(frequency, TrainFreq)  # SB3 has converted it
        self._num_envs = num_envs
        self._episodic = frequency.unit is TrainFrequencyUnit.EPISODE
        self._every: int = frequency.frequency * (1 if self._episodic else num_envs)
        self._steps = self._episodes = self._since_tick = 0

    def ran(self, steps: int, episodes: int) -> int:
        """Envs ran some steps, and ended some episodes; returns how many ticks that completes."""
        self._steps += steps
        self._episodes += episodes
        ticks, self._since_tick = divmod(self._since_tick + steps, self._num_envs)
        return ticks

    @property
    def due(self) -> int:
        """How many updates are due."""
        return (self._episodes if self._episodic else self._steps) // self._every

    @property
    def beyond(self) -> int:
        """Env steps that were run after those which the next update answers."""
        return 0 if self._episodic else max(self._steps - self._every, 0)

    def take(self) -> int:
        """An update that is due begins; returns the env steps that it answers."""
        steps = self._steps if self._episodic else self._every
        self._steps -= steps
        self._episodes -= self._every if self._episodic else 0
        return steps

    def state(self) -> dict[str, int]:
        """What is not answered yet."""
        return {
            "steps": self._steps,
            "episodes": self._episodes,
            "since_tick": self._since_tick,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self._steps, self._episodes = state["steps"], state["episodes"]
        self._since_tick = state["since_tick"]
