"""Work in the background on what is stored: many fragments of one place become one, and what nobody needs any
more goes.

A place is merged when a read saw ROW_FRAGMENTS_MERGE_AT fragments of it, all of them, and when as many writes
went to it, whether anybody reads it or not: then a fragment stays out that is much larger than all the
smaller ones together, so that a row which grows is not written again and again.

Invariant: A tombstone goes only in a step before which everything that it shadows here is gone, or which
drops that too: a row's own with all its fragments, the deletions of a partition once the pass has been
through all its rows and nothing was written to it meanwhile. What a step may purge is asked in that step. It
reads and writes without giving up the loop in between, so that it never takes away what it did not see. A
merge reads a place and writes the result without giving up the loop in between, in one batch that deletes
exactly the fragments it took. So it can neither lose a write nor bring back what was wiped, and it changes
nothing that a reader can see. Tombstones stay.
"""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from lockstep.runtime.ports import Probes, Runtime
from lockstep.storage.cooperative_yield import CooperativeYield
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import (
    HeaderFragment,
    decode_header,
    decode_row,
    encode_header,
    encode_row,
    merge_id,
    newest_timestamp,
)
from lockstep.storage.rows.reconcile import Shadow, merge_rows, normal_ranges, stronger
from lockstep.storage.rows.visible import deletion_left, ranges_left, row_left
from lockstep.storage.store import Operation, Pair, Put, Store, StoreSnapshot
from lockstep.values import limits
from lockstep.values.errors import CorruptFile, DiskRefused, StorageError
from lockstep.values.limits import BACKGROUND_FRAGMENTS_PER_TURN, ROW_FRAGMENTS_MERGE_AT, STORE_BATCH_ROWS_MAX
from lockstep.values.rows import Deletion, RangeDeletion
from lockstep.values.tokens import FULL_RING

#: Fragments of one row that one batch can replace by one; of a partition's deletions, beside its rows.
_FRAGMENTS_MAX: Final = STORE_BATCH_ROWS_MAX - 1
_HEADERS_MAX: Final = STORE_BATCH_ROWS_MAX // 2
#: To find a partition costs about as much as to look at so many fragments.
_PARTITION_COSTS: Final = 8

#: (table id, token) -> the second before which tombstones may go now; 0: none may.
PurgeBefore = Callable[[int, int], int]


class PurgeCounts:
    """Of one table. `dropped`: fragments that were taken away, less those written in their place."""

    def __init__(self) -> None:
        self.passes = 0
        self.fragments = 0
        self.merged_places = 0
        self.dropped = 0


class _Partition:
    """Where a pass is in the partition that it goes through. `whole`: nothing stands against dropping its
    deletions at the end so far."""

    def __init__(self, first_key: bytes) -> None:
        self.token, _, self.prefix = keys.split_partition(first_key)
        self.end = keys.partition_end(self.prefix)
        self.at = self.prefix
        self.whole = True


