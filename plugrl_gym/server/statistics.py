"""What a run has done so far, for progress lines and ``result.json``.

Only envs of clients that are learned from count (``mode: "train"``); episodes of evaluating
clients are kept apart. The ledger (:mod:`~plugrl_gym.server.books`) has all clients.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plugrl_gym.latency import Latency
from plugrl_gym.protocol import Feedback, Infer, ReceivedFeedback
from plugrl_gym.protocol.episodes import LARGEST_RETURN
from plugrl_gym.server.books import FAILED, NON_FINITE, RUN_OVER, STALE, UNFIT, Books

__all__ = ["STAGES", "ClientBook", "ClientSnapshot", "RunSnapshot", "RunStatistics"]

WINDOW: Final = 100
_MOST_ERRORS: Final = 20

#: What the server measures the time of, for each request but ``learn``.
STAGES: Final = (
    "decode",  # from an infer's bytes to what the agent takes, with those of the feedback before
    "queue",  # waiting for learning, for other clients' requests, for the agent
    "forward",  # Agent.act, once for all requests that it answers together
    "encode",  # from actions to bytes
    "answer",  # all of these: from an infer's arrival to the sending of its action
    "client",  # from there to the arrival of its feedback: the client, and the way both ways
    "learn",  # Agent.learn, each call
)

_NOT_THE_AGENTS: Final = (STALE, NON_FINITE, UNFIT, RUN_OVER, FAILED)


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The run at one moment.

    Attributes:
        started: When the server began to listen, in seconds since the epoch.
        seconds: Wall time since then.
        clients: Connections that are open and have asked for actions.
        envs: Of these connections.
        clients_seen: Such connections since the start.
        env_steps: Steps that the envs ran. A chunk counts the steps that its client reported
            (``gym-chunk-steps``), else the horizon of its action.
        episodes: Episodes that ended.
        returns: Returns of the last 100 of them, oldest first. An episode of which the server
            saw only a part, after a reconnect or a dropped row, is counted but has no return
            here unless the client sent it.
        lengths: Their lengths in env steps.
        books: The ledger of all connections, open and ended.
        connections: Client number -> the ledger of its connection, of those that are open.
        book_errors: Accounts that do not balance, one sentence each; empty where all do.
        learning_seconds: Time in ``Agent.learn``.
        steps_per_second: ``env_steps`` over the time since the first action; 0 before it.
        evaluation_steps: As ``env_steps``, of clients with ``mode: "eval"``.
        evaluation_episodes: As ``episodes``, of such clients.
        evaluation_returns: As ``returns``, of such clients.
        latency: Stage -> ``p50``, ``p95`` and ``p99`` in seconds, each within a tenth of the
            true one, and ``count``; :data:`STAGES` says which, of all clients. A stage that never
            ran is left out.
    """

    started: float
    seconds: float
    clients: int
    envs: int
    clients_seen: int
    env_steps: int
    episodes: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    books: Books
    connections: Mapping[int, Books]
    book_errors: tuple[str, ...]
    learning_seconds: float
    steps_per_second: float
    evaluation_steps: int = 0
    evaluation_episodes: int = 0
    evaluation_returns: tuple[float, ...] = ()
    latency: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def mean_return(self) -> float | None:
        """Mean of ``returns``; None before the first episode's end."""
        return float(np.mean(self.returns)) if self.returns else None

    @property
    def mean_length(self) -> float | None:
        """Mean of ``lengths``, in env steps; None before the first episode's end."""
        return float(np.mean(self.lengths)) if self.lengths else None

    @property
    def transitions(self) -> int:
        """Feedback rows that the agent took, whether it kept them or not."""
        never_taken = sum(self.books.rows_discarded[reason] for reason in _NOT_THE_AGENTS)
        return self.books.rows_received - self.books.rows_waiting - never_taken

    @property
    def stale(self) -> int:
        """Rows dropped because their env held no action (SPEC 6.5.26)."""
        return self.books.rows_discarded[STALE]

    @property
    def non_finite(self) -> int:
        """Rows dropped because of a NaN or an infinity (SPEC 6.5.25)."""
        return self.books.rows_discarded[NON_FINITE]

    @property
    def abandoned(self) -> int:
        """Chunks given to envs whose connection ended before their feedback."""
        return self.books.chunks_abandoned

    @property
    def dropped(self) -> int:
        """Feedback rows that nothing was learned from: stale or not finite."""
        return self.stale + self.non_finite


