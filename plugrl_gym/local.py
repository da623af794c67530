"""A server of one's own on this machine, for notebooks and tests.

Example:
    >>> import gymnasium as gym
    >>> from plugrl_gym import PlugRLVectorEnv, local_server
    >>> with local_server("random", total_timesteps=64, seed=0) as server:
    ...     envs = PlugRLVectorEnv(gym.make_vec("CartPole-v1", num_envs=4), server.url)
    ...     summary = envs.run(seed=0)
    ...     envs.close()
    ...     result = server.wait()
    >>> result["timesteps"] == summary.env_steps, result["finished"]
    (True, True)
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self, overload
from urllib.parse import urlsplit

from plugrl_gym.commands.children import Child, describe_end
from plugrl_gym.commands.entry import EXIT_FAILED, EXIT_USAGE
from plugrl_gym.commands.forwarding import said_by_name
from plugrl_gym.commands.keys import KEY_VARIABLE
from plugrl_gym.commands.result import make_result
from plugrl_gym.commands.stages import log_columns
from plugrl_gym.durations import check_seconds
from plugrl_gym.errors import ConnectionFailed, RunFailed, UsageError
from plugrl_gym.serve import PROG, add_options
from plugrl_gym.server import Agent, PlugRLServer, RunStatistics

__all__ = ["LocalServer", "ServerProcess", "ServerThread", "local_server"]

_log = logging.getLogger("plugrl_gym.local")
# Importing torch from a slow disk takes its time; so does the end of an update, and saving.
_START_SECONDS: Final = 300.0
_STOP_SECONDS: Final = 120.0
_KILLED_SECONDS: Final = 5.0
_TAIL: Final = 20


class LocalServer(ABC):
    """A running server; a context manager that ends it, so that it saves what it has learned.

    Args:
        start_timeout: Seconds that it may take to listen.
        stop_timeout: Seconds that it may take to end.

    Attributes:
        run_dir: Where the run's files lie; None where it writes none.
        stop_timeout: As given.
    """

    def __init__(self, start_timeout: float, stop_timeout: float) -> None:
        check_seconds(start_timeout=start_timeout, stop_timeout=stop_timeout)
        self.run_dir: Path | None = None
        self.stop_timeout = stop_timeout
        self._result: dict[str, Any] | None = None
        self._failure: BaseException | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """The address to give to clients."""

    @property
    def port(self) -> int:
        """The TCP port that it listens on."""
        port = urlsplit(self.url).port
        assert port is not None  # a server always names it
        return port

    @property
    def result(self) -> dict[str, Any] | None:
        """What result.json has of the run; None while it goes on, and where it failed."""
        return self._result

    def wait(self, seconds: float | None = None) -> dict[str, Any]:
        """Wait until the run has ended by itself, and everything is saved.

        Args:
            seconds: The longest wait; None to wait as long as the run takes.

        Returns:
            The :attr:`result`.

        Raises:
            TimeoutError: The run goes on.
            UsageError, RunFailed: The server ended because of an error.
            Exception: What an agent in this process raised.
        """
        check_seconds(seconds=seconds, none=True)
        if not self._ended(seconds):
            raise TimeoutError(f"{self.url}: the run has not ended within {seconds:g} s")
        return self._concluded()

    def close(self) -> None:
        """End the server, and wait until it has saved what it keeps.

        Raises:
            TimeoutError: It has not ended within ``stop_timeout`` seconds.
            UsageError, RunFailed: It had ended because of an error, or could not save.
            Exception: What an agent in this process raised.
        """
        self._ask_to_end()
        if not self._ended(self.stop_timeout):
            self._abandon()
            raise TimeoutError(f"{self.url}: did not end within {self.stop_timeout:g} s")
        self._concluded()

    def _concluded(self) -> dict[str, Any]:
        if self._failure is not None:
            raise self._failure
        assert self._result is not None  # it has ended, and not failed
        return self._result

    @abstractmethod
    def _ask_to_end(self) -> None:
        """Begin to end; may be called again."""

    @abstractmethod
    def _ended(self, seconds: float | None) -> bool:
        """Wait for the end; whether it came. The result, or the failure, is known then."""

    @abstractmethod
    def _abandon(self) -> None:
        """It did not end in time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self.close()
        except Exception as failure:
            if failure is error:
                return
            if error is None or isinstance(error, ConnectionFailed):
                raise  # why a client has lost its server
            error.add_note(f"The server failed, too: {failure}")


