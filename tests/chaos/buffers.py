"""What Stable-Baselines3 itself holds: each rollout that it trains on, and the replay buffer."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from tests.chaos.envs import read_tag
from tests.chaos.recorder import Recorder

__all__ = ["BufferRecorder"]


class BufferRecorder(BaseCallback):
    """Writes down rollouts when they are complete, and the replay buffer at the end.

    Args:
        recorder: Where to.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if not isinstance(self.model, OffPolicyAlgorithm):
            buffer: Any = self.model.rollout_buffer  # type: ignore[attr-defined]
            self._write(buffer.observations, buffer.actions, buffer.rewards, None)

    def _on_training_end(self) -> None:
        if isinstance(self.model, OffPolicyAlgorithm):
            buffer: Any = self.model.replay_buffer
            size = buffer.size()
            arrays = (buffer.observations, buffer.actions, buffer.rewards, buffer.next_observations)
            self._write(*(array[:size] for array in arrays))

    def _write(self, before: Any, actions: Any, rewards: Any, after: Any) -> None:
        """Rows [size, columns, ...]; ``after`` is None where nothing of the kind is stored."""
        for at in np.ndindex(*rewards.shape):
            row = {
                "stored": list(read_tag(before[at])),
                "action": int(actions[at].reshape(-1)[0]),
                "reward": float(rewards[at]),
                "after": None if after is None else list(read_tag(after[at])),
            }
            self._recorder.write(json.dumps(row))
