"""What can be done to the messages of a node on purpose; nothing is, until somebody says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lockstep.internode.handshake import Address


class LinkFaults:
    """Of one node. `duplicates()`: whether the next frame is sent twice, and again on a later connection."""

    __slots__ = ("blocked_from", "blocked_to", "duplicates")

    def __init__(self, duplicates: Callable[[], bool] | None = None) -> None:
        self.duplicates = duplicates
        #: Nothing is sent to, or nothing is taken from these addresses.
        self.blocked_to: frozenset[Address] = frozenset()
        self.blocked_from: frozenset[Address] = frozenset()

    def cut_off(self, addresses: Iterable[Address]) -> None:
        """Exchange nothing with these from now on, and with all others."""
        self.blocked_to = self.blocked_from = frozenset(addresses)
