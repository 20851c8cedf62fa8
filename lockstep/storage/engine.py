"""The storage engine of one shard: applies mutations, answers reads, moves ranges.

Invariants. A mutation is one atomic batch. Nothing is acknowledged (`synced`) and nothing is answered
(`read`, `digest`, `fragments`) that a power loss could take back. Redelivery changes nothing.

Fixing the store's content on disk, for processes that build files of it.

Invariant: what is fixed of the range it was asked for is durable in the store, as what is read is.

How much a range holds as it is streamed, told from its first pairs.

Streams are table files: blocks of pairs, compressed one by one where that saves something, with a filter of
keys and an index. Invariant: the pairs are counted exactly for a range of at most `pairs_max`. Beyond that
what was seen is scaled by how far through the range's tokens it reaches, which partitions spread evenly;
nothing is read to its end.
"""

from __future__ import annotations

import asyncio
import bisect
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Final, Protocol

import lz4.block

from lockstep.runtime.ports import Runtime
from lockstep.storage.cooperative_yield import CooperativeYield
from lockstep.storage.group_commit import GroupCommit
from lockstep.storage.index.index_reading import IndexReading, reading_of
from lockstep.storage.index.indexes import Indexes
from lockstep.storage.purging import BackgroundMerge, Purge, PurgeBefore
from lockstep.storage.reading import Reading, partitions_between
from lockstep.storage.rocks.rocks_runs import shrinks
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import fragments_of
from lockstep.storage.rows.keys import all_stored_ids, table_of, with_ballots
from lockstep.storage.rows.reconcile import is_empty
from lockstep.storage.store import Batch, Family, FixedContent, Pair, RangeCursor, Run, Store
from lockstep.storage.store_position import begin_generation
from lockstep.storage.unchanged import Unchanged, leaf_digests
from lockstep.values import codec, limits
from lockstep.values.errors import CorruptFile, DiskRefused, StorageError
from lockstep.values.rows import Mutation, ReadCommand, ReadResult
from lockstep.values.tokens import Range

#: Of the library's table files.
_BLOCK_BYTES: Final = 4096
#: A block that saves less is kept as it is.
_WORTH_SAVING: Final = 1 / 8
#: Properties, footer and the first entries of index and filter.
_FILE_BYTES: Final = 1330
#: Ten bits of the filter, the beginning of an index entry, and blocks of both that are not full.
_PAIR_BYTES: Final = 2.5
#: Blocks that are compressed to see what that saves; so many pairs say it of the rest.
_SAMPLE_BLOCKS: Final = 8


def estimated_bytes(store: Store, table_id: int, tokens: Range, pairs_max: int) -> tuple[int, int]:
    """(bytes, pairs looked at) of a table's range as one file; nothing for one without pairs."""
    lower, upper = keys.token_bounds(table_id, tokens)
    seen = size = 0
    sample: list[Pair] = []
    last = b""
    for key, value in store.scan(lower, upper):
        if seen >= pairs_max:
            reached = keys.split_partition(last)[0]
            return _FILE_BYTES + _scaled(_packed(size, seen, sample), reached, tokens), seen
        seen += 1
        if size < _SAMPLE_BLOCKS * _BLOCK_BYTES:
            sample.append((key, value))
        size += len(key) + len(value)
        last = key
    return (_FILE_BYTES + _packed(size, seen, sample) if seen else 0), seen


def _packed(size: int, pairs: int, sample: Sequence[Pair]) -> int:
    """Bytes in a file of pairs of `size` in all, of which `sample` are the first."""
    raw = packed = 0
    for block in _blocks(sample) if shrinks(sample) else ():
        shrunk = len(lz4.block.compress(block, store_size=False))
        raw += len(block)
        packed += shrunk if shrunk <= len(block) * (1 - _WORTH_SAVING) else len(block)
    return int(size * (packed / raw if raw else 1) + pairs * _PAIR_BYTES)


def _blocks(sample: Sequence[Pair]) -> Iterator[bytes]:
    """As a file has them: one ends with the pair that fills it."""
    pairs: list[bytes] = []
    size = 0
    for key, value in sample:
        pairs += (key, value)
        size += len(key) + len(value)
        if size >= _BLOCK_BYTES:
            yield b"".join(pairs)
            pairs, size = [], 0
    if pairs:
        yield b"".join(pairs)


