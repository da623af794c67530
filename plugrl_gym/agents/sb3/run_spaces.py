"""What the envs of a run have, and how its policy deals with it."""

from __future__ import annotations

from typing import Any, NamedTuple

from gymnasium import spaces

from plugrl_gym.agents.sb3.model import ModelPlan
from plugrl_gym.agents.sb3.policy_actions import PolicyActions
from plugrl_gym.agents.sb3.policy_spaces import PolicyObservations
from plugrl_gym.spaces import build_space, describe_space
from plugrl_gym.spaces.naming import differing

__all__ = ["RunSpaces"]


class RunSpaces(NamedTuple):
    """The spaces of a single env, as they come back from the wire, and their adapters."""

    observation: spaces.Space[Any]
    action: spaces.Space[Any]
    observations: PolicyObservations
    actions: PolicyActions

    @classmethod
    def of(
        cls, plan: ModelPlan, observation: spaces.Space[Any], action: spaces.Space[Any]
    ) -> RunSpaces:
        """Adapt them to what a model of this plan sees and says.

        Raises:
            UnsupportedSpace: They cannot be.
        """
        actions = plan.actions(action)
        observations = plan.observations(observation)
        plan.policy_for(observations.space)
        # As they come back from the wire, so that those of a caller compare with a client's.
        observation, action = (build_space(describe_space(s)) for s in (observation, action))
        return cls(observation, action, observations, actions)

    def difference(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> str | None:
        """Both sides in one sentence; None where they are equal."""
        for what, ours, theirs in (
            ("observations", self.observation, observation),
            ("actions", self.action, action),
        ):
            if ours != theirs:
                mine, said = differing(ours, theirs)
                return f"this run has {what} {mine}, env has {said}"
        return None
