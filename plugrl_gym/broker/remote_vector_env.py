"""``RemoteVectorEnv``: envs of clients anywhere as an ordinary vector env."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Self

import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from plugrl_gym.broker import trees
from plugrl_gym.broker.batch import Batch
from plugrl_gym.broker.env_broker import EnvBroker
from plugrl_gym.broker.record import StepRecord
from plugrl_gym.broker.seats import Seats
from plugrl_gym.broker.waiting import Wait
from plugrl_gym.durations import check_seconds
from plugrl_gym.errors import ConnectTimeout, UsageError
from plugrl_gym.notices import log_wait
from plugrl_gym.server import Client, Refusal
from plugrl_gym.spaces.casting import as_array

if TYPE_CHECKING:
    from plugrl_gym.agents.sb3.vec_env import SB3VecEnv

__all__ = ["RemoteStatistics", "RemoteVectorEnv"]

_log = logging.getLogger("plugrl_gym.broker")

_NEXT_STEP: Final = (
    "this trainer steps its envs together: make them with autoreset same-step, these have next-step"
)
_PARTIAL: Final = (
    "this trainer steps its envs together, and these wait for each other: use autoreset same-step"
)

_Step = tuple[Any, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], dict[str, Any]]


@dataclass(slots=True)
class RemoteStatistics:
    """What a :class:`RemoteVectorEnv` has handed out.

    Attributes:
        env_steps: Rows that an env made.
        disconnected: Rows that none made: those with ``info["disconnected"]``. The server's books
            know nothing of them.
        lost: Envs whose connection ended.
        refilled: Seats that got another env.
    """

    env_steps: int = 0
    disconnected: int = 0
    lost: int = 0
    refilled: int = 0


class RemoteVectorEnv(VectorEnv[Any, Any, Any]):
    """A vector env whose envs are wherever its clients are.

    It listens from the start and waits for clients, several of which may make up its ``num_envs``
    envs, where it is first asked for its spaces or for :meth:`reset`. The autoreset mode is
    SAME_STEP. One ``step()`` is a step of every env.

    An env that is lost with its client is reported truncated, with a reward of 0, its last
    observation repeated and also in ``final_obs``, and ``info["disconnected"]`` is true for it: the
    one row that no env made. ``step()`` then waits up to ``refill_timeout`` for another env, whose
    first observation is the one of that row. While a seat stays empty after that, each of its rows
    is such a row, an episode of its own that was cut off, and no step waits for it again. Where no
    env at all is left, ``step()`` raises after ``connect_timeout``.

    Args:
        num_envs: n.
        host, port: Where to listen; 8000 is where clients look by default, 0 takes any free port.
        ignore_seed: Accept ``reset(seed=...)``, which cannot reach the envs, for training code that
            always passes one.
        connect_timeout: Seconds to wait for ``num_envs`` envs at first, or for any after all were
            lost; None for no limit.
        refill_timeout: Seconds that a step waits for another env in the place of a lost one.
        stall_timeout: Seconds after which envs count as lost whose client has fed back and does not
            ask for their next actions; None for never. They join again where it asks after all.
        on_wait: Called once a second while waiting longer than 5 s, with the seconds and what for;
            logs by default.
        **options: Of :class:`~plugrl_gym.broker.EnvBroker`. ``max_envs`` is ``num_envs`` by
            default: a client with more envs than are missing is sent away to come again later.
            With a larger one, clients that find no seat wait connected, and fill one at once.

    Attributes:
        broker: The :class:`~plugrl_gym.broker.EnvBroker` below.
        stats: :class:`RemoteStatistics`, counted live.

    Raises:
        UsageError: An option is out of its range, or the address cannot be listened on.

    Example:
        >>> envs = RemoteVectorEnv(num_envs=4, port=0)
        >>> envs.num_envs, envs.metadata["autoreset_mode"].value
        (4, 'SameStep')
        >>> envs.close()
    """

    def __init__(
        self,
        num_envs: int,
        host: str = "127.0.0.1",
        port: int = 8000,
        *,
        ignore_seed: bool = False,
        connect_timeout: float | None = 300.0,
        refill_timeout: float = 10.0,
        stall_timeout: float | None = 60.0,
        on_wait: Callable[[float, str], None] = log_wait,
        **options: Any,
    ) -> None:
        check_seconds(connect_timeout=connect_timeout, stall_timeout=stall_timeout, none=True)
        check_seconds(refill_timeout=refill_timeout)
        if num_envs < 1:
            raise UsageError(f"num_envs: expected at least 1, got {num_envs}")
        for name in ("horizon", "evaluation"):
            if name in options:
                raise UsageError(f"{name}: a RemoteVectorEnv has none; EnvBroker does")
        options = {"max_envs": num_envs, **options}
        if (most := options["max_envs"]) is not None and most < num_envs:
            raise UsageError(f"max_envs: expected at least {num_envs}, one for each, got {most}")
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.stats = RemoteStatistics()
        self._ignore_seed = ignore_seed
        self._connect_timeout = connect_timeout
        self._refill_timeout = refill_timeout
        self._stall_timeout = stall_timeout
        self._on_wait = on_wait
        options["admit"] = partial(_admit, options.get("admit"))
        self.broker = EnvBroker(host, port, **options)
        self._seats = Seats(num_envs)
        self._shown: Any = None  # what every env shows, n rows; None before the first reset
        self._first: dict[int, Any] = {}  # until then: seat -> what its env shows, one row
        self._record: StepRecord | None = None  # of a step that has begun
        self._given_up: set[int] = set()

    # -- what is where --------------------------------------------------------------------

    @property
    def url(self) -> str:
        """For clients on this machine, as ``ws://127.0.0.1:8000``."""
        return self.broker.url

    @property
    def single_observation_space(self) -> spaces.Space[Any]:  # type: ignore[override]
        """Of a single env, as the clients declare it; waits for them."""
        return self._known()[0]

    @property
    def single_action_space(self) -> spaces.Space[Any]:  # type: ignore[override]
        """Of a single env, as the clients declare it; waits for them."""
        return self._known()[1]

    # Kept, so that they can be seeded, and each sample is another one.

    @cached_property
    def observation_space(self) -> spaces.Space[Any]:  # type: ignore[override]
        """Of all envs together; waits for clients."""
        return batch_space(self._known()[0], self.num_envs)

    @cached_property
    def action_space(self) -> spaces.Space[Any]:  # type: ignore[override]
        """Of all envs together; waits for clients."""
        return batch_space(self._known()[1], self.num_envs)

    def _known(self) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        if self.broker.single_action_space is None:
            self._begin()
        observation = self.broker.single_observation_space
        action = self.broker.single_action_space
        assert observation is not None  # an env has come
        assert action is not None
        return observation, action

    # -- Gymnasium's interface ------------------------------------------------------------

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The first observations of all envs; waits for them.

        Nothing on the wire resets an env. Called later, it returns what the envs show now, and
        their episodes go on: a wrapper that counts anew from here counts the rest of each. The
        client's own counts are whole, in ``info["final_info"]["episode"]``.

        Args:
            seed: None, unless ``ignore_seed``.
            options: None; no option can reach the envs.

        Raises:
            UsageError: A seed or options, or after :meth:`close`.
            ConnectTimeout: The envs did not come in time.
        """
        if seed is not None and not self._ignore_seed:
            raise UsageError(
                "reset(seed=...) cannot reach envs that run elsewhere: seed them where they run, "
                "as by `plugrl-gym rollout ENV --seed 0`, and call reset() without a seed, or "
                "construct RemoteVectorEnv with ignore_seed=True"
            )
        if options:
            raise UsageError("reset(options=...) cannot reach envs that run elsewhere")
        self._check_open()
        if self._record is not None:
            self._finish(self._record)
        self._begin()
        return trees.copy(self._space, self._shown), {}

    def step(self, actions: Any) -> _Step:
        """One step of all envs.

        Args:
            actions: [n, *da]; rows of seats without an env go nowhere.

        Returns:
            Observation, reward float64 [n], terminated and truncated bool [n], and info.
            ``info["disconnected"]`` bool [n] is always there.

        Raises:
            UsageError: Before :meth:`reset`, after :meth:`close`, or an action that the action
                space cannot hold; no env has moved.
            ConnectTimeout: No env is left, and none came in time.
        """
        self._check_open()
        if self._shown is None:
            raise UsageError("call reset() before step()")
        if self._record is not None:
            raise UsageError("the last step was interrupted: call reset() first")
        taken = self._seats.taken
        given = as_array(actions, "actions")
        if given.shape[:1] != (self.num_envs,):
            raise UsageError(
                f"actions: expected one for each of {self.num_envs} envs, got shape "
                f"{list(given.shape)}"
            )
        self.broker.step_async(list(taken.values()), given[list(taken)])
        record = self._record = StepRecord(self._space, self._shown, self.num_envs)
        for seat in self._seats.vacant:
            record.lose(seat)
        return self._finish(record)

    def close_extras(self, *, finished: bool = True, **kwargs: Any) -> None:
        """Called by :meth:`close`, with its arguments.

        Args:
            finished: The run is over, and clients end; see :meth:`EnvBroker.close`.
            **kwargs: For code that passes those of other vector envs; ignored.
        """
        if hasattr(self, "broker"):  # else the constructor refused, and Gymnasium closes all
            self.broker.close(finished)

    def as_sb3_vec_env(self, *, action_masks: str | None = None) -> SB3VecEnv:
        """The same envs as Stable-Baselines3's VecEnv; needs the extra ``sb3``.

        Args:
            action_masks: For sb3-contrib's MaskablePPO: the key of the observation, a Dict, under
                which the envs show which actions are allowed. Masks must be part of what is
                observed, for nothing else travels with an episode's first observation.

        Raises:
            UsageError: Stable-Baselines3 is not installed, or the observation has no such key.
            ConnectTimeout: The envs did not come in time.
        """
        try:
            from plugrl_gym.agents.sb3.vec_env import SB3VecEnv
        except ImportError as error:
            raise UsageError(
                f'as_sb3_vec_env() needs Stable-Baselines3: {error}; pip install "plugrl-gym[sb3]"'
            ) from error
        return SB3VecEnv(self, action_masks=action_masks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close(finished=kind is None)

    def _check_open(self) -> None:
        if self.closed:
            raise UsageError("this RemoteVectorEnv is closed: its clients are gone; make another")

    # -- a step ---------------------------------------------------------------------------

    @property
    def _space(self) -> spaces.Space[Any]:
        return self._known()[0]

    def _finish(self, record: StepRecord) -> _Step:
        self._gather(record)
        self._refill(record)
        self._shown, self._record = record.observation, None
        self.stats.disconnected += int(record.disconnected.sum())
        self.stats.env_steps += int((~record.disconnected).sum())
        return record.handed_out()

    def _gather(self, record: StepRecord) -> None:
        """Wait for the row of every env that was given an action."""
        wait = Wait(self._on_wait, None)
        while owed := self._seats.taken.keys() - record.done:
            self._collect(record, wait, partial(self._late, owed))
            self._tell_the_stalled(record)

    def _late(self, owed: set[int]) -> str:
        taken = self._seats.taken
        clients = {str(self._seats.clients[taken[seat]]) for seat in owed if seat in taken}
        return f"the step of {len(owed)} envs of {', '.join(sorted(clients))}"

    def _tell_the_stalled(self, record: StepRecord) -> None:
        """Dismiss clients that ask for some envs before others have moved: they never will.

        A client sends nothing while its infer is unanswered (SPEC 5), and none is answered before
        all have asked.
        """
        taken = self._seats.taken
        owing = {self._seats.clients[slot] for s, slot in taken.items() if s not in record.done}
        asking = {slot for seat, slot in taken.items() if seat in record.asking}
        asking |= {slot for rows in self._seats.spares.values() for slot in rows}
        told: set[Client] = set()
        for slot in asking:
            client = self._seats.clients[slot]
            if client in owing and client not in told:
                told.add(client)
                self.broker.dismiss([slot], _PARTIAL)
        if self._stall_timeout is not None:
            owed = [slot for seat, slot in taken.items() if seat not in record.done]
            mute = self.broker.give_up(owed, self._stall_timeout)
            for client in dict.fromkeys(self._seats.clients[slot] for slot in mute):
                _log.warning(
                    "%s fed back and has not asked for an action for %g s: it counts as lost",
                    client,
                    self._stall_timeout,
                )

    def _collect(
        self, record: StepRecord | None, wait: Wait, what: str | Callable[[], str]
    ) -> None:
        """Take in what arrives within a moment."""
        batch = self.broker.collect_async(1, wait.slice())
        if not len(batch) and not batch.events:
            wait.notice(what if isinstance(what, str) else what())
            return
        for event in batch.events:
            if event.kind == "joined":
                self._seats.clients[event.slot] = event.client
        self._enter(record, batch)
        for slot in batch.left:
            client, seat = self._seats.clients[slot], self._seats.leave(slot)
            if seat is None:
                continue
            self.stats.lost += 1
            _log.warning("env %d is lost with %s", seat, client)
            if record is not None and seat not in record.done:
                record.lose(seat)

    def _enter(self, record: StepRecord | None, batch: Batch) -> None:
        rows: dict[int, int] = {}
        for row, slot in enumerate(batch.slots.tolist()):
            seat = self._seats.seat_of(slot)
            if seat is not None:
                rows[seat] = row
            elif batch.waiting[row]:
                self._seats.wait(slot, trees.take(self._space, batch.observation, [row]))
        if record is not None:
            record.enter(batch, rows)

    # -- seats ----------------------------------------------------------------------------

    def _begin(self) -> None:
        """Wait until every seat is taken, where none ever was."""
        if self._shown is not None:
            return
        wait = Wait(self._on_wait, self._connect_timeout)
        while vacant := self._seats.vacant:
            if wait.over:
                raise ConnectTimeout(
                    f"{self.num_envs - len(vacant)} of {self.num_envs} envs came within "
                    f"{self._connect_timeout:g} s; start clients, as by `plugrl-gym rollout ENV "
                    f"--url {self.url}`"
                )
            what = f"{len(vacant)} of {self.num_envs} envs, whose clients connect to {self.url}"
            self._collect(None, wait, what)
            self._first.update(self._seats.fill(vacant))
        self._shown = trees.join(self._space, [self._first[n] for n in range(self.num_envs)])
        self._first.clear()

    def _refill(self, record: StepRecord) -> None:
        """Put other envs in the place of lost ones, and wait for them if that was not in vain."""
        if not self._seats.vacant:
            return
        self._seat(record)
        wait = Wait(self._on_wait, self._refill_timeout)
        while (missing := self._free(record) - self._given_up) and not wait.over:
            what = f"{len(missing)} envs in the place of lost ones, at {self.url}"
            self._collect(record, wait, what)
            self._seat(record)
        wait = Wait(self._on_wait, self._connect_timeout)
        while not self._seats.taken:
            if wait.over:
                raise ConnectTimeout(
                    f"all {self.num_envs} envs are lost, and none came to {self.url} within "
                    f"{self._connect_timeout:g} s"
                )
            self._collect(record, wait, f"any env, for all are lost, at {self.url}")
            self._seat(record)
        self._given_up = self._free(record)

    def _free(self, record: StepRecord) -> set[int]:
        """Vacant seats whose row ends an episode, so that another may begin in it."""
        return {seat for seat in self._seats.vacant if record.ended[seat]}

    def _seat(self, record: StepRecord) -> None:
        seated = self._seats.fill(self._free(record))
        if seated:
            record.show(list(seated), trees.join(self._space, list(seated.values())))
            self._given_up -= seated.keys()
            self.stats.refilled += len(seated)


def _admit(trainer: Callable[[Client], None] | None, client: Client) -> None:
    if client.declaration is not None and client.declaration.autoreset == "next-step":
        raise Refusal(_NEXT_STEP)
    if trainer is not None:
        trainer(client)
