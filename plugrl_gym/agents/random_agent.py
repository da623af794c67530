"""A policy that draws actions from the action space and learns nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from plugrl_gym.errors import UnsupportedSpace, UsageError
from plugrl_gym.protocol import Feedback, Infer, Metadata, Observation
from plugrl_gym.server.agent import Agent, Client, Refusal, Request
from plugrl_gym.spaces import ActionLayout, ObservationLayout, build_space

__all__ = ["RandomAgent"]


class RandomAgent(Agent):
    """Samples every step of every chunk independently; useful to try out an env or a client.

    A bounded number is drawn uniformly, one with a single bound at an exponential distance from
    it, one without bounds from the standard normal distribution.

    Args:
        action_space: Of a single env, for clients that do not declare theirs; None takes that
            of the first client that does.
        observation_space: Of a single env. Observations of clients that declare none are checked
            against it; None accepts any.
        horizon: Steps in each chunk, H.
        seed: Of the agent's own generator; None for a fresh one.
        total_timesteps: Env steps after which the run is over; None for never.
        deterministic: Always give the same action, the one nearest to zero. Clients with
            ``mode: "eval"`` get it anyway (SPEC 9.3.10).

    Raises:
        UsageError: ``horizon`` is less than 1.
        UnsupportedSpace: Actions of that space have no encoding.

    Example:
        >>> agent = RandomAgent(spaces.Discrete(4), horizon=3, seed=0)
        >>> agent.metadata().action_dim
        1
    """

    def __init__(
        self,
        action_space: spaces.Space[Any] | None = None,
        observation_space: spaces.Space[Any] | None = None,
        horizon: int = 1,
        seed: int | None = None,
        total_timesteps: int | None = None,
        deterministic: bool = False,
    ) -> None:
        if horizon < 1:
            raise UsageError(f"horizon: expected at least 1, got {horizon}")
        self.horizon = horizon
        self.total_timesteps = total_timesteps
        self.deterministic = deterministic
        self.timesteps = 0
        self._sampler = None if action_space is None else _Sampler(action_space)
        self._observations = (
            None if observation_space is None else ObservationLayout(observation_space)
        )
        self._rng = np.random.default_rng(seed)

    def metadata(self) -> Metadata:
        return Metadata(
            algorithm="random",
            policy="constant" if self.deterministic else "uniform",
            action_horizon=self.horizon,
            action_dim=None if self._sampler is None else self._sampler.layout.dim,
        )

    def join(self, client: Client) -> None:
        declared = client.declaration
        if declared is None:
            if self._sampler is None:
                raise Refusal(
                    "random needs an action space, the client declares none: start the server "
                    "with --env-id or --action-space"
                )
            client.state = self._observations
            return
        try:
            client.state = ObservationLayout(build_space(declared.observation))
            sampler = _Sampler(build_space(declared.action))
        except UnsupportedSpace as error:
            raise Refusal(str(error)) from error
        if self._sampler is None:
            self._sampler = sampler
        elif sampler.layout.space != self._sampler.layout.space:
            raise Refusal(
                f"random acts in {self._sampler.layout.space}, env has {sampler.layout.space}"
            )

    def prepare(self, client: Client, infer: Infer) -> None:
        _check(client, infer.observation, "infer.data")

    def act(self, requests: Sequence[Request]) -> list[npt.NDArray[np.generic]]:
        sampler = self._sampler
        assert sampler is not None  # every client has joined before it asks
        return [
            sampler.sample(self._rng, self.horizon, len(request.infer.env_indices))
            if request.client.learning and not self.deterministic
            else sampler.constant(self.horizon, len(request.infer.env_indices))
            for request in requests
        ]

    def feedback(self, client: Client, feedback: Feedback) -> Mapping[str, int]:
        _check(client, feedback.observation, "feedback.data.obs")
        rows = len(feedback.env_indices)
        if client.learning:
            steps = feedback.chunk_steps
            self.timesteps += self.horizon * rows if steps is None else int(steps.steps.sum())
        return {"nothing learns": rows}

    @property
    def finished(self) -> bool:
        return self.total_timesteps is not None and self.timesteps >= self.total_timesteps


def _check(client: Client, observation: Observation, where: str) -> None:
    """Hold an observation against what the client declared (SPEC 9.3.28)."""
    layout = client.state
    if layout is not None:
        layout.decode(observation, where)


class _Sampler:
    """Draws [H, n, *da] actions of one space."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.layout = ActionLayout(space)
        self._low: Any
        self._high: Any
        if isinstance(space, spaces.Box):
            self._low, self._high = space.low, space.high
        elif isinstance(space, spaces.Discrete):
            self._low, self._high = space.start, space.start + space.n - 1
        elif isinstance(space, spaces.MultiDiscrete):
            self._low, self._high = space.start, space.start + space.nvec - 1
        else:
            self._low, self._high = 0, 1

    def constant(self, horizon: int, n: int) -> npt.NDArray[Any]:
        """The action nearest to zero, [H, n, *da]."""
        return np.repeat(self.layout.placeholder(n)[None], horizon, axis=0)

    def sample(self, rng: np.random.Generator, horizon: int, n: int) -> npt.NDArray[Any]:
        """Independent draws, [H, n, *da] of the space's dtype."""
        size = (horizon, n, *self.layout.shape)
        dtype = self.layout.dtype
        if dtype.kind == "f":
            return self._floats(rng, size).astype(dtype)
        drawn = np.int64 if dtype.kind == "b" else dtype.type
        return rng.integers(self._low, self._high, size, drawn, endpoint=True).astype(dtype)

    def _floats(self, rng: np.random.Generator, size: tuple[int, ...]) -> npt.NDArray[Any]:
        low, high = (np.broadcast_to(b.astype(np.float64), size) for b in (self._low, self._high))
        from_below, from_above = np.isfinite(low), np.isfinite(high)
        draws = rng.standard_normal(size)
        both, only_low, only_high = (
            from_below & from_above,
            from_below & ~from_above,
            from_above & ~from_below,
        )
        if both.any():
            # Weighing the bounds cannot overflow, as their difference could.
            weight = rng.random(int(both.sum()))
            draws[both] = low[both] * (1.0 - weight) + high[both] * weight
        if only_low.any():
            draws[only_low] = low[only_low] + rng.exponential(size=int(only_low.sum()))
        if only_high.any():
            draws[only_high] = high[only_high] - rng.exponential(size=int(only_high.sum()))
        return np.clip(draws, low, high)