@dataclass(frozen=True, slots=True)
class ClientSnapshot:
    """What one connection has done, at one moment.

    Attributes:
        envs: Of its envs those that have asked for actions.
        env_steps: As for the whole run, also for a client with ``mode: "eval"``.
        episodes: Likewise.
        mean_return: Of its last 100 episodes whose return is known; None before the first.
        idle_seconds: Since its last message came.
    """

    envs: int
    env_steps: int
    episodes: int
    mean_return: float | None
    idle_seconds: float


@dataclass(slots=True)
class _Tally:
    steps: int = 0
    episodes: int = 0
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW))


class RunStatistics:
    """Counters that the server feeds; :meth:`snapshot` may be called from any thread.

    Attributes:
        latency: The times of :data:`STAGES`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._training = _Tally()
        self._evaluation = _Tally()
        self._clients_seen = 0
        self._open: dict[int, ClientBook] = {}
        self._ended = Books()
        self._errors: list[str] = []
        self.latency = Latency(STAGES)
        self._learned = 0.0
        self._started_at = time.time()
        self._started = time.monotonic()
        self._acting_since: float | None = None

    def start(self) -> None:
        """The server listens from now on."""
        with self._lock:
            self._started_at, self._started = time.time(), time.monotonic()

    def enter(self, learning: bool, number: int | None = None) -> ClientBook:
        """A client joined.

        Args:
            learning: False for one with ``mode: "eval"``.
            number: Of its connection; None for the next.
        """
        with self._lock:
            self._clients_seen += 1
            number = self._clients_seen if number is None else number
            book = ClientBook(self, number, self._training if learning else self._evaluation)
            self._open[number] = book
        return book

    def audit(self, stored: int | None, let_go: Mapping[str, int] | None = None) -> None:
        """Hold the agent's own count of rows that it kept against the ledger's, at the end.

        Args:
            stored: See :attr:`~plugrl_gym.server.agent.Agent.rows_stored`.
            let_go: See :meth:`~plugrl_gym.server.agent.Agent.close`.
        """
        with self._lock:
            self._ended.keep(0, let_go or {})
            kept = self._total().rows_stored
            if stored is not None and stored != kept:
                self._err(f"rows stored {kept} is not the agent's own count {stored}")

    def _total(self) -> Books:
        total = Books()
        for books in (self._ended, *(book.books for book in self._open.values())):
            total.add(books)
        return total

    def _err(self, error: str) -> None:
        if len(self._errors) < _MOST_ERRORS:
            self._errors.append(error)

    def learned(self, seconds: float) -> None:
        """One call of ``Agent.learn`` took ``seconds``."""
        self.latency["learn"].observe(seconds)
        with self._lock:
            self._learned += seconds

    def snapshot(self) -> RunSnapshot:
        """The state of now."""
        latency = self.latency.snapshot()
        with self._lock:
            books = self._total()
            return replace(
                self._glance(),
                books=books,
                connections={n: book.books.copy() for n, book in self._open.items()},
                book_errors=(*self._errors, *books.errors()),
                latency=latency,
            )

    def glance(self) -> RunSnapshot:
        """The state of now with empty books and without latency: cheap, for whoever looks often."""
        with self._lock:
            return self._glance()

    def _glance(self) -> RunSnapshot:
        now, training, evaluation = time.monotonic(), self._training, self._evaluation
        acting = 0.0 if self._acting_since is None else now - self._acting_since
        return RunSnapshot(
            started=self._started_at,
            seconds=now - self._started,
            clients=len(self._open),
            envs=sum(len(book._episodes) for book in self._open.values()),
            clients_seen=self._clients_seen,
            env_steps=training.steps,
            episodes=training.episodes,
            returns=tuple(training.returns),
            lengths=tuple(training.lengths),
            books=Books(),
            connections={},
            book_errors=(),
            learning_seconds=self._learned,
            steps_per_second=training.steps / acting if acting > 0 else 0.0,
            evaluation_steps=evaluation.steps,
            evaluation_episodes=evaluation.episodes,
            evaluation_returns=tuple(evaluation.returns),
        )

    def clients(self) -> dict[int, ClientSnapshot]:
        """Client number -> what it has done, of the connections of now."""
        with self._lock:
            return {number: book._snapshot() for number, book in self._open.items()}


@dataclass(slots=True)
class _Episode:
    """What the server knows of one env's running episode."""

    total: float = 0.0
    length: int = 0
    whole: bool = True


