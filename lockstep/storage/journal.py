"""The mutation journal: what this node holds of tracked tables, by id, until every replica holds it.

An entry is in the atomic batch of its mutation, so ids that are claimed and data that is held are one set,
through every crash: at a start the entries, and what is noted as reconciled or apart, say what is held. While
a replica is away for long, entries that all others hold may go: their ids are noted as *apart*, and what they
stand for is in the tables alone, from which the one that was away gets it. Invariants. An id is given by the
step that stores its mutation, so no offset is ever given without a mutation; none is given twice, for each
start of a node, and each range in it, has a log with a number of its own. What is reconciled or apart has no
entry; everything else that is held has one. In memory a log is a few runs of offsets, and ids are listed by
partition up to a bound, beyond which a range answers for any of its partitions with all that is not
reconciled of it.

An id names its mutation wherever ranges are cut, so a range that is cut takes its ids along: each side those
of its tokens, and both what is reconciled or apart, for that is held by whoever holds either. Ranges that are
joined have what both had; what is apart in one of them is, and where this node was getting something of one
of them it is to compare the whole. Of a range that this node gave up it claims nothing any more.

A mutation may add to a log of changes, whose partition lies in another range while the streams for a cut do
not count yet. Then that part is an entry of its own, of that range, under an id that follows from the
mutation's; both are in one batch where this node is a replica of both. An entry that is cut in two so is made
two as the cut is taken up.

Of a range of which this node is a witness it keeps entries alone: what its tables would have, all full
replicas have once the entry goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final, Protocol

from lockstep.storage.journal_cuts import (
    Part,
    RangeAt,
    batches,
    captured_part,
    divided,
    fitted_notes,
    parts_of,
    ranges_now,
    stored_of,
)
from lockstep.storage.journal_loading import Loading, validate_stored
from lockstep.storage.journal_records import (
    BOUNDS,
    ENTRIES,
    TAKING,
    Named,
    captured_place,
    changed_notes,
    deletions,
    entry_key,
    entry_value,
    shard_key,
    values_of,
)
from lockstep.storage.place_list import Place
from lockstep.storage.rows.fragments import require_fitting
from lockstep.storage.shard_logs import Shard, ShardLogs, Taking, bounded, joined
from lockstep.storage.store import Batch, Family, Operation, Pair
from lockstep.tracking.held import (
    LOG_BITS,
    LOGS_OF_A_START_MAX,
    Held,
    LogId,
    MutationId,
    all_of,
)
from lockstep.tracking.intervals import IntervalSet
from lockstep.values.codec import encode
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import JOURNAL_PLACES_MAX, JOURNAL_RECORDS_A_BATCH
from lockstep.values.rows import Mutation, ReadCommand
from lockstep.values.tokens import TOKEN_MIN, Range

#: Whether this node has the data of a range in its tables; else it is a witness of it.
Keeps = Callable[[Shard], bool]


def _all(_shard: Shard) -> bool:
    return True


class Engine(Protocol):
    """What the journal needs of a node's storage."""

    def apply(self, mutation: Mutation, also: Batch = (), *, first_epoch: int | None = 0) -> int: ...

    def write_records(self, family: Family, batch: Batch, *, is_due: bool = False) -> int: ...

    def records(self, lower: bytes, upper: bytes, count: int) -> list[Pair]: ...

    def walk(self, lower: bytes, upper: bytes, count: int) -> Iterator[list[Pair]]: ...

    def is_synced(self, sequence: int) -> bool: ...

    async def synced(self, sequence: int) -> None: ...


