"""Clients that declared ``mode: "eval"``: what the policy earns while nobody learns from them.

An evaluation must say something about one policy, and the learner does not wait for it. So each
evaluating client plays rounds: with the first action of a round the policy is copied, and that copy
chooses all actions until the round is over. A round is a fixed number of episodes, an equal share
of them from each env of the client, for the first N episodes that end would favour short ones.
Episodes that began under an earlier policy, or of which a part is missing, do not count.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy

from plugrl_gym.agents.sb3.acting import choose, frozen_copy, in_groups, split
from plugrl_gym.agents.sb3.learners.learner import Learner
from plugrl_gym.agents.sb3.learners.outcome import check_rewards
from plugrl_gym.agents.sb3.learners.trajectories import concatenate
from plugrl_gym.agents.sb3.normalization import Normalizer
from plugrl_gym.agents.sb3.policy_spaces import PolicyArray, PolicyObservation
from plugrl_gym.agents.sb3.runs.best_model import save_evaluated
from plugrl_gym.agents.sb3.runs.evaluations import Evaluation, Evaluations
from plugrl_gym.agents.sb3.runs.loading import NORMALIZER
from plugrl_gym.protocol import Feedback
from plugrl_gym.server.agent import Client, Request

__all__ = ["Evaluator", "Snapshot", "Snapshots"]

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A policy as it was at one moment, and how it then saw observations; nobody writes to them.

    Attributes:
        policy: Shared by all snapshots of the same weights.
        normalizer: None where observations are not normalised.
    """

    policy: BasePolicy
    normalizer: Normalizer | None

    def see(self, observation: PolicyObservation) -> PolicyObservation:
        """n observations as the policy sees them."""
        return observation if self.normalizer is None else self.normalizer.normalize(observation)


class Snapshots:
    """Copies of one model's policy, made only where its weights have changed since the last.

    Args:
        model: The model.

    Attributes:
        learner: Its learner; None while nothing has been learned.
    """

    def __init__(self, model: BaseAlgorithm) -> None:
        self.learner: Learner[Any, Any] | None = None
        self._model = model
        self._policy: BasePolicy | None = None
        self._updates = 0

    def take(self) -> Snapshot:
        """The policy of now."""
        updates = 0 if self.learner is None else self.learner.policy_updates
        if self._policy is None or self._updates != updates:
            self._policy, self._updates = self._copy(), updates
        # The statistics of a normaliser change with every step that the learner sees.
        if self.learner is not None:
            return Snapshot(self._policy, self.learner.frozen_normalizer())
        return Snapshot(self._policy, copy.deepcopy(Normalizer.of(self._model)))

    def _copy(self) -> BasePolicy:
        if self.learner is None:
            return frozen_copy(self._model.policy)
        return self.learner.frozen_policy()


@dataclass(slots=True, eq=False)
class _Round:
    """Episodes of one client under one policy.

    Attributes:
        timesteps: Env steps of the run when it began.
        open: Env -> how many of its episodes are still to be counted.
    """

    snapshot: Snapshot
    timesteps: int
    open: dict[int, int]
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def evaluation(self) -> Evaluation:
        """What came of it, as far as it got."""
        return Evaluation(self.timesteps, tuple(self.returns), tuple(self.lengths), not self.open)


@dataclass(slots=True, eq=False)
class _Episode:
    """The running episode of one env.

    Attributes:
        round: Whose policy began it; None where the episode counts for none.
        answered: No action is out.
    """

    round: _Round | None
    total: float = 0.0
    length: int = 0
    answered: bool = True


@dataclass(slots=True, eq=False)
class _Evaluatee:
    """One evaluating client; ``Client.state``."""

    round: _Round
    episodes: dict[int, _Episode] = field(default_factory=dict)