def _scaled(size: int, reached: int, tokens: Range) -> int:
    """`size` bytes end at token `reached`; at least what was seen."""
    return size * (tokens.right - tokens.left) // max(1, reached - tokens.left)


class Checkpoint:
    def __init__(self, store: Store, commit: GroupCommit) -> None:
        self._store = store
        self._commit = commit

    async def fixed(self, table_id: int, tokens: Range, path: str) -> FixedContent | None:
        """The store's content, that of a range being durable; None: see `Store.fixed`."""
        found = await self._store.fixed(path)
        if found is not None:
            try:
                # Written later, maybe, but nothing of the range that was fixed is missed.
                await self._commit.synced(self._commit.unsynced_between(*keys.token_bounds(table_id, tokens)))
            except BaseException as reason:
                try:
                    await found.close()
                except DiskRefused as error:
                    # What goes on is why it is closed: a cancellation above all must not become an error.
                    raise reason from error
                raise
        return found

    def remove(self, path: str) -> None:
        """See `Store.remove_fixed`."""
        self._store.remove_fixed(path)


DIGEST_BYTES = 16


class Derived(Protocol):
    """What else is written with a mutation, in the same atomic batch; it is told when it is in the store."""

    batch: Batch

    def written(self, sequence: int) -> None: ...


class RangeFragments:
    """The fragments of a range at one instant, in key order. Close it: it pins old versions."""

    def __init__(self, cursor: RangeCursor) -> None:
        self._cursor = cursor

    def take(self, count: int) -> list[Pair]:
        """The next ones, fewer than `count` only at the end."""
        return self._cursor.take(count)

    def close(self) -> None:
        self._cursor.close()


class FragmentRun:
    """A file of fragments of one range: to be sent, or not visible before `StorageEngine.ingest`."""

    def __init__(self, store_run: Run, table_id: int, tokens: Range) -> None:
        self.store_run = store_run
        self.table_id = table_id
        self.tokens = tokens
        self.lower, self.upper = keys.token_bounds(table_id, tokens)

    @property
    def count(self) -> int:
        return self.store_run.count

    @property
    def size_bytes(self) -> int:
        """About how large the file is by now."""
        return self.store_run.size_bytes

    def add(self, pairs: Sequence[Pair]) -> None:
        """StorageError when a key is not above all before, or not of the range."""
        if pairs:
            self.check(pairs[0][0], pairs[-1][0])
            self.store_run.add(pairs)

    def check(self, first_key: bytes, last_key: bytes) -> None:
        """StorageError unless both are keys of the range, in this order."""
        if not self.lower <= first_key <= last_key < self.upper:
            raise StorageError("a fragment is not of the range that it came with")

    async def finish(self) -> None:
        """Nothing is added any more: complete the file."""
        await self.store_run.finish()


def _filled(store: Store, stored_ids: Sequence[int], tokens: Range) -> Iterator[int]:
    """Those of ascending ids under which anything of a range is stored; as many seeks as there are ids with
    content in or above it, whatever is empty."""
    at = 0
    while at < len(stored_ids):
        lower, upper = keys.token_bounds(stored_ids[at], tokens)
        found = next(store.scan(lower, keys.table_bounds(stored_ids[-1])[1]), None)
        if found is None:
            return
        if found[0] < upper:
            yield stored_ids[at]
        at = max(at + 1, bisect.bisect_left(stored_ids, keys.stored_id_of(found[0])))


