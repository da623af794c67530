"""What a run has done so far, for progress lines and ``result.json``.

Only envs of clients that are learned from count (``mode: "train"``); episodes of evaluating
clients are kept apart.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plugrl_gym.protocol import Feedback, Infer, ReceivedFeedback

__all__ = ["ClientBook", "RunSnapshot", "RunStatistics"]

WINDOW: Final = 100


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The run at one moment.

    Attributes:
        started: When the server began to listen, in seconds since the epoch.
        seconds: Wall time since then.
        clients: Connections that are open and have asked for actions.
        clients_seen: Such connections since the start.
        env_steps: Steps that the envs ran. A chunk counts the steps that its client reported
            (``gym-chunk-steps``), else the horizon of its action.
        episodes: Episodes that ended.
        returns: Returns of the last 100 of them, oldest first. An episode of which the server
            saw only a part, after a reconnect or a dropped row, is counted but has no return
            here unless the client sent it.
        lengths: Their lengths in env steps.
        transitions: Feedback rows that the agent took.
        stale: Rows dropped because their env held no action (SPEC 6.5.25).
        non_finite: Rows dropped because of a NaN or an infinity (SPEC 6.5.24).
        abandoned: Chunks given to envs whose connection ended before their feedback.
        learning_seconds: Time in ``Agent.learn``.
        steps_per_second: ``env_steps`` over the time since the first action; 0 before it.
        evaluation_steps: As ``env_steps``, of clients with ``mode: "eval"``.
        evaluation_episodes: As ``episodes``, of such clients.
        evaluation_returns: As ``returns``, of such clients.
    """

    started: float
    seconds: float
    clients: int
    clients_seen: int
    env_steps: int
    episodes: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    transitions: int
    stale: int
    non_finite: int
    abandoned: int
    learning_seconds: float
    steps_per_second: float
    evaluation_steps: int = 0
    evaluation_episodes: int = 0
    evaluation_returns: tuple[float, ...] = ()

    @property
    def mean_return(self) -> float | None:
        """Mean of ``returns``; None before the first episode's end."""
        return float(np.mean(self.returns)) if self.returns else None

    @property
    def mean_length(self) -> float | None:
        """Mean of ``lengths``, in env steps; None before the first episode's end."""
        return float(np.mean(self.lengths)) if self.lengths else None

    @property
    def dropped(self) -> int:
        """Feedback rows that nothing was learned from: stale or not finite."""
        return self.stale + self.non_finite


@dataclass(slots=True)
class _Tally:
    steps: int = 0
    episodes: int = 0
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW))


class RunStatistics:
    """Counters that the server feeds; :meth:`snapshot` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._training = _Tally()
        self._evaluation = _Tally()
        self._clients = self._clients_seen = 0
        self._transitions = self._stale = self._non_finite = self._abandoned = 0
        self._learned = 0.0
        self._started_at = time.time()
        self._started = time.monotonic()
        self._acting_since: float | None = None

    def start(self) -> None:
        """The server listens from now on."""
        with self._lock:
            self._started_at, self._started = time.time(), time.monotonic()

    def enter(self, learning: bool) -> ClientBook:
        """A client joined; False for one with ``mode: "eval"``."""
        with self._lock:
            self._clients += 1
            self._clients_seen += 1
        return ClientBook(self, self._training if learning else self._evaluation)

    def learned(self, seconds: float) -> None:
        """One call of ``Agent.learn`` took ``seconds``."""
        with self._lock:
            self._learned += seconds

    def snapshot(self) -> RunSnapshot:
        """The state of now."""
        now = time.monotonic()
        with self._lock:
            acting = 0.0 if self._acting_since is None else now - self._acting_since
            training, evaluation = self._training, self._evaluation
            return RunSnapshot(
                started=self._started_at,
                seconds=now - self._started,
                clients=self._clients,
                clients_seen=self._clients_seen,
                env_steps=training.steps,
                episodes=training.episodes,
                returns=tuple(training.returns),
                lengths=tuple(training.lengths),
                transitions=self._transitions,
                stale=self._stale,
                non_finite=self._non_finite,
                abandoned=self._abandoned,
                learning_seconds=self._learned,
                steps_per_second=training.steps / acting if acting > 0 else 0.0,
                evaluation_steps=evaluation.steps,
                evaluation_episodes=evaluation.episodes,
                evaluation_returns=tuple(evaluation.returns),
            )


@dataclass(slots=True)
class _Episode:
    """What the server knows of one env's running episode."""

    total: float = 0.0
    length: int = 0
    whole: bool = True


