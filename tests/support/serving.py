"""A server in a thread of the test, and the agents that it serves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from plugrl_gym.local import ServerThread
from plugrl_gym.protocol import Feedback, Infer, Metadata
from plugrl_gym.server import Agent, Client, Refusal, Request
from tests.support.raw_client import DEADLINE


class FakeAgent(Agent):
    """Records what it is asked; zeros for actions.

    Attributes:
        batches: The client numbers of each ``act`` call.
        fed_back: (client number, feedback) in order.
        dropped: The client number of each feedback of which nothing was left.
        learn_after: Learning is due after that many rows; None for never.
        stop_after: Finished after that many rows; None for never.
        learning, may_learn: ``learn`` sets the first, then waits for the second.
        fail_in: Name of the method that raises ``error``.
    """

    def __init__(
        self,
        horizon: int = 1,
        learn_after: int | None = None,
        stop_after: int | None = None,
        fail_in: str = "",
        error: Exception | None = None,
    ) -> None:
        self.horizon = horizon
        self.learn_after, self.stop_after = learn_after, stop_after
        self.fail_in, self.error = fail_in, error or RuntimeError("broken on purpose")
        self.batches: list[list[int]] = []
        self.joined: list[Client] = []
        self.left: list[int] = []
        self.dropped: list[int] = []
        self.fed_back: list[tuple[int, Feedback]] = []
        self.learned = self.closed = 0
        self.rows = self.unlearned = 0
        self.learning, self.may_learn = threading.Event(), threading.Event()
        self.may_learn.set()
        self.took = threading.Condition()
        self.refuse: str | None = None
        self.overlaps = 0

    def _enter(self, name: str) -> None:
        self.overlaps += self.learning.is_set()
        if name == self.fail_in:
            raise self.error

    def metadata(self) -> Metadata:
        return Metadata(algorithm="fake", action_horizon=self.horizon, action_dim=1)

    def join(self, client: Client) -> None:
        self._enter("join")
        if self.refuse is not None:
            raise Refusal(self.refuse)
        self.joined.append(client)

    def prepare(self, client: Client, infer: Infer) -> Any:
        self._enter("prepare")
        return infer

    def act(self, requests: Sequence[Request]) -> list[Any]:
        self._enter("act")
        self.batches.append([request.client.number for request in requests])
        return [np.zeros((self.horizon, len(r.infer.env_indices)), np.int64) for r in requests]

    def feedback(self, client: Client, feedback: Feedback) -> None:
        self._enter("feedback")
        with self.took:
            self.fed_back.append((client.number, feedback))
            self.rows += len(feedback.env_indices)
            self.unlearned += len(feedback.env_indices)
            self.took.notify_all()

    def feedback_dropped(self, client: Client) -> None:
        self._enter("feedback_dropped")
        self.dropped.append(client.number)

    def wait_for_rows(self, rows: int) -> None:
        """Until that many feedback rows have come."""
        with self.took:
            assert self.took.wait_for(lambda: self.rows >= rows, DEADLINE)

    def wait_for_departures(self, number: int) -> None:
        """Until that many clients have left."""
        with self.took:
            assert self.took.wait_for(lambda: len(self.left) >= number, DEADLINE)

    def leave(self, client: Client) -> None:
        self._enter("leave")
        with self.took:
            self.left.append(client.number)
            self.took.notify_all()

    @property
    def learning_due(self) -> bool:
        return self.learn_after is not None and self.unlearned >= self.learn_after

    def learn(self) -> None:
        self._enter("learn")
        self.learning.set()
        assert self.may_learn.wait(DEADLINE)
        self.unlearned = 0
        self.learned += 1
        self.learning.clear()

    @property
    def finished(self) -> bool:
        return self.stop_after is not None and self.rows >= self.stop_after

    def close(self) -> None:
        self._enter("close")
        self.closed += 1


class Running(ServerThread):
    """A server in a thread of the test, whose failure a test may look at."""

    def ended(self) -> bool | Exception:
        """Wait for the end of the run: whether its agent finished it, or the server's failure."""
        try:
            return bool(self.wait(DEADLINE)["finished"])
        except TimeoutError:
            raise AssertionError("the server did not end") from None
        except Exception as error:
            return error


@contextmanager
def running(agent: Agent, **options: Any) -> Iterator[Running]:
    """Serve ``agent`` on a free port; shut the server down at the end."""
    run = Running(agent, start_timeout=DEADLINE, stop_timeout=DEADLINE, **options)
    try:
        yield run
    finally:
        # A test that failed half-way may have left a learner waiting.
        release: Callable[[], None] = getattr(getattr(agent, "may_learn", None), "set", int)
        release()
        run.server.request_shutdown()
        run.ended()
