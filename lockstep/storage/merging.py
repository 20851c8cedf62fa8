"""Background merge: many fragments of one place become one.

Invariant: a merge reads a place and writes the result without giving up the loop in between, in one batch
that deletes exactly the fragments it took. So it can neither lose a write nor bring back what was wiped,
and it changes nothing that a reader can see. Tombstones stay.

A place is merged when a read saw ROW_FRAGMENTS_MERGE_AT fragments of it, all of them, and when as many writes
went to it, whether anybody reads it or not: then a fragment stays out that is much larger than all the
smaller ones together, so that a row which grows is not written again and again.
"""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import Final

from lockstep.runtime.ports import Runtime
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import (
    decode_header,
    decode_row,
    encode_header,
    encode_row,
    merge_id,
    newest_timestamp,
)
from lockstep.storage.rows.reconcile import merge_rows, normal_ranges, stronger
from lockstep.storage.store import Operation, Pair, Put, Store, StoreSnapshot
from lockstep.values import limits
from lockstep.values.errors import CorruptFile, DiskRefused, StorageError
from lockstep.values.rows import Deletion, RangeDeletion

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
    kept: list[Pair] = []
    total = 0
    for at, pair in enumerate(sorted(pairs, key=lambda one: len(one[1]))):
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
