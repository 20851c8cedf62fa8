"""Background merge: many fragments of one place become one.

Invariant: a merge reads a place and writes the result without giving up the loop in between, in one batch
that deletes exactly the fragments it read. So it can neither lose a write nor bring back what was wiped,
and it changes nothing that a reader can see. Tombstones stay.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from lockstep.runtime.ports import Runtime
from lockstep.storage.rows import keys
from lockstep.storage.rows.deletions import normal_ranges, stronger
from lockstep.storage.rows.fragments import (
    decode_header,
    decode_row,
    encode_header,
    encode_row,
    merge_id,
    newest_timestamp,
)
from lockstep.storage.rows.reconcile import merge_rows
from lockstep.storage.store import Operation, Pair, Store
from lockstep.values import limits
from lockstep.values.errors import CorruptFile, DiskRefused, StorageError
from lockstep.values.rows import Deletion, RangeDeletion


def merge_place(store: Store, prefix: bytes, place: bytes) -> int:
    """Merge the fragments of one place now; returns how many there were (0 or 1: nothing to do)."""
    scan = store.scan(place, keys.place_end(place))
    # One operation of the batch is the result. What is over the limit waits for the next merge.
    pairs = list(itertools.islice(scan, limits.STORE_BATCH_ROWS_MAX - 1))
    if len(pairs) < 2:
        return len(pairs)
    value = _merged_value(prefix, place, pairs)
    batch: list[Operation] = [("delete", store_key) for store_key, _ in pairs]
    if value is not None:
        timestamp_us = newest_timestamp(store_key for store_key, _ in pairs)
        # Last, for its key is one of the deleted when the same content was merged before.
        batch.append(("put", place + keys.write_suffix(timestamp_us, merge_id(value)), value))
    store.write(batch)
    return len(pairs)


def _merged_value(prefix: bytes, place: bytes, pairs: list[Pair]) -> bytes | None:
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


class BackgroundMerge:
    """A bounded queue of places, merged one at a time with a turn for the loop after each."""

    def __init__(self, store: Store, runtime: Runtime, on_failure: Callable[[StorageError], None]) -> None:
        """`on_failure` is told when the store takes no more writes; merging has then ended."""
        self._store = store
        self._runtime = runtime
        self._on_failure = on_failure
        self._queue: dict[bytes, bytes] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False

    def ask(self, prefix: bytes, place: bytes) -> None:
        """Queue a place; dropped when the queue is full, for the next read asks again."""
        if self._is_stopping or len(self._queue) >= limits.MERGES_QUEUED_MAX:
            return
        self._queue[place] = prefix
        if self._task is None:
            self._task = self._runtime.tasks.spawn(self._run(), "storage.merge")

    async def _run(self) -> None:
        try:
            while self._queue and not self._is_stopping:
                place = next(iter(self._queue))
                self._merge(self._queue.pop(place), place)
                await asyncio.sleep(0)
        except DiskRefused as error:
            self._is_stopping = True
            self._on_failure(error)
        finally:
            self._task = None

    def _merge(self, prefix: bytes, place: bytes) -> None:
        try:
            merge_place(self._store, prefix, place)
        except CorruptFile:
            # The store has noted the file. The fragments stay as they are, to be read where they can be.
            self._runtime.probes.reach("storage.merge.damaged")
        else:
            self._runtime.probes.reach("storage.merge.written")

    async def stop(self) -> None:
        """End after the merge in hand; what is queued is forgotten."""
        self._is_stopping = True
        if self._task is not None:
            await asyncio.wait([self._task])