class Purge:
    """`touched` must be told of all that is written to partitions other than by merging and purging. `before`
    is asked in each step."""

    def __init__(self, store: Store, probes: Probes) -> None:
        self._store = store
        self._probes = probes
        self.before: PurgeBefore = lambda _table_id, _token: 0
        self._partition: _Partition | None = None
        self.counts: dict[int, PurgeCounts] = {}

    def touched(self, prefix: bytes) -> None:
        """Something was written to the partition with this prefix."""
        partition = self._partition
        if partition is not None and partition.prefix == prefix:
            partition.whole = False

    def touched_range(self, lower: bytes, upper: bytes) -> None:
        partition = self._partition
        if partition is not None and lower < partition.end and partition.prefix < upper:
            partition.whole = False

    async def run(self, table_id: int, pace: CooperativeYield) -> None:
        """One pass over a table. DiskRefused and CorruptFile as the store has them."""
        counts = self.counts.setdefault(table_id, PurgeCounts())
        lower, upper = keys.token_bounds(table_id, FULL_RING)
        seen = 0
        while (first := next(self._store.scan(lower, upper), None)) is not None:
            partition = self._partition = _Partition(first[0])
            try:
                before = counts.fragments
                while not self._step(table_id, partition, counts):
                    await pace.turn()
            finally:
                self._partition = None
            lower = partition.end
            seen += counts.fragments - before + _PARTITION_COSTS
            if seen >= BACKGROUND_FRAGMENTS_PER_TURN:
                seen = 0
                await pace.turn()
        counts.passes += 1

    def _step(self, table_id: int, partition: _Partition, counts: PurgeCounts) -> bool:
        """Go on in a partition; True when that was its end."""
        header, headers = self._header(partition)
        if len(headers) >= _HEADERS_MAX:
            # There may be more: first they become fewer.
            merged = encode_header(header.deletion, header.range_deletions)
            self._write(_replaced(partition.prefix + keys.KIND_HEADER, headers, merged), counts)
            return False
        before_s = self.before(table_id, partition.token)
        shadow = Shadow(header.deletion, header.range_deletions)
        batch: list[Operation] = []
        seen = 0
        lower = max(partition.at, partition.prefix + keys.KIND_STATIC)
        for place, pairs in self._places(lower, partition.end):
            is_large = len(pairs) >= _FRAGMENTS_MAX
            if seen and (is_large or seen + len(pairs) > BACKGROUND_FRAGMENTS_PER_TURN):
                partition.at = place
                break
            seen += len(pairs)
            if is_large:
                # There may be more, so nothing may be purged: first they become fewer.
                partition.at = place
                batch = self._place(partition, place, pairs, shadow, 0, counts)
                break
            batch.extend(self._place(partition, place, pairs, shadow, before_s, counts))
        else:
            partition.at = b""
            seen += len(headers)
        counts.fragments += seen
        self._write(batch, counts)
        if not partition.at:
            # Behind the rows, so that a crash in between leaves tombstones and never what they shadow.
            self._write(self._deletions(partition, header, headers, before_s), counts)
        return not partition.at

    def _write(self, batch: list[Operation], counts: PurgeCounts) -> None:
        if batch:
            counts.dropped += sum(1 if operation[0] == "delete" else -1 for operation in batch)
            self._store.write(batch)
            self._probes.reach("storage.purge.written")

    def _places(self, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, list[Pair]]]:
        """Places with their fragments, at most _FRAGMENTS_MAX of each."""
        grouped = itertools.groupby(
            self._store.scan(lower, upper), key=lambda pair: pair[0][: -keys.WRITE_BYTES]
        )
        for place, pairs in grouped:
            yield place, list(itertools.islice(pairs, _FRAGMENTS_MAX))

    def _header(self, partition: _Partition) -> tuple[HeaderFragment, list[Pair]]:
        """The partition's own deletions, and the first _HEADERS_MAX of their fragments."""
        lower = partition.prefix + keys.KIND_HEADER
        scan = self._store.scan(lower, partition.prefix + keys.KIND_STATIC)
        pairs = list(itertools.islice(scan, _HEADERS_MAX))
        deletion: Deletion | None = None
        ranges: list[RangeDeletion] = []
        for store_key, value in pairs:
            part = decode_header(store_key, value)
            deletion = stronger(deletion, part.deletion)
            ranges.extend(part.range_deletions)
        return HeaderFragment(deletion, normal_ranges(ranges, deletion)), pairs

    def _place(
        self,
        partition: _Partition,
        place: bytes,
        pairs: list[Pair],
        shadow: Shadow,
        before_s: int,
        counts: PurgeCounts,
    ) -> list[Operation]:
        """What makes of a row's fragments the one that is left of it, or none; nothing when that is so."""
        is_row = place[len(partition.prefix) : len(partition.prefix) + 1] == keys.KIND_ROW
        clustering = keys.clustering_of(pairs[0][0], partition.prefix) if is_row else b""
        over = shadow.over(clustering) if is_row else shadow.floor
        rows = [decode_row(store_key, value, clustering) for store_key, value in pairs]
        whole = merge_rows(rows, over)
        left = None if whole is None else row_left(whole, before_s)
        if left is not None and len(rows) < ROW_FRAGMENTS_MERGE_AT and left == merge_rows(rows):
            return []  # Nothing would go that anybody could see.
        counts.merged_places += 1
        return _replaced(place, pairs, None if left is None else encode_row(left))

    def _deletions(
        self, partition: _Partition, header: HeaderFragment, headers: list[Pair], before_s: int
    ) -> list[Operation]:
        """At the end of a partition: take away its own deletions that may go."""
        if not headers or not partition.whole:
            return []
        deletion = deletion_left(header.deletion, before_s)
        ranges = ranges_left(header.range_deletions, before_s)
        if deletion is header.deletion and len(ranges) == len(header.range_deletions):
            return []
        left = encode_header(deletion, ranges) if deletion is not None or ranges else None
        return _replaced(partition.prefix + keys.KIND_HEADER, headers, left)