class ServerThread(LocalServer):
    """Serves an agent from a thread of this process; see :func:`local_server`.

    Attributes:
        server: The server itself.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        start_timeout: float = _START_SECONDS,
        stop_timeout: float = _STOP_SECONDS,
        **options: Any,
    ) -> None:
        super().__init__(start_timeout, stop_timeout)
        self._begun = threading.Event()
        announce = options.pop("on_listening", None)

        def on_listening(server: PlugRLServer) -> None:
            if announce is not None:
                announce(server)
            self._begun.set()

        self.server = PlugRLServer(agent, **{"port": 0, **options}, on_listening=on_listening)
        if hasattr(agent, "log_with"):
            agent.log_with(log_columns(self.server.statistics))
        model: Path | None = getattr(agent, "model_path", None)
        self.run_dir = None if model is None else model.parent
        self._agent = agent
        self._algorithm = agent.metadata().algorithm or type(agent).__name__
        self._thread = threading.Thread(target=self._serve, daemon=True, name="plugrl-server")
        self._thread.start()
        with _ending_on_error(self):
            if not self._begun.wait(start_timeout):
                raise TimeoutError(f"the server did not start within {start_timeout:g} s")
            if self._failure is not None:
                raise self._failure

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def statistics(self) -> RunStatistics:
        """What the run has done so far: ``statistics.snapshot()``."""
        return self.server.statistics

    def _serve(self) -> None:
        try:
            finished = self.server.serve()
            self._result = self._summary(finished)
        except BaseException as error:
            self._failure = error
        finally:
            self._begun.set()

    def _summary(self, finished: bool) -> dict[str, Any]:
        agent: Any = self._agent
        return make_result(
            self._algorithm,
            getattr(agent, "env_id", None),
            getattr(agent, "seed", None),
            self.statistics.snapshot(),
            getattr(agent, "counters", None),
            finished,
            getattr(agent, "evaluations", None),
        )

    def _ask_to_end(self) -> None:
        self.server.request_shutdown()

    def _ended(self, seconds: float | None) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _abandon(self) -> None:
        """A thread cannot be ended from outside; this one does not outlive the process."""


class ServerProcess(LocalServer):
    """``python -m plugrl_gym.serve`` as a child process; see :func:`local_server`."""

    def __init__(
        self,
        algorithm: str | None,
        *,
        start_timeout: float = _START_SECONDS,
        stop_timeout: float = _STOP_SECONDS,
        **options: Any,
    ) -> None:
        super().__init__(start_timeout, stop_timeout)
        # As an option every user of this machine could read the key. One that is in this process's
        # environment would be wanted by the server, and not be sent by a client in Python.
        environment = {**os.environ, KEY_VARIABLE: str(options.pop("api_key", None) or "")}
        said = said_by_name(add_options, {"algo": algorithm, "port": 0, **options})
        self._url = ""
        self._asked = False
        self._begun = threading.Event()
        self._folder = tempfile.TemporaryDirectory(prefix="plugrl-")
        self._log_file = Path(self._folder.name) / "server.log"
        self._text: str | None = None
        with self._log_file.open("wb") as log:
            self._child = Child(
                "plugrl_gym.serve",
                [*said, "--announce", "--json", f"--parent={PROG}"],
                log,
                piped=True,
                environment=environment,
            )
        self._reader = threading.Thread(target=self._read, daemon=True, name="plugrl-server")
        self._reader.start()
        with _ending_on_error(self):
            if not self._begun.wait(start_timeout):
                raise TimeoutError(
                    f"the server did not start within {start_timeout:g} s; its log:\n{self.log}"
                )
            if not self._url:
                self._ended(None)
                self._concluded()

    @property
    def url(self) -> str:
        return self._url

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._child.pid

    @property
    def log(self) -> str:
        """What it has said so far: warnings, progress, and a traceback if it crashed."""
        if self._text is not None:
            return self._text
        return self._log_file.read_text(encoding="utf-8", errors="replace")

    def _read(self) -> None:
        """Take in what the child announces, until it is gone."""
        assert self._child.stdout is not None
        with self._child.stdout as lines:
            for line in lines:
                said = json.loads(line)
                if self._begun.is_set():
                    self._result = said
                    continue
                self._url = said["url"]
                self.run_dir = None if said["run_dir"] is None else Path(said["run_dir"])
                self._begun.set()
        self._child.wait(self.stop_timeout)
        self._settle()
        if self._failure is not None and self._url and not self._asked:
            # A client would look for it for minutes.
            _log.error("%s: %s", self._url, self._failure)
        self._begun.set()

    def _settle(self) -> None:
        """The child has ended: say how."""
        if self._child.code != 0 or self._result is None:
            self._failure = _failure(self._child.code, self.log)

    def _ask_to_end(self) -> None:
        self._asked = True
        self._child.release()

    def _ended(self, seconds: float | None) -> bool:
        self._reader.join(seconds)
        if self._reader.is_alive():
            return False
        if self._text is None:
            self._text = self.log
            self._folder.cleanup()
        return True

    def _abandon(self) -> None:
        self._child.end(0.0)
        self._ended(_KILLED_SECONDS)


@overload
def local_server(served: Agent, **options: Any) -> ServerThread: ...


@overload
def local_server(served: str | None = None, **options: Any) -> ServerProcess: ...


def local_server(served: Agent | str | None = None, **options: Any) -> LocalServer:
    """Start a server on this machine, and wait until clients can connect.

    The name of an algorithm runs ``python -m plugrl_gym.serve`` in a process of its own, which
    leaves this one's interpreter to the envs. An agent is served from a thread of this process.
    Both work in a notebook, whose own event loop they leave alone. A server that is not closed
    ends with this process: a child saves first, a thread does not.

    Args:
        served: ``"ppo"`` or another algorithm of ``serve --help``, or an
            :class:`~plugrl_gym.server.Agent`; None for serve's default, or the algorithm of
            ``resume`` or ``load``.
        **options: For an algorithm those of ``serve --help``, ``--total-timesteps N`` as
            ``total_timesteps=N``: a flag takes True, ``-P`` is
            ``hyperparameters={"n_steps": 128}``. For an agent those of
            :class:`~plugrl_gym.server.PlugRLServer`. The port is any free one by default. For both
            also ``start_timeout`` and ``stop_timeout``, in seconds.

    Returns:
        The running server: a context manager, with ``url``, ``port``, ``run_dir``, ``wait()``,
        ``close()`` and ``result``; of an algorithm also the ``log``, of an agent ``statistics``.

    Raises:
        UsageError: An option that cannot be, or an extra that is not installed.
        RunFailed: The server's process crashed.
        TimeoutError: It did not start in time.

    Example:
        >>> from plugrl_gym.agents.random_agent import RandomAgent
        >>> with local_server(RandomAgent()) as server:
        ...     server.url.startswith("ws://127.0.0.1:")
        True
    """
    if isinstance(served, Agent):
        return ServerThread(served, **options)
    if served is None or isinstance(served, str):
        return ServerProcess(served, **options)
    raise UsageError(
        f"expected the name of an algorithm, as 'ppo', or an Agent, got {served!r}; "
        "SB3Agent makes an agent of a class of Stable-Baselines3"
    )


@contextmanager
def _ending_on_error(server: LocalServer) -> Iterator[None]:
    try:
        yield
    except BaseException:  # Ctrl-C, too
        with suppress(Exception):
            server.close()
        raise


def _failure(code: int | None, log: str) -> Exception:
    """What a server's exit code and its last words say."""
    lines = [line for line in log.splitlines() if line.strip()]
    said = lines[-1].removeprefix(f"{PROG}: ") if lines else ""
    if lines and said != lines[-1] and code in (EXIT_USAGE, EXIT_FAILED):
        return UsageError(said) if code == EXIT_USAGE else RunFailed(said)
    end = "\n".join(lines[-_TAIL:])
    return RunFailed(f"the server {describe_end(code)}; the end of its log:\n{end}")
