"""This node's part of a backup: written under the backup's session, listed, removed.

Invariant: a part's manifest is written when all its files are durable and all other nodes have written
theirs; until then the part is none. No range changed replicas
while any part was written, as its node saw it: who gives a range up knows that, so no write slips through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from lockstep.internode.throttle import Throttle
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.snapshot_file import dump_file
from lockstep.metadata.repairs import joined_ranges
from lockstep.node.context import NodeContext
from lockstep.replica.backup_messages import BackupOrder, BackupStatus, KeptPart, Purpose
from lockstep.replica.session_guards import SessionGuards
from lockstep.schema.model import Keyspace, Table
from lockstep.storage import backup_manifest as manifests
from lockstep.storage.backup_manifest import BackedFile, BackedTable, BackupWriter, Manifest, content_digest
from lockstep.storage.cooperative_yield import CooperativeYield
from lockstep.storage.engine import RangeFragments, StorageEngine
from lockstep.storage.sorted_file import RangeFiles
from lockstep.storage.store_position import Lacking
from lockstep.topology.repairs import is_unchanged
from lockstep.values.errors import CorruptFile, LockstepError, PreconditionError, SessionClosed
from lockstep.values.limits import BACKUP_FILE_BYTES, BACKUP_PARTS_MAX, STREAM_IDLE_MS
from lockstep.values.tokens import Range

#: A backup is read by nobody who waits: half of the loop's time, when nothing else wants it.
REST = 1.0


class BackupTaking:
    def __init__(
        self,
        context: NodeContext,
        engine: StorageEngine,
        guards: SessionGuards,
        throttle: Throttle,
        lacking: Lacking,
        *,
        file_bytes: int = BACKUP_FILE_BYTES,
    ) -> None:
        self._runtime = context.runtime
        self._engine = engine
        self._guards = guards
        self._metadata = context.cluster
        self._own_id = context.own_id
        self._host_id = context.host_id
        self._throttle = throttle
        self._file_bytes = file_bytes
        self._lacking = lacking
        #: Manifests of parts that wait to be sealed, and where parts are written, by session.
        self._taken: dict[str, Manifest] = {}
        self._written: dict[str, str] = {}

    # -- taking -----------------------------------------------------------------------------------------

    async def take(self, order: BackupOrder) -> BackupStatus:
        """SessionClosed, PreconditionError when there is such a part; errors of the disk."""
        assert order.purpose is not None, "an order to take says what for"
        manifests.check_name(order.name)
        cluster, purpose = self._metadata(), order.purpose
        directory = manifests.part_directory(order.name, self._host_id())
        if self._runtime.disk.exists(f"{directory}/{manifests.MANIFEST}"):
            raise PreconditionError(f"node {self._own_id()} has a backup {order.name} already")
        self._guards.require(order.session_id)
        self._remove(directory)
        self._written[order.session_id] = directory
        try:
            found = await self._take(order, purpose, cluster, directory)
        except (OSError, LockstepError):
            self._remove(directory)
            raise
        self._taken[order.session_id] = found
        return BackupStatus(True, found.size_bytes, sum(len(table.files) for table in found.tables))

    async def _take(
        self, order: BackupOrder, purpose: Purpose, cluster: ClusterMetadata, directory: str
    ) -> Manifest:
        dump = await self._write_metadata(cluster, directory)
        tables: list[BackedTable] = []
        ranges: dict[str, tuple[tuple[int, int], ...]] = {}
        for keyspace, table in _named(cluster, purpose.tables):
            owned = self._owned(cluster, keyspace.group_of(table))
            ranges[keyspace.name] = tuple((one.left, one.right) for one in owned)
            files = await self._write_table(order.session_id, directory, table, owned)
            tables.append(manifests.backed_table(keyspace, table, files))
            self._runtime.probes.reach("backup.table.written")
        await self._runtime.disk.sync_names(directory)
        self._refuse_moved(order.session_id)
        identity = cluster.identity
        return Manifest(
            manifests.FORMAT_VERSION,
            order.name,
            purpose.backup_id,
            identity.cluster_id,
            identity.cluster_name,
            order.epoch,
            purpose.began_us,
            self._own_id(),
            self._host_id(),
            purpose.nodes,
            purpose.absent,
            purpose.schema,
            ranges,
            tuple(tables),
            dump,
        )

    def _refuse_moved(self, session_id: str) -> None:
        cluster = self._metadata()
        held = cluster.repairs.by_session.get(session_id)
        if held is None:
            raise SessionClosed(f"session {session_id} is not open")
        if not is_unchanged(cluster, held, held.began_epoch):
            raise PreconditionError(
                "ranges changed replicas while the backup was made, so it may lack some writes",
                hint="make it when no operation moves ranges: `lockstep topology requests`",
            )

    def _owned(self, cluster: ClusterMetadata, group: int) -> tuple[Range, ...]:
        own = self._own_id()
        placed = cluster.placements.ring(group).ranges
        return joined_ranges(one.range for one in placed if own in one.group.writes)

    async def _write_metadata(self, cluster: ClusterMetadata, directory: str) -> BackedFile:
        disk, path = self._runtime.disk, f"{directory}/{manifests.METADATA}"
        content = b"".join(dump_file(cluster))
        await disk.append_synced(path, content)
        digest = content_digest(content).hex()
        return BackedFile(manifests.METADATA, 1, len(content), "", "", digest)

    async def _write_table(
        self, session_id: str, directory: str, table: Table, owned: Sequence[Range]
    ) -> tuple[BackedFile, ...]:
        files: list[BackedFile] = []
        for range_ in owned:
            self._lacking.require(table.id, range_)
            # Each range is as of when it is begun: that pins old versions for a shorter time.
            fragments = await self._engine.fragments(table.id, range_)
            try:
                files += await self._write_range(session_id, directory, table, fragments, len(files))
            finally:
                fragments.close()
        return tuple(files)

    async def _write_range(
        self, session_id: str, directory: str, table: Table, fragments: RangeFragments, first: int
    ) -> list[BackedFile]:
        maker = RangeFiles(fragments.take, self._file_bytes)
        files: list[BackedFile] = []
        while not maker.ended:
            name = f"{table.id}-{first + len(files):05d}"
            writer = BackupWriter(self._runtime.disk, f"{directory}/{name}")
            maker.begin()
            await self._fill(session_id, maker, writer)
            if not maker.entries:
                break
            digest = await writer.finish()
            found = maker.summary(writer.size_bytes, digest)
            first_key, last_key = found.first_key.hex(), found.last_key.hex()
            files.append(BackedFile(name, found.entries, found.size_bytes, first_key, last_key, digest.hex()))
            self._runtime.probes.reach("backup.file.written")
        return files

    async def _fill(self, session_id: str, maker: RangeFiles, writer: BackupWriter) -> None:
        pace, throttled = CooperativeYield(self._runtime.clock, REST), 0
        more = True
        while more:
            # Nothing is written for a closed session, and nothing of the room that writes may need.
            self._guards.require(session_id)
            self._engine.space.require()
            more = maker.add_block(writer)
            added = writer.size_bytes - throttled
            while added and not await self._throttle.take(added, STREAM_IDLE_MS):
                self._guards.require(session_id)
            throttled = writer.size_bytes
            await pace.turn()

    async def seal(self, order: BackupOrder) -> BackupStatus:
        """Make the part complete. SessionClosed when it was not taken by this run of the node."""
        manifest = self._taken.get(order.session_id)
        if manifest is None:
            raise SessionClosed(f"node {self._own_id()} has no part of backup {order.name} to complete")
        disk = self._runtime.disk
        directory = manifests.part_directory(order.name, self._host_id())
        path = f"{directory}/{manifests.MANIFEST}"
        with self._guards.hold(order.session_id):
            if not disk.exists(path):
                await disk.append_synced(f"{path}.partial", manifests.sealed(manifest))
                disk.rename(f"{path}.partial", path)
            await disk.sync_names(directory)
        self._runtime.probes.reach("backup.sealed")
        return BackupStatus(True, manifest.size_bytes)

    async def discard(self, order: BackupOrder) -> BackupStatus:
        """Remove what this session wrote, also what it sealed."""
        if self._taken.pop(order.session_id, None) is not None:
            self._remove(manifests.part_directory(order.name, self._host_id()))
        return BackupStatus(True)

    def forget_closed(self, session_open: Callable[[str], bool]) -> None:
        """What was written for nothing goes too: its backup was ended before it was complete."""
        for session_id in [one for one in self._written if not session_open(one)]:
            directory = self._written.pop(session_id)
            self._taken.pop(session_id, None)
            if not self._runtime.disk.exists(f"{directory}/{manifests.MANIFEST}"):
                self._remove(directory)

    def _remove(self, directory: str) -> None:
        """The manifest first: what is left after a crash is no part."""
        disk = self._runtime.disk
        names = disk.names(directory)
        for name in sorted(names, key=lambda name: name != manifests.MANIFEST):
            disk.remove(f"{directory}/{name}")

    # -- what is kept -----------------------------------------------------------------------------------

    async def kept(
        self, name: str = "", *, with_manifests: bool = False, remove: bool = False
    ) -> tuple[KeptPart, ...]:
        """The parts below this node's directory, whichever node made them."""
        found = []
        for backup, host_id in list(self._parts(name))[:BACKUP_PARTS_MAX]:
            found.append(self._kept_part(backup, host_id, with_manifests=with_manifests))
            if remove:
                directory = manifests.part_directory(backup, host_id)
                self._remove(directory)
                await self._runtime.disk.sync_names(directory)
            await asyncio.sleep(0)
        return tuple(found)

    def _parts(self, name: str) -> Iterator[tuple[str, str]]:
        disk = self._runtime.disk
        for backup in disk.names(manifests.DIRECTORY) if not name else (name,):
            for host_id in disk.names(f"{manifests.DIRECTORY}/{backup}"):
                if disk.names(manifests.part_directory(backup, host_id)):
                    yield backup, host_id

    def _kept_part(self, name: str, host_id: str, *, with_manifests: bool) -> KeptPart:
        try:
            manifest = self.manifest(name, host_id)
        except CorruptFile as error:
            return KeptPart(name, host_id, error.message)
        except FileNotFoundError:
            return KeptPart(name, host_id, "it was not completed")
        content = manifests.sealed(manifest.without_files()) if with_manifests else b""
        return KeptPart(
            name,
            host_id,
            "",
            manifest.backup_id,
            manifest.began_us,
            manifest.size_bytes,
            manifest.nodes,
            content,
        )

    def manifest(self, name: str, host_id: str) -> Manifest:
        """CorruptFile, FileNotFoundError."""
        path = f"{manifests.part_directory(name, host_id)}/{manifests.MANIFEST}"
        found = manifests.unsealed(path, self._runtime.disk.read(path))
        if found.host_id != host_id:
            raise CorruptFile(path, 0, f"it is the manifest of node {found.host_id}")
        return found


def _named(cluster: ClusterMetadata, wanted: Sequence[int]) -> Iterator[tuple[Keyspace, Table]]:
    """Tables that were dropped meanwhile are not backed up."""
    for table_id in wanted:
        table = cluster.table(table_id)
        if table is not None:
            yield cluster.schema.by_name[table.keyspace], table
