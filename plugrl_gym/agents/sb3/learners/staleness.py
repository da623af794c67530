"""Transitions whose action a policy chose that is older than the one that learns from them.

While a rollout is learned from, other envs may run chunks that the policy before chose. On-policy
algorithms learn from their own actions only, so there is a rule for these:

- A transition that is at most ``max_policy_lag`` updates old (default: 1) is kept, with the
  log-probability and the value that the policy had which chose it. PPO and TRPO weigh every
  transition by the ratio of the new probability to that one, so it counts for what it is worth.
  A2C weighs nothing, so its advantage is multiplied by that ratio, up to :data:`LARGEST_RATIO`.
- An older one is left out, and its trajectory is cut there: nothing is estimated across the gap.

In lockstep there are none. Leaving out all of them would not do: the last transition of an episode
tends to come late, for with NEXT_STEP resets it is fed back one step after the others.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3 import A2C
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

__all__ = ["LARGEST_RATIO", "weigh"]

#: So that no single transition outweighs the others.
LARGEST_RATIO: Final = 2.0


def weigh(model: OnPolicyAlgorithm, stale: npt.NDArray[np.bool_]) -> None:
    """Multiply advantages by how much likelier the actions have become, where SB3 does not.

    Args:
        model: Its rollout buffer is full and was not sampled from yet.
        stale: bool [steps, columns] of the buffer.
    """
    if not (isinstance(model, A2C) and stale.any()):
        return
    buffer = model.rollout_buffer
    actions = torch.as_tensor(buffer.actions[stale], device=model.device)
    if isinstance(model.action_space, spaces.Discrete):
        actions = actions.long().flatten()
    with torch.no_grad():
        _, now, _ = model.policy.evaluate_actions(_observations(model, buffer, stale), actions)
    ratio = np.exp(now.cpu().numpy() - buffer.log_probs[stale])
    buffer.advantages[stale] *= np.minimum(ratio, LARGEST_RATIO)


def _observations(
    model: OnPolicyAlgorithm, buffer: RolloutBuffer, rows: npt.NDArray[np.bool_]
) -> torch.Tensor:
    seen = buffer.observations
    if isinstance(seen, dict):  # of a DictRolloutBuffer
        chosen = {key: part[rows] for key, part in seen.items()}
        return obs_as_tensor(chosen, model.device)  # type: ignore[return-value]
    return obs_as_tensor(seen[rows], model.device)  # type: ignore[return-value]
