"""``PlugRLVectorEnv``: step any Gymnasium vector env with a remote policy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from plugrl_gym.client import autoreset, loop
from plugrl_gym.client.books import drop_reason
from plugrl_gym.client.chunks import RESETTING, Chunks, StepRecord
from plugrl_gym.client.connection import Endpoint, parse_url
from plugrl_gym.client.declaration import declare
from plugrl_gym.client.episodes import EpisodeCounter, reported_success
from plugrl_gym.client.finite import check_message, check_rewards
from plugrl_gym.client.handed_out import (
    as_numpy,
    check_text,
    check_vector_env,
    like,
    numbers,
    read_override,
    read_reset_mask,
    replace_rows,
    rows_of,
)
from plugrl_gym.client.info import InfoForwarder
from plugrl_gym.client.loop import RunSummary
from plugrl_gym.client.reaching import warn_of_plain_key
from plugrl_gym.client.rows import Rows
from plugrl_gym.client.session import Session
from plugrl_gym.client.statistics import STAGES, ClientStatistics
from plugrl_gym.client.takeover import Takeover
from plugrl_gym.client.waiting import Waiting
from plugrl_gym.errors import UsageError
from plugrl_gym.latency import Latency, timed
from plugrl_gym.notices import log_wait
from plugrl_gym.protocol import (
    EXECUTED_ACTIONS,
    GYM_SPACES,
    REUSE_FEEDBACK_OBS,
    Action,
    Infer,
    Observation,
)
from plugrl_gym.protocol.credentials import check_key
from plugrl_gym.spaces import ActionLayout, ObservationLayout, standard_space
from plugrl_gym.trust import tls_context

__all__ = ["PlugRLVectorEnv"]

_Step = tuple[Any, Any, Any, Any, dict[str, Any]]

if TYPE_CHECKING:
    _Wrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:
    _Wrapper = VectorWrapper  # takes no parameters before gymnasium 1.3


class PlugRLVectorEnv(_Wrapper):
    """A vector env whose actions come from a PlugRL server.

    One ``step()`` is one step of the wrapped env, whatever the server's horizon; it asks the
    server for a chunk of actions only where an env's chunk ran out, and feeds back every chunk
    that finished. Nothing connects before the first ``reset()``.

    Args:
        env: Any vector env: Sync, Async, native or hand-written. Over one whose autoreset is
            DISABLED, finished envs are reset inside the step and this wrapper presents itself
            as SAME_STEP.
        url: ``ws://HOST:PORT`` (or ``HOST:PORT``).
        autoreset_mode: For an env that does not tag its mode in its metadata.
        out_of_bounds: ``"clip"`` or ``"error"``: what to do with a number outside a Box, of a
            server or of a caller's own actions.
        mode: ``"train"``, or ``"eval"`` for deterministic actions that nothing is learned from
            (where the server offers ``gym-spaces``).
        forward_info: Keys of the env's info to send along with each finished chunk. Nothing but
            ``episode`` is sent otherwise.
        api_key: For a server that wants one.
        ca_file: For ``wss://``: a PEM file with the certificates to trust in place of the
            system's, an authority's or the server's own.
        connect_timeout: Seconds to try for a first connection.
        reconnect_timeout: Seconds to try after a lost one; None for ever. The waits between two
            attempts grow from 0.2 s to 15 s, at random, so that many clients do not come as one.
        metadata_timeout, liveness_timeout, reply_timeout: See
            :class:`~plugrl_gym.client.connection.Endpoint`.
        on_wait: Called once a second while waiting longer than 5 s; logs by default.

    Attributes:
        stats: A live :class:`~plugrl_gym.client.ClientStatistics`; ``stats()`` is a plain copy.

    Raises:
        UsageError: A plain ``gym.Env``, an unreadable autoreset mode, a bad URL, time, key or file.
        UnsupportedSpace: A space with no encoding.

    Example:
        >>> import gymnasium as gym
        >>> from plugrl_gym import PlugRLVectorEnv
        >>> envs = PlugRLVectorEnv(gym.make_vec("CartPole-v1", num_envs=8), "ws://127.0.0.1:8000")
        >>> for obs, reward, terminated, truncated, info in envs.rollout(seed=0):  # doctest: +SKIP
        ...     pass
        >>> envs.close()
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        url: str = "ws://127.0.0.1:8000",
        *,
        autoreset_mode: AutoresetMode | str | None = None,
        out_of_bounds: str = "clip",
        mode: str = "train",
        forward_info: Sequence[str] = (),
        api_key: str | None = None,
        ca_file: str | PathLike[str] | None = None,
        connect_timeout: float = 30.0,
        reconnect_timeout: float | None = 300.0,
        metadata_timeout: float = 20.0,
        liveness_timeout: float | None = 60.0,
        reply_timeout: float | None = None,
        on_wait: Callable[[float, str], None] = log_wait,
    ) -> None:
        check_vector_env(env)
        check_text(env)
        super().__init__(env)
        if mode not in ("train", "eval"):
            raise UsageError(f"mode: expected 'train' or 'eval', got {mode!r}")
        self._mode = autoreset.read_autoreset_mode(env, autoreset_mode)
        if self._mode is AutoresetMode.DISABLED:
            self.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        elif autoreset_mode is not None:
            self.metadata = {**(env.metadata or {}), "autoreset_mode": self._mode}
        self._layout = ObservationLayout(standard_space(env.single_observation_space))
        self._actions = ActionLayout(env.single_action_space, out_of_bounds)
        self._forwarder = InfoForwarder(forward_info)
        self._declaration = declare(env, self._mode, self._layout.space, mode)
        self._placeholder = self._actions.placeholder(env.num_envs)
        self._chunks = Chunks(env.num_envs, self._actions.shape, self._actions.dtype)
        self._episodes = EpisodeCounter(env.num_envs)
        url = parse_url(url)
        self._waiting = Waiting(on_wait)
        stages = Latency(STAGES)
        self._step_envs = timed(lambda actions: self.env.step(actions), stages["env"].observe)
        self._encode = timed(lambda o: self._layout.encode(as_numpy(o)), stages["encode"].hold)
        endpoint = Endpoint(
            url=url,
            api_key=None if api_key is None else check_key(api_key),
            ssl_context=tls_context(url, ca_file),
            connect_timeout=connect_timeout,
            metadata_timeout=metadata_timeout,
            liveness_timeout=liveness_timeout,
            reply_timeout=reply_timeout,
            on_wait=self._waiting,
            stages=stages,
        )
        warn_of_plain_key(url, api_key)
        self._session = Session(endpoint, reconnect_timeout, self._on_lost)
        self._current: Observation | None = None
        self._handed_out: Any = None
        self._action_shape = self._actions.shape
        self._began = np.zeros(env.num_envs, dtype=np.bool_)
        self._fed_back = np.zeros(env.num_envs, dtype=np.bool_)
        self._undeclared = True
        self.stats = ClientStatistics(open=self._chunks.open, stages=stages)

    # -- Gymnasium's interface ------------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the envs, all or those of ``options["reset_mask"]`` bool [n]; connects if need be.

        A reset in mid episode, or of an env that holds an unrun chunk, ends the connection and
        opens another: no message of version 1 can say it (SPEC 8.37).

        Raises:
            ConnectionFailed, ServerRefused, RemoteProtocolError: No connection could be made.
        """
        mask = read_reset_mask(options, self.num_envs, first=self._current is None)
        if self._current is not None and self._interrupts(mask):
            with self._broken_off():
                self._send(self._chunks.take_held())
                self._session.hang_up("reset")
        if not self._session.finished:
            self._connect()
        with self._envs_may_move():
            return self._reset(mask, seed, options)

    def _reset(
        self,
        mask: npt.NDArray[np.bool_],
        seed: int | list[int | None] | None,
        options: dict[str, Any] | None,
    ) -> tuple[Any, dict[str, Any]]:
        before = self._current
        # reset_mask is popped from the dict by some vector envs: they get one of their own.
        fresh = None if options is None else dict(options)
        observation, info = self.env.reset(seed=seed, options=fresh)  # type: ignore[arg-type]
        self._handed_out = observation
        self._current = self._encode(observation)
        if before is not None:
            autoreset.check_unmasked(self.env, before, self._current, ~mask)
        self._chunks.reset(mask)
        masked = autoreset.masked_rows(info, self.num_envs)
        self._chunks.phase[masked & mask] = RESETTING
        self._episodes.reset(mask)
        self._began |= mask
        self._fed_back &= ~mask
        self._send(self._chunks.release())
        return observation, info

    def step(self, actions: Any = None) -> _Step:
        """One step of the wrapped env.

        Args:
            actions: None for the server's own, or [n, *da] to execute instead; where they
                differ, the server must offer ``gym-executed-actions``.

        Returns:
            What the wrapped env returned; ``info["action"]`` is the executed batch [n, *da].

        Raises:
            RunFinished: The server has ended the run; nothing was stepped.
            UsageError: Replaced actions that the envs do not have, or that the server could not be
                told of.
        """
        planned = self.infer()
        running, features = self._chunks.running, self._session.features
        executed, overridden = read_override(actions, planned, running, features, self._actions)
        with self._envs_may_move():
            return self._advance(executed, overridden)

    @contextlib.contextmanager
    def _envs_may_move(self) -> Iterator[None]:
        """Where this fails, envs and bookkeeping may disagree until the next full reset."""
        with self._broken_off():
            try:
                yield
            except BaseException:
                self._current = None
                raise

    @contextlib.contextmanager
    def _broken_off(self) -> Iterator[None]:
        """Where this fails, what was under way is not taken up again: Ctrl-C comes anywhere."""
        try:
            yield
        except BaseException as error:
            why = drop_reason(error)
            self._session.hang_up(why)
            if isinstance(error, KeyboardInterrupt):
                self._on_lost(why)  # which it may have cut short
                self.stats.book.settle(why)
            raise

    def _advance(self, executed: npt.NDArray[Any], overridden: npt.NDArray[np.bool_]) -> _Step:
        active = self._chunks.phase != RESETTING
        actions = like(executed.copy(), self._handed_out)
        observation, reward, terminated, truncated, info = self._step_envs(actions)
        info = dict(info)
        record = self._read_step(observation, reward, terminated, truncated, info, active, executed)
        ended = record.terminated | record.truncated
        if self._mode is AutoresetMode.DISABLED and ended.any():
            # Copied: the reset may write into what the step handed out.
            reward, terminated, truncated = deepcopy((reward, terminated, truncated))
            observation, info = self._reset_finished(observation, info, ended)
        replaced = self._chunks.record(record, overridden)
        self.stats.count_step(active, ended, record.returns, record.lengths, replaced)
        self._episodes.reset(ended)
        self._began = (self._began & ~active) | ended | record.resetting
        self._send(self._chunks.release())
        info["action"] = executed
        return observation, reward, terminated, truncated, info

    def infer(self) -> npt.NDArray[Any]:
        """The server's actions [n, *da] for the next step; asks for chunks where they ran out.

        Rows of envs whose next step is a reset (NEXT_STEP) hold a placeholder.

        Raises:
            RunFinished: The server has ended the run.
        """
        if self._current is None:
            raise UsageError(
                "call reset() before step() or infer(); it is needed again after a step that failed"
            )
        while len(self._chunks.ready):
            self._connect()
            with self._broken_off():
                self._exchange()
        return self._chunks.next_actions(self._placeholder)

    def close(self, **kwargs: Any) -> None:
        """Feed back what legally can be, close the connection with code 1000 and the envs."""
        if not hasattr(self, "stats"):
            return  # the constructor refused, and the envs are still the caller's
        try:
            with self._broken_off():
                if self._current is not None and self._session.connected:
                    self._send(self._chunks.flush(self._current))
                self._session.hang_up("closed")
        finally:
            self._current = None
            super().close(**kwargs)

    # -- Loops ----------------------------------------------------------------------------

    def rollout(
        self,
        *,
        seed: int | list[int | None] | None = None,
        max_steps: int | None = None,
        max_episodes: int | None = None,
        progress: bool = False,
        takeover: Takeover | None = None,
    ) -> Iterator[_Step]:
        """Reset, then yield every step until the server ends the run or a limit is reached.

        Args:
            seed: For the reset.
            max_steps: Env steps, counted over all envs.
            max_episodes: Finished episodes, counted over all envs.
            progress: Show a live line: a widget in a notebook, a bar on a terminal, else a line
                on stderr now and then.
            takeover: Asked before each step whether to execute other actions than the server's,
                see :mod:`~plugrl_gym.client.takeover`; None leaves all to the server.
        """
        return loop.rollout(self, seed, max_steps, max_episodes, progress, takeover=takeover)

    def run(self, **kwargs: Any) -> RunSummary:
        """Drain :meth:`rollout` (same arguments) and return its summary.

        ``between_steps=`` is called, without arguments, after each step, before the next action is
        asked for.
        """
        return loop.run(self, **kwargs)

    @property
    def owes_feedback(self) -> bool:
        """Whether the server waits for a feedback; only then does its timeout run (SPEC 8.8)."""
        return self._chunks.acting

    @property
    def finished(self) -> bool:
        """Whether the server has ended the run."""
        return self._session.finished

    # -- Exchange -------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._session.connect():
            self._undeclared = True
            self._waiting.over()
            self.stats.connected()

    def _exchange(self) -> None:
        """One message that brings the READY envs closer to their chunks."""
        assert self._current is not None
        if self._chunks.acting:
            rows = self._chunks.settle(self._current)
            if rows is not None:
                return self._send(rows)
        elif len(envs := self._chunks.askable):
            return self._ask(envs)
        return self._session.hang_up("out of turn")

    def _ask(self, envs: npt.NDArray[np.int64]) -> None:
        assert self._current is not None
        features = self._session.features
        observation, reuse = self._current, None
        if REUSE_FEEDBACK_OBS in features:
            # The row of the last feedback is this very observation unless an episode began.
            reuse = self._fed_back[envs] & ~self._began[envs]
            observation = rows_of(observation, envs[~reuse])
        elif len(envs) < self.num_envs:
            observation = observation.select(envs)
        infer = Infer(
            observation=observation,
            env_indices=envs,
            step_ids=self._chunks.step_ids[envs],
            reuse=reuse,
            spaces=self._declaration if self._undeclared and GYM_SPACES in features else None,
        )
        check_message(infer, self.stats.env_steps)
        answer = self._session.infer(infer, self._accept)
        self._waiting.over()
        if answer is not None:
            self._undeclared = False
            self._chunks.assign(envs, *answer)
            self.stats.book.chunks_received += len(envs)

    def _accept(self, action: Action) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
        chunk = self._actions.decode(action.action)
        self._action_shape = action.action.shape[2:]
        told = EXECUTED_ACTIONS in self._session.features
        # A clipped number is not what the server sent (SPEC 9.5.4).
        return chunk, self._actions.clips(action.action) if told else None

    def _send(self, rows: Rows | None) -> None:
        if rows is None or not self._session.connected:
            return
        session, book, sent = self._session, self.stats.book, False
        try:
            feedback = rows.to_feedback(session.features, self._forwarder, self._action_shape)
            check_message(feedback, self.stats.env_steps)
            sent = session.feedback(feedback)
        finally:
            if sent:
                self._fed_back[rows.envs] = ~(rows.terminated | rows.truncated)
                book.feed_back(len(rows), int(rows.steps.sum()))
            else:
                why = "not sent" if session.connected else session.why
                book.drop(len(rows), int(rows.steps.sum()), why)

    def _on_lost(self, why: str) -> None:
        dropped = self._chunks.drop()
        self._fed_back[:] = False
        self.stats.book.drop(dropped.chunks, dropped.steps, why)

    # -- Steps ----------------------------------------------------------------------------

    def _read_step(
        self,
        observation: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        info: dict[str, Any],
        active: npt.NDArray[np.bool_],
        executed: npt.NDArray[Any],
    ) -> StepRecord:
        n = self.num_envs
        rewards = numbers(reward, "reward", n).astype(np.float64)
        term = numbers(terminated, "terminated", n).astype(np.bool_) & active
        trunc = numbers(truncated, "truncated", n).astype(np.bool_) & active
        check_rewards(rewards, active, self.stats.env_steps)
        ended = term | trunc
        self._episodes.add(rewards, active)
        current = self._encode(observation)
        self._current = at_end = current
        if self._mode is AutoresetMode.SAME_STEP and ended.any():
            at_end = replace_rows(current, autoreset.final_observations(self._layout, info, ended))
        returns, lengths = self._episodes.finished(info, ended)
        resetting = autoreset.masked_rows(info, n)
        if self._mode is AutoresetMode.NEXT_STEP:
            resetting = resetting | ended
        return StepRecord(
            rewards=rewards,
            terminated=term,
            truncated=trunc,
            observation=at_end,
            actions=executed,
            resetting=resetting,
            returns=returns,
            lengths=lengths,
            success=reported_success(info, n, ended),
            info=self._forwarder.rows(info, n, ended),
        )

    def _reset_finished(
        self, observation: Any, info: dict[str, Any], ended: npt.NDArray[np.bool_]
    ) -> tuple[Any, dict[str, Any]]:
        """DISABLED: reset the finished envs and report it as SAME_STEP does."""
        before = self._current
        assert before is not None
        # Taken before the reset, which may write into what the step handed out.
        final = autoreset.rows_of_finished(self._layout.space, observation, ended)
        first, reset_info = self.env.reset(options={"reset_mask": ended.copy()})
        self._current = self._encode(first)
        autoreset.check_unmasked(self.env, before, self._current, ~ended)
        return first, autoreset.same_step_info(info, reset_info, final, ended)

    # -- Resets ---------------------------------------------------------------------------

    def _interrupts(self, mask: npt.NDArray[np.bool_]) -> bool:
        """Whether resetting ``mask`` cuts an episode or an unrun chunk that the server knows of."""
        if not self._session.connected:
            return False
        return bool((mask & (self._chunks.running | self._fed_back)).any())

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a PlugRLVectorEnv holds a connection and cannot be pickled or copied; make one in "
            "each process"
        )

    def __enter__(self) -> PlugRLVectorEnv:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
