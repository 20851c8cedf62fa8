"""The mutation journal: what this node holds of tracked tables, by id, until every replica holds it.

    entries: family 1 | kind 1 | node 8 | number of its log 8 | offset 8
    notes:   family 1 | kind 1 | placement group 8 | last token of the range 8 | node 8 | number of its log 8

An entry is in the atomic batch of its mutation, so ids that are claimed and data that is held are one set,
through every crash: at a start the entries, and what is noted as reconciled, say what is held. Invariants. An
id is given by the step that stores its mutation, so no offset is ever given without a mutation; none is given
twice, for each start of a node, and each range in it, has a log with a number of its own. What is reconciled
has no entry; everything else that is held has one. In memory a log is a few runs of offsets, and ids are
listed by partition up to a bound, beyond which a range answers for any of its partitions with all that is not
reconciled of it.

An id names its mutation wherever ranges are cut, so a range that is cut takes its ids along: each side those
of its tokens, and both what is reconciled, for that is held by whoever holds either. Ranges that are joined
have what both had. Of a range that this node gave up it claims nothing any more.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final, Protocol

import msgspec

from lockstep.storage.rows.keys import partition_prefix, place_in
from lockstep.storage.store import Batch, Family, Operation, Pair
from lockstep.tracking.held import Held, LogId, MutationId, all_of, held_of
from lockstep.tracking.intervals import EMPTY, IntervalSet, of
from lockstep.values.codec import decoder, encode
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import JOURNAL_PLACES_MAX, JOURNAL_RECORDS_A_BATCH
from lockstep.values.rows import Mutation, ReadCommand
from lockstep.values.tokens import TOKEN_MIN, Range

#: A placement group, and the last token of one of its ranges: what one replica set holds.
Shard = tuple[int, int]
#: (group, token) -> the range that has it, and whether this node is one of its replicas; None: no such group.
RangeAt = Callable[[int, int], tuple[Range, bool] | None]

_SHARD = struct.Struct(">ccQQ")
_LOG = struct.Struct(">ccQQQQ")
_ENTRY = struct.Struct(">ccQQQ")
_BIAS: Final = 1 << 63
_FAMILY: Final = Family.JOURNAL.value
#: Above the first byte of any node's number.
_BEHIND: Final = b"\xff"
_RECORD: Final = b"e"
_RECONCILED: Final = b"r"
#: Where each range begins of which something is noted, and the tables by placement group.
_BOUNDS: Final = b"s"
_TABLES: Final = b"t"
_TABLES_KEY: Final = _FAMILY + _TABLES
#: A log's number is that of the start of its node, then which of the logs of that start it is.
_LOG_BITS: Final = 24


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`mutation` None: of a table that was gone when it came. `group`: the placement group at that time."""

    given_us: int
    mutation: Mutation | None
    group: int
    table_id: int
    token: int

    @property
    def place(self) -> bytes:
        key = self.mutation.key if self.mutation is not None else b""
        return partition_prefix(self.table_id, self.token, key)


