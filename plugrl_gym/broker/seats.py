"""Which env of which connection has which place in a vector env (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from plugrl_gym.server import Client

__all__ = ["Seats"]


class Seats:
    """n seats for slots; slots of connections that found no room wait as spares.

    All envs of a connection are seated together or not at all, for its answers go out together.

    Args:
        number: n.

    Attributes:
        slots: The slot in each seat; None where it is vacant.
        clients: Slot -> its connection, of spares too.
    """

    def __init__(self, number: int) -> None:
        self.slots: list[int | None] = [None] * number
        self.clients: dict[int, Client] = {}
        self._seat_of: dict[int, int] = {}
        self._spares: dict[Client, dict[int, Any]] = {}

    @property
    def taken(self) -> dict[int, int]:
        """Seat -> slot, of seats with an env, in order."""
        return {seat: slot for seat, slot in enumerate(self.slots) if slot is not None}

    @property
    def vacant(self) -> set[int]:
        """Seats without an env."""
        return {seat for seat, slot in enumerate(self.slots) if slot is None}

    @property
    def spares(self) -> Mapping[Client, Mapping[int, Any]]:
        """Connection -> slot -> what it shows, one row, of envs that wait for a seat."""
        return self._spares

    def seat_of(self, slot: int) -> int | None:
        """None for a spare."""
        return self._seat_of.get(slot)

    def wait(self, slot: int, shown: Any) -> None:
        """An env without a seat asks for an action."""
        self._spares.setdefault(self.clients[slot], {})[slot] = shown

    def leave(self, slot: int) -> int | None:
        """An env is gone.

        Returns:
            The seat that it had, now vacant; None for a spare.
        """
        client = self.clients.pop(slot)
        spares = self._spares.get(client, {})
        spares.pop(slot, None)
        if not spares:
            self._spares.pop(client, None)
        seat = self._seat_of.pop(slot, None)
        if seat is not None:
            self.slots[seat] = None
        return seat

    def fill(self, free: Collection[int]) -> dict[int, Any]:
        """Seat those who wait, first come first, in the seats ``free``.

        Returns:
            Seat -> what its new env shows, one row.
        """
        seated: dict[int, Any] = {}
        left = sorted(free)
        for client, rows in list(self._spares.items()):
            if len(rows) > len(left):
                continue
            for slot, shown in rows.items():
                seat = left.pop(0)
                self.slots[seat] = slot
                self._seat_of[slot] = seat
                seated[seat] = shown
            del self._spares[client]
        return seated
