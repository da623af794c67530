"""How long a peer that keeps coming back broken waits for its close (SPEC 8.5)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

__all__ = ["Patience"]

_FIRST: Final = 0.1
_FORGET_SECONDS: Final = 60.0


@dataclass(slots=True)
class _Peer:
    strikes: int
    last: float


class Patience:
    """Counts the resyncs of each host: the first costs nothing, then the delay doubles.

    Args:
        longest: The longest delay, in seconds; 0 for none at all.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._peers: dict[str, _Peer] = {}

    def strike(self, host: str) -> float:
        """``host`` broke the protocol.

        Returns:
            Seconds to wait before this connection's close: 0, 0.1, 0.2, 0.4, ...
        """
        now = time.monotonic()
        self._peers = {
            name: peer for name, peer in self._peers.items() if now - peer.last < _FORGET_SECONDS
        }
        peer = self._peers.setdefault(host, _Peer(0, now))
        peer.strikes, peer.last = peer.strikes + 1, now
        if peer.strikes == 1:
            return 0.0
        # The exponent is bounded so that a patient attacker cannot overflow a float.
        return min(_FIRST * 2.0 ** min(peer.strikes - 2, 32), self._longest)

    def forgive(self, host: str) -> None:
        """A connection of ``host`` had its first valid exchange: one strike less."""
        peer = self._peers.get(host)
        if peer is not None:
            peer.strikes -= 1
            if peer.strikes <= 0:
                del self._peers[host]
