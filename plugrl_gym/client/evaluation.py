"""Episodes counted to judge a policy, not to train it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv, VectorWrapper

from plugrl_gym.display import Pause
from plugrl_gym.errors import ConnectionFailed, RunFinished
from plugrl_gym.protocol import GYM_SPACES

if TYPE_CHECKING:
    from plugrl_gym.client.vector_env import PlugRLVectorEnv

__all__ = ["Evaluation", "EvaluationSummary", "PeriodicEvaluation", "evaluate"]

_log: Final = logging.getLogger("plugrl_gym.client")


@dataclass(frozen=True, slots=True)
class EvaluationSummary:
    """The episodes of one evaluation, in the order in which they ended.

    Attributes:
        returns: Undiscounted.
        lengths: In env steps.
        env_steps: Steps run in all, also in episodes that do not count.
        finished: Whether the server ended the run meanwhile.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    env_steps: int
    finished: bool

    @property
    def mean_return(self) -> float | None:
        """None without an episode."""
        return float(np.mean(self.returns)) if self.returns else None

    @property
    def std_return(self) -> float | None:
        """Standard deviation of the returns (of the population); None without an episode."""
        return float(np.std(self.returns)) if self.returns else None

    @property
    def mean_length(self) -> float | None:
        """None without an episode."""
        return float(np.mean(self.lengths)) if self.lengths else None

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "episodes": len(self.returns),
            "mean_return": self.mean_return,
            "std_return": self.std_return,
            "mean_length": self.mean_length,
            **asdict(self),
        }


def evaluate(
    envs: PlugRLVectorEnv,
    episodes: int | None = None,
    *,
    seed: int | list[int | None] | None = None,
    max_steps: int | None = None,
) -> EvaluationSummary:
    """Reset, then run whole episodes until enough have been counted or the server ends the run.

    Args:
        envs: With ``mode="eval"``, else the server explores and learns.
        episodes: How many to count, exactly. Each env contributes an equal share, its first ones:
            the first N episodes to end, whichever env they end in, would mostly be short ones.
            SB3's ``evaluate_policy`` does the same. None counts all until the run ends.
        seed: For the reset.
        max_steps: Env steps, over all envs, after which to stop anyway; None for no limit.

    Example:
        >>> import gymnasium as gym
        >>> from plugrl_gym import PlugRLVectorEnv
        >>> from plugrl_gym.client import evaluate
        >>> inner = gym.make_vec("CartPole-v1", num_envs=4)
        >>> with PlugRLVectorEnv(inner, "ws://127.0.0.1:8000", mode="eval") as envs:
        ...     evaluate(envs, 20, seed=0).mean_return  # doctest: +SKIP
        500.0
    """
    return Evaluation(envs, episodes, max_steps).run(seed)


class Evaluation:
    """One evaluation, whose episodes so far can be had at any time.

    Args:
        envs, episodes, max_steps: As for :func:`evaluate`.
    """

    def __init__(
        self, envs: PlugRLVectorEnv, episodes: int | None = None, max_steps: int | None = None
    ) -> None:
        self._envs = envs
        self._max_steps = max_steps
        self._share = np.full(envs.num_envs, np.iinfo(np.int64).max)
        if episodes is not None:
            self._share = (episodes + np.arange(envs.num_envs)) // envs.num_envs
        self._counted: list[tuple[float, int]] = []
        self._before = envs.stats.env_steps
        self._finished = False

    def run(self, seed: int | list[int | None] | None = None) -> EvaluationSummary:
        """Run it; ``seed`` is for the reset."""
        with _heard(self._envs, self._count):
            try:
                self._envs.reset(seed=seed)
                if GYM_SPACES not in self._envs._session.features:
                    _log.warning(
                        "the server does not know that this client only evaluates: it takes "
                        "this client for one to learn from, and may explore"
                    )
                while self._share.any() and not self._limit_reached():
                    self._envs.step()
            except RunFinished:
                self._finished = True
        return self.summary()

    def summary(self) -> EvaluationSummary:
        """The episodes that have been counted until now."""
        return EvaluationSummary(
            tuple(total for total, _ in self._counted),
            tuple(length for _, length in self._counted),
            self._steps,
            self._finished,
        )

    @property
    def _steps(self) -> int:
        return self._envs.stats.env_steps - self._before

    def _limit_reached(self) -> bool:
        return self._max_steps is not None and self._steps >= self._max_steps

    def _count(
        self, ended: npt.NDArray[np.bool_], returns: npt.NDArray[Any], lengths: npt.NDArray[Any]
    ) -> None:
        rows = ended & (self._share > 0)
        self._counted.extend(zip(returns[rows].tolist(), lengths[rows].tolist(), strict=True))
        self._share[rows] -= 1


@contextmanager
def _heard(envs: PlugRLVectorEnv, count: Callable[..., None]) -> Iterator[None]:
    envs.stats.on_episodes = count
    try:
        yield
    finally:
        envs.stats.on_episodes = None


class PeriodicEvaluation:
    """Evaluates the policy every so many env steps of a training client, between two of them.

    It belongs into the process of the training envs, for then the policy stands still meanwhile
    (where no other client trains it): the evaluation is of exactly the weights of that step, a run
    is as repeatable as without, and learns the same. The evaluating envs are others than the
    training ones, and have a connection of their own, one for each evaluation.

    Args:
        training: The envs that train.
        envs: The envs to evaluate in, which stay the caller's.
        connect: Puts an evaluating :class:`PlugRLVectorEnv` over envs. Where it finds no server
            the evaluation is left out, so it should not wait long.
        every: Env steps of ``training``.
        episodes: Of one evaluation.
        seed: Of the first reset; later ones go on from there, as with SB3's ``EvalCallback``.

    Attributes:
        last: The last evaluation; None before the first.
        pause: Tells that it evaluates just now.
    """

    def __init__(
        self,
        training: PlugRLVectorEnv,
        envs: VectorEnv[Any, Any, Any],
        connect: Callable[[VectorEnv[Any, Any, Any]], PlugRLVectorEnv],
        every: int,
        episodes: int,
        seed: int | None = None,
    ) -> None:
        self._training = training
        self._envs = _KeptOpen(envs)
        self._connect = connect
        self._every = every
        self._episodes = episodes
        self._seed = seed
        self._due = every
        self.last: EvaluationSummary | None = None
        self.pause = Pause()

    def __call__(self) -> None:
        """For ``PlugRLVectorEnv.run(between_steps=)``: evaluate if it is time."""
        # Where the server waits for a feedback its clock would run on meanwhile (SPEC 8.8). That
        # is over with the next chunk that ends.
        steps = self._training.stats.env_steps
        if steps < self._due or self._training.owes_feedback:
            return
        self._due = (steps // self._every + 1) * self._every
        try:
            with self.pause("evaluating"), self._connect(self._envs) as envs:
                self.last = evaluate(envs, self._episodes, seed=self._seed)
        except ConnectionFailed as error:
            # The run may be over: the training connection will tell, or wait for the server.
            _log.warning("no evaluation after %d env steps: %s", steps, error)
        else:
            self._seed = None


if TYPE_CHECKING:
    _Wrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:
    _Wrapper = VectorWrapper  # takes no parameters before gymnasium 1.3


class _KeptOpen(_Wrapper):
    """Envs that outlive the wrapper above."""

    def close(self, **kwargs: Any) -> None:
        """Leave them as they are."""