class Evaluator:
    """Acts for evaluating clients and counts what they earn.

    Args:
        model: The learner's.
        episodes: In one round.
        horizon: Env steps in one action of the policy.
        evaluations: Gets each round's.
        run_dir: Gets best_model.zip, and best_vecnormalize.pkl where observations are normalised;
            None for no files.
    """

    def __init__(
        self,
        model: BaseAlgorithm,
        episodes: int,
        horizon: int,
        evaluations: Evaluations,
        run_dir: Path | None,
    ) -> None:
        self._model = model
        self._episodes = episodes
        self._horizon = horizon
        self._evaluations = evaluations
        self._run_dir = run_dir
        self._snapshots = Snapshots(model)

    def follow(self, learner: Learner[Any, Any]) -> None:
        """The model learns from now on."""
        self._snapshots.learner = learner

    def act(self, requests: Sequence[Request]) -> list[PolicyArray]:
        """Raw actions [n, *da] for each request, in one forward pass for each policy."""
        return in_groups(requests, lambda request: self._asked(request).policy, self._choose)

    @staticmethod
    def _choose(policy: BasePolicy, requests: Sequence[Request]) -> list[PolicyArray]:
        observation = concatenate(
            [request.client.state.round.snapshot.see(request.prepared) for request in requests]
        )
        return split(choose(policy, observation), requests)

    def _asked(self, request: Request) -> Snapshot:
        """Note which episodes begin or go on; the policy that is to act."""
        client, infer = request.client, request.infer
        if client.state is None:
            client.state = _Evaluatee(self._begin(client))
        evaluatee: _Evaluatee = client.state
        if not evaluatee.round.open:
            evaluatee.round = self._begin(client)
        for env, step_id in zip(infer.env_indices.tolist(), infer.step_ids.tolist(), strict=True):
            episode = evaluatee.episodes.get(env)
            # An action is still out where the server dropped its feedback: it was not finite.
            if episode is None or not episode.answered:
                # After a reconnect an episode may go on whose beginning nobody here has seen.
                began = evaluatee.round if step_id == 0 else None
                episode = evaluatee.episodes[env] = _Episode(began)
            episode.answered = False
        return evaluatee.round.snapshot

    def _begin(self, client: Client) -> _Round:
        declaration = client.declaration
        assert declaration is not None  # else it had declared no mode
        episodes, envs = self._episodes, declaration.num_envs
        # SB3's evaluate_policy shares them in the same way.
        shares = {env: (episodes + env) // envs for env in range(max(0, envs - episodes), envs)}
        return _Round(self._snapshots.take(), self._model.num_timesteps, shares)

    def feedback(self, client: Client, feedback: Feedback) -> None:
        """Count what an evaluating client's envs earned.

        Raises:
            RemoteProtocolError: A reward is too large; nothing was counted.
        """
        check_rewards(feedback.rewards)
        evaluatee: _Evaluatee = client.state
        ended = feedback.ended.tolist()
        rewards = feedback.rewards.tolist()
        told = feedback.chunk_steps
        steps = [self._horizon] * len(rewards) if told is None else told.steps.tolist()
        for row, env in enumerate(feedback.env_indices.tolist()):
            episode = evaluatee.episodes[env]
            episode.total += rewards[row]
            episode.length += steps[row]
            episode.answered = True
            if ended[row]:
                del evaluatee.episodes[env]
                self._ended(evaluatee.round, env, episode, feedback, row)
        if not evaluatee.round.open:
            self._report(evaluatee.round)

    @staticmethod
    def _ended(round_: _Round, env: int, episode: _Episode, feedback: Feedback, row: int) -> None:
        if episode.round is not round_ or env not in round_.open:
            return
        round_.open[env] -= 1
        if not round_.open[env]:
            del round_.open[env]
        total, length, statistics = episode.total, episode.length, feedback.episode
        if statistics is not None and statistics.mask[row]:
            total, length = float(statistics.returns[row]), int(statistics.lengths[row])
        round_.returns.append(total)
        round_.lengths.append(length)

    def leave(self, client: Client) -> None:
        """An evaluating client is gone; report what it has finished."""
        evaluatee: _Evaluatee | None = client.state
        client.state = None
        if evaluatee is not None and evaluatee.round.open and evaluatee.round.returns:
            self._report(evaluatee.round)

    def _report(self, round_: _Round) -> None:
        evaluation = round_.evaluation()
        if self._run_dir is not None and evaluation.beats(self._evaluations.best):
            with _failing_softly("best model", round_.timesteps):
                self._keep(self._run_dir, round_)
        with _failing_softly("evaluation", round_.timesteps):
            # A model that has not begun to learn has no logger yet.
            self._evaluations.enter(evaluation, getattr(self._model, "_logger", None))

    def _keep(self, run_dir: Path, round_: _Round) -> None:
        snapshot = round_.snapshot
        if snapshot.normalizer is not None:
            snapshot.normalizer.save(run_dir / f"best_{NORMALIZER}")
        save_evaluated(self._model, snapshot.policy, round_.timesteps, run_dir / "best_model.zip")


@contextlib.contextmanager
def _failing_softly(what: str, timesteps: int) -> Iterator[None]:
    """A full disk costs a file, not the run."""
    try:
        yield
    except OSError as error:
        _log.warning("the %s at step %d was not saved: %s", what, timesteps, error)
