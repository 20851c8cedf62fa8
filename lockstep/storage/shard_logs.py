"""What a node holds of one range of tracked tables, as sets of ids, and where single ones are listed.

Invariant: each id that is held is in one of three sets. What is *reconciled* is held by every replica; what
is *apart* is in the tables here, as in those of all replicas that were there when one was away, and has no
entry of its own any more; what is *open* has an entry in the journal. In memory a log is a few runs of
offsets, and open ids are listed by partition as long as somebody says so. The list may name ids that are
open no more: they leave it many at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lockstep.storage.place_list import Place, PlaceList, run_of
from lockstep.tracking.held import NOTHING, Held, LogId, held_of
from lockstep.tracking.intervals import EMPTY, IntervalSet, of
from lockstep.tracking.summaries import digest, parted
from lockstep.values.node_limits import JOURNAL_PLACES_SPARE

#: A placement group, and the last token of one of its ranges: what one replica set holds.
Shard = tuple[int, int]


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
        "_captured",
        "_grown",
        "_held",
        "_let_go",
        "_listing",
        "_now_held",
        "_now_open",
        "_over",
        "_places",
        "_reconciled",
        "is_listed",
        "left",
        "own",
        "taking",
        "tells_open",
    )

    def __init__(self, left: int) -> None:
        #: The range begins behind this token.
        self.left = left
        #: Number of the log in which this node gives ids of the range; 0 before it gave one.
        self.own = 0
        self.taking: Taking | None = None
        self._held: dict[LogId, IntervalSet] = {}
        #: The last offset of logs that have grown at their ends by more than `_held` says.
        self._grown: dict[LogId, int] = {}
        self._reconciled: dict[LogId, IntervalSet] = {}
        self._apart: dict[LogId, IntervalSet] = {}
        #: `held` and `open` while nothing comes; `reconciled` and `apart` while nothing is let go of.
        self._now_held: Held | None = None
        self._now_open: Held | None = None
        self._let_go: tuple[Held, Held] | None = None
        #: `listed` as it is while `held` and `_let_go` are these.
        self._listing: tuple[Held, tuple[Held, Held], tuple[Held, Held, bytes]] | None = None
        #: Logs that are over, with their digest.
        self._over: tuple[Held, bytes] = NOTHING, b""
        #: Open ids by partition, and how many they are; the list is of ids that are open, or were.
        self._places = PlaceList()
        #: The same by the partition of a log of changes that they add to, of those that do.
        self._captured = PlaceList()
        self.is_listed = True
        #: A replica is away, or may be, for no round has looked yet: others may let go of entries that are
        #: here, and tell them apart.
        self.tells_open = True

    @property
    def held(self) -> Held:
        held = self._now_held
        if held is None:
            self._settle_ends()
            held = self._now_held = held_of(self._held)
        return held

    @property
    def reconciled(self) -> Held:
        return self._gone()[0]

    @property
    def apart(self) -> Held:
        return self._gone()[1]

    @property
    def open(self) -> Held:
        """What there are entries of."""
        found = self._now_open
        if found is None:
            reconciled, apart = self._gone()
            found = self._now_open = self.held.difference(reconciled).difference(apart)
        return found

    def _gone(self) -> tuple[Held, Held]:
        """What is reconciled, and what is apart."""
        if self._let_go is None:
            self._let_go = held_of(self._reconciled), held_of(self._apart)
        return self._let_go

    def _changed(self) -> None:
        """Something is let go of, or comes back: nothing that was told holds."""
        self._now_held = self._now_open = self._let_go = None

    @property
    def listed(self) -> tuple[Held, Held, bytes]:
        """What is held, and what is reconciled, of logs that are not over; and a digest of those that are."""
        held, gone = self.held, self._gone()
        if self._listing is None or self._listing[0] is not held or self._listing[1] is not gone:
            listed, over = parted(held, gone[0])
            if self._over[0] != over:
                self._over = over, digest(over) if over else b""
            self._listing = held, gone, (listed, gone[0].difference(over), self._over[1])
        return self._listing[2]

    def contains(self, log: LogId, offset: int) -> bool:
        last = self._grown.get(log)
        if last is not None:
            # Of logs without gaps it is the next one that comes, or the last one that came.
            if offset >= last:
                return offset == last
            self._settle_ends()
        return self._held.get(log, EMPTY).contains(offset)

    def covers(self, ids: Held) -> bool:
        """Whether all of these are held; asked of many ranges while ids come."""
        for node, start, runs in ids.logs:
            log = node, start
            mine, last = self._held.get(log, EMPTY).runs, self._grown.get(log)
            if len(mine) == 2 and mine[0] <= runs[0]:
                # A log without gaps, as most are.
                if runs[-1] > (mine[1] if last is None else last):
                    return False
            elif not self.held.covers(Held(((node, start, runs),))):
                return False
        return True

    def is_let_go(self, log: LogId, offset: int) -> bool:
        """Whether it is held, and has no entry."""
        return any(runs.contains(offset) for runs in self.runs_of(log))

    def end(self, log: LogId) -> int:
        last = self._grown.get(log)
        return last + 1 if last is not None else self._held.get(log, EMPTY).end

    def _settle_ends(self) -> None:
        """Have `_held` say all that is held."""
        grown = self._grown
        if not grown:
            return
        self._grown = {}
        for log, last in grown.items():
            before = self._held.get(log, EMPTY)
            assert before.end <= last, "it has grown at its end"
            self._held[log] = before.union(IntervalSet((before.end, last)))

    def runs_of(self, log: LogId) -> tuple[IntervalSet, IntervalSet]:
        """What is reconciled of a log, and what is apart."""
        return self._reconciled.get(log, EMPTY), self._apart.get(log, EMPTY)

    def was_apart(self, log: LogId) -> bool:
        """Whether something of a log is apart, or was since this is known."""
        return log in self._apart

    def add(self, log: LogId, offset: int, place: Place, captured: Place | None = None) -> int:
        """Hold an id that was not held; how often it is listed. `captured`: the partition of a log of changes
        that it adds to."""
        last = self._grown.get(log)
        if offset == (last + 1 if last is not None else self._held.get(log, EMPTY).end):
            self._grown[log] = offset
        else:
            self._settle_ends()
            before = self._held.get(log, EMPTY)
            after = self._held[log] = before.add(offset)
            assert after is not before, "an id is held once"
        self._now_held = self._now_open = None
        if not self.is_listed:
            return 0
        self._places.add(log, offset, place)
        if captured is None:
            return 1
        self._captured.add(log, offset, captured)
        return 2

    def add_run(self, log: LogId, offsets: Sequence[int], table: int, tokens: Sequence[int]) -> int:
        """As `add` of each of the offsets, which ascend, with their tokens; how many were listed."""
        assert offsets, "a run has offsets"
        self._settle_ends()
        self._held[log] = self._held.get(log, EMPTY).union(run_of(offsets))
        self._now_held = self._now_open = None
        if not self.is_listed:
            return 0
        self._places.add_run(log, offsets, table, tokens)
        return len(offsets)

    def add_captured(self, log: LogId, offsets: Sequence[int], table: int, tokens: Sequence[int]) -> int:
        """List ids that are held by the partitions of a log of changes that they add to; how many were
        listed."""
        if not self.is_listed:
            return 0
        self._captured.add_run(log, offsets, table, tokens)
        return len(offsets)

    def settle(self, log: LogId, offsets: IntervalSet) -> None:
        """These are reconciled."""
        self._settle_ends()
        before = self._held.get(log, EMPTY)
        after = before.union(offsets)
        if after is not before:
            self._held[log], self._now_held = after, None
        self._reconciled[log] = self._reconciled.get(log, EMPTY).union(offsets)
        if log in self._apart:
            self._apart[log] = self._apart[log].difference(offsets)
        self._now_open = self._let_go = None

    def set_apart(self, log: LogId, offsets: IntervalSet) -> None:
        """These are apart, whatever was known of them."""
        self._settle_ends()
        self._held[log] = self._held.get(log, EMPTY).union(offsets)
        self._apart[log] = self._apart.get(log, EMPTY).union(offsets)
        if log in self._reconciled:
            self._reconciled[log] = self._reconciled[log].difference(offsets)
        self._changed()

    def release(self, log: LogId, offsets: IntervalSet) -> None:
        """These were apart, and are not held any more."""
        self._settle_ends()
        self._held[log] = self._held.get(log, EMPTY).difference(offsets)
        self._apart[log] = self._apart.get(log, EMPTY).difference(offsets)
        self._changed()

    @property
    def listed_count(self) -> int:
        """How many ids are listed, twice what adds to a log of changes."""
        return self._places.count + self._captured.count

    def trim(self) -> int:
        """Some of what is listed is open no more: let go of it where that is worth a walk over all. How many
        ids are listed fewer."""
        before, opened = self.listed_count, self.open
        if not opened:
            self._places, self._captured = PlaceList(), PlaceList()
        elif self._places.count > 2 * opened.count + JOURNAL_PLACES_SPARE:
            self._places, self._captured = self._places.only(opened), self._captured.only(opened)
        return before - self.listed_count

    def stop_listing(self) -> int:
        """List nothing any more; how many ids were listed."""
        listed, self.is_listed = self.listed_count, False
        self._places, self._captured = PlaceList(), PlaceList()
        return listed

    def places(self) -> dict[tuple[LogId, int], Place]:
        """Of each id that is listed and still open."""
        return dict(self._places.only(self.open).items())

    def captured_places(self) -> dict[tuple[LogId, int], Place]:
        """Where each id that is listed and still open adds to a log of changes, if it does."""
        return dict(self._captured.only(self.open).items())

    def of_place(self, place: Place) -> Held:
        """What is open of a partition, or of all."""
        opened = self.open
        if not self.is_listed or not opened.logs:
            return opened
        listed = self._places.at(place)
        if self._captured.count:
            listed += self._captured.at(place)
        if not listed:
            return NOTHING
        found: dict[LogId, list[int]] = {}
        for log, offset in listed:
            found.setdefault(log, []).append(offset)
        return held_of({log: of(offsets) for log, offsets in found.items()}).intersection(opened)

    def validate(self) -> None:
        held, (reconciled, apart), opened = self.held, self._gone(), self.open
        held.validate()
        assert held.covers(reconciled) and held.covers(apart), "what is reconciled, or apart, is held"
        assert not reconciled.intersection(apart), "what is reconciled is not apart"
        assert self.is_listed or not self._places.count, "what is not listed lists nothing"
        self._places.validate()
        self._captured.validate()
        assert self.is_listed or not self._captured.count, "what is not listed lists nothing"
        assert not self.is_listed or len(self.places()) == opened.count, "each id has a place"


def bounded(shards: Mapping[Shard, ShardLogs], listed: int, most: int) -> int:
    """Have ranges that list so many ids list no more than that: the one that has the most lists none, the
    others stay exact. How many are listed then."""
    while listed > most:
        fullest = max(shards.values(), key=lambda found: found.listed_count)
        listed -= fullest.stop_listing()
    return listed


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