class Named(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry with its id."""

    id: MutationId
    mutation: Mutation | None
    table_id: int
    token: int


class _Fitted(msgspec.Struct, frozen=True, array_like=True):
    """Tracked tables, with the placement group of each."""

    tables: tuple[tuple[int, int], ...]


_ENTRIES = decoder(Entry)
_RUNS = decoder(IntervalSet)
_LEFTS = decoder(int)
_FITTED = decoder(_Fitted)


class Engine(Protocol):
    """What the journal needs of a node's storage."""

    def apply(self, mutation: Mutation, also: Batch = ()) -> int: ...

    def write_records(self, family: Family, batch: Batch, *, is_due: bool = False) -> int: ...

    def records(self, lower: bytes, upper: bytes, count: int) -> list[Pair]: ...

    async def synced(self, sequence: int) -> None: ...


class ShardLogs:
    """What this node holds of one range."""

    __slots__ = ("_held", "_reconciled", "_told", "by_place", "is_listed", "left", "own", "places")

    def __init__(self, left: int) -> None:
        #: The range begins behind this token.
        self.left = left
        #: Number of the log in which this node gives ids of the range; 0 before it gave one.
        self.own = 0
        self._held: dict[LogId, IntervalSet] = {}
        self._reconciled: dict[LogId, IntervalSet] = {}
        #: `held`, `reconciled` and what is between them, while nothing changes.
        self._told: tuple[Held, Held, Held] | None = None
        #: Partition -> (log, offset) of what is not reconciled, and the other way round.
        self.by_place: dict[bytes, dict[tuple[LogId, int], None]] = {}
        self.places: dict[tuple[LogId, int], bytes] = {}
        #: Whether partitions are listed.
        self.is_listed = True

    def _all(self) -> tuple[Held, Held, Held]:
        if self._told is None:
            held, reconciled = held_of(self._held), held_of(self._reconciled)
            self._told = held, reconciled, held.difference(reconciled)
        return self._told

    @property
    def held(self) -> Held:
        return self._all()[0]

    @property
    def reconciled(self) -> Held:
        return self._all()[1]

    @property
    def open(self) -> Held:
        """What is held and not reconciled."""
        return self._all()[2]

    def contains(self, log: LogId, offset: int) -> bool:
        return self._held.get(log, EMPTY).contains(offset)

    def end(self, log: LogId) -> int:
        return self._held.get(log, EMPTY).end

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
        """What is not reconciled of a partition, or of all."""
        if not self.is_listed:
            return self.open
        found: dict[LogId, list[int]] = {}
        for log, offset in self.by_place.get(place, ()):
            found.setdefault(log, []).append(offset)
        return held_of({log: of(offsets) for log, offsets in found.items()})


class Journal:
    """`own_id` and `start` name the logs that this node gives ids in; `range_at` tells where ranges are."""

    def __init__(self, engine: Engine, own_id: Callable[[], int], start: int, range_at: RangeAt) -> None:
        self._engine = engine
        self._own_id = own_id
        self._start = start
        self._range_at = range_at
        self.shards: dict[Shard, ShardLogs] = {}
        self._tables: dict[int, int] = {}
        self._logs_begun = 0
        self._listed = 0
        #: Of entries that were stored, or found at the start: what the average one has.
        self._stored, self._stored_bytes = 0, 0
        self._sequence = 0
        self._load()

    @property
    def tables(self) -> Mapping[int, int]:
        """Those that the last `fit` was given."""
        return self._tables

    @property
    def sequence(self) -> int:
        """To be awaited for everything that is held."""
        return self._sequence

    async def synced(self) -> None:
        """Return when everything that is held now is durable."""
        await self._engine.synced(self._sequence)

    # -- writing ----------------------------------------------------------------------------------

    def give(self, shard: Shard, mutation: Mutation, now_us: int) -> MutationId:
        """Store a mutation under an id of its own. As `apply` of the engine when it is not stored: then no id
        is given either."""
        logs = self._logs(shard)
        if not logs.own:
            logs.own = (self._start << _LOG_BITS) | self._logs_begun
            self._logs_begun += 1
            assert self._logs_begun < 1 << _LOG_BITS, "a start has that many logs at most"
        log = (self._own_id(), logs.own)
        given = MutationId(NodeId(log[0]), log[1], logs.end(log), now_us)
        self._store(shard, given, mutation, mutation.table_id, mutation.token)
        return given

    def take(
        self, shard: Shard, given: MutationId, mutation: Mutation | None, table_id: int = 0, token: int = 0
    ) -> None:
        """Store a mutation that has its id; nothing happens when it is held. `None`: its table is gone, its
        place is told beside it."""
        logs = self.shards.get(shard)
        if logs is not None and logs.contains(given.log, given.offset):
            return
        if mutation is not None:
            table_id, token = mutation.table_id, mutation.token
        self._store(shard, given, mutation, table_id, token)

    def _store(
        self, shard: Shard, given: MutationId, mutation: Mutation | None, table_id: int, token: int
    ) -> None:
        logs = self._logs(shard)
        assert not logs.contains(given.log, given.offset), "an id is given once"
        entry = Entry(given.given_us, mutation, shard[0], table_id, token)
        body = encode(entry)
        record: Operation = ("put", _entry_key(given.log, given.offset), body)
        if mutation is None:
            self._sequence = self._engine.write_records(Family.JOURNAL, [record])
        else:
            self._sequence = self._engine.apply(mutation, (record,))
        self._stored, self._stored_bytes = self._stored + 1, self._stored_bytes + len(body)
        self._add(logs, given.log, given.offset, entry.place)

    def _add(self, logs: ShardLogs, log: LogId, offset: int, place: bytes) -> None:
        logs.add(log, offset, place)
        if logs.is_listed:
            self._listed += 1
            if self._listed > JOURNAL_PLACES_MAX:
                # Of the range that has the most: the others stay exact.
                fullest = max(self.shards.values(), key=lambda found: len(found.places))
                self._listed -= fullest.stop_listing()

    def _logs(self, shard: Shard) -> ShardLogs:
        found = self.shards.get(shard)
        if found is None:
            at = self._range_at(*shard)
            assert at is not None and at[0].right == shard[1], "a range is of a ring"
            found = self.shards[shard] = ShardLogs(at[0].left)
            record: Operation = ("put", _shard_key(_BOUNDS, shard), encode(found.left))
            self._engine.write_records(Family.JOURNAL, [record], is_due=True)
        return found

    # -- asking -----------------------------------------------------------------------------------

    def held(self, shard: Shard) -> Held:
        return self._of(shard).held

    def reconciled(self, shard: Shard) -> Held:
        return self._of(shard).reconciled

    def recent(self, shard: Shard, command: ReadCommand) -> Held:
        """What is held and not reconciled of what is read, or more."""
        logs = self._of(shard)
        if command.key is None:
            return logs.open
        return logs.of_place(partition_prefix(command.table_id, command.right, command.key))

    def _of(self, shard: Shard) -> ShardLogs:
        return self.shards.get(shard) or _NO_LOGS

    @property
    def entry_count(self) -> int:
        return sum(logs.open.count for logs in self.shards.values())

    def estimated_bytes(self, count: int) -> int:
        """Of so many entries, by the average one."""
        return count * self._stored_bytes // max(self._stored, 1)

    def oldest_us(self, shard: Shard, wanted: Held) -> int | None:
        """When the oldest of these ids was given, by the first entry of each log; None: there is no entry."""
        found: list[int] = []
        for log, offsets in wanted.intersection(self._of(shard).open).items():
            first, last = offsets.runs[:2]
            found += [
                _ENTRIES.decode(value).given_us for _, value in islice(self._values(log, first, last), 1)
            ]
        return min(found, default=None)

    def held_in(self, group: int) -> Held:
        """What is held of any range of a placement group."""
        return all_of(logs.held for shard, logs in sorted(self.shards.items()) if shard[0] == group)

    def entries(self, group: int, wanted: Held, bytes_max: int) -> list[Named]:
        """Entries of these ids, the first ones up to so many bytes and one at least; what is reconciled has
        none, nor what is not held."""
        found: list[Named] = []
        size = 0
        for shard in sorted(self.shards):
            if shard[0] != group:
                continue
            for log, offsets in wanted.intersection(self.shards[shard].open).items():
                for offset, value in self._entries_of(log, offsets):
                    size += len(value)
                    if found and size > bytes_max:
                        return found
                    entry = _ENTRIES.decode(value)
                    given = MutationId(*log, offset, entry.given_us)
                    found.append(Named(given, entry.mutation, entry.table_id, entry.token))
        return found

    def _entries_of(self, log: LogId, offsets: IntervalSet) -> Iterator[tuple[int, bytes]]:
        for first, last in offsets.pairs():
            yield from self._values(log, first, last)

    def _values(self, log: LogId, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """(offset, value) of the entries of a run."""
        upper = _entry_key(log, last + 1)
        while first <= last:
            pairs = self._engine.records(_entry_key(log, first), upper, JOURNAL_RECORDS_A_BATCH)
            for key, value in pairs:
                first = _ENTRY.unpack(key)[-1]
                yield first, value
            if len(pairs) < JOURNAL_RECORDS_A_BATCH:
                return
            first += 1

    # -- letting go -------------------------------------------------------------------------------

    def reconcile(self, shard: Shard, everywhere: Held) -> int:
        """Every replica holds these durably: let go of their entries; how many went."""
        logs = self._of(shard)
        count = 0
        for log, offsets in everywhere.intersection(logs.open).items():
            left = offsets
            while left:
                some = of(left.offsets(JOURNAL_RECORDS_A_BATCH))
                self._settle(shard, logs, log, some)
                count += some.count
                left = left.difference(some)
        return count

    def _settle(self, shard: Shard, logs: ShardLogs, log: LogId, some: IntervalSet) -> None:
        before = dict(logs.reconciled.items()).get(log, EMPTY)
        offsets = some.offsets(JOURNAL_RECORDS_A_BATCH)
        batch: list[Operation] = [("delete", _entry_key(log, offset)) for offset in offsets]
        batch.append(("put", _log_key(shard, log), encode(before.union(some))))
        self._engine.write_records(Family.JOURNAL, batch)
        for offset in offsets:
            self._listed -= logs.forget_place(log, offset)
        logs.settle(log, some)
        if not logs.is_listed and not logs.open:
            logs.is_listed = True

    def adopt(self, shard: Shard, everywhere: Held) -> None:
        """What these name is in the tables here, as in those of every other replica, or of tokens beside the
        range."""
        if not everywhere or self.reconciled(shard).covers(everywhere):
            return
        self.reconcile(shard, everywhere)
        logs = self._logs(shard)
        for log, offsets in everywhere.difference(logs.held).items():
            self._note(shard, logs, log, offsets)

    def _note(self, shard: Shard, logs: ShardLogs, log: LogId, some: IntervalSet) -> None:
        logs.settle(log, some)
        runs = logs.reconciled.by_log()[log]
        record: Operation = ("put", _log_key(shard, log), encode(runs))
        self._sequence = self._engine.write_records(Family.JOURNAL, [record], is_due=True)

    async def store_again(self, shard: Shard) -> None:
        """Have the tables hold what there are entries of: a part of them was lost."""
        for log, offsets in self._of(shard).open.items():
            for offset, value in self._entries_of(log, offsets):
                mutation = _ENTRIES.decode(value).mutation
                if mutation is not None:
                    self._sequence = self._engine.apply(mutation)
                if offset % JOURNAL_RECORDS_A_BATCH == 0:
                    await self.synced()
        await self.synced()

    # -- when ranges change -----------------------------------------------------------------------

    def fit(self, tables: Mapping[int, int]) -> list[Shard]:
        """Take up where ranges are now; `tables` are those that are tracked, or were and are not all
        reconciled, with the placement group of each. The ranges that are not as they were."""
        moved: dict[int, set[int]] = {}
        for table, group in self._tables.items():
            now = tables.get(table, group)
            if now != group:
                moved.setdefault(group, set()).add(now)
        groups = set(tables.values())
        changed = [shard for shard in self.shards if not self._is_fit(shard, groups, moved)]
        if not changed and self._tables == tables:
            return []
        before = {shard: self.shards.pop(shard) for shard in sorted(changed)}
        self._tables = dict(tables)
        touched: dict[Shard, ShardLogs] = {}
        for shard, logs in before.items():
            for group in sorted({shard[0], *moved.get(shard[0], ())} & groups):
                for found in self._now_in(group, Range(logs.left, shard[1])):
                    target = self.shards.setdefault((group, found.right), ShardLogs(found.left))
                    touched[group, found.right] = target
                    for log, offsets in logs.reconciled.items():
                        target.settle(log, offsets)
        gone = [operation for shard, logs in before.items() for operation in self._refiled(shard, logs)]
        kept: list[Operation] = []
        for shard, target in touched.items():
            kept.append(("put", _shard_key(_BOUNDS, shard), encode(target.left)))
            kept += [("put", _log_key(shard, log), encode(runs)) for log, runs in target.reconciled.items()]
        kept.append(("put", _TABLES_KEY, encode(_Fitted(tuple(sorted(tables.items()))))))
        for shard in before:
            if shard not in touched:
                first = _shard_key(_RECONCILED, shard)
                kept += (("delete", _shard_key(_BOUNDS, shard)), ("delete_range", first, first + _BEHIND))
        # A start between two of these finds what is left of before, and fits it again.
        due = (*kept, *gone)
        for first_of in range(0, len(due), JOURNAL_RECORDS_A_BATCH):
            some = due[first_of : first_of + JOURNAL_RECORDS_A_BATCH]
            self._sequence = self._engine.write_records(Family.JOURNAL, some, is_due=True)
        return sorted({*before, *touched})

    def _is_fit(self, shard: Shard, groups: set[int], moved: Mapping[int, set[int]]) -> bool:
        at = self._range_at(*shard) if shard[0] in groups and shard[0] not in moved else None
        return at is not None and at[1] and at[0] == Range(self.shards[shard].left, shard[1])

    def _now_in(self, group: int, tokens: Range) -> Iterator[Range]:
        """The ranges of this node that have some of these tokens now."""
        token = tokens.left
        while token < tokens.right:
            at = self._range_at(group, token + 1)
            if at is None:
                return
            found, is_own = at
            if is_own:
                yield found
            token = found.right

    def _refiled(self, shard: Shard, logs: ShardLogs) -> Iterator[Operation]:
        """Put the ids of a range that is no more where they belong; with what deletes those that are not this
        node's any more."""
        places = dict(logs.places) if logs.is_listed else None
        self._listed -= logs.stop_listing()
        for log, offsets in logs.open.items():
            stored = (
                ((offset, places[log, offset]) for offset in offsets.offsets(offsets.count))
                if places is not None
                else (
                    (offset, _ENTRIES.decode(value).place) for offset, value in self._entries_of(log, offsets)
                )
            )
            for offset, place in stored:
                table, token = place_in(place)
                group = self._tables.get(table, shard[0])
                at = self._range_at(group, token)
                found = self.shards.get((group, at[0].right)) if at is not None and at[1] else None
                if found is None or found.contains(log, offset):
                    yield "delete", _entry_key(log, offset)
                else:
                    self._add(found, log, offset, place)

    # -- at a start -------------------------------------------------------------------------------

    def _load(self) -> None:
        for _, value in self._pairs(_TABLES):
            self._tables = dict(_FITTED.decode(value).tables)
        for key, value in self._pairs(_BOUNDS):
            _, _, group, right = _SHARD.unpack(key)
            self.shards[group, right - _BIAS] = ShardLogs(_LEFTS.decode(value))
        for key, value in self._pairs(_RECONCILED):
            _, _, group, right, node, number = _LOG.unpack(key)
            self.shards[group, right - _BIAS].settle((node, number), _RUNS.decode(value))
        by_group: dict[int, list[int]] = {}
        for group, right in sorted(self.shards):
            by_group.setdefault(group, []).append(right)
        orphans: list[Operation] = []
        for key, value in self._pairs(_RECORD):
            _, _, node, number, offset = _ENTRY.unpack(key)
            entry = _ENTRIES.decode(value)
            logs = self._stored_in(self._tables.get(entry.table_id, entry.group), entry.token, by_group)
            if logs is None:
                orphans.append(("delete", key))
            else:
                self._stored, self._stored_bytes = self._stored + 1, self._stored_bytes + len(value)
                self._add(logs, (node, number), offset, entry.place)
        if orphans:
            self._engine.write_records(Family.JOURNAL, orphans, is_due=True)

    def _stored_in(self, group: int, token: int, by_group: Mapping[int, list[int]]) -> ShardLogs | None:
        rights = by_group.get(group, [])
        at = bisect_left(rights, token)
        logs = self.shards[group, rights[at]] if at < len(rights) else None
        return logs if logs is not None and logs.left < token else None

    def _pairs(self, kind: bytes) -> Iterator[Pair]:
        lower, upper = _FAMILY + kind, _FAMILY + bytes((kind[0] + 1,))
        while pairs := self._engine.records(lower, upper, JOURNAL_RECORDS_A_BATCH):
            yield from pairs
            lower = pairs[-1][0] + b"\x00"

    def validate(self) -> None:
        """What holds between any two turns of the loop: what is claimed is what there are entries of."""
        stored: dict[LogId, list[int]] = {}
        for key, _ in self._pairs(_RECORD):
            _, _, node, number, offset = _ENTRY.unpack(key)
            stored.setdefault((node, number), []).append(offset)
        claimed = 0
        for shard, logs in self.shards.items():
            assert logs.held.covers(logs.reconciled), "what is reconciled is held"
            assert logs.left < shard[1], "a range has tokens"
            claimed += logs.open.count
            assert logs.is_listed or not logs.places, "what is not listed lists nothing"
            assert not logs.is_listed or len(logs.places) == logs.open.count, "each id has a place"
        found = held_of({log: of(offsets) for log, offsets in stored.items()})
        assert found == all_of(logs.open for _, logs in sorted(self.shards.items())), (
            "ids that are claimed have entries, and others have none"
        )
        assert claimed == found.count, "an id is in one range"
        assert self._listed == sum(len(logs.places) for logs in self.shards.values()), "ids are miscounted"


_NO_LOGS: Final = ShardLogs(TOKEN_MIN)


def _shard_key(kind: bytes, shard: Shard) -> bytes:
    return _SHARD.pack(_FAMILY, kind, shard[0], shard[1] + _BIAS)


def _log_key(shard: Shard, log: LogId) -> bytes:
    return _LOG.pack(_FAMILY, _RECONCILED, shard[0], shard[1] + _BIAS, *log)


def _entry_key(log: LogId, offset: int) -> bytes:
    return _ENTRY.pack(_FAMILY, _RECORD, *log, offset)