class StorageEngine:
    """Owns its store: nothing else writes data to it or syncs it. Errors: DiskRefused once the disk
    failed, CorruptFile when content cannot be read back."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        *,
        background_merge: bool = True,
        on_failure: Callable[[StorageError], None] | None = None,
        sync_period_ms: int = 0,
        reserve_bytes: int = 0,
        derive: Callable[[Mutation, int], Derived | None] = lambda _mutation, _first_epoch: None,
    ) -> None:
        """`derive` says what follows from a mutation that is about to be written, if anything does.
        `on_failure` is told once when the store can make nothing durable any more. `sync_period_ms`: see
        GroupCommit. `reserve_bytes`: see Space."""
        self._store = store
        self._runtime = runtime
        self._commit = GroupCommit(store, runtime, on_failure, sync_period_ms, reserve_bytes)
        self.space = self._commit.space
        self._merge = BackgroundMerge(store, runtime, self._commit.fail)
        self.ask_merge = self._merge.ask if background_merge else None
        self.fixing = Checkpoint(store, self._commit)
        self.unchanged = Unchanged(store)
        self.purge = Purge(store, runtime.probes)
        self.indexes = Indexes(store, runtime, partial(self.write_records, Family.INDEX), self._commit.fail)
        self._derive = derive
        #: Grows whenever content comes or goes other than by `apply` and by what reads see no difference of.
        self.rewrites = 0

    def apply(
        self, mutation: Mutation, also: Batch = (), *, by_repair: bool = False, first_epoch: int | None = 0
    ) -> int:
        """Write a mutation with what it adds to a log of changes, visible at once; returns the sequence to
        await with `synced` before acknowledging it. InvalidRequest when it is too large, Overloaded when too
        much is unsynced.

        `also` are operations of other families (a journal entry) that join the same atomic batch;
        `first_epoch` is handed to `derive`; None: the caller knows that nothing follows.
        """
        self._commit.admit_growth()
        prefix = keys.partition_prefix(mutation.table_id, mutation.token, mutation.key)
        batch = fragments_of(mutation, prefix)
        captured = mutation.captured
        if captured is not None:
            log_prefix = keys.partition_prefix(captured.table_id, captured.token, captured.key)
            logged = fragments_of(captured, log_prefix)
            log_marks = self.unchanged.changed(captured.table_id, captured.token, by_repair=by_repair)
            also = (*also, *logged, *log_marks)
        marks = self.unchanged.changed(mutation.table_id, mutation.token, by_repair=by_repair)
        derived = self._derive(mutation, first_epoch) if first_epoch is not None else None
        if derived is not None:
            also = (*also, *derived.batch)
        if mutation.table_id in self.indexes.tables:
            also = (*also, *self.indexes.joining(mutation, prefix, len(batch) + len(also) + len(marks)))
        try:
            sequence = self._store.write([*batch, *also, *marks] if also or marks else batch)
        except DiskRefused as error:
            self._commit.fail(error)
            raise
        self._commit.wrote(prefix, sequence)
        if self.ask_merge is not None:
            self._merge.wrote(prefix, batch)
        self.purge.touched(prefix)
        if captured is not None:
            self._commit.wrote(log_prefix, sequence)
            if self.ask_merge is not None:
                self._merge.wrote(log_prefix, logged)
            self.purge.touched(log_prefix)
        self._runtime.probes.reach("storage.batch.written")
        if derived is not None:
            derived.written(sequence)
        return sequence

    async def purge_table(self, table_id: int, before: PurgeBefore) -> None:
        """One pass over a table, in the background: see `storage.purging`. One at a time."""
        self.purge.before = before
        try:
            await self.purge.run(table_id, CooperativeYield(self._runtime.clock))
            await self.indexes.sweep(table_id, CooperativeYield(self._runtime.clock))
        except DiskRefused as error:
            self._commit.fail(error)
            raise

    def is_synced(self, sequence: int) -> bool:
        """Whether everything up to `sequence` is durable already."""
        return self._commit.is_synced(sequence)

    async def synced(self, sequence: int) -> None:
        """Return when everything up to `sequence` is durable; many waiters share one sync."""
        await self._commit.synced(sequence)

    async def read(self, command: ReadCommand) -> ReadResult:
        """Canonical partitions with tombstones and with all cells of each row; see `ReadCommand`.

        A limit of 0 means none. `more` is set by `row_limit` and by the byte limit, not by
        `partition_row_limit`: a partition with that many live rows covers only up to its last row.
        """
        definition = await self.indexes.ready(command) if command.index is not None else None
        sequence = self.unsynced(command)
        snapshot = self._store.snapshot()
        try:
            reading = reading_of(snapshot, command, self.ask_merge, definition)
            for work in reading.steps():
                await (asyncio.sleep(0) if work is None else self._runtime.tasks.run_blocking(work))
        finally:
            snapshot.close()
        self._tidy(reading)
        if sequence:
            await self._commit.synced(sequence)
        return reading.result()

    def read_now(self, command: ReadCommand) -> ReadResult | None:
        """As `read`, for one partition or by an index, without a second turn or a sync; None otherwise."""
        index = command.index
        definition = self.indexes.ready_now(command) if index is not None else None
        if (definition is None and (index is not None or command.key is None)) or self.unsynced(command):
            return None
        snapshot = self._store.snapshot()
        try:
            reading = reading_of(snapshot, command, self.ask_merge, definition)
            for _ in reading.steps():
                return None
        finally:
            snapshot.close()
        self._tidy(reading)
        return reading.result()

    def _tidy(self, reading: Reading) -> None:
        if isinstance(reading, IndexReading) and reading.stale:
            self.indexes.remove_stale(reading.definition, reading.stale)

    def peek(self, command: ReadCommand, *, asks: bool = True) -> ReadResult:
        """As `read`, in this very step and durable or not: for whoever tells nobody of it before a later
        write of his own is synced. `asks`: that fragments be merged, where there are many."""
        snapshot = self._store.snapshot()
        try:
            reading = Reading(snapshot, command, self.ask_merge if asks else None)
            reading.run()
        finally:
            snapshot.close()
        return reading.result()

    def unsynced(self, command: ReadCommand) -> int:
        """The sequence to await before anybody is told what a read finds; 0: all of it is durable."""
        if command.key is not None:
            prefix = keys.partition_prefix(command.table_id, command.right, command.key)
            return self._commit.unsynced_partition(prefix)
        tokens = Range(command.left, command.right)
        return self._commit.unsynced_between(*keys.token_bounds(command.table_id, tokens))

    async def digest(self, table_id: int, tokens: Range) -> bytes:
        """16 bytes that are equal on replicas with equal content, however fragmented it is."""
        lower, upper = keys.token_bounds(table_id, tokens)
        sequence = self._commit.unsynced_between(lower, upper)
        snapshot = self._store.snapshot()
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        try:
            for partition in partitions_between(snapshot, lower, upper):
                if partition is None:
                    await asyncio.sleep(0)
                elif not is_empty(partition):
                    digest.update(codec.encode(partition))
        finally:
            snapshot.close()
        await self._commit.synced(sequence)
        return digest.digest()

    async def leaf_digests(self, table_id: int, leaves: Sequence[Range], before_s: int) -> bytes:
        """The digests of `storage.leaf_digests`, joined; everything they cover is durable."""
        bounds = [keys.token_bounds(table_id, leaf) for leaf in leaves]
        sequence = self._commit.unsynced_between(bounds[0][0], bounds[-1][1])
        snapshot = self._store.snapshot()
        try:
            pace = CooperativeYield(self._runtime.clock)
            found, _ = await leaf_digests(snapshot, table_id, leaves, before_s, pace)
        finally:
            snapshot.close()
        await self._commit.synced(sequence)
        return found

    async def fragments(self, table_id: int, tokens: Range, from_key: bytes = b"") -> RangeFragments:
        """A snapshot of a range's fragments, durable, from the store key `from_key` on."""
        lower, upper = keys.token_bounds(table_id, tokens)
        sequence = self._commit.unsynced_between(lower, upper)
        cursor = self._store.cursor(max(lower, from_key), upper)
        try:
            await self._commit.synced(sequence)
        except BaseException:
            cursor.close()
            raise
        return RangeFragments(cursor)

    async def filled(self, table_ids: Sequence[int], tokens: Range) -> tuple[int, ...]:
        """Those of the tables of which a range holds rows or ballots, durably so. CorruptFile."""
        if not table_ids:
            return ()
        stored_ids = all_stored_ids(table_ids)
        first, last = (keys.token_bounds(stored_ids[at], tokens) for at in (0, -1))
        sequence = self._commit.unsynced_between(first[0], last[1])
        found = {table_of(stored_id) for stored_id in _filled(self._store, stored_ids, tokens)}
        await self._commit.synced(sequence)
        return tuple(table_id for table_id in table_ids if table_id in found)

    def begin_run(self, table_id: int, tokens: Range, path: str) -> FragmentRun:
        """A new file for fragments of a range, in key order. `path`: see `Store.new_run`."""
        return FragmentRun(self._store.new_run(path), table_id, tokens)

    def run_at(
        self, table_id: int, tokens: Range, path: str, count: int, first_key: bytes, last_key: bytes
    ) -> FragmentRun:
        """The file that another node's engine made, to be ingested in this step. CorruptFile when it is seen
        not to be one, StorageError when it is not of the range."""
        run = FragmentRun(self._store.run_at(path, count), table_id, tokens)
        run.check(first_key, last_key)
        return run

    async def before_ingest(self, table_id: int, tokens: Range) -> None:
        """Wait for what was written of the range: a run may be durable at once, so it must not survive a
        crash that takes back an older deletion. Overloaded when too much is unsynced."""
        self.space.require()
        self._commit.admit()
        try:
            await self._store.before_ingest()
        except DiskRefused as error:
            self._commit.fail(error)
            raise
        bounds = keys.token_bounds(table_id, tokens)
        marks = [*self.unchanged.changed_between(*bounds), *self.indexes.announce(table_id, tokens)]
        sequence = self.write_records(Family.REPAIR, marks) if marks else 0
        await self._commit.durable(max(sequence, self._commit.unsynced_between(*bounds)))

    def ingest(self, run: FragmentRun) -> int:
        """Make a finished run visible in this step; the sequence to await with `synced`. Ingesting the same
        fragments again changes nothing. CorruptFile, without effect, when the file is damaged."""
        self.indexes.came(run.table_id, run.tokens)
        return self._ingest(run)

    def _ingest(self, run: FragmentRun) -> int:
        self.rewrites += 1
        try:
            sequence = self._store.ingest(run.store_run)
        except DiskRefused as error:
            self._commit.fail(error)
            raise
        self._commit.wrote_range(run.lower, run.upper, sequence)
        self.purge.touched_range(run.lower, run.upper)
        self.unchanged.changed_between(run.lower, run.upper)
        self._runtime.probes.reach("storage.batch.written")
        return sequence

    def take_in(self, run: FragmentRun, *, is_indexed: bool) -> int:
        """As `before_ingest` and `ingest` in one step, of rows that stand beside what is there: nothing
        older could undo them. What was held to be unchanged since a repair is so no more, and entries of
        indexes are made before these are read again. A crash may take back what is written here and leave
        the rows: who takes in says `came_in` of them until the sequence is synced."""
        marks = self.unchanged.changed_between(run.lower, run.upper)
        marked = self._mark([*marks, *self._entries_missing(run.table_id, run.tokens, is_indexed)])
        return max(marked, self._ingest(run))

    def came_in(self, table_id: int, tokens: Range, *, is_indexed: bool) -> int:
        """As `take_in`, of rows that are here already."""
        return self._mark(self._entries_missing(table_id, tokens, is_indexed))

    def _entries_missing(self, table_id: int, tokens: Range, is_indexed: bool) -> Batch:
        return self.indexes.lack(table_id, tokens) if is_indexed else ()

    def _mark(self, marks: Batch) -> int:
        if not marks:
            return 0
        try:
            sequence = self._store.write(marks)
        except DiskRefused as error:
            self._commit.fail(error)
            raise
        self._commit.wrote(Family.REPAIR.value, sequence)
        return sequence

    def size_bytes(self) -> int:
        """About what this node stores."""
        return self._store.size_bytes()

    async def wipe(self, table_ids: Sequence[int], tokens: Range, *, keeps_ballots: bool = False) -> None:
        """Forget a range of tables, durably: for ranges this node does not own. One sync does for all of
        them, and what is empty is not written to."""
        self._commit.admit()
        sequence = begin_generation(self)
        stored_ids = sorted(table_ids) if keeps_ballots else all_stored_ids(table_ids)
        for at in range(0, len(stored_ids), limits.TABLES_DROPPED_AT_ONCE_MAX):
            if at:
                await asyncio.sleep(0)
            some = stored_ids[at : at + limits.TABLES_DROPPED_AT_ONCE_MAX]
            sequence = max(sequence, self._wipe(some, tokens))
        await self._commit.synced(sequence)

    def _wipe(self, stored_ids: Sequence[int], tokens: Range) -> int:
        try:
            wiped = set(_filled(self._store, stored_ids, tokens))
        except CorruptFile:
            # What cannot be read is there, as far as anybody knows.
            wiped = set(stored_ids)
        # Of what is empty there may be marks of repairs, and repairs that watch it.
        wiped.update(self.unchanged.marked(stored_ids))
        return self._write_deletions([keys.token_bounds(one, tokens) for one in sorted(wiped)])

    def forget(self, table_ids: Sequence[int], tokens: Range) -> int:
        """As `wipe`, in this very step: the sequence to await with `synced`. Never refused for overload."""
        begin_generation(self)
        return self._write_deletions([keys.token_bounds(found, tokens) for found in with_ballots(table_ids)])

    async def truncate(self, table_id: int) -> None:
        """Forget all content of a table, durably."""
        await self._delete_ranges([keys.table_bounds(found) for found in with_ballots((table_id,))])

    async def drop_tables(self, table_ids: Sequence[int]) -> None:
        """As truncate, of several; table ids are never given again."""
        await self._delete_ranges([keys.table_bounds(found) for found in with_ballots(table_ids)])

    async def _delete_ranges(self, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        self._commit.admit()
        await self._commit.synced(self._write_deletions(ranges))

    def local_fact(self, name: bytes) -> bytes | None:
        """What this node keeps under a name of its own; never streamed."""
        return self._store.get(Family.LOCAL.key(name))

    def keep_local_fact(self, name: bytes, value: bytes) -> int:
        """Replace it: durable together with or after everything written before; the sequence to await."""
        try:
            sequence = self._store.write([("put", Family.LOCAL.key(name), value)])
        except DiskRefused as error:
            self._commit.fail(error)
            raise
        self._commit.wrote(Family.LOCAL.key(name), sequence)
        return sequence

    def write_records(self, family: Family, batch: Batch, *, is_due: bool = False) -> int:
        """Write records of a family of this node's own, visible at once: the sequence to await with `synced`.
        Overloaded when too much is unsynced, unless it `is_due`: it follows from what has happened."""
        if not is_due:
            if any(operation[0] == "put" for operation in batch):
                self.space.require()
            self._commit.admit()
        try:
            sequence = self._store.write(batch)
        except DiskRefused as error:
            self._commit.fail(error)
            raise
        self._commit.wrote(family.value, sequence)
        return sequence

    def records(self, lower: bytes, upper: bytes, count: int) -> list[Pair]:
        """The first records with lower <= key < upper, durable or not."""
        with closing(self._store.cursor(lower, upper)) as cursor:
            return cursor.take(count)

    def walk(self, lower: bytes, upper: bytes, count: int) -> Iterator[list[Pair]]:
        """As `records`, all of them, so many at a time; they are as they were when this began."""
        with closing(self._store.cursor(lower, upper)) as cursor:
            while found := cursor.take(count):
                yield found

    def _write_deletions(self, ranges: Sequence[tuple[bytes, bytes]]) -> int:
        sequence = 0
        self.rewrites += 1
        for lower, upper in ranges:
            try:
                marks = self.unchanged.changed_between(lower, upper)
                sequence = self._store.write([("delete_range", lower, upper), *marks])
            except DiskRefused as error:
                self._commit.fail(error)
                raise
            self._commit.wrote_range(lower, upper, sequence)
            self._runtime.probes.reach("storage.batch.written")
        return sequence

    def estimated_bytes(self, table_id: int, tokens: Range, pairs_max: int) -> tuple[int, int]:
        """(bytes of a range as they are streamed, pairs looked at): see `storage.sizes`."""
        return estimated_bytes(self._store, table_id, tokens, pairs_max)

    @property
    def failed(self) -> bool:
        """Whether the store died: it takes nothing any more until it is opened again."""
        return self._commit.failed

    async def close(self) -> None:
        """End background work, wait for a sync in flight, release the store."""
        await self.indexes.stop()
        await self._merge.stop()
        await self._commit.settle()
        self._store.close()
