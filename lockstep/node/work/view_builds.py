"""Building views from what their base tables have already, in the background and resumably, and telling the
storage engine which secondary indexes its tables have.

Invariant: A row that was written before this node knew of the view is in the store when the build begins, and
a later one brings its view updates itself, so going through the store once misses nothing. A range counts as
built, durably, only when each of its rows is on every replica of the view or has a durable hint. Only ranges
that this node reads are gone through: what it has of others may be out of date. Before rows are derived here
a majority of the data centre reads them, which brings this node what it lacks: of an older state of a row
nobody would take the view's row back once this node has given the range up. In the step in which an entry is
applied here, the engine keeps the indexes of the schema after it; so a write that is accepted under the epoch
of an index, or a later one, makes entries in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from lockstep.handoff.view_log import ViewLog
from lockstep.handoff.view_updates import ViewOf
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import OWNING_STATES
from lockstep.node.context import NodeContext
from lockstep.node.log.metadata_state import MetadataState
from lockstep.schema.model import Schema, Table
from lockstep.storage.engine import StorageEngine
from lockstep.storage.index.index_entries import IndexDefinition, definition_of
from lockstep.storage.store import Family
from lockstep.storage.store_position import Lacking
from lockstep.values import codec
from lockstep.values.errors import DiskRefused, LockstepError
from lockstep.values.hash_tree import changed
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import BUILD_RETRY_MS, VIEW_BUILD_ROWS
from lockstep.values.rows import ALL_ROWS, ReadCommand, ReadResult
from lockstep.values.tokens import Range

_PREFIX = b"view-build/"


class Build(msgspec.Struct, frozen=True, array_like=True):
    """How far the build of one view is on this node; `covered` are (left, right] in order, apart. The view is
    there since `since_epoch`, or for longer when this node heard of it late; emptying it is no beginning."""

    done: bool = False
    covered: tuple[tuple[int, int], ...] = ()
    partitions: int = 0
    since_epoch: int = 0


_DECODER = codec.decoder(Build)


#: Reads as a coordinator, with read repair, in the time that a range read may take.
ReadAt = Callable[[ReadCommand, Consistency], Awaitable[ReadResult]]


class _Majority:
    """How far a majority of replicas has read what a command asks for, page by page."""

    def __init__(self, read_at: ReadAt, command: ReadCommand) -> None:
        self._read_at = read_at
        self._command: ReadCommand | None = command

    def has_read(self, page: ReadResult) -> bool:
        """Whether the majority has read everything up to the end of a page of this node."""
        if self._command is None:
            return True
        end, after = page.end if page.more else None, self._command.after
        if end is None or after is None:
            return False
        if (after.token, after.key) != (end.token, end.key) or after.clustering is None:
            return (after.token, after.key) >= (end.token, end.key)
        return end.clustering is not None and after.clustering >= end.clustering

    async def read_on(self, now_s: int) -> None:
        """Have the majority read the next page, and this node take from it what it lacks."""
        assert self._command is not None, "there is something left to read"
        command = msgspec.structs.replace(self._command, now_s=now_s)
        result = await self._read_at(command, Consistency.LOCAL_QUORUM)
        more = result.more and result.end is not None
        self._command = msgspec.structs.replace(command, after=result.end) if more else None


class ViewBuilds:
    """`builds` has the views of the schema, by id, as far as they are built here."""

    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        engine: StorageEngine,
        view_log: ViewLog,
        read_at: ReadAt,
        lacking: Lacking,
    ) -> None:
        self._runtime = context.runtime
        self._state = state
        self._engine = engine
        self._view_log = view_log
        self._read_at = read_at
        #: What views are built of may be lacking here.
        self._lacking = lacking
        self._own_id = context.own_id
        self._log = context.log
        self._schema = Schema()
        self._wake = asyncio.Event()
        self.builds: dict[int, Build] = {}
        #: Views that were there before this node had data of its own; as of its start.
        self._joined_to: dict[int, None] = {}

    def lacking(self) -> list[int]:
        """Ids of the views that may lack rows since they are not built here. What a node goes through when it
        joined is there already, by those that had its ranges before."""
        return [at for at, build in self.builds.items() if not build.done and at not in self._joined_to]

    def start(self) -> None:
        self._note(self._state.current)
        self._state.listen(lambda _before, after, _entry: self._note(after), parts_only=True)
        self._runtime.tasks.spawn(self._run(), "views.build")

    def _note(self, cluster: ClusterMetadata) -> None:
        """Follow the schema: views that are new here, and those that are gone."""
        before, self._schema = self._schema, cluster.schema
        gone: dict[str, Build] = {}
        for table_id, was, now in changed(before.table_tree, cluster.schema.table_tree):
            if now is None:
                self._joined_to.pop(table_id, None)
                build = self.builds.pop(table_id, None)
                if build is not None and was is not None:
                    gone[was.uuid] = build
                    self._forget(table_id)
            elif now.view is not None and table_id not in self.builds:
                kept = self._engine.local_fact(_name(table_id))
                since_epoch = gone[now.uuid].since_epoch if now.uuid in gone else now.epoch
                fresh = Build(since_epoch=since_epoch)
                self.builds[table_id] = _DECODER.decode(kept) if kept is not None else fresh
                if not self._is_owner():
                    self._joined_to[table_id] = None
        self._wake.set()

    def _forget(self, table_id: int) -> None:
        try:
            self._engine.write_records(Family.LOCAL, [("delete", Family.LOCAL.key(_name(table_id)))])
        except LockstepError:
            self._runtime.probes.reach("views.build_not_forgotten")  # an id is never given twice

    # -- building ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            open_ = sorted(table_id for table_id, build in self.builds.items() if not build.done)
            if open_ and self._is_owner() and not self._lacking.fillable:
                try:
                    for table_id in open_:
                        await self._build(table_id)
                    continue
                except DiskRefused:
                    return  # The node was told by the engine, and ends.
                except LockstepError as error:
                    self._log("views.build_failed", error=str(error))
                    await asyncio.sleep(BUILD_RETRY_MS / 1000)
                    continue
            await self._wake.wait()

    def _is_owner(self) -> bool:
        """Whether this node has data of its own yet, rather than parts of what others still send it."""
        info = self._state.current.directory.by_id.get(NodeId(self._own_id()))
        return info is not None and info.state in OWNING_STATES

    async def _build(self, table_id: int) -> None:
        """Go through all that this node reads of the base table; done when there is nothing left."""
        while (place := self._next(table_id)) is not None:
            base, part = place
            await self._build_range(table_id, base, part)
        build = self.builds.get(table_id)
        if build is not None:
            await self._keep(table_id, msgspec.structs.replace(build, done=True, covered=()))
            self._runtime.probes.reach("views.built")

    def _next(self, table_id: int) -> tuple[Table, Range] | None:
        """The base table of a view and a range that is to be gone through; None when nothing is left."""
        cluster = self._state.current
        view = cluster.schema.tables_by_id.get(table_id)
        build = self.builds.get(table_id)
        if view is None or view.view is None or build is None:
            return None
        base = cluster.schema.table(view.keyspace, view.view.base)
        assert base is not None, "a base table is dropped after its views"
        own = self._own_id()
        owned = joined(
            (placed.range.left, placed.range.right)
            for placed in cluster.placements.ring(cluster.schema.group_of(base)).ranges
            if own in placed.group.reads
        )
        left = missing(owned, build.covered)
        return (base, left) if left is not None else None

    async def _build_range(self, table_id: int, base: Table, part: Range) -> None:
        command = ReadCommand(
            base.id,
            part.left,
            part.right,
            None,
            ALL_ROWS,
            (),
            reads_static=False,
            reverse=False,
            row_limit=VIEW_BUILD_ROWS,
            partition_row_limit=0,
            now_s=0,
        )
        majority = _Majority(self._read_at, command)
        while True:
            command = msgspec.structs.replace(command, now_s=self._now_s())
            result = await self._engine.read(command)
            while not majority.has_read(result):
                await majority.read_on(self._now_s())
                result = await self._engine.read(command)
            view = self._derived(table_id, base.id)
            if view is None:
                return  # It is gone, or empty, by now.
            mutations = [one for partition in result.partitions for one in view.whole(partition)]
            while not await self._view_log.done(self._view_log.begin(mutations)):
                await asyncio.sleep(BUILD_RETRY_MS / 1000)
                if self._derived(table_id, base.id) is None:
                    return
            end = result.end if result.more else None
            upto = part.right if end is None else end.token - 1
            build = self.builds.get(table_id)
            if build is None:
                return
            covered = joined([*build.covered, (part.left, upto)])
            seen = build.partitions + len(result.partitions)
            await self._keep(table_id, msgspec.structs.replace(build, covered=covered, partitions=seen))
            await self._runtime.probes.linger("views.build_page")
            if end is None:
                return
            command = msgspec.structs.replace(command, left=max(part.left, end.token - 1), after=end)

    def _now_s(self) -> int:
        return self._runtime.clock.wall_us() // 1_000_000

    def _derived(self, table_id: int, base_id: int) -> ViewOf | None:
        base = self._state.current.schema.tables_by_id.get(base_id)
        if base is None:
            return None
        for view in self._view_log.views(base):
            if view.table_id == table_id:
                return view
        return None

    async def _keep(self, table_id: int, build: Build) -> None:
        if table_id not in self.builds:
            return
        self.builds[table_id] = build
        sequence = self._engine.keep_local_fact(_name(table_id), codec.encode(build))
        await self._engine.synced(sequence)


def _name(table_id: int) -> bytes:
    return _PREFIX + table_id.to_bytes(4, "big")


def joined(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges (left, right] in order; those that touch or overlap become one."""
    found: list[tuple[int, int]] = []
    for left, right in sorted(ranges):
        if left >= right:
            continue
        if found and left <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], right))
        else:
            found.append((left, right))
    return tuple(found)


