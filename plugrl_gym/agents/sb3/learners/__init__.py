"""SB3's learning loops turned inside out: fed by clients, step by step."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from plugrl_gym.agents.sb3.learners.asynchronous import AsyncOffPolicyLearner
from plugrl_gym.agents.sb3.learners.learner import Learner, RunPlan
from plugrl_gym.agents.sb3.learners.off_policy import OffPolicyLearner
from plugrl_gym.agents.sb3.learners.on_policy import OnPolicyLearner

__all__ = ["Learner", "RunPlan", "make_learner"]


def make_learner(
    model: BaseAlgorithm, plan: RunPlan, asynchronous: bool = False
) -> Learner[Any, Any]:
    """The learner that does what ``model.learn()`` does in one process.

    Args:
        model: Built, not yet trained.
        plan: Of the run.
        asynchronous: Let it act while it learns; only off-policy algorithms can.
    """
    if isinstance(model, OffPolicyAlgorithm):
        return (AsyncOffPolicyLearner if asynchronous else OffPolicyLearner)(model, plan)
    assert isinstance(model, OnPolicyAlgorithm)  # find_algorithm takes no other
    return OnPolicyLearner(model, plan)
