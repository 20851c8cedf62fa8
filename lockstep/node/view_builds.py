"""Building views from what their base tables have already, in the background and resumable.

Invariants. A row that was written before this node knew of the view is in the store when the build begins,
and a later one brings its view updates itself, so going through the store once misses nothing. A range counts
as built, durably, only when each of its rows is on every replica of the view or has a durable hint. Only
ranges that this node reads are gone through: what it has of others may be out of date.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import OWNING_STATES
from lockstep.node.metadata_state import MetadataState
from lockstep.replication.view_log import ViewLog
from lockstep.replication.view_updates import ViewOf
from lockstep.runtime.ports import Runtime
from lockstep.schema.model import Schema, Table
from lockstep.storage.engine import StorageEngine
from lockstep.storage.store import Family
from lockstep.values import codec
from lockstep.values.errors import DiskRefused, LockstepError
from lockstep.values.hash_tree import changed
from lockstep.values.ids import NodeId
from lockstep.values.limits import VIEW_BUILD_RETRY_MS, VIEW_BUILD_ROWS
from lockstep.values.rows import ALL_ROWS, Position, ReadCommand
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


class ViewBuilds:
    """`builds` has the views of the schema, by id, as far as they are built here."""

    def __init__(
        self,
        runtime: Runtime,
        state: MetadataState,
        engine: StorageEngine,
        view_log: ViewLog,
        own_id: Callable[[], int],
        log: Callable[..., None],
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._engine = engine
        self._view_log = view_log
        self._own_id = own_id
        self._log = log
        self._schema = Schema()
        self._wake = asyncio.Event()
        self.builds: dict[int, Build] = {}
        #: Whether nothing is lacking that views are built of.
        self.is_filled: Callable[[], bool] = lambda: True
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
            if open_ and self._is_owner() and self.is_filled():
                try:
                    for table_id in open_:
                        await self._build(table_id)
                    continue
                except DiskRefused:
                    return  # The node was told by the engine, and ends.
                except LockstepError as error:
                    self._log("views.build_failed", error=str(error))
                    await asyncio.sleep(VIEW_BUILD_RETRY_MS / 1000)
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
        own, space = self._own_id(), cluster.schema.by_name[view.keyspace]
        owned = joined(
            (placed.range.left, placed.range.right)
            for placed in cluster.placements.ring(space.replication).ranges
            if own in placed.group.reads
        )
        left = missing(owned, build.covered)
        return (base, left) if left is not None else None

    async def _build_range(self, table_id: int, base: Table, part: Range) -> None:
        after: Position | None = None
        begin = part.left
        while True:
            now_s = self._runtime.clock.wall_us() // 1_000_000
            command = ReadCommand(
                base.id,
                begin,
                part.right,
                None,
                ALL_ROWS,
                (),
                reads_static=False,
                reverse=False,
                row_limit=VIEW_BUILD_ROWS,
                partition_row_limit=0,
                now_s=now_s,
                after=after,
            )
            result = await self._engine.read(command)
            view = self._derived(table_id, base.id)
            if view is None:
                return  # It is gone, or empty, by now.
            mutations = [one for partition in result.partitions for one in view.whole(partition)]
            while not await self._view_log.done(self._view_log.begin(mutations)):
                await asyncio.sleep(VIEW_BUILD_RETRY_MS / 1000)
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
            after, begin = end, max(part.left, end.token - 1)

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