class Journal:
    """`own_id` and `start` name the logs that this node gives ids in; `range_at` tells where ranges are."""

    def __init__(
        self, engine: Engine, own_id: Callable[[], int], start: int, range_at: RangeAt, keeps: Keeps = _all
    ) -> None:
        self._engine = engine
        #: Whether this node has the data of a range in its tables; and whether it takes no more of others.
        self.keeps, self.is_full = keeps, False
        self._own_id = own_id
        self._start = start
        self._range_at = range_at
        self.shards: dict[Shard, ShardLogs] = {}
        #: What other replicas told last that they hold, by range; kept by who hears it.
        self.told: dict[Shard, dict[int, Held]] = {}
        self._tables: dict[int, int] = {}
        self._logs_begun, self._listed = 0, 0
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

    @property
    def is_synced(self) -> bool:
        """Whether everything that is held now is durable."""
        return self._engine.is_synced(self._sequence)

    async def synced(self) -> None:
        """Return when everything that is held now is durable."""
        await self._engine.synced(self._sequence)

    # -- writing ----------------------------------------------------------------------------------

    def give(
        self, shard: Shard, mutation: Mutation, now_us: int, *, first_epoch: int | None = 0
    ) -> MutationId:
        """Store a mutation under an id of its own. As `apply` of the engine, with its `first_epoch`; what
        is not stored gets no id either."""
        logs = self._logs(shard)
        if not logs.own:
            logs.own = (self._start << LOG_BITS) | self._logs_begun
            self._logs_begun += 1
            assert self._logs_begun < LOGS_OF_A_START_MAX, "a start has that many logs at most"
        log = (self._own_id(), logs.own)
        given = MutationId(NodeId(log[0]), log[1], logs.end(log), now_us)
        if mutation.captured is None:
            self._store(shard, given, mutation, mutation.table_id, mutation.token, first_epoch)
        else:
            self._store_parts(parts_of(self._range_at, shard, given, mutation), first_epoch)
        return given

    def take(
        self,
        shard: Shard,
        given: MutationId,
        mutation: Mutation | None,
        table_id: int = 0,
        token: int = 0,
        *,
        first_epoch: int | None = 0,
    ) -> None:
        """Store a mutation that has its id; nothing happens when it is held. `None`: its table is gone, its
        place is told beside it. `first_epoch`: see `apply` of the engine."""
        if mutation is not None and mutation.captured is not None:
            self._store_parts(parts_of(self._range_at, shard, given, mutation), first_epoch)
            return
        logs = self.shards.get(shard)
        if logs is not None and logs.contains(given.log, given.offset):
            return
        if mutation is not None:
            table_id, token = mutation.table_id, mutation.token
        self._store(shard, given, mutation, table_id, token, first_epoch)

    def take_captured(self, group: int, part: MutationId, mutation: Mutation) -> None:
        """As `take` of what a mutation adds to a log, as a replica of that: by the id of the part."""
        self._store_parts([captured_part(self._range_at, group, part, mutation)], None)

    def _store_parts(self, parts: Sequence[Part], first_epoch: int | None) -> None:
        """Store what is not held of the parts of a mutation, two in one batch."""
        lacking = [part for part in parts if not part.is_in(self.logs_of(part.shard))]
        if not lacking:
            return
        logs, records = [self._logs(part.shard) for part in lacking], [part.record() for part in lacking]
        if (mutation := stored_of(lacking, self.keeps)) is not None:
            self._sequence = self._engine.apply(mutation, records, first_epoch=first_epoch)
        else:
            require_fitting(lacking[0].whole, max(len(body) for _, _, body in records))
            self._sequence = self._engine.write_records(Family.JOURNAL, records)
        self._count(*(body for _, _, body in records))
        for part, of_part in zip(lacking, logs, strict=True):
            self._add(of_part, part.given.log, part.given.offset, part.place, captured_place(part.mutation))

    def _store(
        self,
        shard: Shard,
        given: MutationId,
        mutation: Mutation | None,
        table_id: int,
        token: int,
        first_epoch: int | None,
    ) -> None:
        logs, log, offset = self._logs(shard), given.log, given.offset
        body = entry_value(given.given_us, mutation, shard[0], (table_id, token))
        record: Operation = ("put", entry_key(log, offset), body)
        if mutation is None or not self.keeps(shard):
            if mutation is not None:
                require_fitting(mutation, len(body))
            self._sequence = self._engine.write_records(Family.JOURNAL, [record])
        else:
            self._sequence = self._engine.apply(mutation, (record,), first_epoch=first_epoch)
        self._count(body)
        self._add(logs, log, offset, (table_id, token))

    def _count(self, *bodies: bytes) -> None:
        self._stored += len(bodies)
        self._stored_bytes += sum(map(len, bodies))

    def _add(
        self, logs: ShardLogs, log: LogId, offset: int, place: Place, captured: Place | None = None
    ) -> None:
        self._listed += logs.add(log, offset, place, captured)
        if self._listed > JOURNAL_PLACES_MAX:
            self._listed = bounded(self.shards, self._listed, JOURNAL_PLACES_MAX)

    def _logs(self, shard: Shard) -> ShardLogs:
        found = self.shards.get(shard)
        if found is None:
            at = self._range_at(*shard)
            assert at is not None and at[0].right == shard[1], "a range is of a ring"
            found = self.shards[shard] = ShardLogs(at[0].left)
            record: Operation = ("put", shard_key(BOUNDS, shard), encode(found.left))
            self._engine.write_records(Family.JOURNAL, [record], is_due=True)
        return found

    # -- asking -----------------------------------------------------------------------------------

    def held(self, shard: Shard) -> Held:
        return self.logs_of(shard).held

    def reconciled(self, shard: Shard) -> Held:
        return self.logs_of(shard).reconciled

    def apart(self, shard: Shard) -> Held:
        return self.logs_of(shard).apart

    def taking(self, shard: Shard) -> Taking | None:
        return self.logs_of(shard).taking

    def recent(self, shard: Shard, command: ReadCommand) -> Held:
        """What is held and not reconciled of what is read, or more."""
        logs = self.logs_of(shard)
        if command.key is None:
            return logs.open.union(logs.apart)
        return logs.of_place((command.table_id, command.right)).union(logs.apart)

    def holders(self, shard: Shard, ids: Held) -> frozenset[int]:
        """Other replicas that told that they hold all of these."""
        return frozenset(node for node, held in self.told.get(shard, {}).items() if held.covers(ids))

    def logs_of(self, shard: Shard) -> ShardLogs:
        return self.shards.get(shard) or _NO_LOGS

    @property
    def entry_count(self) -> int:
        return sum(logs.open.count for logs in self.shards.values())

    @property
    def apart_count(self) -> int:
        return sum(logs.apart.count for logs in self.shards.values())

    def estimated_bytes(self, count: int) -> int:
        """Of so many entries, by the average one."""
        return count * self._stored_bytes // max(self._stored, 1)

    def oldest_us(self, shard: Shard, wanted: Held) -> int | None:
        """When the oldest of these ids was given, by the first entry of each log; None: there is no entry."""
        found: list[int] = []
        for log, offsets in wanted.intersection(self.logs_of(shard).open).items():
            first = values_of(self._engine, log, IntervalSet(offsets.runs[:2]))
            found += [ENTRIES.decode(value).given_us for _, value in islice(first, 1)]
        return min(found, default=None)

    def held_in(self, group: int) -> Held:
        """What is held of any range of a placement group, but for what is apart: that is of its range."""
        return all_of(
            logs.held.difference(logs.apart)
            for shard, logs in sorted(self.shards.items())
            if shard[0] == group
        )

    def entries(self, group: int, wanted: Held, bytes_max: int) -> list[Named]:
        """Entries of these ids, the first ones up to so many bytes and one at least; what is reconciled has
        none, nor what is not held."""
        found: list[Named] = []
        size = 0
        for shard in sorted(self.shards):
            if shard[0] != group:
                continue
            for log, offsets in wanted.intersection(self.shards[shard].open).items():
                for offset, value in values_of(self._engine, log, offsets):
                    size += len(value)
                    if found and size > bytes_max:
                        return found
                    entry = ENTRIES.decode(value)
                    given = MutationId(*log, offset, entry.given_us)
                    found.append(Named(given, entry.mutation, entry.table_id, entry.token))
        return found

    # -- letting go -------------------------------------------------------------------------------

    def reconcile(self, shard: Shard, everywhere: Held) -> int:
        """Every replica holds these durably: let go of their entries; how many went."""
        logs = self.logs_of(shard)
        count = self._drop_entries(shard, everywhere, logs.settle)
        for log, offsets in everywhere.intersection(logs.apart).items():
            logs.settle(log, offsets)
            self._note_of(shard, logs, log)
            count += offsets.count
        return count

    def set_apart(self, shard: Shard, ids: Held) -> int:
        """Every replica that is there holds these durably: let go of their entries, though one that is away
        does not; how many went."""
        return self._drop_entries(shard, ids, self.logs_of(shard).set_apart)

    def _drop_entries(self, shard: Shard, ids: Held, note: Callable[[LogId, IntervalSet], None]) -> int:
        logs, count = self.logs_of(shard), 0
        batch: list[Operation] = []
        for log, offsets in ids.intersection(logs.open).items():
            for some in offsets.parts(JOURNAL_RECORDS_A_BATCH):
                gone = deletions(log, some)
                if len(batch) + len(gone) > JOURNAL_RECORDS_A_BATCH:
                    self._engine.write_records(Family.JOURNAL, batch, is_due=True)
                    batch = []
                note(log, some)
                batch += gone
                batch += changed_notes(shard, logs, log)
                count += len(gone)
        if batch:
            # It makes room: also a full disk takes it.
            self._engine.write_records(Family.JOURNAL, batch, is_due=True)
        self._listed -= logs.trim()
        if not logs.is_listed and not logs.open:
            logs.is_listed = True
        return count

    def adopt(self, shard: Shard, everywhere: Held) -> None:
        """What these name is in the tables here, as in those of every other replica, or of tokens beside the
        range."""
        if not everywhere or self.reconciled(shard).covers(everywhere):
            return
        self.reconcile(shard, everywhere)
        logs = self._logs(shard)
        for log, offsets in everywhere.difference(logs.held).items():
            logs.settle(log, offsets)
            self._note_of(shard, logs, log)

    def _note_of(self, shard: Shard, logs: ShardLogs, log: LogId) -> None:
        records = changed_notes(shard, logs, log)
        self._sequence = self._engine.write_records(Family.JOURNAL, records, is_due=True)

    # -- what is apart ----------------------------------------------------------------------------

    def claim(self, shard: Shard, ids: Held) -> None:
        """The data of these is in the tables here, durably: hold those that were not, apart."""
        if not ids or self.held(shard).covers(ids):
            return
        logs = self._logs(shard)
        for log, offsets in ids.difference(logs.held).items():
            logs.set_apart(log, offsets)
            self._note_of(shard, logs, log)

    def release(self, shard: Shard, ids: Held) -> None:
        """A part of the tables was lost, and what was filled again has nothing of these for sure: hold those
        that are apart no more."""
        logs = self.logs_of(shard)
        gone = ids.intersection(logs.apart)
        for log, offsets in gone.items():
            logs.release(log, offsets)
            self._note_of(shard, logs, log)
        if gone:
            # No offset of a log that lost some is given again.
            logs.own = 0

    def take_from(self, shard: Shard, taking: Taking | None) -> None:
        """Begin to get data of a range, or end that."""
        logs = self._logs(shard)
        logs.taking = taking
        key = shard_key(TAKING, shard)
        record: Operation = ("put", key, encode(taking)) if taking is not None else ("delete", key)
        self._sequence = self._engine.write_records(Family.JOURNAL, [record], is_due=True)

    async def store_again(self, shard: Shard) -> None:
        """Have the tables hold what there are entries of: a part of them was lost."""
        for log, offsets in self.logs_of(shard).open.items():
            for offset, value in values_of(self._engine, log, offsets):
                mutation = ENTRIES.decode(value).own_part
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
        parts: dict[Shard, list[ShardLogs]] = {}
        for shard, logs in before.items():
            for group in sorted({shard[0], *moved.get(shard[0], ())} & groups):
                for found in ranges_now(self._range_at, group, Range(logs.left, shard[1])):
                    self.shards.setdefault((group, found.right), ShardLogs(found.left))
                    parts.setdefault((group, found.right), []).append(logs)
        touched = {shard: self.shards[shard] for shard in parts}
        for shard, logs_of in parts.items():
            joined(self.shards[shard], logs_of)
        gone = (operation for shard, logs in before.items() for operation in self._refiled(shard, logs))
        # A start between two of these finds what is left of before, and fits it again.
        self._write_due(chain(fitted_notes(before, touched, tables), gone))
        return sorted({*before, *touched})

    def _is_fit(self, shard: Shard, groups: set[int], moved: Mapping[int, set[int]]) -> bool:
        at = self._range_at(*shard) if shard[0] in groups and shard[0] not in moved else None
        return at is not None and at[1] and at[0] == Range(self.shards[shard].left, shard[1])

    def _refiled(self, shard: Shard, logs: ShardLogs) -> Iterator[Operation]:
        """Put the ids of a range that is no more where they belong; with what deletes those that are not this
        node's any more."""
        places = logs.places() if logs.is_listed else None
        adding = logs.captured_places()
        self._listed -= logs.stop_listing()
        for log, offsets in logs.open.items():
            stored = (
                (
                    (offset, places[log, offset], adding.get((log, offset)))
                    for offset in offsets.offsets(offsets.count)
                )
                if places is not None
                else (
                    (offset, entry.place, entry.captured)
                    for offset, value in values_of(self._engine, log, offsets)
                    for entry in (ENTRIES.decode(value),)
                )
            )
            for offset, place, captured in stored:
                found = self._own_logs(place, shard[0])
                there = self._own_logs(captured, shard[0]) if captured is not None else found
                if there is not found:
                    yield from divided(self._engine, log, offset, found, there, self._add)
                elif found is None or found.is_let_go(log, offset):
                    yield "delete", entry_key(log, offset)
                elif not found.contains(log, offset):  # Else an entry that was cut has left the same there.
                    self._add(found, log, offset, place, captured)

    def _own_logs(self, place: Place, group: int) -> ShardLogs | None:
        """The range of a partition, if this node has it; `group`: of its table, if that is gone."""
        group = self._tables.get(place[0], group)
        at = self._range_at(group, place[1])
        return self.shards.get((group, at[0].right)) if at is not None and at[1] else None

    # -- at a start -------------------------------------------------------------------------------

    def _load(self) -> None:
        loading = Loading(self._engine, JOURNAL_PLACES_MAX)
        loading.run()
        self._tables, self.shards, self._listed = loading.tables, loading.shards, loading.listed
        self._stored, self._stored_bytes = loading.count, loading.bytes
        cut = (one for each in loading.cut for one in divided(self._engine, *each, self._add))
        self._write_due(chain(loading.orphans, cut))

    def _write_due(self, operations: Iterable[Operation]) -> None:
        for batch in batches(operations):
            self._sequence = self._engine.write_records(Family.JOURNAL, batch, is_due=True)

    def validate(self) -> None:
        """What holds between any two turns of the loop: what is claimed is what there are entries of."""
        validate_stored(self._engine, self.shards)
        assert self._listed == sum(logs.listed_count for logs in self.shards.values()), "ids are miscounted"


_NO_LOGS: Final = ShardLogs(TOKEN_MIN)