class ClientBook:
    """The statistics of one connection's envs; obtained from :meth:`RunStatistics.enter`."""

    def __init__(self, run: RunStatistics, tally: _Tally) -> None:
        self._run = run
        self._tally = tally
        self._horizons: dict[int, int] = {}
        self._episodes: dict[int, _Episode] = {}

    def asked(self, infer: Infer) -> None:
        """An infer came: its step ids tell which episodes this connection sees from the start.

        They are only a hint (SPEC 6.3.7), so they decide about no number that a client sends.
        """
        for env, step_id in zip(infer.env_indices.tolist(), infer.step_ids.tolist(), strict=True):
            episode = self._episodes.get(env)
            if episode is None:
                self._episodes[env] = _Episode(whole=step_id == 0)
            elif step_id == 0 and not episode.whole:
                self._episodes[env] = _Episode()

    def acted(self, envs: npt.NDArray[np.int64], horizon: int) -> None:
        """Chunks of ``horizon`` steps went out to ``envs`` int64 [n]."""
        self._horizons.update(dict.fromkeys(envs.tolist(), horizon))
        if self._run._acting_since is None:
            self._run._acting_since = time.monotonic()

    def dropped(self, received: ReceivedFeedback) -> None:
        """Rows were left out of a feedback."""
        for env in (*received.stale, *(env for env, _ in received.non_finite)):
            self._episodes.setdefault(env, _Episode()).whole = False
        with self._run._lock:
            self._run._stale += len(received.stale)
            self._run._non_finite += len(received.non_finite)

    def fed_back(self, feedback: Feedback) -> None:
        """The agent took a feedback of m rows."""
        envs = feedback.env_indices.tolist()
        chunk_steps = feedback.chunk_steps
        steps: list[int] = (
            [self._horizons[env] for env in envs]
            if chunk_steps is None
            else chunk_steps.steps.tolist()
        )
        ended = feedback.ended
        sent = _sent_statistics(feedback) if ended.any() else {}
        with self._run._lock:
            self._run._transitions += len(envs)
            self._tally.steps += sum(steps)
            for row, (env, k, reward, done) in enumerate(
                zip(envs, steps, feedback.rewards.tolist(), ended.tolist(), strict=True)
            ):
                episode = self._episodes[env]
                episode.total += reward
                episode.length += k
                if done:
                    self._end(env, sent.get(row))

    def _end(self, env: int, sent: tuple[float, int] | None) -> None:
        own = self._episodes[env]
        self._episodes[env] = _Episode()
        self._tally.episodes += 1
        if sent is None and not own.whole:
            return
        total, length = (own.total, own.length) if sent is None else sent
        self._tally.returns.append(total)
        self._tally.lengths.append(length)

    def leave(self, abandoned: int) -> None:
        """The connection ended, and with it ``abandoned`` chunks that were not fed back."""
        with self._run._lock:
            self._run._clients -= 1
            self._run._abandoned += abandoned


def _sent_statistics(feedback: Feedback) -> dict[int, tuple[float, int]]:
    """Row -> (return, length) of the finished rows that ``info.episode`` covers (SPEC 6.5.21)."""
    episode = feedback.episode
    if episode is None:
        return {}
    rows: Any = np.flatnonzero(episode.mask & feedback.ended).tolist()
    return {row: (float(episode.returns[row]), int(episode.lengths[row])) for row in rows}
