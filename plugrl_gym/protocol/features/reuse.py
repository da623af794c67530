"""``reuse-feedback-obs``: an infer may point at the observation of the last feedback (SPEC 9.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from plugrl_gym.errors import RemoteProtocolError
from plugrl_gym.protocol.fields import Observation, shown

__all__ = ["ObservationCache"]

_Leaf = tuple[str, str, str, tuple[int, ...]]


class ObservationCache:
    """The server's memory of each env's last feedback on one connection."""

    def __init__(self) -> None:
        # env -> (the feedback's observation, its row there); None after an episode's end.
        self._last: dict[int, tuple[Observation, int] | None] = {}

    def store(
        self, envs: npt.NDArray[np.int64], observation: Observation, ended: npt.NDArray[np.bool_]
    ) -> None:
        """Remember a feedback: ``observation`` [m] and ``ended`` bool [m] of ``envs`` [m]."""
        for row, env in enumerate(envs.tolist()):
            self._last[env] = None if ended[row] else (observation, row)

    def complete(
        self, envs: npt.NDArray[np.int64], sent: Observation, reuse: npt.NDArray[np.bool_]
    ) -> Observation:
        """The full observation of an infer whose reused rows were left out.

        Args:
            envs: int64 [n], the infer's ``env_indices``.
            sent: The rows marked false, in the order of ``envs``.
            reuse: bool [n].

        Returns:
            The observation of all n rows.

        Raises:
            RemoteProtocolError: A row is not held, or rows do not have the same layout.
        """
        sources: list[tuple[Observation, int]] = []
        sent_rows = iter(range(sent.rows))
        for env, reused in zip(envs.tolist(), reuse.tolist(), strict=True):
            sources.append(self._held(env) if reused else (sent, next(sent_rows)))
        first = sources[0][0]
        if all(
            source is first and row == number for number, (source, row) in enumerate(sources)
        ) and (first.rows == len(sources)):
            return first
        return _gather(sources)

    def _held(self, env: int) -> tuple[Observation, int]:
        if env not in self._last:
            raise RemoteProtocolError(
                f"infer.reuse: env {env} has had no feedback on this connection, so there is no "
                "observation to reuse"
            )
        held = self._last[env]
        if held is None:
            raise RemoteProtocolError(
                f"infer.reuse: the last feedback of env {env} ended its episode; its terminal "
                "observation cannot begin the next"
            )
        return held


def _layout(observation: Observation) -> list[_Leaf]:
    return sorted(
        [("images", k, a.dtype.str, a.shape[1:]) for k, a in observation.images.items()]
        + [("states", k, a.dtype.str, a.shape[1:]) for k, a in observation.states.items()]
    )


def _gather(sources: list[tuple[Observation, int]]) -> Observation:
    first = sources[0][0]
    expected = _layout(first)
    for other in {id(source): source for source, _ in sources}.values():
        if _layout(other) != expected:
            raise RemoteProtocolError(
                "infer.reuse: reused and sent rows differ in their keys, dtypes or shapes: "
                f"{_names(expected)} against {_names(_layout(other))}"
            )

    def rows_of(group: str, name: str) -> npt.NDArray[Any]:
        return np.stack([getattr(source, group)[name][row] for source, row in sources])

    return Observation(
        images={name: rows_of("images", name) for name in first.images},
        states={name: rows_of("states", name) for name in first.states},
        text=[source.text[row] for source, row in sources],
    )


def _names(layout: list[_Leaf]) -> str:
    named = [f"{group}.{shown(name)} {dtype}{list(shape)}" for group, name, dtype, shape in layout]
    return ", ".join(named[:4]) + (", ..." if len(named) > 4 else "") if named else "nothing"
