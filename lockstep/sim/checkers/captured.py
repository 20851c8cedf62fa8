"""CDC-1: a log of changes tells of each write that a quorum acknowledged exactly once, of one that was
refused never, and of others at most once; each with its write time, key and value. Replayed in the order of
their times, changes of a row that are all sure give the row.

Invariant: every write has a number that no other has, and a write time that none of the same row has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Outcome

UPDATE, INSERT, ROW_DELETE = 1, 2, 3
#: (partition key, clustering) of a row.
Place = tuple[int, int]


class Logged(msgspec.Struct, frozen=True, order=True):
    """One change, as a log tells it."""

    at_us: int
    place: Place
    operation: int
    value: int | None
    stream: bytes = b""


class Wrote(msgspec.Struct, frozen=True):
    """One change that a client asked for. `at_us`: 0 where the servers give the time. `needs_quorum`: its
    level does; what fewer acknowledged may be lost with them."""

    client: str
    at_us: int
    place: Place
    operation: int
    value: int | None
    outcome: Outcome
    needs_quorum: bool = True

    @property
    def is_sure(self) -> bool:
        return self.outcome is Outcome.OK and self.needs_quorum

    def named(self) -> str:
        what = {UPDATE: "update", INSERT: "insert", ROW_DELETE: "delete"}[self.operation]
        return f"the {what} of {self.place} to {self.value} at {self.at_us} by {self.client} ({self.outcome})"

    def is_told_by(self, one: Logged) -> bool:
        told = (one.place, one.operation, one.value) == (self.place, self.operation, self.value)
        return told and self.at_us in (0, one.at_us)


def check_log(written: Sequence[Wrote], logged: Sequence[Logged], rows: Mapping[Place, int | None]) -> int:
    """Raise the first Violation; the number of changes judged otherwise. `rows`: the table at the end."""
    by_place: dict[Place, list[Logged]] = {}
    for one in logged:
        by_place.setdefault(one.place, []).append(one)
    asked: dict[Place, list[Wrote]] = {}
    for write in written:
        asked.setdefault(write.place, []).append(write)
        told = sum(write.is_told_by(one) for one in by_place.get(write.place, ()))
        if write.is_sure and told != 1:
            raise Violation("CDC-1", f"{write.named()} is told {told} times")
        if told > 1 or (told and write.outcome is Outcome.FAILED):
            raise Violation("CDC-1", f"{write.named()} is told {told} times")
    for place in sorted(by_place):
        for one in by_place[place]:
            if not any(write.is_told_by(one) for write in asked.get(place, ())):
                raise Violation("CDC-1", f"{one} is told, and nobody wrote it")
        if all(write.is_sure for write in asked[place]):
            _check_replayed(place, sorted(by_place[place]), rows)
    return len(written)


def _check_replayed(place: Place, changes: Sequence[Logged], rows: Mapping[Place, int | None]) -> None:
    there = changes[-1].operation != ROW_DELETE
    if there != (place in rows) or (there and rows[place] != changes[-1].value):
        raise Violation("CDC-1", f"the log ends with {changes[-1]}, and the row is {rows.get(place, 'gone')}")
