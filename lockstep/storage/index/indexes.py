"""The secondary indexes of one store: kept up with writes, built in the background, cleaned.

Invariants. A write puts its entries in its own batch, or before it. An entry goes only in a step that sees
that its row does not have the value, so at every instant each value that a row has, has its entry, but for
what is marked as not yet built; what is not built is not read.

What a node remembers of how far its secondary indexes are built.

    family 44 | 00 | 01 | table id 4 | index id 4       ->  the token it is built up to, b"" when built whole
    family 44 | 00 | 02 | table id 4 | left 8 | right 8 ->  b"": entries of this range may be missing

Invariant: an index without a mark is not built; a range is marked, durably, before rows without entries
become visible in it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from lockstep.runtime.ports import Runtime
from lockstep.schema.model import ColumnKind
from lockstep.storage.cooperative_yield import CooperativeYield
from lockstep.storage.index.index_entries import (
    IndexDefinition,
    entries_of,
    entries_of_row,
    entry_bounds,
    has_value,
    split_place,
)
from lockstep.storage.reading import Reading
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import decode_row
from lockstep.storage.store import Batch, Delete, Family, Operation, Pair, Put, Store
from lockstep.values import limits
from lockstep.values.errors import CorruptFile, DiskRefused, IndexNotAvailable, Overloaded, StorageError
from lockstep.values.rows import Mutation, ReadCommand, Slice
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

_INDEX = struct.Struct(">cccII")
_RANGE = struct.Struct(">cccIqq")
_TABLE = struct.Struct(">cccI")
_TOKEN = struct.Struct(">q")
_MARK, _OF_INDEX, _OF_RANGE = b"\x00", b"\x01", b"\x02"


def _index_key(table_id: int, index_id: int) -> bytes:
    return _INDEX.pack(Family.INDEX.value, _MARK, _OF_INDEX, table_id, index_id)


def _range_key(table_id: int, tokens: Range) -> bytes:
    return _RANGE.pack(Family.INDEX.value, _MARK, _OF_RANGE, table_id, tokens.left, tokens.right)


def built_up_to(store: Store, table_id: int, index_id: int) -> int | None:
    """The token up to which an index is built; None when it is built whole."""
    found = store.get(_index_key(table_id, index_id))
    if found is None:
        return TOKEN_MIN
    token: int | None = _TOKEN.unpack(found)[0] if found else None
    return token


def noted(table_id: int, index_id: int, token: int | None) -> Put:
    """Note that an index is built up to a token, or whole."""
    return "put", _index_key(table_id, index_id), b"" if token is None else _TOKEN.pack(token)


def missing(table_id: int, tokens: Range) -> Put:
    """Note that entries of a range may be missing."""
    return "put", _range_key(table_id, tokens), b""


def not_missing(table_id: int, tokens: Range) -> Delete:
    return "delete", _range_key(table_id, tokens)


def missing_ranges(store: Store, table_id: int) -> list[Range]:
    """The ranges noted by `missing`."""
    lower, upper = (
        _TABLE.pack(Family.INDEX.value, _MARK, _OF_RANGE, one) for one in (table_id, table_id + 1)
    )
    return [Range(*_RANGE.unpack(key)[4:]) for key, _ in store.scan(lower, upper)]


def forgotten(table_id: int, index_id: int) -> Delete:
    """Forget how far an index was built: its id is never given again."""
    return "delete", _index_key(table_id, index_id)


_KIND_ROW = keys.KIND_ROW[0]
_KIND_STATIC = keys.KIND_STATIC[0]


class Writer(Protocol):
    """How an engine writes what only its own node needs: see `StorageEngine.write_records`."""

    def __call__(self, batch: Batch) -> int: ...


class Job(msgspec.Struct, frozen=True):
    """Entries to be made: of one index, or of all of a table (None) where rows came without."""

    table_id: int
    index_id: int | None
    tokens: Range

    def is_of(self, command: ReadCommand) -> bool:
        assert command.index is not None
        return (
            self.table_id == command.table_id
            and self.index_id in (None, command.index.index_id)
            and self.tokens.left < command.right
            and command.left < self.tokens.right
        )


class Indexes:
    """`write` is the engine's; `on_failure` hears of a disk that refused."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        write: Writer,
        on_failure: Callable[[StorageError], None],
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._write = write
        self._on_failure = on_failure
        #: Indexes of each table that has any.
        self.tables: dict[int, tuple[IndexDefinition, ...]] = {}
        #: What is to be built, and how often it was asked for: a range may get rows while it is gone through.
        self._jobs: dict[Job, int] = {}
        self._announced: dict[tuple[int, Range], None] = {}
        #: (table id, index id) of indexes that are gone, with their entries still there.
        self._garbage: list[tuple[int, int]] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        #: What is to be built cannot be read, and is tried again after a pause.
        self._is_pausing = False

    # -- what there is ----------------------------------------------------------------------------

    def define(self, table_id: int, definitions: Sequence[IndexDefinition]) -> None:
        """Keep exactly these indexes of a table from this step on; build what is not built."""
        before = self.tables.get(table_id)
        now = {found.index_id for found in definitions}
        if definitions:
            self.tables[table_id] = tuple(definitions)
        else:
            self.tables.pop(table_id, None)
        for gone in before or ():
            if gone.index_id not in now:
                self._garbage.append((table_id, gone.index_id))
        known = {found.index_id for found in before or ()}
        for job in [job for job in self._jobs if job.table_id == table_id]:
            if job.index_id not in now and (job.index_id is not None or not now):
                del self._jobs[job]
        for index_id in sorted(now - known):
            token = built_up_to(self._store, table_id, index_id)
            if token is not None:
                self._ask(Job(table_id, index_id, Range(token, TOKEN_MAX)))
        if before is None and now:
            for tokens in missing_ranges(self._store, table_id):
                self._ask(Job(table_id, None, tokens))
        self._wake()

    def built(self, table_id: int) -> list[int]:
        """Ids of the indexes of a table that are built."""
        open_ = {job.index_id for job in self._jobs if job.table_id == table_id}
        return [found.index_id for found in self.tables.get(table_id, ()) if found.index_id not in open_]

    # -- writes -----------------------------------------------------------------------------------

    def entries(self, mutation: Mutation, prefix: bytes) -> list[Put]:
        """What a mutation of the partition with this prefix puts into the indexes of its table."""
        return [
            ("put", entry, b"")
            for definition in self.tables.get(mutation.table_id, ())
            for entry in entries_of(definition, mutation, prefix)
        ]

    def joining(self, mutation: Mutation, prefix: bytes, beside: int) -> list[Put]:
        """The same, to join a batch of `beside` operations; what has no room in it is written at once."""
        found = self.entries(mutation, prefix)
        most = limits.STORE_BATCH_ROWS_MAX
        while found and len(found) + beside > most:
            some, found = found[:most], found[most:]
            self._write(some)
        return found

    def announce(self, table_id: int, tokens: Range) -> list[Put]:
        """What is to be durable before rows of a range come without entries."""
        if table_id not in self.tables:
            return []
        self._announced[table_id, tokens] = None
        return [missing(table_id, tokens)]

    def came(self, table_id: int, tokens: Range) -> None:
        """In the step in which rows of a range become visible. StorageError when that was not announced."""
        if table_id not in self.tables:
            return
        if self._announced.pop((table_id, tokens), False) is False:
            raise StorageError("an index was made since these rows were announced")
        self._ask(Job(table_id, None, tokens))
        self._wake()

    def lack(self, table_id: int, tokens: Range) -> list[Put]:
        """What is to be written in the step in which rows of a range become visible without entries, and
        nothing was announced: from this step on they are made, or are once it is known what of."""
        if table_id in self.tables:
            self._ask(Job(table_id, None, tokens))
            self._wake()
        return [missing(table_id, tokens)]

    # -- reads ------------------------------------------------------------------------------------

    async def ready(self, command: ReadCommand) -> IndexDefinition:
        """The index of a read, once what is asked for is built; IndexNotAvailable when that takes long."""
        clock = self._runtime.clock
        deadline_s: float | None = None
        while True:
            definition = self._definition(command)
            if definition is not None and self._is_built(command):
                return definition
            now_s = clock.monotonic_s()
            if deadline_s is None:
                deadline_s = now_s + limits.INDEX_WAIT_MS / 1000
            left_s = deadline_s - now_s
            if definition is None or left_s <= 0:
                raise IndexNotAvailable("this node has not built a secondary index that was asked for")
            await asyncio.wait([self._change()], timeout=left_s)

    def ready_now(self, command: ReadCommand) -> IndexDefinition | None:
        """As `ready`; None where that waits or raises."""
        definition = self._definition(command)
        return definition if definition is not None and self._is_built(command) else None

    def _is_built(self, command: ReadCommand) -> bool:
        return not any(job.is_of(command) for job in self._jobs)

    def _change(self) -> asyncio.Future[None]:
        """Ends when something was built, or nothing is being built any more."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        return waiting

    async def settled(self) -> None:
        """Return when rows that came in files have their entries, or they cannot be made for now."""
        while (
            self._task is not None
            and not self._is_pausing
            and any(job.index_id is None for job in self._jobs)
        ):
            await self._change()

    def _definition(self, command: ReadCommand) -> IndexDefinition | None:
        assert command.index is not None
        for found in self.tables.get(command.table_id, ()):
            if found.index_id == command.index.index_id:
                return found
        return None

    def remove_stale(self, definition: IndexDefinition, entries: Iterable[bytes]) -> None:
        """Take away those of the entries whose rows, as they are now, do not have the value."""
        batch: list[Operation] = [
            ("delete", entry) for entry in entries if not self._holds(definition, entry)
        ]
        if not batch:
            return
        try:
            self._write(batch)
        except (Overloaded, DiskRefused):
            return  # The next read sees them again; a dead disk is told of by the engine.
        self._runtime.probes.reach("index.stale_removed")

    def _holds(self, definition: IndexDefinition, entry: bytes) -> bool:
        at = definition.value_end(entry)
        token, key, prefix, clustering = split_place(definition.table_id, entry[at:])
        if definition.kind is ColumnKind.PARTITION_KEY:
            return next(self._store.scan(prefix, keys.partition_end(prefix)), None) is not None
        slices = () if clustering is None else (Slice(clustering, clustering + b"\x00"),)
        # At second 0 nothing has expired: what is there as a fragment still needs its entry.
        command = ReadCommand(
            definition.table_id, token - 1, token, key, slices, (), clustering is None, False, 0, 0, 0
        )
        snapshot = self._store.snapshot()
        try:
            reading = Reading(snapshot, command, None)
            reading.run()
        finally:
            snapshot.close()
        value = entry[len(definition.head) : at]
        for partition in reading.result().partitions:
            row = partition.static if clustering is None else next(iter(partition.rows), None)
            if row is not None and value in definition.values_of(key, row, has_value):
                return True
        return False

    async def sweep(self, table_id: int, pace: CooperativeYield) -> None:
        """Go once through all entries of a table and take the stale ones away."""
        for definition in self.tables.get(table_id, ()):
            lower, upper = entry_bounds(table_id, definition.index_id)
            cursor = self._store.cursor(lower, upper)
            try:
                while pairs := cursor.take(limits.INDEX_STALE_AT_ONCE_MAX):
                    if definition not in self.tables.get(table_id, ()):
                        break
                    self.remove_stale(definition, [entry for entry, _ in pairs])
                    await pace.turn()
            finally:
                cursor.close()

    # -- building ---------------------------------------------------------------------------------

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    def _wake(self) -> None:
        self._tell()
        if (self._jobs or self._garbage) and self._task is None and not self._is_stopping:
            self._task = self._runtime.tasks.spawn(self._run(), "storage.index")

    async def _run(self) -> None:
        pace = CooperativeYield(self._runtime.clock)
        try:
            while (self._jobs or self._garbage) and not self._is_stopping:
                try:
                    await self._step(pace)
                except Overloaded:
                    self._runtime.probes.reach("index.build_waits")
                    await asyncio.sleep(limits.REPLICA_RETRY_MS / 1000)
                except CorruptFile as error:
                    # What is not built is not read.
                    self._runtime.probes.observe("index.build_failed", error=error.message)
                    await self._pause()
        except DiskRefused as error:
            self._on_failure(error)
        finally:
            self._task = None
            self._tell()

    async def _pause(self) -> None:
        """Until what could not be read is tried again: after a while, or when something is asked for."""
        self._is_pausing = True
        self._tell()
        try:
            await asyncio.wait([self._change()], timeout=limits.BUILD_RETRY_MS / 1000)
        finally:
            self._is_pausing = False

    async def _step(self, pace: CooperativeYield) -> None:
        if self._garbage:
            gone = self._garbage[0]
            self._write([forgotten(*gone), ("delete_range", *entry_bounds(*gone))])
            del self._garbage[0]
            return
        job = next(iter(self._jobs))
        asked = self._jobs[job]
        if await self._build(job, pace):
            self._finish(job, asked)

    def _finish(self, job: Job, asked: int) -> None:
        """All entries of a job are written that were missing when it was asked for the `asked`th time."""
        if self._jobs.get(job) != asked:
            return
        if job.index_id is not None:
            self._write([noted(job.table_id, job.index_id, None)])
        elif (job.table_id, job.tokens) not in self._announced:
            self._write([not_missing(job.table_id, job.tokens)])
        del self._jobs[job]
        self._runtime.probes.reach("index.built")
        self._wake()

    def _ask(self, job: Job) -> None:
        self._jobs[job] = self._jobs.get(job, 0) + 1

    async def _build(self, job: Job, pace: CooperativeYield) -> bool:
        """Make the entries of a job; False when it ended before, since its index did."""
        lower, upper = keys.token_bounds(job.table_id, job.tokens)
        cursor = self._store.cursor(lower, upper)
        steps = 0
        try:
            while True:
                pairs = cursor.take(limits.INDEX_BUILD_FRAGMENTS)
                if job not in self._jobs or self._is_stopping:
                    return False
                batch = self._entries_of_fragments(job, pairs)
                for at in range(0, len(batch), limits.STORE_BATCH_ROWS_MAX):
                    self._write(batch[at : at + limits.STORE_BATCH_ROWS_MAX])
                if len(pairs) < limits.INDEX_BUILD_FRAGMENTS:
                    break
                steps += 1
                if job.index_id is not None and not steps % limits.INDEX_NOTED_EVERY:
                    token = max(keys.split_partition(pairs[-1][0])[0] - 1, job.tokens.left)
                    self._write([noted(job.table_id, job.index_id, token)])
                await self._runtime.probes.linger("index.build_step")
                await pace.turn()
        finally:
            cursor.close()
        return True

    def _entries_of_fragments(self, job: Job, pairs: Sequence[Pair]) -> list[Put]:
        definitions = [
            found for found in self.tables.get(job.table_id, ()) if job.index_id in (None, found.index_id)
        ]
        found: dict[bytes, None] = {}
        for store_key, value in pairs:
            _, key, prefix = keys.split_partition(store_key)
            kind = store_key[len(prefix)]
            if kind == _KIND_ROW:
                clustering = keys.clustering_of(store_key, prefix)
            elif kind == _KIND_STATIC:
                clustering = b""
            else:
                continue
            row = decode_row(store_key, value, clustering)
            for definition in definitions:
                if _has_values(definition, kind):
                    found.update(dict.fromkeys(entries_of_row(definition, key, prefix, row)))
        return [("put", entry, b"") for entry in found]

    async def stop(self) -> None:
        """End the building; it goes on at the next start."""
        self._is_stopping = True
        self._wake()
        if self._task is not None:
            await asyncio.wait([self._task])


def _has_values(definition: IndexDefinition, kind: int) -> bool:
    """Whether fragments of this kind have values of an index."""
    if definition.kind is ColumnKind.PARTITION_KEY:
        return True
    return (kind == _KIND_STATIC) == definition.whole
