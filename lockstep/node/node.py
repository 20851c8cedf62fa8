"""One node: its services, made anew for each of its lives, and what they do from its start to its end.

Invariant: nothing is shared between two nodes of a process but code, and nothing between two lives of a node
but its disk; the internode door opens before the node belongs to a cluster, doors for clients only after
`ready`; a node that cannot apply an entry, or whose disk failed, stops serving and says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from lockstep.metadata.features import refuse_lacking
from lockstep.node.configuration import Configuration
from lockstep.node.context import NodeContext
from lockstep.node.data_service import NodeData, StoreOpener, open_engine, wire_data
from lockstep.node.group_bounds import USUAL, GroupBounds
from lockstep.node.log.journal import settle
from lockstep.node.log.raft_journal import journal_path
from lockstep.node.log.raft_transport import MANAGEMENT_GROUP, METADATA_GROUP
from lockstep.node.log_service import NodeLog, wire_log
from lockstep.node.membership.founders_file import FOUNDERS_PATH
from lockstep.node.membership.gossiping import OwnLoad
from lockstep.node.membership.identity import claim_archive, refuse_lost_store, refuse_other_cluster
from lockstep.node.membership_service import NodeMembership, wire_membership
from lockstep.node.processors.kinds import Factory, chosen
from lockstep.node.recovering import refuse_half_recovered
from lockstep.node.seal import Seal
from lockstep.node.services import NodeServices
from lockstep.node.standing import Standing
from lockstep.node.work_service import NodeWork, wire_work
from lockstep.runtime.ports import Runtime
from lockstep.storage.engine import StorageEngine
from lockstep.values.errors import LockstepError

#: Files that are loaded when a node starts.
JOURNALS = ("identity", FOUNDERS_PATH, journal_path(METADATA_GROUP), journal_path(MANAGEMENT_GROUP))


class Node:
    """`start` returns when the node is a normal member; `broken` is set when it must not go on. `data`,
    `work` and `services` are there once it has read its disk."""

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
        self.membership = wire_membership(self.log, self._own_load, self._break, self._bounds)

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
        running; what breaks the node meanwhile is raised here too. After `stop` it may be started again."""
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
        identity = await self.context.identity.boot()
        await log.stamps.load()
        log.founders_file.load()
        self.membership.members.load()
        log.state.load()
        self._sealable = True
        refuse_other_cluster(log.cluster.identity.cluster_name, configuration.cluster.name)
        refuse_lacking(log.cluster.features_enabled, configuration.features)
        refuse_half_recovered(disk)
        refuse_lost_store(disk, identity)
        await claim_archive(self.runtime.archive, identity)
        store, self._engine = await open_engine(self.context, self._open_store, self._break)
        self.data = wire_data(log, store, self._engine)
        self.work = wire_work(log, self.membership, self.data)
        self.services = NodeServices(self.context, log, self.membership, self.data, self.work, self)
        self._standing = Standing(log, self.membership, self.data.farewell, self._end, self._withdraw)
        await self.data.hints.store.load(self.runtime.clock.wall_us())
        await self.data.batch_store.load()

    async def _start(self) -> None:
        if self._standing is None:
            await self._load()
        standing, context, log = self._standing, self.context, self.log
        assert standing is not None and self.broken is not None, "a node that read its disk is whole"
        await context.internode.start(*context.address)
        standing.start()
        log.state.start()
        await standing.refuse_copy()
        log.voters.seen(context.host_id(), context.address)
        self.membership.voting.take_part()
        standing.greet()
        self.membership.start()
        self.data.start()
        self.work.start()
        log.snapshots.start()
        if context.has_left:
            await self.data.farewell.finish()
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
