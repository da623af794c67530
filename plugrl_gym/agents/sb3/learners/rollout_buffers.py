"""A complete rollout into SB3's own rollout buffer.

In lockstep the buffer has a column for each env, as in SB3's ``collect_rollouts``. Otherwise it
has one column, in which the trajectories lie end to end. Either way the advantages are those of
the buffer's own ``compute_returns_and_advantage``, which never sees two trajectories at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from plugrl_gym.agents.sb3.learners.trajectories import Rollout, Steps, Tail, gather
from plugrl_gym.agents.sb3.policy_spaces import PolicyObservation

__all__ = ["fill_buffer", "make_buffer"]

#: Observation of m rows -> their values [m, 1].
Critic = Callable[[PolicyObservation], torch.Tensor]


def make_buffer(model: OnPolicyAlgorithm, steps: int, columns: int) -> RolloutBuffer:
    """A rollout buffer as the model's own, of ``steps`` x ``columns`` transitions."""
    assert model.rollout_buffer_class is not None
    return model.rollout_buffer_class(
        steps,
        model.observation_space,
        model.action_space,
        device=model.device,
        gamma=model.gamma,
        gae_lambda=model.gae_lambda,
        n_envs=columns,
        **model.rollout_buffer_kwargs,
    )


def fill_buffer(model: OnPolicyAlgorithm, rollout: Rollout, columns: int, critic: Critic) -> None:
    """Put a full rollout into ``model.rollout_buffer``, advantages and returns included.

    Args:
        model: Its buffer is exchanged for one of the right shape where it has another.
        rollout: Full.
        columns: Envs of a client in lockstep.
        critic: The model's values.
    """
    lockstep = rollout.in_lockstep(columns)
    width = columns if lockstep else 1
    if model.rollout_buffer.n_envs != width:
        model.rollout_buffer = make_buffer(model, rollout.size // width, width)
    if lockstep:
        _fill_columns(model.rollout_buffer, rollout, critic)
    else:
        _fill_segments(model.rollout_buffer, rollout, critic)


def _fill_columns(buffer: RolloutBuffer, rollout: Rollout, critic: Critic) -> None:
    for part in rollout.parts:
        _add(buffer, part)
    last = rollout.parts[-1]
    tails = [rollout.tails[trajectory] for trajectory in last.trajectory.tolist()]
    buffer.compute_returns_and_advantage(last_values=_values(tails, critic), dones=last.done)


def _fill_segments(buffer: RolloutBuffer, rollout: Rollout, critic: Critic) -> None:
    steps = Steps.joined(rollout.parts)
    order = np.argsort(steps.trajectory, kind="stable")
    for row in order:
        _add(buffer, steps.select(slice(row, row + 1)))
    trajectories, starts = np.unique(steps.trajectory[order], return_index=True)
    ends = [*starts.tolist()[1:], rollout.size]
    tails = [rollout.tails[trajectory] for trajectory in trajectories.tolist()]
    values = _values(tails, critic)
    for number, (start, end) in enumerate(zip(starts.tolist(), ends, strict=True)):
        segment = _view(buffer, start, end)
        segment.compute_returns_and_advantage(
            last_values=values[number : number + 1], dones=np.array([tails[number].done])
        )
        buffer.advantages[start:end] = segment.advantages
        buffer.returns[start:end] = segment.returns


def _add(buffer: RolloutBuffer, steps: Steps) -> None:
    decision = steps.decision
    buffer.add(
        decision.observation,  # type: ignore[arg-type]  # a dict for a DictRolloutBuffer
        decision.action,
        steps.reward,
        steps.episode_start,
        torch.as_tensor(decision.value),
        torch.as_tensor(decision.log_prob),
    )


def _values(tails: list[Tail], critic: Critic) -> torch.Tensor:
    """What followed each trajectory, valued in one pass; a finished one's counts for nothing."""
    return critic(gather([(tail.observation, tail.row) for tail in tails]))


def _view(buffer: RolloutBuffer, start: int, end: int) -> RolloutBuffer:
    """The transitions of one trajectory as a buffer of their own, sharing memory."""
    view = copy.copy(buffer)
    view.buffer_size = end - start
    for name in ("rewards", "values", "episode_starts", "advantages", "returns"):
        setattr(view, name, getattr(buffer, name)[start:end])
    return view
