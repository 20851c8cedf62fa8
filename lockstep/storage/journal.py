"""The mutation journal: what this node holds of tracked tables, by id, until every replica holds it.

    family 1 | kind 1 | placement group 8 | last token of the range 8 | node 8 | its start 8 | offset 8

An entry is in the atomic batch of its mutation, so ids that are claimed and data that is held are one set,
through every crash: at a start the entries, and what is noted as reconciled, say what is held. Invariants. An
id is given by the step that stores its mutation, so no offset is ever given without a mutation; none is given
twice, for a start of a node has a number of its own. What is reconciled has no entry; everything else that is
held has one. In memory a log is a few runs of offsets, and ids are listed by partition up to a bound, beyond
which a range answers for any of its partitions with all that is not reconciled of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

import msgspec

from lockstep.storage.rows.keys import partition_prefix
from lockstep.storage.store import Batch, Family, Operation, Pair
from lockstep.tracking.held import Held, LogId, MutationId, held_of
from lockstep.tracking.intervals import EMPTY, IntervalSet, of
from lockstep.values.codec import decoder, encode
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import JOURNAL_PLACES_MAX, JOURNAL_RECORDS_A_BATCH
from lockstep.values.rows import Mutation, ReadCommand

#: A placement group, and the last token of one of its ranges: what one replica set holds.
Shard = tuple[int, int]

_SHARD = struct.Struct(">ccQQ")
_LOG = struct.Struct(">ccQQQQ")
_ENTRY = struct.Struct(">ccQQQQQ")
_BIAS: Final = 1 << 63
_FAMILY: Final = Family.JOURNAL.value
#: Above the first byte of any node's number.
_BEHIND: Final = b"\xff"
_RECORD: Final = b"e"
_RECONCILED: Final = b"r"


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`mutation` None: of a table that was gone when it came."""

    given_us: int
    mutation: Mutation | None