class ClientBook:
    """The statistics of one connection's envs; obtained from :meth:`RunStatistics.enter`.

    Attributes:
        books: The ledger of this connection.
        holding: Envs with a chunk that no row has answered.
    """

    def __init__(self, run: RunStatistics, number: int, tally: _Tally) -> None:
        self.books = Books()
        self.holding: set[int] = set()
        self._run = run
        self._number = number
        self._tally = tally
        self._own = _Tally()
        self._heard = time.monotonic()
        self._horizons: dict[int, int] = {}
        self._episodes: dict[int, _Episode] = {}

    def asked(self, infer: Infer) -> None:
        """An infer came: its step ids tell which episodes this connection sees from the start.

        They are only a hint (SPEC 6.3.7), so they decide about no number that a client sends.
        """
        self._heard = time.monotonic()
        for env, step_id in zip(infer.env_indices.tolist(), infer.step_ids.tolist(), strict=True):
            episode = self._episodes.get(env)
            if episode is None:
                self._episodes[env] = _Episode(whole=step_id == 0)
            elif step_id == 0 and not episode.whole:
                self._episodes[env] = _Episode()

    def acted(self, envs: npt.NDArray[np.int64], horizon: int) -> None:
        """Chunks of ``horizon`` steps went out to ``envs`` int64 [n]."""
        given = envs.tolist()
        self._horizons.update(dict.fromkeys(given, horizon))
        with self._run._lock:
            self.books.chunks_given += len(given)
            # An env that asks again gives up the chunk that it holds.
            self.books.chunks_abandoned += len(self.holding.intersection(given))
            self._hold(self.holding.union(given))
            if self._run._acting_since is None:
                self._run._acting_since = time.monotonic()

    def received(self, received: ReceivedFeedback) -> None:
        """A feedback came; rows may have been left out of it."""
        self._heard = time.monotonic()
        left_out = Counter({STALE: len(received.stale), NON_FINITE: len(received.non_finite)})
        faulty = [row.env for row in received.non_finite]
        for env in (*received.stale, *faulty):
            self._episodes.setdefault(env, _Episode()).whole = False
        feedback = received.feedback
        envs = [] if feedback is None else feedback.env_indices.tolist()
        answered = received.rows - len(received.stale)
        with self._run._lock:
            self._hold(self.holding.difference(envs, faulty))
            self.books.receive(received.rows, answered, +left_out)
            self.books.rows_waiting = len(envs)
            if feedback is not None:
                self.books.env_steps += sum(self._steps(feedback))

    def _hold(self, envs: set[int]) -> None:
        self.holding = envs
        self.books.chunks_open = len(envs)

    def _steps(self, feedback: Feedback) -> list[int]:
        """Env steps of each row."""
        if feedback.chunk_steps is not None:
            steps: list[int] = feedback.chunk_steps.steps.tolist()
            return steps
        return [self._horizons[env] for env in feedback.env_indices.tolist()]

    def left_out(self, feedback: Feedback, reason: str) -> None:
        """The agent did not take a feedback that was received."""
        with self._run._lock:
            self.books.rows_waiting = 0
            self.books.rows_discarded[reason] += len(feedback.env_indices)

    def fed_back(self, feedback: Feedback, not_kept: Mapping[str, int] | None = None) -> None:
        """The agent took a feedback of m rows, and kept all but ``not_kept``, by reason."""
        envs = feedback.env_indices.tolist()
        steps = self._steps(feedback)
        ended = feedback.ended
        sent = _sent_statistics(feedback) if ended.any() else {}
        with self._run._lock:
            self.books.rows_waiting = 0
            self.books.keep(len(envs), not_kept or {})
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
        for tally in (self._tally, self._own):
            tally.episodes += 1
        if sent is None and not own.whole:
            return
        total, length = (own.total, own.length) if sent is None else sent
        if not abs(total) <= LARGEST_RETURN:  # it may be infinite, or NaN
            return
        for tally in (self._tally, self._own):
            tally.returns.append(total)
            tally.lengths.append(length)

    def _snapshot(self) -> ClientSnapshot:
        returns = self._own.returns
        return ClientSnapshot(
            envs=len(self._episodes),
            env_steps=self.books.env_steps,
            episodes=self._own.episodes,
            mean_return=fmean(returns) if returns else None,
            idle_seconds=time.monotonic() - self._heard,
        )

    def leave(self, abandoned: int) -> None:
        """The connection ended, and with it ``abandoned`` chunks that were not fed back."""
        with self._run._lock:
            self.books.chunks_abandoned += abandoned
            self._hold(set())
            for error in self.books.errors(closed=True):
                self._run._err(f"client {self._number}: {error}")
            self._run._ended.add(self.books)
            del self._run._open[self._number]


def _sent_statistics(feedback: Feedback) -> dict[int, tuple[float, int]]:
    """Row -> (return, length) of the finished rows that ``info.episode`` covers (SPEC 6.5.21)."""
    episode = feedback.episode
    if episode is None:
        return {}
    rows: Any = np.flatnonzero(episode.mask & feedback.ended).tolist()
    return {row: (float(episode.returns[row]), int(episode.lengths[row])) for row in rows}
