"""What cuts of ranges do to the journal: entries of parts of a mutation, and what is noted of ranges.

A mutation that adds to a log of changes is one entry as long as both lie in one range, and a batch with two
entries where they do not. Invariant: the id of the second one follows from that of the first, so every
replica gives the same parts the same ids, whether it cuts an entry itself or is sent what was cut. Either has
the whole mutation: whoever is brought the one holds both, where it has both ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from lockstep.storage.journal_records import (
    APART,
    BEHIND,
    BOUNDS,
    ENTRIES,
    RECONCILED,
    TABLES_KEY,
    TAKING,
    Fitted,
    Source,
    captured_place,
    entry_key,
    entry_value,
    notes,
    shard_key,
    values_of,
)
from lockstep.storage.place_list import Place
from lockstep.storage.shard_logs import Shard, ShardLogs
from lockstep.storage.store import Operation, Put
from lockstep.tracking.held import LogId, MutationId, beside, is_beside, part_beside
from lockstep.tracking.intervals import of
from lockstep.values.codec import encode
from lockstep.values.node_limits import JOURNAL_PULL_BYTES, JOURNAL_RECORDS_A_BATCH
from lockstep.values.rows import Mutation, without_log
from lockstep.values.tokens import Range

#: (group, token) -> the range that has it, and whether this node is one of its replicas; None: no such group.
RangeAt = Callable[[int, int], tuple[Range, bool] | None]


class Add(Protocol):
    """Takes up that an id is held."""

    def __call__(self, logs: ShardLogs, log: LogId, offset: int, place: Place) -> None: ...


class Part(msgspec.Struct, frozen=True, gc=False):
    """What of a mutation is of one range, under an id of its own."""

    shard: Shard
    given: MutationId
    mutation: Mutation
    whole: Mutation

    @property
    def place(self) -> Place:
        return self.mutation.table_id, self.mutation.token

    def is_in(self, logs: ShardLogs) -> bool:
        return logs.contains(self.given.log, self.given.offset)

    def record(self) -> Put:
        given, captured = self.given, captured_place(self.mutation)
        value = entry_value(given.given_us, self.whole, self.shard[0], self.place, captured)
        return "put", entry_key(given.log, given.offset), value


def parts_of(range_at: RangeAt, shard: Shard, given: MutationId, mutation: Mutation) -> list[Part]:
    """The parts that this node, a replica of the mutation's range, is to hold of it and of what it adds to a
    log of changes: one where that lies in the same range."""
    captured = mutation.captured
    assert captured is not None, "the mutation adds to a log of changes"
    at = range_at(shard[0], captured.token)
    assert at is not None, "a log of changes lies in the placement group of its table"
    if at[0].right == shard[1]:
        return [Part(shard, given, mutation, mutation)]
    alone = Part(shard, given, without_log(mutation), mutation)
    there = shard[0], at[0].right
    return [alone, Part(there, part_beside(given), captured, mutation)] if at[1] else [alone]


def stored_of(parts: Sequence[Part], keeps: Callable[[Shard], bool]) -> Mutation | None:
    """What of a mutation's parts, one or both of them, goes to tables: what is of ranges whose witness this
    node is does not."""
    kept = [part for part in parts if keeps(part.shard)]
    if not kept:
        return None
    return kept[0].mutation if len(kept) == 1 else kept[0].whole


def captured_part(range_at: RangeAt, group: int, part: MutationId, mutation: Mutation) -> Part:
    """What a mutation adds to a log of changes in a range that this node has, by the id of that part."""
    captured = mutation.captured
    assert captured is not None and is_beside(part.start), "the mutation adds to a log of changes"
    at = range_at(group, captured.token)
    assert at is not None and at[1], "a replica of the log takes what is added to it"
    return Part((group, at[0].right), part, captured, mutation)


def divided(
    source: Source, log: LogId, offset: int, found: ShardLogs | None, there: ShardLogs | None, add: Add
) -> Iterator[Operation]:
    """Make an entry two: of its mutation, and of what that adds to a log of changes in another range. Each
    stays where this node has its range, `found` and `there`."""
    key, part = entry_key(log, offset), beside(log)
    for _, value in values_of(source, log, of([offset])):
        entry = ENTRIES.decode(value)
        mutation, place = entry.mutation, entry.captured
        assert mutation is not None and place is not None, "it adds to a log of changes"
        if there is not None and not there.contains(part, offset):
            # First, for what is left of a batch that a crash cut is made two again.
            yield "put", entry_key(part, offset), entry_value(entry.given_us, mutation, entry.group, place)
            add(there, part, offset, place)
        if found is None or found.contains(log, offset):
            yield "delete", key
        else:
            yield "put", key, entry_value(entry.given_us, mutation, entry.group, entry.place)
            add(found, log, offset, entry.place)


def batches(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    """In their order, so many and so large that the store takes them at once."""
    batch: list[Operation] = []
    size = 0
    for operation in operations:
        batch.append(operation)
        size += len(operation[-1])
        if len(batch) == JOURNAL_RECORDS_A_BATCH or size >= JOURNAL_PULL_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def ranges_now(range_at: RangeAt, group: int, tokens: Range) -> Iterator[Range]:
    """The ranges of this node that have some of these tokens now."""
    token = tokens.left
    while token < tokens.right:
        at = range_at(group, token + 1)
        if at is None:
            return
        found, is_own = at
        if is_own:
            yield found
        token = found.right


def fitted_notes(
    before: Mapping[Shard, ShardLogs], touched: Mapping[Shard, ShardLogs], tables: Mapping[int, int]
) -> list[Operation]:
    """What is noted of ranges that are not as they were, and of tables with their placement groups."""
    kept: list[Operation] = []
    for shard, target in touched.items():
        kept.append(("put", shard_key(BOUNDS, shard), encode(target.left)))
        kept += [one for log, _ in target.held.items() for one in notes(shard, target, log)]
        if target.taking is not None:
            kept.append(("put", shard_key(TAKING, shard), encode(target.taking)))
    kept.append(("put", TABLES_KEY, encode(Fitted(tuple(sorted(tables.items()))))))
    for shard in before:
        if shard not in touched:
            kept += [("delete", shard_key(kind, shard)) for kind in (BOUNDS, TAKING)]
            for kind in (RECONCILED, APART):
                first = shard_key(kind, shard)
                kept.append(("delete_range", first, first + BEHIND))
    return kept