class Named(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry with its id."""

    id: MutationId
    mutation: Mutation | None


_ENTRIES = decoder(Entry)
_RUNS = decoder(IntervalSet)


class Engine(Protocol):
    """What the journal needs of a node's storage."""

    def apply(self, mutation: Mutation, also: Batch = ()) -> int: ...

    def write_records(self, family: Family, batch: Batch) -> int: ...

    def records(self, lower: bytes, upper: bytes, count: int) -> list[Pair]: ...

    async def synced(self, sequence: int) -> None: ...


class ShardLogs:
    """What this node holds of one range."""

    __slots__ = ("_held", "_reconciled", "_told", "by_place", "is_listed", "places")

    def __init__(self) -> None:
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
        if self.is_listed and place:
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
    """`own_id` and `start` name the logs that this node gives ids in."""

    def __init__(self, engine: Engine, own_id: Callable[[], int], start: int) -> None:
        self._engine = engine
        self._own_id = own_id
        self._start = start
        self.shards: dict[Shard, ShardLogs] = {}
        #: Behind the last offset given of each range; also of ranges that were forgotten.
        self._next: dict[Shard, int] = {}
        self._listed = 0
        self._sequence = 0
        self._load()

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
        log = (self._own_id(), self._start)
        offset = self._next.get(shard, 0)
        given = MutationId(NodeId(log[0]), log[1], offset, now_us)
        self._store(shard, given, mutation)
        self._next[shard] = offset + 1
        return given

    def take(self, shard: Shard, given: MutationId, mutation: Mutation | None) -> None:
        """Store a mutation that has its id; nothing happens when it is held. `None`: its table is gone."""
        logs = self.shards.get(shard)
        if logs is None or not logs.contains(given.log, given.offset):
            self._store(shard, given, mutation)

    def _store(self, shard: Shard, given: MutationId, mutation: Mutation | None) -> None:
        logs = self._logs(shard)
        assert not logs.contains(given.log, given.offset), "an id is given once"
        record: Operation = (
            "put",
            _entry_key(shard, given.log, given.offset),
            encode(Entry(given.given_us, mutation)),
        )
        if mutation is None:
            self._sequence = self._engine.write_records(Family.JOURNAL, [record])
            place = b""
        else:
            self._sequence = self._engine.apply(mutation, (record,))
            place = partition_prefix(mutation.table_id, mutation.token, mutation.key)
        self._add(logs, given.log, given.offset, place)

    def _add(self, logs: ShardLogs, log: LogId, offset: int, place: bytes) -> None:
        logs.add(log, offset, place)
        if logs.is_listed and place:
            self._listed += 1
            if self._listed > JOURNAL_PLACES_MAX:
                # Of the range that has the most: the others stay exact.
                fullest = max(self.shards.values(), key=lambda found: len(found.places))
                self._listed -= fullest.stop_listing()

    def _logs(self, shard: Shard) -> ShardLogs:
        found = self.shards.get(shard)
        if found is None:
            found = self.shards[shard] = ShardLogs()
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

    def entries(self, shard: Shard, wanted: Held, bytes_max: int) -> list[Named]:
        """Entries of these ids, the first ones up to so many bytes and one at least; what is reconciled has
        none, nor what is not held."""
        found: list[Named] = []
        size = 0
        logs = self._of(shard)
        for log, offsets in wanted.intersection(logs.open).items():
            for first, last in offsets.pairs():
                for offset, value in self._values(shard, log, first, last):
                    size += len(value)
                    if found and size > bytes_max:
                        return found
                    entry = _ENTRIES.decode(value)
                    found.append(Named(MutationId(*log, offset, entry.given_us), entry.mutation))
        return found

    def _values(self, shard: Shard, log: LogId, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """(offset, value) of the entries of a run."""
        upper = _entry_key(shard, log, last + 1)
        while first <= last:
            pairs = self._engine.records(_entry_key(shard, log, first), upper, JOURNAL_RECORDS_A_BATCH)
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
        batch: list[Operation] = [("delete", _entry_key(shard, log, offset)) for offset in offsets]
        batch.append(("put", _log_key(shard, log), encode(before.union(some))))
        self._engine.write_records(Family.JOURNAL, batch)
        for offset in offsets:
            self._listed -= logs.forget_place(log, offset)
        logs.settle(log, some)
        if not logs.is_listed and not logs.open:
            logs.is_listed = True

    def forget(self, shards: Iterable[Shard]) -> None:
        """Ranges that nobody tracks any more."""
        for shard in shards:
            logs = self.shards.pop(shard)
            self._listed -= logs.stop_listing()
            self._engine.write_records(
                Family.JOURNAL,
                [
                    ("delete_range", _shard_key(kind, shard), _shard_key(kind, shard) + _BEHIND)
                    for kind in (_RECORD, _RECONCILED)
                ],
            )

    # -- at a start -------------------------------------------------------------------------------

    def _load(self) -> None:
        for key, value in self._pairs(_RECONCILED):
            _, _, group, right, node, start = _LOG.unpack(key)
            self._logs((group, right - _BIAS)).settle((node, start), _RUNS.decode(value))
        for key, value in self._pairs(_RECORD):
            _, _, group, right, node, start, offset = _ENTRY.unpack(key)
            mutation = _ENTRIES.decode(value).mutation
            place = (
                partition_prefix(mutation.table_id, mutation.token, mutation.key)
                if mutation is not None
                else b""
            )
            self._add(self._logs((group, right - _BIAS)), (node, start), offset, place)

    def _pairs(self, kind: bytes) -> Iterator[Pair]:
        lower, upper = _FAMILY + kind, _FAMILY + bytes((kind[0] + 1,))
        while pairs := self._engine.records(lower, upper, JOURNAL_RECORDS_A_BATCH):
            yield from pairs
            lower = pairs[-1][0] + b"\x00"

    def validate(self) -> None:
        """What holds between any two turns of the loop: what is claimed is what there are entries of."""
        stored: dict[Shard, dict[LogId, list[int]]] = {}
        for key, _ in self._pairs(_RECORD):
            _, _, group, right, node, start, offset = _ENTRY.unpack(key)
            stored.setdefault((group, right - _BIAS), {}).setdefault((node, start), []).append(offset)
        for shard, logs in self.shards.items():
            assert logs.held.covers(logs.reconciled), "what is reconciled is held"
            found = held_of({log: of(offsets) for log, offsets in stored.pop(shard, {}).items()})
            assert found == logs.open, "ids that are claimed have entries, and others have none"
            assert logs.is_listed or not logs.places, "what is not listed lists nothing"
        assert not stored, "an entry is of a range that is known"
        assert self._listed == sum(len(logs.places) for logs in self.shards.values()), "ids are miscounted"


_NO_LOGS: Final = ShardLogs()


def _shard_key(kind: bytes, shard: Shard) -> bytes:
    return _SHARD.pack(_FAMILY, kind, shard[0], shard[1] + _BIAS)


def _log_key(shard: Shard, log: LogId) -> bytes:
    return _LOG.pack(_FAMILY, _RECONCILED, shard[0], shard[1] + _BIAS, *log)


def _entry_key(shard: Shard, log: LogId, offset: int) -> bytes:
    return _ENTRY.pack(_FAMILY, _RECORD, shard[0], shard[1] + _BIAS, *log, offset)
