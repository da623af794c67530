"""The agent behind a broker: it chooses nothing, and hands everything to the trainer's desk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from plugrl_gym.broker.desk import Desk, Told
from plugrl_gym.broker.info import split_info
from plugrl_gym.errors import UnsupportedSpace, UsageError
from plugrl_gym.protocol import Feedback, Infer, Metadata
from plugrl_gym.server import Agent, Answer, Client, Refusal, Request
from plugrl_gym.spaces import ActionLayout, ObservationLayout, build_space, describe_space
from plugrl_gym.spaces.naming import differing
from plugrl_gym.spaces.observations import select_row

__all__ = ["BrokerAgent", "Layouts"]

_NOT_COLLECTED: Final = "not collected"
_GIVEN_UP: Final = "given up"
# Keys of info that have a meaning of their own here, whatever a client sends under them.
_OURS: Final = frozenset(
    {
        *("episode", "final_obs", "final_info", "disconnected"),
        *("overridden", "executed", "chunk_steps", "step_rewards"),
    }
)


@dataclass(frozen=True, slots=True)
class Layouts:
    """The spaces of a single env, and how they travel."""

    observation: ObservationLayout
    action: ActionLayout


class BrokerAgent(Agent):
    """Brings requests to a desk and answers back.

    Args:
        desk: Where the trainer is.
        horizon: Steps in each chunk, H.
        observation_space, action_space: Of a single env; None for those of the first client that
            declares its own.
        evaluation: Whether clients with ``mode: "eval"`` are served.
        admit: Raises :class:`Refusal` for a client that the trainer cannot use; what else it raises
            is the trainer's own failure.

    Attributes:
        layouts: None while the spaces are not known.

    Raises:
        UsageError: ``horizon`` is less than 1, or one space is given without the other.
        UnsupportedSpace: A space has no encoding.
    """

    def __init__(
        self,
        desk: Desk,
        horizon: int = 1,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        evaluation: bool = False,
        admit: Callable[[Client], None] | None = None,
    ) -> None:
        if horizon < 1:
            raise UsageError(f"horizon: expected at least 1, got {horizon}")
        if (observation_space is None) != (action_space is None):
            raise UsageError("observation_space and action_space: give both, or none")
        self.layouts: Layouts | None = None
        self._desk = desk
        self._horizon = horizon
        self._evaluation = evaluation
        self._admit = admit
        if observation_space is not None and action_space is not None:
            # As they come back from the wire, so that they compare with a client's.
            given = (build_space(describe_space(s)) for s in (observation_space, action_space))
            self.layouts = _layouts(*given)

    def metadata(self) -> Metadata:
        dim = None if self.layouts is None else self.layouts.action.dim
        return Metadata(algorithm="broker", action_horizon=self._horizon, action_dim=dim)

    def join(self, client: Client) -> None:
        declared = client.declaration
        if declared is None and self.layouts is None:
            raise Refusal(
                "the spaces are not known, and this client declares none: give the broker "
                "observation_space= and action_space="
            )
        if not client.learning and not self._evaluation:
            raise Refusal("this trainer evaluates nobody; connect without mode eval")
        self._ask_trainer(client)
        if declared is None:
            return
        try:
            theirs = build_space(declared.observation), build_space(declared.action)
            if self.layouts is None:
                self.layouts = _layouts(*theirs)
        except UnsupportedSpace as error:
            raise Refusal(str(error)) from error
        ours = self.layouts.observation.space, self.layouts.action.space
        for what, mine, other in zip(("observations", "actions"), ours, theirs, strict=True):
            if mine != other:
                here, there = differing(mine, other)
                raise Refusal(f"this trainer has {what} {here}, env has {there}")

    def _ask_trainer(self, client: Client) -> None:
        try:
            if self._admit is not None:
                self._admit(client)
        except Refusal:
            raise
        except Exception as error:  # no client is to blame: the trainer hears of it
            self._desk.fail(error)
            raise

    def prepare(self, client: Client, infer: Infer) -> Any:
        return self._known.observation.restore(infer.observation, "infer.data")

    def act(self, requests: Sequence[Request]) -> Sequence[Answer]:
        return [
            self._desk.ask(each.client, each.infer.env_indices.tolist(), each.prepared)
            for each in requests
        ]

    def feedback(self, client: Client, feedback: Feedback) -> Mapping[str, int] | None:
        observation = self._known.observation.restore(feedback.observation, "feedback.data.obs")
        infos = self._infos(feedback, observation)
        columns = (feedback.rewards, feedback.terminated, feedback.truncated)
        told = [
            Told(reward, terminated, truncated, info, observation, row)
            for row, (reward, terminated, truncated, info) in enumerate(
                zip(*(column.tolist() for column in columns), infos, strict=True)
            )
        ]
        missed = self._desk.tell(client, feedback.env_indices.tolist(), told)
        return {_GIVEN_UP: missed} if missed else None

    def feedback_dropped(self, client: Client) -> None:
        self._desk.idle(client)

    def leave(self, client: Client) -> None:
        self._desk.leave(client)

    @property
    def rows_stored(self) -> int:
        return self._desk.delivered

    def close(self) -> Mapping[str, int] | None:
        missed = self._desk.uncollected()
        return {_NOT_COLLECTED: missed} if missed else None

    @property
    def _known(self) -> Layouts:
        assert self.layouts is not None  # a client joins only where they are
        return self.layouts

    def _infos(self, feedback: Feedback, observation: Any) -> list[dict[str, Any]]:
        rows = len(feedback.env_indices)
        info = {key: v for key, v in feedback.info.items() if key.lstrip("_") not in _OURS}
        infos = split_info(info, rows) if info else [{} for _ in range(rows)]
        episode, space = feedback.episode, self._known.observation.space
        for row in np.flatnonzero(feedback.ended).tolist():
            infos[row]["final_obs"] = select_row(space, observation, row)
            if episode is not None and episode.mask[row]:
                entry: dict[str, Any] = {"r": episode.returns[row], "l": episode.lengths[row]}
                if episode.success is not None:
                    entry["s"] = episode.success[row]
                infos[row]["episode"] = entry
        self._tell_of_chunks(feedback, infos)
        return infos

    def _tell_of_chunks(self, feedback: Feedback, infos: list[dict[str, Any]]) -> None:
        steps, executed = feedback.chunk_steps, feedback.executed
        if steps is not None and self._horizon > 1:
            paid = self._whole(steps.rewards)
            for row, info in enumerate(infos):
                info["chunk_steps"] = steps.steps[row]
                info["step_rewards"] = paid[:, row]
        if executed is not None and executed.overridden.any():
            ran = self._whole(executed.actions)
            for row in np.flatnonzero(executed.overridden).tolist():
                infos[row]["overridden"] = True
                infos[row]["executed"] = ran[:, row] if self._horizon > 1 else ran[0, row]

    def _whole(self, steps: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[K, m, ...] as [H, m, ...], zero after the last step."""
        whole = np.zeros((self._horizon, *steps.shape[1:]), steps.dtype)
        whole[: len(steps)] = steps
        return whole


def _layouts(observation: spaces.Space[Any], action: spaces.Space[Any]) -> Layouts:
    return Layouts(ObservationLayout(observation), ActionLayout(action))
