"""How many clients and envs a server takes, where its operator set a limit; none is the default."""

from __future__ import annotations

from collections.abc import Hashable

from plugrl_gym.errors import UsageError
from plugrl_gym.server.agent import Refusal

__all__ = ["Capacity", "Full"]


class Full(Exception):
    """There is no room now, but there may be later; the text is for the client."""


class Capacity:
    """Counts the envs of all connections, and holds clients and envs against their limits.

    Args:
        max_clients: Connections at a time; None for no limit.
        max_envs: Envs of all connections together; None for no limit.

    Attributes:
        envs: Those of now. A connection has as many as it declared, or has named in messages,
            whichever is more.

    Raises:
        UsageError: A limit below 1.
    """

    def __init__(self, max_clients: int | None, max_envs: int | None) -> None:
        for name, limit in (("max_clients", max_clients), ("max_envs", max_envs)):
            if limit is not None and limit < 1:
                raise UsageError(f"{name}: expected a number from 1 up, or None, got {limit}")
        self._max_clients = max_clients
        self._max_envs = max_envs
        self._envs: dict[Hashable, int] = {}
        self.envs = 0

    def check_room(self, clients: int) -> None:
        """Whether one more connection finds room.

        Args:
            clients: Connections so far.

        Raises:
            Full: It does not.
        """
        if self._max_clients is not None and clients >= self._max_clients:
            raise Full(
                f"This PlugRL server takes {self._max_clients} clients at a time; try later."
            )
        if self._max_envs is not None and self.envs >= self._max_envs:
            raise Full(f"This PlugRL server takes {self._max_envs} envs at a time; try later.")

    def claim(self, key: Hashable, envs: int) -> None:
        """A connection has ``envs`` envs.

        Raises:
            Refusal: More than this server ever takes.
            Full: More than there is room for now.
        """
        others = self.envs - self._envs.get(key, 0)
        if self._max_envs is not None and others + envs > self._max_envs:
            if envs > self._max_envs:
                raise Refusal(f"this server takes at most {self._max_envs} envs, client has {envs}")
            raise Full(f"{self._max_envs} envs at most, {others} are here, client has {envs}")
        self._envs[key] = envs
        self.envs = others + envs

    def leave(self, key: Hashable) -> None:
        """A connection is gone."""
        self.envs -= self._envs.pop(key, 0)
