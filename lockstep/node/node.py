"""One node: its services, made anew for each of its lives, what they do from its start to its end, what the
metadata says about it itself, and what its files held when it stopped in good order.

A record that was cut off at a file's end looks as a crash leaves it, and by the rules of journals is no part
of the file. After a stop in good order there is no such record: the seal has size and digest of each file.

Invariant: nothing is shared between two nodes of a process but code, and nothing between two lives of a node
but its disk; the internode door opens before the node belongs to a cluster, doors for clients only after
`ready`; a node that cannot apply an entry, or whose disk failed, stops serving and says why. A seal is
written when nothing changes the files any more, and is gone, durably, before anything does. So a difference
is damage, never a change of the node's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

import msgspec
import xxhash

from lockstep.internode.own_side import ExcludedNodes
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.features import refuse_lacking
from lockstep.metadata.log.entries import LogEntry
from lockstep.node.configuration import Configuration
from lockstep.node.context import NodeContext
from lockstep.node.data_service import NodeData, StoreOpener, open_engine, wire_data
from lockstep.node.log.announcing import greet
from lockstep.node.log.journal import MANAGEMENT_GROUP, METADATA_GROUP, journal_path, settle
from lockstep.node.log.raft_driver import USUAL, GroupBounds
from lockstep.node.log_service import NodeLog, wire_log
from lockstep.node.membership.decommission_handoff import DecommissionHandoff
from lockstep.node.membership.gossiping import OwnLoad
from lockstep.node.membership.identity import claim_archive, refuse_lost_store, refuse_other_cluster
from lockstep.node.membership.validator import VALIDATOR_PATH
from lockstep.node.membership.voters import FOUNDERS_PATH
from lockstep.node.membership_service import NodeMembership, wire_membership
from lockstep.node.processors.kinds import Factory, chosen
from lockstep.node.recovery.applying import apply_recovery, follow_the_log
from lockstep.node.recovery.audit_file import AUDIT_PATH
from lockstep.node.recovery.building import begin_log
from lockstep.node.recovery.judging import parted
from lockstep.node.recovery.recovery_file import RECOVERY_PATH
from lockstep.node.recovery.store import refuse_half_recovered
from lockstep.node.ring.processor import refuse_other_membership
from lockstep.node.ring.ring_file import RING_PATH
from lockstep.node.services import NodeServices
from lockstep.node.work_service import NodeWork, wire_work
from lockstep.runtime.ports import Disk, Runtime
from lockstep.storage.engine import Derived, StorageEngine
from lockstep.values.codec import UNREADABLE, decoder, encode, frame_record, scan_records
from lockstep.values.errors import (
    CorruptFile,
    DiskRefused,
    LockstepError,
    NodeRestarting,
    PreconditionError,
)
from lockstep.values.rows import Mutation

SEAL_PATH: Final = "seal"
_PARTIAL: Final = "seal.part"
#: What is sealed: these, and all files of these directories. The store knows its own files.
_FILES: Final = ("identity", "stamps", "recovery", AUDIT_PATH)
_DIRECTORIES: Final = ("raft", "metadata")
#: A few hundred files of a hundred bytes each.
_RECORD_BYTES_MAX: Final = 4 * 1024 * 1024


class SealedFile(msgspec.Struct, frozen=True, array_like=True):
    path: str
    size_bytes: int
    digest: bytes


_DECODER = decoder(tuple[SealedFile, ...])


class Seal:
    """Errors: CorruptFile, DiskRefused."""

    def __init__(self, disk: Disk, log: Callable[..., None]) -> None:
        self._disk = disk
        self._log = log

    async def open(self) -> None:
        """Compare every file with the seal, if there is one, and take it off. CorruptFile names the first
        file that is not what it was."""
        if self._disk.exists(SEAL_PATH):
            for sealed in self._read():
                self._check(sealed)
            self._disk.remove(SEAL_PATH)
            await self._disk.sync_names("")

    def _read(self) -> tuple[SealedFile, ...]:
        """Nothing when it cannot be read: what it covers has checksums of its own."""
        try:
            content = self._disk.read(SEAL_PATH)
            for _, body in scan_records(SEAL_PATH, content, record_bytes_max=_RECORD_BYTES_MAX):
                return _DECODER.decode(body)
        except (CorruptFile, *UNREADABLE) as error:
            self._log("seal.unreadable", error=str(error))
        return ()

    def _check(self, sealed: SealedFile) -> None:
        path, disk = sealed.path, self._disk
        if not disk.exists(path):
            raise _changed(path, 0, f"it is gone, and had {sealed.size_bytes} bytes")
        content = disk.read(path)
        if len(content) < sealed.size_bytes:
            raise _changed(path, len(content), f"it ends there, and had {sealed.size_bytes} bytes")
        if xxhash.xxh3_128_digest(content[: sealed.size_bytes]) != sealed.digest:
            raise _changed(path, _damaged_at(path, content), "its content is not what it was")
        if len(content) > sealed.size_bytes:
            raise _changed(path, sealed.size_bytes, f"it has {len(content)} bytes, and ended there")

    async def close(self) -> None:
        """Seal the files as they are, durably; without one the next start compares nothing."""
        try:
            await self._seal()
        except DiskRefused as error:
            self._log("seal.not_written", error=error.message)

    async def _seal(self) -> None:
        disk = self._disk
        sealed = []
        for path in self._paths():
            await disk.sync(path)
            content = disk.read(path)
            sealed.append(SealedFile(path, len(content), xxhash.xxh3_128_digest(content)))
        if disk.exists(_PARTIAL):
            disk.remove(_PARTIAL)
        await disk.append_synced(_PARTIAL, frame_record(encode(tuple(sealed))))
        disk.rename(_PARTIAL, SEAL_PATH)
        await disk.sync_names("")

    def _paths(self) -> Iterator[str]:
        for path in (*_FILES, *(f"{one}/{name}" for one in _DIRECTORIES for name in self._disk.names(one))):
            if self._disk.exists(path):
                yield path


def _damaged_at(path: str, content: bytes) -> int:
    """Where the first record begins that is not whole; 0 when each is, or the file has none."""
    end = 0
    try:
        for offset, _ in scan_records(path, content, record_bytes_max=len(content)):
            end = offset
    except CorruptFile as error:
        return error.offset
    return end if end < len(content) else 0


def _changed(path: str, offset: int, why: str) -> CorruptFile:
    error = CorruptFile(path, offset, f"{why} when the node stopped")
    error.hint = (
        "put the file back from a copy, or start a new node in the place of this one: [cluster] replaces"
    )
    return error


class Standing:
    """`end(error)` tells that the node must not go on; False when that was told before. `withdraw()` ends
    what it serves to clients."""

    def __init__(
        self,
        log: NodeLog,
        membership: NodeMembership,
        decommission_handoff: DecommissionHandoff,
        end: Callable[[LockstepError], bool],
        withdraw: Callable[[], None],
    ) -> None:
        self._context = log.context
        self._node_log = log
        self._membership = membership
        self._decommission_handoff = decommission_handoff
        self._end = end
        self._withdraw = withdraw

    def start(self) -> None:
        self._node_log.state.listen(self._applied)
        self._shut_out(self._context.cluster())

    def greet(self) -> None:
        """Tell the nodes that the configuration names where this one is, as long as the metadata does not."""
        context = self._context
        others = [address for address in self._membership.configured if address != context.address]
        greeting = greet(others, context.internode, context.cluster, self.has_moved)
        context.runtime.tasks.spawn(greeting, "node.greet")

    async def refuse_copy(self) -> None:
        """PreconditionError when this node runs already, where the metadata says that it stands.

        Asked before it takes part in consensus: two processes with one directory would vote twice.
        """
        info = self._context.info
        if info is None or not self.has_moved():
            return
        if await self._membership.liveness.answers(info.id):
            raise PreconditionError(
                f"node {info.id} runs at {info.address}:{info.internode_port} with this data directory",
                hint="a data directory serves one node: stop that one to move it, and never start a copy",
            )

    def has_moved(self) -> bool:
        info = self._context.info
        return info is not None and (info.address, info.internode_port) != self._context.address

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, entry: LogEntry) -> None:
        if before.excluded is not after.excluded or (
            after.excluded and before.directory is not after.directory
        ):
            self._shut_out(after)
        if before.service is not after.service:
            self._membership.voting.follow()
        if before.features is not after.features:
            self._check_features()
        context = self._context
        if context.own_id() and context.host_id() not in before.directory.by_host_id:
            context.internode.introduce()
        elif context.has_left:
            # No new requests; peers and requests in flight are served until this node is stopped.
            self._withdraw()
            self._decommission_handoff.begin(self._gone)
        elif before.directory is not after.directory:
            self._moved_away(before)
        self._node_log.announcer.applied(before, after)

    def _shut_out(self, cluster: ClusterMetadata) -> None:
        """Have the others on the exclude list heard no more, and told nothing, but what they lack."""
        excluded = [cluster.directory.by_id[node] for node in cluster.excluded_by_node]
        others = [info for info in excluded if info.host_id != self._context.host_id()]
        # Who has taken over the address of a dead node is not that node.
        there = [info for info in others if info.id not in cluster.directory.shadowed]
        self._context.internode.own.excluded = ExcludedNodes(
            frozenset(info.host_id for info in others),
            frozenset((info.address, info.internode_port) for info in there),
        )

    def _check_features(self) -> None:
        """A node that learns late of a feature that it lacks must not go on."""
        context = self._context
        try:
            refuse_lacking(context.cluster().features_enabled, context.configuration.features)
        except PreconditionError as error:
            if self._end(error):
                context.log("node.lacks_features", error=error.message)

    def _moved_away(self, before: ClusterMetadata) -> None:
        """Another process with this node's directory has said where it is: this one is the node no more."""
        context = self._context
        was, info = before.directory.by_host_id.get(context.host_id()), context.info
        if was is None or info is None or (was.address, was.internode_port) != context.address:
            return
        if self.has_moved():
            where = f"{info.address}:{info.internode_port}"
            error = PreconditionError(
                f"another process took this node's place, at {where}, with a copy of its data directory",
                hint="a data directory serves one node: see which of the two has the newer data",
            )
            if self._end(error):
                context.log("node.moved_away", node=info.id, to=where)

    def _gone(self) -> None:
        context = self._context
        error = PreconditionError(
            "this node has left the cluster",
            hint="start it with an empty data directory to join as a new node",
        )
        if self._end(error):
            context.log("node.left", node=context.own_id(), epoch=context.cluster().epoch)


