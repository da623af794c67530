"""Every exception that plugrl_gym raises on purpose; the type says who is to blame.

::

    PlugRLError
    ├── UsageError              our caller misused us (also a ValueError)
    │   └── UnsupportedSpace    a Gymnasium space that has no place on the wire
    ├── ProtocolError           a message breaks SPEC.md
    │   ├── LocalProtocolError  we were about to send it: nothing left this process
    │   └── RemoteProtocolError the peer sent it
    ├── ConnectionFailed        the network, or the machine at its other end (also an OSError)
    │   ├── ConnectTimeout      no server answered in time
    │   ├── ReplyTimeout        a connected server went silent
    │   └── ConnectionLost      an open connection broke
    ├── ServerRefused           the server said no, in a sentence; coming back would not help
    ├── RunFailed               a server's run cannot go on; what it has saved is intact
    └── RunFinished             the server ended the run; nothing is wrong

The message of each names the place, what was expected and what came.
"""

from __future__ import annotations

__all__ = [
    "ConnectTimeout",
    "ConnectionFailed",
    "ConnectionLost",
    "LocalProtocolError",
    "PlugRLError",
    "ProtocolError",
    "RemoteProtocolError",
    "ReplyTimeout",
    "RunFailed",
    "RunFinished",
    "ServerRefused",
    "UnsupportedSpace",
    "UsageError",
]


class PlugRLError(Exception):
    """Base of every error that this package raises on purpose."""


class UsageError(PlugRLError, ValueError):
    """The caller passed or did something that cannot work; nothing was changed."""


class UnsupportedSpace(UsageError):
    """A Gymnasium space has no encoding on the wire (SPEC 9.3)."""


class ProtocolError(PlugRLError):
    """A message, or its place in the exchange, breaks SPEC.md."""


class LocalProtocolError(ProtocolError):
    """This side was about to send something illegal; no byte of it was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something illegal; the connection cannot go on."""


class ConnectionFailed(PlugRLError, OSError):
    """The network, or the machine at its other end, failed."""


class ConnectTimeout(ConnectionFailed):
    """No server could be reached within the connect deadline."""


class ReplyTimeout(ConnectionFailed):
    """A connected server did not answer in time."""


class ConnectionLost(ConnectionFailed):
    """An open connection ended without the server ending the run.

    Args:
        message: For people.
        why: For the books, in two words or three.
    """

    def __init__(self, message: str, why: str = "connection lost") -> None:
        super().__init__(message)
        self.why = why


class ServerRefused(PlugRLError):
    """The server refused this client (SPEC 8: HTTP 401 or 403, or a close with 1008 or 1009)."""


class RunFailed(PlugRLError):
    """A server's run cannot go on: a number in its model is not finite, or saving failed."""


class RunFinished(PlugRLError):
    """The server ended the run (close reason ``plugrl-server-stop``)."""
