"""What a node holds of one range of tracked tables, as sets of ids, and where single ones are listed.

Invariant: each id that is held is in one of three sets. What is *reconciled* is held by every replica; what
is *apart* is in the tables here, as in those of all replicas that were there when one was away, and has no
entry of its own any more; what is *open* has an entry in the journal. In memory a log is a few runs of
offsets, and open ids are listed by partition as long as somebody says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lockstep.tracking.held import NOTHING, Held, LogId, held_of
from lockstep.tracking.intervals import EMPTY, IntervalSet, of
from lockstep.tracking.summaries import Summary, digest, parted


class Taking(msgspec.Struct, frozen=True, array_like=True):
    """What a node is getting of a range without single mutations: its tables may have parts of mutations that
    these others hold, so nobody is shown its data. `is_joined`: of a range that was joined meanwhile, of
    which it may claim what it has of one side only; it tells nobody what it holds."""

    sources: tuple[int, ...]
    is_joined: bool = False


class ShardLogs:
    """What this node holds of one range."""

    __slots__ = (
        "_apart",
        "_held",
        "_parted",
        "_reconciled",
        "_told",
        "by_place",
        "is_listed",
        "left",
        "own",
        "places",
        "taking",
    )

    def __init__(self, left: int) -> None:
        #: The range begins behind this token.
        self.left = left
        #: Number of the log in which this node gives ids of the range; 0 before it gave one.
        self.own = 0
        self.taking: Taking | None = None
        self._held: dict[LogId, IntervalSet] = {}
        self._reconciled: dict[LogId, IntervalSet] = {}
        self._apart: dict[LogId, IntervalSet] = {}
        #: `held`, `reconciled`, `apart` and `open`, while nothing changes.
        self._told: tuple[Held, Held, Held, Held] | None = None
        #: Logs that are over with their digest; and what is held, and reconciled, of the others.
        self._parted: tuple[Held, bytes, Held, Held] = NOTHING, b"", NOTHING, NOTHING
        #: Partition -> (log, offset) of what is open, and the other way round.
        self.by_place: dict[bytes, dict[tuple[LogId, int], None]] = {}
        self.places: dict[tuple[LogId, int], bytes] = {}
        #: Whether partitions are listed.
        self.is_listed = True

    def _all(self) -> tuple[Held, Held, Held, Held]:
        if self._told is None:
            held, reconciled, apart = held_of(self._held), held_of(self._reconciled), held_of(self._apart)
            self._told = held, reconciled, apart, held.difference(reconciled).difference(apart)
            listed, over = parted(held, reconciled)
            known = self._parted[1] if self._parted[0] == over else digest(Summary((), over)) if over else b""
            self._parted = over, known, listed, reconciled.difference(over)
        return self._told

    @property
    def held(self) -> Held:
        return self._all()[0]

    @property
    def reconciled(self) -> Held:
        return self._all()[1]

    @property
    def apart(self) -> Held:
        return self._all()[2]

    @property
    def open(self) -> Held:
        """What there are entries of."""
        return self._all()[3]

    @property
    def listed(self) -> tuple[Held, Held, bytes]:
        """What is held, and what is reconciled, of logs that are not over; and a digest of those that are."""
        self._all()
        _, told, held, reconciled = self._parted
        return held, reconciled, told

    def contains(self, log: LogId, offset: int) -> bool:
        return self._held.get(log, EMPTY).contains(offset)

    def end(self, log: LogId) -> int:
        return self._held.get(log, EMPTY).end

    def runs_of(self, log: LogId) -> tuple[IntervalSet, IntervalSet]:
        """What is reconciled of a log, and what is apart."""
        return self._reconciled.get(log, EMPTY), self._apart.get(log, EMPTY)

    def add(self, log: LogId, offset: int, place: bytes) -> None:
        self._held[log] = self._held.get(log, EMPTY).add(offset)
        self._told = None
        if self.is_listed:
            self.by_place.setdefault(place, {})[log, offset] = None
            self.places[log, offset] = place

    def settle(self, log: LogId, offsets: IntervalSet) -> None:
        """These are reconciled."""
        self._held[log] = self._held.get(log, EMPTY).union(offsets)
        self._reconciled[log] = self._reconciled.get(log, EMPTY).union(offsets)
        self._apart[log] = self._apart.get(log, EMPTY).difference(offsets)
        self._told = None

    def set_apart(self, log: LogId, offsets: IntervalSet) -> None:
        """These are apart, whatever was known of them."""
        self._held[log] = self._held.get(log, EMPTY).union(offsets)
        self._apart[log] = self._apart.get(log, EMPTY).union(offsets)
        self._reconciled[log] = self._reconciled.get(log, EMPTY).difference(offsets)
        self._told = None

    def release(self, log: LogId, offsets: IntervalSet) -> None:
        """These were apart, and are not held any more."""
        self._held[log] = self._held.get(log, EMPTY).difference(offsets)
        self._apart[log] = self._apart.get(log, EMPTY).difference(offsets)
        self._told = None

    def forget_place(self, log: LogId, offset: int) -> int:
        """How many ids are listed fewer."""
        place = self.places.pop((log, offset), None)
        if place is None:
            return 0
        listed = self.by_place[place]
        del listed[log, offset]
        if not listed:
            del self.by_place[place]
        return 1

    def stop_listing(self) -> int:
        """As `forget_place` of all."""
        listed, self.is_listed = len(self.places), False
        self.by_place, self.places = {}, {}
        return listed

    def of_place(self, place: bytes) -> Held:
        """What is open of a partition, or of all."""
        if not self.is_listed:
            return self.open
        found: dict[LogId, list[int]] = {}
        for log, offset in self.by_place.get(place, ()):
            found.setdefault(log, []).append(offset)
        return held_of({log: of(offsets) for log, offsets in found.items()})

    def validate(self) -> None:
        held, reconciled, apart, opened = self._all()
        assert held.covers(reconciled) and held.covers(apart), "what is reconciled, or apart, is held"
        assert not reconciled.intersection(apart), "what is reconciled is not apart"
        assert self.is_listed or not self.places, "what is not listed lists nothing"
        assert not self.is_listed or len(self.places) == opened.count, "each id has a place"


def joined(target: ShardLogs, parts: Sequence[ShardLogs]) -> None:
    """Have a range hold what those that it was cut of, or joined of, held without entries."""
    for logs in parts:
        for log, offsets in logs.reconciled.items():
            target.settle(log, offsets)
    # An id may be reconciled where its token is not: what is apart anywhere is.
    for logs in parts:
        for log, offsets in logs.apart.items():
            target.set_apart(log, offsets)
    takings = [logs.taking for logs in (*parts, target) if logs.taking is not None]
    if takings:
        sources = {source for taking in takings for source in taking.sources}
        is_joined = len(parts) > 1 or any(taking.is_joined for taking in takings)
        target.taking = Taking(tuple(sorted(sources)), is_joined)
