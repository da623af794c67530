"""A policy that chooses actions and learns nothing, and copies of one that stay as they are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.utils import obs_as_tensor

from plugrl_gym.agents.sb3.policy_spaces import PolicyArray, PolicyObservation
from plugrl_gym.server.agent import Request

__all__ = ["choose", "frozen_copy", "in_groups", "split"]

K = TypeVar("K", bound=Hashable)


def frozen_copy(policy: BasePolicy) -> BasePolicy:
    """A copy of a policy for acting alone; it draws no random number and has no optimizer.

    Args:
        policy: Not written to meanwhile.
    """
    memo: dict[int, Any] = {}
    for module in policy.modules():
        for value in vars(module).values():
            if isinstance(value, torch.optim.Optimizer):
                memo[id(value)] = None
            elif isinstance(value, Distribution):
                # It holds the last batch with its graph, which torch does not copy deeply.
                memo[id(value)] = copy.copy(value)
    twin = copy.deepcopy(policy, memo)
    twin.set_training_mode(False)
    return twin


def choose(
    policy: BasePolicy, observation: PolicyObservation, deterministic: bool = True
) -> PolicyArray:
    """Raw actions [n, *da] for n observations; the most likely ones, or drawn ones."""
    with torch.no_grad():
        chosen = policy._predict(
            obs_as_tensor(observation, policy.device), deterministic=deterministic
        )
    actions: PolicyArray = chosen.cpu().numpy().reshape(-1, *(policy.action_space.shape or ()))
    return actions


def in_groups(
    requests: Sequence[Request],
    key: Callable[[Request], K],
    act: Callable[[K, Sequence[Request]], list[PolicyArray]],
) -> list[PolicyArray]:
    """Answer together those requests that have the same key.

    Args:
        requests: In any order.
        key: Of one request; asked once for each.
        act: Gets a key and the requests that have it, and answers each of them.

    Returns:
        The answers in the order of ``requests``.
    """
    groups: dict[K, list[int]] = {}
    for number, request in enumerate(requests):
        groups.setdefault(key(request), []).append(number)
    answers: dict[int, PolicyArray] = {}
    for kind, numbers in groups.items():
        batch = [requests[number] for number in numbers]
        answers.update(zip(numbers, act(kind, batch), strict=True))
    return [answers[number] for number in range(len(requests))]


def split(actions: PolicyArray, requests: Sequence[Request]) -> list[PolicyArray]:
    """Actions of a whole batch [n, ...] -> those of each of its requests."""
    sizes = [len(request.infer.env_indices) for request in requests]
    return np.split(actions, np.cumsum(sizes)[:-1])
