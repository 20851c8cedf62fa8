"""One node: builds the rooms' parts on one runtime, starts them in order, stops them again.

Invariants: nothing is shared between two nodes of a process but code; the internode door opens before
the node belongs to a cluster, doors for clients only after `ready`; a node that cannot apply an entry, or
whose disk failed, stops serving and says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lockstep.consensus.messages import Entry
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.features import refuse_lacking
from lockstep.node.announcing import greet
from lockstep.node.founders_file import FOUNDERS_PATH
from lockstep.node.identity import refuse_lost_store, refuse_other_cluster
from lockstep.node.journal import settle
from lockstep.node.messages import EpochQuery, EpochReply
from lockstep.node.parts import Parts
from lockstep.node.raft_journal import journal_path
from lockstep.node.raft_transport import MANAGEMENT_GROUP, METADATA_GROUP
from lockstep.node.recovering import refuse_half_recovered
from lockstep.replication.handshake import PROTOCOL_VERSION, Address, Hello, PeerInfo
from lockstep.replication.shut_out import ShutOut
from lockstep.storage.engine import StorageEngine
from lockstep.values.errors import LockstepError, PreconditionError
from lockstep.values.limits import TABLES_DROPPED_AT_ONCE_MAX

#: Files that are loaded when a node starts.
JOURNALS = ("identity", FOUNDERS_PATH, journal_path(METADATA_GROUP), journal_path(MANAGEMENT_GROUP))


class Node(Parts):
    """`start` returns when the node is a normal member; `broken` is set when it must not go on."""

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load, listen, take part in consensus, become a member. Errors leave nothing running.

        Also what breaks the node meanwhile is raised here. A node is started once: make a new one on the
        same runtime to start again.
        """
        assert self.broken is None, "a node is started once"
        self.broken = asyncio.get_running_loop().create_future()
        self._starting = asyncio.current_task()
        try:
            await self._start()
        except asyncio.CancelledError:
            await self.stop()
            if self.broken.done() and self._starting is not None:
                self._starting.uncancel()
                raise self.broken.result() from None
            raise
        except BaseException:
            await self.stop()
            raise
        finally:
            self._starting = None

    async def load(self) -> None:
        """Read all that this node keeps on its disk; nobody hears of it yet. CorruptFile, DiskRefused,
        ConfigurationError, PreconditionError."""
        await self.seal.open()
        await settle(self.runtime.disk, JOURNALS)
        await self.state.store.settle()
        identity = await self.identity.boot()
        await self.stamps.load()
        self.founders_file.load()
        self.members.load()
        self.state.load()
        self._sealable = True
        refuse_other_cluster(self.cluster.identity.cluster_name, self.configuration.cluster.name)
        refuse_lacking(self.cluster.features_enabled, self.configuration.features)
        refuse_half_recovered(self.runtime.disk)
        refuse_lost_store(self.runtime.disk, identity)
        self.store = await self._open_store(self.runtime)
        storage = self.configuration.storage
        self.engine = StorageEngine(
            self.store,
            self.runtime,
            on_failure=self._break,
            sync_period_ms=storage.period_ms,
            reserve_bytes=storage.reserve_bytes,
        )
        self._engine_open = True
        self._build_request_path(identity.generation)
        self._request_path_built = True
        self.work.take_leave = self.farewell.give
        await self.hints.store.load(self.runtime.clock.wall_us())
        await self.batch_store.load()

    async def _start(self) -> None:
        await self.load()
        await self.internode.start(*self.address)
        self.state.listen(self._applied)
        self._shut_out(self.cluster)
        self.state.start()
        await self._refuse_copy()
        self.voters.seen(self.identity.value.host_id, self.address)
        self._start_consensus()
        self.management.start()
        others = [address for address in self._configured() if address != self.address]
        self.runtime.tasks.spawn(
            greet(others, self.internode, self._cluster_now, self._has_moved), "node.greet"
        )
        self.liveness.start()
        self.gossip.start()
        self.hint_delivery.start()
        self.batch_store.start()
        self.view_builds.start()
        self.members.start()
        self.topology.start()
        self.service.start()
        self.snapshots.start()
        if self.has_left:
            await self.farewell.finish()
        await self.membership.become_member()
        if self.broken is not None and self.broken.done():
            await asyncio.sleep(0)  # Takes delivery of what `_end` has sent.
        self.repairs.end_lost(self.cluster)
        self.hints.forget_marks(self.cluster)
        self.tombstone_purge.start()
        self.refill.start()
        self.ready = True
        self.log("node.ready", node=self.node_id, epoch=self.state.epoch)

    async def _refuse_copy(self) -> None:
        """PreconditionError when this node runs already, where the metadata says that it stands.

        Asked before it takes part in consensus: two processes with one directory would vote twice.
        """
        info = self.info
        if info is None or (info.address, info.internode_port) == self.address:
            return
        if await self.liveness.answers(info.id):
            raise PreconditionError(
                f"node {info.id} runs at {info.address}:{info.internode_port} with this data directory",
                hint="a data directory serves one node: stop that one to move it, and never start a copy",
            )

    def _moved_away(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        """Another process with this node's directory has said where it is: this one is the node no more."""
        host_id = self.identity.value.host_id
        was, info = before.directory.by_host_id.get(host_id), after.directory.by_host_id.get(host_id)
        if was is None or info is None or (was.address, was.internode_port) != self.address:
            return
        if (info.address, info.internode_port) != self.address:
            where = f"{info.address}:{info.internode_port}"
            error = PreconditionError(
                f"another process took this node's place, at {where}, with a copy of its data directory",
                hint="a data directory serves one node: see which of the two has the newer data",
            )
            if self._end(error):
                self.log("node.moved_away", node=info.id, to=where)

    def _has_moved(self) -> bool:
        info = self.info
        return info is not None and (info.address, info.internode_port) != self.address

    async def stop(self) -> None:
        """Stop serving and end every task; what was acknowledged is durable already."""
        self.ready = False
        self.catch_up.stop()
        if self._request_path_built:
            self.conditionals.stop()
            self.coordinator.stop()
        await self.internode.stop()
        await self.runtime.tasks.cancel_all()
        await self.stamps.release()
        if self._engine_open:
            self._engine_open = False
            if self._request_path_built:
                self.streams.stop()
            await self.engine.close()
        if self._sealable and not (self.broken is not None and self.broken.done()):
            self._sealable = False
            await self.seal.close()

    def _break(self, error: LockstepError) -> None:
        """Stop serving and voting at once; peers see closed connections once failed work was told of."""
        if self._breaking or self.broken is None or self.broken.done():
            return
        self._breaking, self.ready = True, False
        self.log("node.broken", error=str(error))
        self.member.halt()
        self.before_breaking(lambda: self._broke(error))

    def _broke(self, error: LockstepError) -> None:
        self._end(error)
        self.runtime.tasks.spawn(self.internode.stop(), "node.broken")

    def _end(self, error: LockstepError) -> bool:
        """Tell whoever runs this node that it must not go on; False when that was told before."""
        self.ready = False
        if self.broken is None or self.broken.done():
            return False
        self.broken.set_result(error)
        if self._starting is not None:
            self._starting.cancel()
        return True

    # -- events ------------------------------------------------------------------------------------

    def _committed(self, entries: tuple[Entry, ...]) -> None:
        self.member.committed(entries)

    def _role_changed(self) -> None:
        self.member.role_changed()
        self.management.wake()
        self.topology.wake()
        self.snapshots.wake()
        self.service.wake()

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
        if before.excluded is not after.excluded or (
            after.excluded and before.directory is not after.directory
        ):
            self._shut_out(after)
        if before.service is not after.service:
            self._follow_service()
        if before.features is not after.features:
            self._check_features()
        if before.schema is not after.schema:
            gone = before.schema.table_ids_gone_in(after.schema)
            if gone:
                self.runtime.tasks.spawn(self._forget_tables(gone), f"storage.drop.{after.epoch}")
        own, host_id = self._own_id(), self.identity.value.host_id
        if own and host_id not in before.directory.by_host_id:
            self.internode.introduce()
        elif self.has_left:
            self._left()
        elif before.directory is not after.directory:
            self._moved_away(before, after)
        self.announcer.applied(before, after)

    def _shut_out(self, cluster: ClusterMetadata) -> None:
        """Have the others on the exclude list heard no more, and told nothing, but what they lack."""
        excluded = [cluster.directory.by_id[node] for node in cluster.excluded_by_node]
        others = [info for info in excluded if info.host_id != self.identity.value.host_id]
        # Who has taken over the address of a dead node is not that node.
        there = [info for info in others if info.id not in cluster.directory.shadowed]
        self.internode.shut_out = ShutOut(
            frozenset(info.host_id for info in others),
            frozenset((info.address, info.internode_port) for info in there),
        )

    def _check_features(self) -> None:
        """A node that learns late of a feature that it lacks must not go on."""
        try:
            refuse_lacking(self.cluster.features_enabled, self.configuration.features)
        except PreconditionError as error:
            if self._end(error):
                self.log("node.lacks_features", error=error.message)

    def _left(self) -> None:
        """No new requests; peers and requests in flight are served until this node is stopped."""
        self.ready = False
        self.farewell.begin(self._gone)

    def _gone(self) -> None:
        if self._end(
            PreconditionError(
                "this node has left the cluster",
                hint="start it with an empty data directory to join as a new node",
            )
        ):
            self.log("node.left", node=self.node_id, epoch=self.state.epoch)

    async def _forget_tables(self, table_ids: Sequence[int]) -> None:
        """Their ids are never given again, so what a failure leaves behind is only space."""
        try:
            for at in range(0, len(table_ids), TABLES_DROPPED_AT_ONCE_MAX):
                await self.engine.drop_tables(table_ids[at : at + TABLES_DROPPED_AT_ONCE_MAX])
        except LockstepError as error:
            self.log("storage.drop_failed", first=table_ids[0], tables=len(table_ids), error=str(error))

    def _peer_epoch(self, peer: PeerInfo, epoch: int) -> None:
        self.voters.seen(peer.host_id, peer.endpoint)
        self.topology.heard(peer, epoch)
        self.liveness.heard(peer)
        if self.state.epoch or self._may_follow(peer):
            self.catch_up.heard(peer.endpoint, epoch)

    def _may_follow(self, peer: PeerInfo) -> bool:
        """A founder takes its first entry from the first founder, or from a cluster that knows it; any other
        node once a member has judged it."""
        if self.membership.founding is None:
            return self.membership.joiner.may_follow
        return self.voters.is_first(peer.host_id)

    async def _epoch_query(self, peer: PeerInfo, query: EpochQuery) -> EpochReply:
        await self.catch_up.reach(query.epoch, peer.endpoint)
        if query.drain:
            await self.replica.drain(query.epoch)
        return EpochReply(self.state.epoch, self.node_id, self.guards.stragglers())

    def _hello(self) -> Hello:
        network = self.configuration.network
        identity = self.cluster.identity
        return Hello(
            protocol_version=PROTOCOL_VERSION,
            cluster_id=identity.cluster_id or self.identity.value.cluster_id,
            cluster_name=self.configuration.cluster.name,
            lineage=tuple(item.encode() for item in identity.lineage),
            host_id=self.identity.value.host_id,
            node_id=self.node_id,
            address=network.address,
            port=network.internode_port,
            replaces=self.configuration.cluster.replaces,
            takes_shared=True,
        )

    def _accept(self, hello: Hello) -> str | None:
        known = self.cluster.directory.by_address.get((hello.address, hello.port))
        if known is None or not hello.host_id or known.host_id == hello.host_id:
            return None
        owned = f"{hello.address} belongs to node {known.id} (host {known.host_id}) of this cluster"
        if hello.replaces != known.id:
            return f"{owned}; to take a dead node's place, set [cluster] replaces"
        return f"{owned}, which seems alive" if self.liveness.alive(known.id) else None

    def _voter_addresses(self) -> tuple[Address, ...]:
        """The likeliest leader first."""
        addresses = [member.address for member in self.voters.members().values()]
        leader = self.driver.leader_address if self.driver is not None else None
        if leader in addresses:
            addresses.remove(leader)
            addresses.insert(0, leader)
        return tuple(addresses)
