"""What a learner implements to be served (the server's only view of it).

The server calls every method from one place at a time: ``act`` and ``feedback`` on its event
loop, so they must be quick; ``learn`` in a thread of its own, during which no other method is
called (but see ``learning_wanted``). An agent needs no lock, unless it answers later, by a future.
What ``act``, ``feedback`` and ``learn`` raise, other than the errors that they name, is the failure
of the run: every connection closes and the server raises it.
"""

# The methods that an agent need not override are empty on purpose:
# ruff: noqa: B027

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy.typing as npt

from plugrl_gym.errors import PlugRLError
from plugrl_gym.protocol import (
    CHUNK_STEPS,
    EXECUTED_ACTIONS,
    GYM_SPACES,
    REUSE_FEEDBACK_OBS,
    Feedback,
    Infer,
    Metadata,
    SpaceDeclaration,
)

__all__ = ["Agent", "Answer", "Client", "Refusal", "Request"]

#: The actions for one request, [H, n, *da]: now, or later and from any thread.
Answer: TypeAlias = npt.NDArray[Any] | Future[npt.NDArray[Any]]


class Refusal(PlugRLError):
    """Raised by an agent that cannot serve a client.

    The text is one sentence that names what each side has. It reaches the user of a client that
    declared its spaces (SPEC 8.17); for any other it goes into the server's log (SPEC 8.18).
    """


@dataclass(eq=False, slots=True)
class Client:
    """One connection, as agents know it; env indices mean something only within it.

    Attributes:
        number: Counts the connections of this server, from 1.
        address: Where it comes from, as ``127.0.0.1:53211``.
        declaration: The client's spaces; None for one that does not declare them.
        state: A place for what the agent keeps about this connection.
    """

    number: int
    address: str
    declaration: SpaceDeclaration | None = None
    state: Any = field(default=None)

    @property
    def learning(self) -> bool:
        """False for a client that declared ``mode: "eval"``: nothing it sends is learned from."""
        return self.declaration is None or self.declaration.mode != "eval"

    def __str__(self) -> str:
        return f"client {self.number} ({self.address})"


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One client's infer, waiting for its actions.

    Attributes:
        client: Who asks.
        infer: The complete request, reused observations filled in.
        prepared: What :meth:`Agent.prepare` made of it.
    """

    client: Client
    infer: Infer
    prepared: Any


class Agent(ABC):
    """A policy, with or without a learner.

    Example:
        >>> import numpy as np
        >>> class Still(Agent):
        ...     def metadata(self):
        ...         return Metadata(algorithm="still", action_horizon=1, action_dim=1)
        ...     def act(self, requests):
        ...         return [np.zeros((1, len(r.infer.env_indices)), np.int64) for r in requests]
    """

    #: Optional features that the server offers on this agent's behalf.
    features: tuple[str, ...] = (REUSE_FEEDBACK_OBS, GYM_SPACES, CHUNK_STEPS, EXECUTED_ACTIONS)

    @abstractmethod
    def metadata(self) -> Metadata:
        """What to tell a client that connects; the server adds version and features."""

    def join(self, client: Client) -> None:
        """A client's first infer has come, with or without a declaration of its spaces.

        Raises:
            Refusal: This client cannot be served.
        """

    def prepare(self, client: Client, infer: Infer) -> Any:
        """Check one request and bring it into the form that :meth:`act` wants.

        Raises:
            RemoteProtocolError: The observation does not fit; only this client is closed.
            Refusal: This client cannot be served.
            RunFailed: The run cannot begin; the server ends it.
        """
        return infer

    @abstractmethod
    def act(self, requests: Sequence[Request]) -> Sequence[Answer]:
        """Choose actions for all requests, in one forward pass where possible.

        Returns:
            For each request [H, n, *da], time-major, rows in the order of its ``env_indices``; or
            a future of that, where the answer is not known yet. The client waits, and nobody else
            does; the time counts as the server's own. The future is cancelled where the client
            leaves meanwhile. A :class:`Refusal` set as its exception closes this connection alone;
            any other exception is the failure of the run.
        """

    def feedback(self, client: Client, feedback: Feedback) -> Mapping[str, int] | None:
        """Take what came of earlier actions; rows are finite and belong to actions of this agent.

        Returns:
            How many of the rows the agent did not keep, by reason; None where it kept them all.

        Raises:
            RemoteProtocolError: The observation does not fit; only this client is closed.
        """

    def feedback_dropped(self, client: Client) -> None:
        """A feedback has come of which the server had to drop every row (SPEC 6.5.25, 6.5.26).

        As after :meth:`feedback`, nothing but an infer can come from this client next.
        """

    def leave(self, client: Client) -> None:
        """The connection is gone; chunks that it had not fed back never will be."""

    @property
    def learning_due(self) -> bool:
        """Whether :meth:`learn` must run before any further action is chosen."""
        return False

    @property
    def learning_wanted(self) -> bool:
        """Whether :meth:`learn` has something to do for which no action need wait.

        Then, and only then, all other methods but :meth:`close` are called while it runs, and it
        is called again as long as this holds. Where :attr:`learning_due` holds meanwhile, no action
        is chosen until it does not.
        """
        return False

    def learn(self) -> None:
        """Learn from what was fed back; may take minutes."""

    @property
    def rows_stored(self) -> int | None:
        """Rows that :meth:`feedback` has kept, as the agent itself counts what it has stored.

        The server holds it against its own count at the end. None for an agent that does not
        count, or stores nothing.
        """
        return None

    @property
    def finished(self) -> bool:
        """Whether the run is over.

        Asked when a client has joined, has asked for actions or has left, after each
        :meth:`learn`, and after a feedback once no learning is due: what the last feedback
        completed is still learned from.
        """
        return False

    def close(self) -> Mapping[str, int] | None:
        """The server ends, for whatever reason: save what should be kept.

        Returns:
            How many of the rows that :meth:`feedback` had kept came to nothing after all, by
            reason; None for none.
        """
