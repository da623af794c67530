"""A complete rollout into SB3's own rollout buffer.

In lockstep the buffer has a column for each env, as in SB3's ``collect_rollouts``. Otherwise it
has one column, in which the trajectories lie end to end. Either way the advantages are those of
the buffer's own ``compute_returns_and_advantage``, which never sees two trajectories at once.

Where the policy chooses several env steps at once, a transition of k of them discounts by gamma^k
what comes after it: k differs from row to row, for an episode may end inside a chunk.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from plugrl_gym.agents.sb3.learners.trajectories import Rollout, Steps, Tail, gather
from plugrl_gym.agents.sb3.normalization import policy_input_space
from plugrl_gym.agents.sb3.policy_spaces import PolicyObservation
from plugrl_gym.agents.sb3.settings.limits import check_rollout_buffer

__all__ = ["Critic", "fill_buffer", "make_buffer"]

#: Observation of m rows, and which of them the policy has yet to act on -> their values [m, 1].
Critic: TypeAlias = Callable[[PolicyObservation, npt.NDArray[np.bool_]], torch.Tensor]


def make_buffer(
    model: OnPolicyAlgorithm, steps: int, columns: int, horizon: int = 1
) -> RolloutBuffer:
    """A rollout buffer as the model's own, of ``steps`` x ``columns`` transitions.

    Args:
        model: Whose class of buffer, spaces and discount it gets.
        steps, columns: Its two axes.
        horizon: Above 1 the buffer takes the discount of each transition.

    Raises:
        UsageError: A class of buffer that estimates returns in a way of its own, with a horizon.
    """
    kind = model.rollout_buffer_class
    assert kind is not None
    check_rollout_buffer(kind, horizon)
    return (kind if horizon == 1 else _with_discounts(kind))(
        steps,
        policy_input_space(model),
        model.action_space,
        device=model.device,
        gamma=model.gamma,
        gae_lambda=model.gae_lambda,
        n_envs=columns,
        **model.rollout_buffer_kwargs,
    )


class _Discounts(RolloutBuffer):
    """A rollout buffer in which every transition has a discount of its own.

    GAE's lambda is taken once for each transition, that is for each decision of the policy, not
    for each env step: it weighs how far the estimate leans on values later on, and there is a
    value only where a decision was made.

    Attributes:
        discounts: float64 [steps, columns].
    """

    discounts: npt.NDArray[np.float64]

    def reset(self) -> None:
        super().reset()
        self.discounts = np.full((self.buffer_size, self.n_envs), self.gamma)

    def compute_returns_and_advantage(
        self, last_values: torch.Tensor, dones: npt.NDArray[Any]
    ) -> None:
        ahead = last_values.cpu().numpy().flatten()
        going_on = 1.0 - dones.astype(np.float32)
        advantage = np.zeros(self.n_envs, np.float32)
        for step in reversed(range(self.buffer_size)):
            discount = self.discounts[step] * going_on
            error = self.rewards[step] + discount * ahead - self.values[step]
            advantage = error + discount * self.gae_lambda * advantage
            self.advantages[step] = advantage
            ahead, going_on = self.values[step], 1.0 - self.episode_starts[step]
        self.returns = self.advantages + self.values


@cache
def _with_discounts(kind: type[RolloutBuffer]) -> type[RolloutBuffer]:
    return type(f"{kind.__name__}WithDiscounts", (_Discounts, kind), {})


def fill_buffer(
    model: OnPolicyAlgorithm, rollout: Rollout, columns: int, critic: Critic, horizon: int = 1
) -> npt.NDArray[np.int64]:
    """Put a full rollout into ``model.rollout_buffer``, advantages and returns included.

    Args:
        model: Its buffer is exchanged for one of the right shape where it has another.
        rollout: Full.
        columns: Envs of a client in lockstep.
        critic: The model's values.
        horizon: Env steps in one action of the policy.

    Returns:
        int64 [steps, columns] of the buffer: the version of the policy that chose each action.
    """
    lockstep = rollout.in_lockstep(columns)
    width = columns if lockstep else 1
    if model.rollout_buffer.n_envs != width:
        model.rollout_buffer = make_buffer(model, rollout.size // width, width, horizon)
    if lockstep:
        return _fill_columns(model.rollout_buffer, rollout, critic)
    return _fill_segments(model.rollout_buffer, rollout, critic)


def _fill_columns(buffer: RolloutBuffer, rollout: Rollout, critic: Critic) -> npt.NDArray[np.int64]:
    for part in rollout.parts:
        _add(buffer, part)
    last = rollout.parts[-1]
    tails = [rollout.tails[trajectory] for trajectory in last.trajectory.tolist()]
    values = critic(_observations(tails), ~last.done)
    buffer.compute_returns_and_advantage(last_values=values, dones=last.done)
    return np.stack([part.decision.version for part in rollout.parts])


def _fill_segments(
    buffer: RolloutBuffer, rollout: Rollout, critic: Critic
) -> npt.NDArray[np.int64]:
    steps = Steps.joined(rollout.parts)
    order = np.argsort(steps.trajectory, kind="stable")
    for row in order:
        _add(buffer, steps.select(slice(row, row + 1)))
    trajectories, starts = np.unique(steps.trajectory[order], return_index=True)
    ends = [*starts.tolist()[1:], rollout.size]
    tails = [rollout.tails[trajectory] for trajectory in trajectories.tolist()]
    # Of most of them the policy has chosen the next action already.
    values = critic(_observations(tails), np.zeros(len(tails), np.bool_))
    for number, (start, end) in enumerate(zip(starts.tolist(), ends, strict=True)):
        segment = _view(buffer, start, end)
        segment.compute_returns_and_advantage(
            last_values=values[number : number + 1], dones=np.array([tails[number].done])
        )
        buffer.advantages[start:end] = segment.advantages
        buffer.returns[start:end] = segment.returns
    return steps.decision.version[order][:, None]


def _add(buffer: RolloutBuffer, steps: Steps) -> None:
    decision = steps.decision
    if isinstance(buffer, _Discounts):
        buffer.discounts[buffer.pos] = steps.discount
    buffer.add(
        decision.observation,  # type: ignore[arg-type]  # a dict for a DictRolloutBuffer
        decision.action,
        steps.reward,
        steps.episode_start,
        torch.as_tensor(decision.value),
        torch.as_tensor(decision.log_prob),
    )


def _observations(tails: list[Tail]) -> PolicyObservation:
    """What followed each trajectory; a finished one's value counts for nothing."""
    return gather([(tail.observation, tail.row) for tail in tails])


def _view(buffer: RolloutBuffer, start: int, end: int) -> RolloutBuffer:
    """The transitions of one trajectory as a buffer of their own, sharing memory."""
    view = copy.copy(buffer)
    view.buffer_size = end - start
    names = ["rewards", "values", "episode_starts", "advantages", "returns"]
    names += ["discounts"] if isinstance(buffer, _Discounts) else []
    for name in names:
        setattr(view, name, getattr(buffer, name)[start:end])
    return view