#: Files that are loaded when a node starts.
JOURNALS = (
    "identity",
    FOUNDERS_PATH,
    journal_path(METADATA_GROUP),
    journal_path(MANAGEMENT_GROUP),
    RECOVERY_PATH,
    AUDIT_PATH,
    VALIDATOR_PATH,
    RING_PATH,
)


class Node:
    """`start` returns when the node is a normal member; `broken` is set when it must not go on, and
    `again` when it then is to begin another life. `data`, `work` and `services` are there once it
    has read its disk."""

    context: NodeContext
    log: NodeLog
    membership: NodeMembership
    data: NodeData
    work: NodeWork
    services: NodeServices

    def __init__(
        self,
        runtime: Runtime,
        configuration: Configuration,
        open_store: StoreOpener,
        log: Callable[..., None],
        processors: Mapping[str, Factory] | None = None,
        bounds: GroupBounds = USUAL,
    ) -> None:
        self.runtime = runtime
        self.configuration = configuration
        self._open_store = open_store
        self._say = log
        self._factory = chosen(configuration, processors or {})
        self._bounds = bounds
        self._begin()

    def _begin(self) -> None:
        """Make what a life begins with."""
        self.ready = False
        self.broken: asyncio.Future[LockstepError] | None = None
        #: Set when a node that is broken is to begin another life.
        self.again = asyncio.Event()
        self._breaking = self._ended = False
        self._guarded: asyncio.Task[object] | None = None
        self._standing: Standing | None = None
        self._engine: StorageEngine | None = None
        self.seal = Seal(self.runtime.disk, self._say)
        #: What the seal covers was read whole.
        self._sealable = False
        self.log = wire_log(
            self.runtime, self.configuration, self._say, self._factory, self._bounds, self._break
        )
        self.context = self.log.context
        self.membership = wire_membership(
            self.log, self._own_load, self._break, self._bounds, self._end, lambda: self.ready
        )

    @property
    def is_loaded(self) -> bool:
        """Whether it has read its disk in this life, and everything of it is made."""
        return self._standing is not None

    # -- life --------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read all that this node keeps on its disk; nobody hears of it yet. CorruptFile, DiskRefused,
        ConfigurationError, PreconditionError: nothing is left running."""
        await self._or_stop(self._load)

    async def start(self) -> None:
        """Load unless that was done, listen, take part in consensus, become a member. Errors leave nothing
        running, but for an entry that it could not apply before: then it is `broken` on return. What breaks
        it meanwhile is raised here too. After `stop` it may be started again."""
        await self._or_stop(self._start)

    async def _or_stop(self, step: Callable[[], Awaitable[None]]) -> None:
        if self._ended:
            self._begin()
        if self.broken is None:
            self.broken = asyncio.get_running_loop().create_future()
        self._guarded = asyncio.current_task()
        try:
            await step()
        except asyncio.CancelledError:
            await self.stop()
            if self.broken.done() and self._guarded is not None:
                self._guarded.uncancel()
                raise self.broken.result() from None
            raise
        except BaseException:
            await self.stop()
            raise
        finally:
            self._guarded = None

    async def _load(self) -> None:
        log, configuration, disk = self.log, self.configuration, self.runtime.disk
        await self.seal.open()
        await settle(disk, JOURNALS)
        await log.state.store.settle()
        await apply_recovery(self.runtime, log.registry, self._say)
        self.membership.recovery.load()
        identity = await self.context.identity.boot()
        log.state.newest.host_id = identity.host_id
        await log.stamps.load()
        log.founders_file.load()
        log.ring.file.load()
        self.membership.members.load()
        log.state.load()
        audit = self.membership.recovery.audit
        await follow_the_log(self.runtime, log.state, self.context.identity, audit, self._say)
        await begin_log(self.runtime, log.state, self.context.identity, self._say)
        self._sealable = True
        self.membership.validator.load()
        refuse_other_cluster(log.cluster.identity.cluster_name, configuration.cluster.name)
        refuse_lacking(log.cluster.features_enabled, configuration.features)
        refuse_other_membership(log.cluster, configuration.cluster)
        refuse_half_recovered(disk)
        refuse_lost_store(disk, identity)
        await claim_archive(self.runtime.archive, identity)
        store, self._engine = await open_engine(self.context, self._open_store, self._break, self._derive)
        self.data = wire_data(log, store, self._engine)
        self.work = wire_work(log, self.membership, self.data)
        self.services = NodeServices(self.context, log, self.membership, self.data, self.work, self)
        self._standing = Standing(
            log, self.membership, self.data.decommission_handoff, self._end, self._withdraw
        )
        await self.data.hints.store.load(self.runtime.clock.wall_us())
        await self.data.batch_store.load()

    def _derive(self, mutation: Mutation, first_epoch: int) -> Derived | None:
        return self.data.view_log.derive(mutation, first_epoch)

    async def _start(self) -> None:
        if self._standing is None:
            await self._load()
        standing, context, log = self._standing, self.context, self.log
        assert standing is not None and self.broken is not None, "a node that read its disk is whole"
        diverged = self.membership.recovery.file.standing.diverged
        if diverged is not None and log.state.broken is None:
            log.state.broken = parted(diverged)
        if log.state.broken is not None:
            # It was so before it stopped: nobody hears of it but its operators.
            self._breaking = True
            context.log("node.broken", error=str(log.state.broken))
            self.broken.set_result(log.state.broken)
            return
        await context.internode.start(*context.address)
        standing.start()
        log.state.start()
        log.ring.start()
        await standing.refuse_copy()
        log.voters.seen(context.host_id(), context.address)
        self.membership.voting.take_part()
        standing.greet()
        self.membership.start()
        self.data.start()
        self.work.start()
        log.snapshots.start()
        if context.has_left:
            await self.data.decommission_handoff.finish()
        await self.membership.membership.become_member()
        if self.broken.done():
            await asyncio.sleep(0)  # Takes delivery of what `_end` has sent.
        self.data.hints.forget_marks(log.cluster)
        self.work.start_upkeep()
        self.ready = True
        context.log("node.ready", node=context.own_id(), epoch=log.state.epoch)

    async def stop(self) -> None:
        """Stop serving and end every task; what was acknowledged is durable already."""
        self._withdraw()
        self.context.catch_up.stop()
        if self._standing is not None:
            self.data.refuse_requests()
        await self.context.internode.stop()
        await self._settle_log()
        await self.runtime.tasks.cancel_all()
        await self.log.stamps.release()
        engine, self._engine = self._engine, None
        if engine is not None:
            if self._standing is not None:
                self.data.streams.stop()
            await engine.close()
        if self._sealable and not (self.broken is not None and self.broken.done()):
            self._sealable = False
            await self.seal.close()
        for disk in self.log.state.disks:
            disk.close()
        self._ended = True

    async def _settle_log(self) -> None:
        """Have the metadata in its own files; else a start takes the last of it from the group's journal."""
        if not self._sealable or (self.broken is not None and self.broken.done()):
            return
        try:
            await self.log.state.store.flush()
        except DiskRefused as error:
            self._say("node.log_not_settled", error=error.message)

    def _withdraw(self) -> None:
        self.ready = False

    def _break(self, error: LockstepError) -> None:
        """Stop serving and voting at once; peers see closed connections once failed work was told of."""
        if self._breaking or self.broken is None or self.broken.done():
            return
        self._breaking, self.ready = True, False
        self.context.log("node.broken", error=str(error))
        self.log.member.halt()
        if self._standing is not None:
            self.work.stages.before_breaking(lambda: self._broke(error))
        else:
            self._broke(error)

    def _broke(self, error: LockstepError) -> None:
        self._end(error)
        self.runtime.tasks.spawn(self.context.internode.stop(), "node.broken")

    def _end(self, error: LockstepError) -> bool:
        """Tell whoever runs this node that it must not go on; False when that was told before."""
        self.ready = False
        if isinstance(error, NodeRestarting):
            self.again.set()
        if self.broken is None or self.broken.done():
            return False
        self.broken.set_result(error)
        if self._guarded is not None:
            self._guarded.cancel()
        return True

    def _own_load(self) -> OwnLoad:
        data = self.data
        building = data.view_builds.lacking()
        return OwnLoad(self.ready, data.engine.size_bytes(), data.streams.open_streams(), building)