def _replaced(place: bytes, pairs: list[Pair], value: bytes | None) -> list[Operation]:
    batch: list[Operation] = [("delete", store_key) for store_key, _ in pairs]
    if value is not None:
        timestamp_us = newest_timestamp(store_key for store_key, _ in pairs)
        # Last, for its key is one of the deleted when the same content was merged before.
        batch.append(("put", place + keys.write_suffix(timestamp_us, merge_id(value)), value))
    return batch


#: Places share this many counts of writes, one byte each.
_WRITE_COUNTS: Final = 1 << 18
#: Places that are merged before the loop gets a turn: some 60 microseconds each.
_PLACES_PER_TURN: Final = 16
#: A fragment this many times larger than the smaller ones together is not written anew for their sake.
_LARGE_RATIO: Final = 4


def merge_place(store: Store, prefix: bytes, place: bytes, view: Store | StoreSnapshot | None = None) -> int:
    """Merge the fragments of one place now; returns how many there were (0 or 1: nothing to do).

    `view` is the store, or a snapshot of it since which nobody wrote to the place.
    """
    pairs = _fragments(view or store, place)
    if len(pairs) >= 2:
        _replace(store, prefix, place, pairs)
    return len(pairs)


def merge_written(
    store: Store, prefix: bytes, place: bytes, view: Store | StoreSnapshot | None = None
) -> int:
    """As `merge_place`, of what is worth it while the place is written; returns how many were merged."""
    pairs = _smaller(_fragments(view or store, place))
    # Places share counts: this one may not be the one that was written often.
    if len(pairs) < max(2, limits.ROW_FRAGMENTS_MERGE_AT // 2):
        return 0
    _replace(store, prefix, place, pairs)
    return len(pairs)


def _fragments(view: Store | StoreSnapshot, place: bytes) -> list[Pair]:
    scan = view.scan(place, keys.place_end(place))
    # One operation of the batch is the result. What is over the limit waits for the next merge.
    return list(itertools.islice(scan, limits.STORE_BATCH_ROWS_MAX - 1))


def _smaller(pairs: list[Pair]) -> list[Pair]:
    """Without those that are much larger than all smaller ones together."""
    ordered = sorted(pairs, key=lambda one: len(one[1]))
    if len(ordered) < 3 or len(ordered[-1][1]) <= _LARGE_RATIO * (len(ordered[0][1]) + len(ordered[1][1])):
        return ordered
    kept: list[Pair] = []
    total = 0
    for at, pair in enumerate(ordered):
        if at >= 2 and len(pair[1]) > _LARGE_RATIO * total:
            break
        kept.append(pair)
        total += len(pair[1])
    return kept


def _replace(store: Store, prefix: bytes, place: bytes, pairs: Sequence[Pair]) -> None:
    value = _merged_value(prefix, place, pairs)
    batch: list[Operation] = [("delete", store_key) for store_key, _ in pairs]
    if value is not None:
        timestamp_us = newest_timestamp(store_key for store_key, _ in pairs)
        # Last, for its key is one of the deleted when the same content was merged before.
        batch.append(("put", place + keys.write_suffix(timestamp_us, merge_id(value)), value))
    store.write(batch)


def _merged_value(prefix: bytes, place: bytes, pairs: Sequence[Pair]) -> bytes | None:
    kind = place[len(prefix) : len(prefix) + 1]
    if kind == keys.KIND_HEADER:
        deletion: Deletion | None = None
        ranges: list[RangeDeletion] = []
        for store_key, value in pairs:
            part = decode_header(store_key, value)
            deletion = stronger(deletion, part.deletion)
            ranges.extend(part.range_deletions)
        return encode_header(deletion, normal_ranges(ranges, deletion))
    row = merge_rows([decode_row(store_key, value, b"") for store_key, value in pairs])
    return None if row is None else encode_row(row)


_Merge = Callable[[Store, bytes, bytes, StoreSnapshot], int]


class BackgroundMerge:
    """A bounded queue of places, merged a few at a time with a turn for the loop after them."""

    def __init__(self, store: Store, runtime: Runtime, on_failure: Callable[[StorageError], None]) -> None:
        """`on_failure` is told when the store takes no more writes; merging has then ended."""
        self._store = store
        self._runtime = runtime
        self._on_failure = on_failure
        #: place -> (its partition's prefix, how it is merged).
        self._queue: dict[bytes, tuple[bytes, _Merge]] = {}
        self._counts = bytearray(_WRITE_COUNTS)
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False

    def wrote(self, prefix: bytes, batch: Sequence[Put]) -> None:
        """Fragments of a partition were written: queue their places that were written often."""
        counts = self._counts
        for _, store_key, _ in batch:
            place = store_key[: -keys.WRITE_BYTES]
            at = zlib.crc32(place) % _WRITE_COUNTS
            count = counts[at] + 1
            if count < limits.ROW_FRAGMENTS_MERGE_AT:
                counts[at] = count
            elif place in self._queue or self._queued(place, prefix, merge_written):
                counts[at] = 0

    def ask(self, prefix: bytes, place: bytes) -> None:
        """Queue a place of which a read saw many fragments; dropped when the queue is full, for the next read
        asks again."""
        self._queued(place, prefix, merge_place)

    def _queued(self, place: bytes, prefix: bytes, merge: _Merge) -> bool:
        if self._is_stopping or len(self._queue) >= limits.MERGES_QUEUED_MAX:
            return False
        self._queue[place] = prefix, merge
        if self._task is None:
            self._task = self._runtime.tasks.spawn(self._run(), "storage.merge")
        return True

    async def _run(self) -> None:
        try:
            while self._queue and not self._is_stopping:
                self._merge(list(itertools.islice(self._queue.items(), _PLACES_PER_TURN)))
                await asyncio.sleep(0)
        except DiskRefused as error:
            self._is_stopping = True
            self._on_failure(error)
        finally:
            self._task = None

    def _merge(self, places: Sequence[tuple[bytes, tuple[bytes, _Merge]]]) -> None:
        view = self._store.snapshot()
        try:
            for place, (prefix, merge) in places:
                del self._queue[place]
                try:
                    merge(self._store, prefix, place, view)
                except CorruptFile:
                    # The store has noted the file. The fragments stay, to be read where they can be.
                    self._runtime.probes.reach("storage.merge.damaged")
                else:
                    self._runtime.probes.reach("storage.merge.written")
        finally:
            view.close()

    async def stop(self) -> None:
        """End after the merges in hand; what is queued is forgotten."""
        self._is_stopping = True
        if self._task is not None:
            await asyncio.wait([self._task])