def missing(owned: Iterable[tuple[int, int]], covered: tuple[tuple[int, int], ...]) -> Range | None:
    """The first part of the owned ranges that is not covered; None when all is."""
    for left, right in owned:
        begin = left
        for first, last in covered:
            if first <= begin < last:
                begin = last
        if begin < right:
            return Range(begin, min([right, *(first for first, _ in covered if first > begin)]))
    return None


class IndexUpkeep:
    def __init__(self, state: MetadataState, engine: StorageEngine) -> None:
        self._engine = engine
        schema = state.current.schema
        for keyspace in schema.keyspaces:
            for table in keyspace.tables:
                if table.indexes:
                    engine.indexes.define(table.id, definitions(schema, table))
        state.listen(self._applied, parts_only=True)

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
        if before.schema is after.schema:
            return
        for table_id, was, now in changed(before.schema.table_tree, after.schema.table_tree):
            had = was.indexes if was is not None else ()
            has = now.indexes if now is not None else ()
            if had or has:
                found = definitions(after.schema, now) if now is not None else ()
                self._engine.indexes.define(table_id, found)


def definitions(schema: Schema, table: Table) -> Sequence[IndexDefinition]:
    space = schema.by_name[table.keyspace]
    return [definition_of(space, table, index) for index in table.indexes]
