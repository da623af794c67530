"""A server in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from plugrl_gym.server import Agent, PlugRLServer

__all__ = ["Serving"]


class Serving:
    """Serves an agent until it is told to end, or fails; listens once constructed.

    Args:
        agent: What is served.
        host, port, **options: Of :class:`~plugrl_gym.server.PlugRLServer`.
        on_failure: Told of the error with which it ended, on its thread.

    Raises:
        UsageError: An option is out of its range, or the address cannot be listened on.
    """

    def __init__(
        self,
        agent: Agent,
        host: str,
        port: int,
        on_failure: Callable[[BaseException], None],
        **options: Any,
    ) -> None:
        self._on_failure = on_failure
        self._failure: BaseException | None = None
        self._started = threading.Event()
        self.server = PlugRLServer(
            agent, host, port, on_listening=lambda _: self._started.set(), **options
        )
        # A daemon, so that a trainer that ends without a word does end.
        self._thread = threading.Thread(target=self._run, name="plugrl-broker", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self.server.run())
        except BaseException as error:
            self._failure = error
            self._on_failure(error)
        finally:
            self._started.set()

    def stop(self, finished: bool) -> None:
        """End the run, as finished or as its operator, and wait until all is closed."""
        if finished:
            self.server.request_stop()
        else:
            self.server.request_shutdown()
        if threading.current_thread() is not self._thread:  # where garbage may be collected
            self._thread.join()
