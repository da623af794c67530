"""``EnvBroker``: envs of clients anywhere, for a trainer that answers whatever has arrived."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from plugrl_gym.broker import trees
from plugrl_gym.broker.actions import read_actions, read_slots
from plugrl_gym.broker.agent import BrokerAgent
from plugrl_gym.broker.batch import Batch, EnvEvent
from plugrl_gym.broker.desk import Desk, Row
from plugrl_gym.broker.info import join_info
from plugrl_gym.broker.serving import Serving
from plugrl_gym.durations import check_seconds
from plugrl_gym.errors import UsageError
from plugrl_gym.server import Client, RunStatistics

__all__ = ["EnvBroker"]

# Ctrl-C does not wake a thread that waits on Windows.
_SLICE: Final = 1.0


class EnvBroker:
    """Serves clients in a thread of its own, and hands what they ask to whoever collects it.

    Each env of each connection has a *slot*, a small number. A trainer collects a batch, the rows
    of all envs that have arrived, and answers any of them, in any order and at any time: an env
    waits for its own answer, however long that takes. A client whose infer covers several envs
    gets its answer once all of these have theirs. Every method but the async ones may be called
    from any thread.

    Args:
        host, port: Where to listen; port 0 takes any free one.
        horizon: Env steps in each action, H.
        max_envs: Most envs of all connections together; None for no limit.
        observation_space, action_space: Of a single env. None for those of the first client that
            declares its own; clients that declare others are refused in one sentence. A client of
            plain version 1, which declares none, is served once the spaces are known, here or from
            another client, and closed as not fitting before.
        evaluation: Serve clients with ``mode: "eval"`` too: the trainer must then give them actions
            without exploration, and learn nothing from their rows (SPEC 9.3.11). They are refused
            otherwise.
        admit: Called with each client that joins, in the server's thread; may raise
            :class:`~plugrl_gym.server.Refusal`. Whatever else it raises, the trainer's next call
            raises too.
        **options: Of :class:`~plugrl_gym.server.PlugRLServer`: ``api_key``, ``ssl_context``,
            ``max_clients``, ``feedback_timeout`` and others.

    Attributes:
        horizon: As given.
        statistics: What the run has done; ``statistics.snapshot()`` works in any thread. In its
            books a row is stored once it is collected.

    Raises:
        UsageError: An option is out of its range, or the address cannot be listened on.

    Example:
        >>> with EnvBroker(port=0) as broker:
        ...     batch = broker.collect_async(timeout=0.0)  # no client has come
        >>> len(batch)
        0
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        horizon: int = 1,
        max_envs: int | None = None,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        evaluation: bool = False,
        admit: Callable[[Client], None] | None = None,
        **options: Any,
    ) -> None:
        self.horizon = horizon
        self._desk = desk = Desk()
        self._agent = BrokerAgent(desk, horizon, observation_space, action_space, evaluation, admit)
        # A trainer answers rows as they come: a request gains nothing by waiting for others.
        options = {"batch_wait": 0.0, "max_envs": max_envs, **options}
        self._serving = Serving(self._agent, host, port, desk.fail, **options)
        self.statistics: RunStatistics = self._serving.server.statistics
        # Also where the interpreter exits, or nobody holds this any more.
        self._finalizer = weakref.finalize(self, self._serving.stop, False)

    # -- what is where --------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._serving.server.port

    @property
    def url(self) -> str:
        """For a client on this machine, as ``ws://127.0.0.1:8000``."""
        return self._serving.server.url

    @property
    def address(self) -> str:
        """The same without the scheme, as ``127.0.0.1:8000``."""
        return self.url.partition("://")[2]

    @property
    def urls(self) -> list[str]:
        """Every address under which clients may come, likeliest first."""
        return self._serving.server.urls()

    @property
    def single_observation_space(self) -> spaces.Space[Any] | None:
        """Of a single env; None while it is not known."""
        layouts = self._agent.layouts
        return None if layouts is None else layouts.observation.space

    @property
    def single_action_space(self) -> spaces.Space[Any] | None:
        """Of a single env and one step; None while it is not known."""
        layouts = self._agent.layouts
        return None if layouts is None else layouts.action.space

    # -- collect --------------------------------------------------------------------------

    def reset(self, timeout: float | None = None) -> Batch:
        """Wait for the first observations; envs themselves cannot be reset from here.

        Called later it is a fresh look: besides what has arrived it holds, as first rows, the rows
        that were collected before and still wait for an answer.

        Args:
            timeout: Seconds; None for no limit.
        """
        waiting = self._desk.again()
        rows, events = self._take(0 if waiting else 1, timeout)
        gone = {event.slot for event in events if event.kind == "left"}
        return self._batch([*(row for row in waiting if row.slot not in gone), *rows], events)

    def collect_async(self, min_envs: int = 1, timeout: float | None = None) -> Batch:
        """Wait until rows have arrived, then take all that have.

        It also returns, with less than ``min_envs`` rows or none, as soon as an env has left.

        Args:
            min_envs: Rows to wait for.
            timeout: Seconds, after which whatever is there is taken; None for no limit.

        Raises:
            UsageError: The broker is closed.
            Exception: What went wrong in the server's thread.
        """
        return self._batch(*self._take(min_envs, timeout))

    def _take(self, at_least: int, timeout: float | None) -> tuple[list[Row], tuple[EnvEvent, ...]]:
        check_seconds(timeout=timeout, none=True)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            self._desk.wait(at_least, min(max(left, 0.0), _SLICE))
            taken = self._desk.take(at_least if left > 0 else 0)
            if taken is not None:
                return taken

    async def collect(self, min_envs: int = 1, timeout: float | None = None) -> Batch:
        """As :meth:`collect_async`, for a coroutine; where it is cancelled nothing is lost."""
        check_seconds(timeout=timeout, none=True)
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(changed.set)

        with self._desk.listening(wake):
            try:
                async with asyncio.timeout(timeout):
                    while True:
                        changed.clear()
                        taken = self._desk.take(min_envs)
                        if taken is not None:
                            return self._batch(*taken)
                        await changed.wait()
            except TimeoutError:
                taken = self._desk.take(0)
        assert taken is not None  # nothing is less than no row
        return self._batch(*taken)

    def _batch(self, rows: Sequence[Row], events: tuple[EnvEvent, ...]) -> Batch:
        told = [row.told for row in rows]
        return Batch(
            slots=np.array([row.slot for row in rows], np.int64),
            observation=self._observation(rows),
            reward=np.array([t.reward if t else 0.0 for t in told], np.float64),
            terminated=np.array([t is not None and t.terminated for t in told], np.bool_),
            truncated=np.array([t is not None and t.truncated for t in told], np.bool_),
            first=np.array([t is None for t in told], np.bool_),
            waiting=np.array([row.waiting for row in rows], np.bool_),
            evaluation=np.array([not row.client.learning for row in rows], np.bool_),
            info=join_info([{} if t is None else t.info for t in told]),
            events=events,
        )

    def _observation(self, rows: Sequence[Row]) -> Any:
        """The rows' observations as one batch; None while no space is known."""
        space = self.single_observation_space
        if space is None:
            return None
        runs: list[tuple[Any, list[int]]] = []
        for row in rows:
            if not runs or runs[-1][0] is not row.observation:
                runs.append((row.observation, []))
            runs[-1][1].append(row.row)
        if not runs:
            return trees.empty(space)
        return trees.join(space, [trees.take(space, batch, taken) for batch, taken in runs])

    # -- answer ---------------------------------------------------------------------------

    def step_async(self, slots: Any, actions: Any) -> npt.NDArray[np.bool_]:
        """Answer these slots, and do not wait.

        Args:
            slots: m slots of rows that were collected and wait, each once.
            actions: For each its action, [m, *da]; with a horizon [H, m, *da], step by step.

        Returns:
            bool [m]: False where the env has left since; its batch of events tells.

        Raises:
            UsageError: A slot that does not wait, another shape, or a number that the action space
                cannot hold, NaN and infinity included. Nothing is answered then.
            Exception: What went wrong in the server's thread.
        """
        numbers = read_slots(slots)
        if not numbers:
            return np.zeros(0, np.bool_)
        layouts = self._agent.layouts
        if layouts is None:
            raise UsageError(f"slot {numbers[0]}: no env is there; none has come")
        chunk = read_actions(actions, numbers, self.horizon, layouts.action)
        return self._desk.answer(numbers, chunk)

    def dismiss(self, slots: Any, sentence: str) -> None:
        """Close the connections of waiting slots, as ones that can never be served.

        Args:
            slots: Slots of rows that were collected and wait.
            sentence: At most 123 bytes. It reaches the user of a client that has declared its
                spaces; that of another client finds it in the server's log (SPEC 8.18).

        Raises:
            UsageError: A slot that does not wait; none is dismissed.
        """
        self._desk.refuse(read_slots(slots), sentence)

    def give_up(self, slots: Any, seconds: float) -> list[int]:
        """Let go of envs whose client has fed back and has not asked again for so many seconds.

        It is as if they had left, with a row of what they fed back; their connection stays open,
        and where they ask after all, they join anew.

        Returns:
            Those of ``slots`` that this concerns.
        """
        return self._desk.give_up(read_slots(slots), seconds)

    # -- the end --------------------------------------------------------------------------

    def close(self, finished: bool = True) -> None:
        """Close all connections and the port; a second call does nothing.

        Args:
            finished: The run is over, and so clients end, with success. False shuts down instead:
                clients try to come back, for a trainer that starts again, say. A ``with`` block
                that ends in an exception does that.
        """
        if self._finalizer.detach() is not None:
            self._serving.stop(finished)
            self._desk.fail(UsageError("the broker is closed"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close(finished=kind is None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        await asyncio.to_thread(self.close, kind is None)
