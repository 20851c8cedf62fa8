"""The round that raises a range's bound of time, as its proposer drives it.

Order: every replica closes, each tells what it holds after that, all of it is brought to all, and only then
is the bound raised. Invariant: nothing is raised unless every participant closed and then told that it holds
all that anyone told after closing.
"""

from __future__ import annotations

import enum

import msgspec

from lockstep.tracking.summaries import Summary


class Phase(enum.Enum):
    CLOSING = "closing"
    DELIVERING = "delivering"
    RAISED = "raised"
    REFUSED = "refused"


class Close(msgspec.Struct, frozen=True):
    replica: int
    until_us: int


class RaiseBound(msgspec.Struct, frozen=True):
    replica: int
    until_us: int


class BoundRound:
    """Repeats what is not answered whenever it is asked for `due`; the caller says how often that is."""

    def __init__(self, participants: tuple[int, ...], until_us: int) -> None:
        self.participants = participants
        self.until_us = until_us
        self.phase = Phase.CLOSING
        self._closed: dict[int, Summary] = {}
        self._holds: dict[int, Summary] = {}

    def due(self) -> list[Close | RaiseBound]:
        if self.phase is Phase.CLOSING:
            return [Close(one, self.until_us) for one in self.participants if one not in self._closed]
        if self.phase is Phase.RAISED:
            return [RaiseBound(one, self.until_us) for one in self.participants]
        return []

    def closed(self, replica: int, accepted: bool, told: Summary) -> None:
        """`told` is what it held after it closed."""
        assert replica in self.participants, replica
        if self.phase is not Phase.CLOSING:
            return
        if not accepted:
            self.phase = Phase.REFUSED
            return
        self._closed[replica] = told
        self.holds(replica, told)
        if len(self._closed) == len(self.participants):
            self.phase = Phase.DELIVERING
            self._judge()

    def holds(self, replica: int, told: Summary) -> None:
        known = self._holds.get(replica)
        self._holds[replica] = told if known is None else known.union(told)
        if self.phase is Phase.DELIVERING:
            self._judge()

    def _collected(self) -> Summary:
        found = Summary()
        for told in self._closed.values():
            found = found.union(told)
        return found

    def _judge(self) -> None:
        wanted = self._collected()
        if all(self._holds[one].covers(wanted) for one in self.participants):
            self.phase = Phase.RAISED
            self.validate()

    def validate(self) -> None:
        assert set(self._closed) <= set(self.participants)
        if self.phase in (Phase.DELIVERING, Phase.RAISED):
            assert set(self._closed) == set(self.participants), "all closed before anything is collected"
        if self.phase is Phase.RAISED:
            wanted = self._collected()
            assert all(self._holds[one].covers(wanted) for one in self.participants)
