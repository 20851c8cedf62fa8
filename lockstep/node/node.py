"""One node: builds the rooms' parts on one runtime, starts them in order, stops them again.

Invariants: nothing is shared between two nodes of a process but code; the internode door opens before
the node belongs to a cluster, doors for clients only after `ready`; a node that cannot apply an entry, or
whose disk failed, stops serving and says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from lockstep.consensus.messages import Entry
from lockstep.consensus.settings import RaftSettings
from lockstep.gossip.failure_detector import FailureDetector
from lockstep.metadata import schema_change as schema_transformations
from lockstep.metadata import transformations as metadata_transformations
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.registry import Registry
from lockstep.node.catch_up import CatchUp
from lockstep.node.configuration import Configuration, split_address
from lockstep.node.founders_file import FOUNDERS_PATH, FoundersFile
from lockstep.node.founding import Founding
from lockstep.node.identity import Identity, IdentityFile
from lockstep.node.journal import settle
from lockstep.node.liveness import Liveness
from lockstep.node.membership import Membership
from lockstep.node.messages import Announce, EpochQuery, EpochReply
from lockstep.node.metadata_state import MetadataState
from lockstep.node.processor import Processor, committed_log_entries
from lockstep.node.raft_driver import RaftDriver
from lockstep.node.submission import Submitter
from lockstep.node.topology_driver import TopologyDriver
from lockstep.node.voters import Voters
from lockstep.node.work import WorkService
from lockstep.replication import verbs
from lockstep.replication.coordinator import Coordinator
from lockstep.replication.handshake import PROTOCOL_VERSION, Address, Hello, PeerInfo
from lockstep.replication.internode import Internode
from lockstep.replication.replica import ReplicaService
from lockstep.replication.streaming import StreamClient, StreamService
from lockstep.runtime.ports import Runtime
from lockstep.storage.engine import StorageEngine
from lockstep.storage.store import Store
from lockstep.topology import transformations as topology_transformations
from lockstep.values.errors import ConfigurationError, LockstepError, PreconditionError
from lockstep.values.ids import mutation_id

#: The Raft group of the metadata log.
METADATA_GROUP = 1
#: Between two greetings of a node whose new address the metadata does not have yet.
GREETING_MS = 500
#: Files that are loaded when a node starts.
JOURNALS = ("identity", "metadata/log", FOUNDERS_PATH, f"raft/group-{METADATA_GROUP}")

StoreOpener = Callable[[Runtime], Awaitable[Store]]


class Node:
    """`start` returns when the node is a normal member; `broken` is set when it must not go on."""

    def __init__(
        self,
        runtime: Runtime,
        configuration: Configuration,
        open_store: StoreOpener,
        log: Callable[..., None],
    ) -> None:
        self.runtime = runtime
        self.configuration = configuration
        self.log = log
        self.ready = False
        self.broken: asyncio.Future[LockstepError] | None = None
        self._open_store = open_store
        self._sequence = 0
        self._engine_open = False
        #: The metadata value and identity for which `_known_id` was looked up: requests ask often.
        self._id_of: tuple[ClusterMetadata, Identity] | None = None
        self._known_id = 0
        self.registry = Registry(
            metadata_transformations.KINDS, schema_transformations.KINDS, topology_transformations.KINDS
        )
        self.identity = IdentityFile(runtime)
        self.founders_file = FoundersFile(runtime.disk)
        self._starting: asyncio.Task[Any] | None = None
        self.state = MetadataState(runtime, self.registry, self._break)
        self.voters = Voters(self.state, self.founders_file)
        self.internode = Internode(runtime, self._hello, self._epoch_now, self._peer_epoch, self._accept, log)
        self.catch_up = CatchUp(runtime, self.state, self.internode, log)
        self.driver: RaftDriver | None = None
        self.processor: Processor | None = None
        self.submitter = Submitter(
            runtime,
            self.state,
            self.internode,
            self.catch_up,
            self.registry,
            own_address=self.address,
            voters=self._voter_addresses,
            actor=lambda: f"node {self.node_id or self.address[0]}",
        )
        self.topology = TopologyDriver(
            runtime,
            self.state,
            self.internode,
            self.submitter,
            own_id=self._own_id,
            is_leader=self._leads,
            alive=self._alive,
            log=log,
        )
        self.internode.register(verbs.EPOCH_QUERY, EpochQuery, EpochReply, self._epoch_query)
        self.internode.register_fast(verbs.ANNOUNCE, Announce, Announce, lambda *_: None)
        self.liveness: Liveness
        self.store: Store
        self.engine: StorageEngine
        self.replica: ReplicaService
        self.coordinator: Coordinator
        self.streams: StreamService
        self.membership: Membership

    # -- facts -------------------------------------------------------------------------------------

    @property
    def cluster(self) -> ClusterMetadata:
        return self.state.current

    @property
    def address(self) -> Address:
        return (self.configuration.network.address, self.configuration.network.internode_port)

    @property
    def info(self) -> NodeInfo | None:
        return self.cluster.directory.by_host_id.get(self.identity.value.host_id)

    @property
    def node_id(self) -> int:
        """0 until the log gave one."""
        return self._own_id()

    @property
    def has_left(self) -> bool:
        info = self.info
        return info is not None and info.state is NodeState.LEFT

    @property
    def is_leader(self) -> bool:
        return self.driver is not None and self.driver.is_leader

    @property
    def leader_id(self) -> int | None:
        """Node id of the metadata leader as far as this voter knows; None on other nodes."""
        return self.driver.raft.leader if self.driver is not None else None

    def new_mutation_id(self) -> bytes:
        self._sequence += 1
        return mutation_id(self.node_id, self.identity.value.generation, self._sequence)

    async def submit(
        self, transformation: Any, *, entry_id: bytes = b"", base_epoch: int | None = None
    ) -> int:
        """Epoch of the committed transformation, applied here. See Submitter.submit for retries, errors."""
        timeout_ms = self.configuration.timeouts.metadata_ms
        return await self.submitter.submit(
            transformation, timeout_ms, entry_id=entry_id, base_epoch=base_epoch
        )

    def _alive(self, node: int) -> bool:
        return self.liveness.alive(node)

    def _cluster_now(self) -> ClusterMetadata:
        return self.state.current

    def _epoch_now(self) -> int:
        return self.state.current.epoch

    def _own_id(self) -> int:
        cluster, identity = self.state.current, self.identity.value
        known = self._id_of
        if known is None or known[0] is not cluster or known[1] is not identity:
            info = self.info
            self._known_id = info.id if info is not None else 0
            self._id_of = (cluster, identity)
        return self._known_id

    def _leads(self) -> bool:
        return self.is_leader

    def _campaign(self) -> None:
        if self.driver is not None:
            self.driver.campaign()

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

    async def _start(self) -> None:
        await settle(self.runtime.disk, JOURNALS)
        identity = await self.identity.boot()
        self.founders_file.load()
        self.state.load()
        self._refuse_other_cluster()
        self.store = await self._open_store(self.runtime)
        self.engine = StorageEngine(self.store, self.runtime, on_failure=self._break)
        self._engine_open = True
        self._build_request_path(identity.generation)
        await self.internode.start(*self.address)
        self.state.listen(self._applied)
        self.state.start()
        self.voters.seen(identity.host_id, self.address)
        self._start_consensus()
        self.runtime.tasks.spawn(self._greet_configured(), "node.greet")
        self.liveness.start()
        self.topology.start()
        await self.membership.become_member()
        if self.broken is not None and self.broken.done():
            await asyncio.sleep(0)  # Takes delivery of what `_end` has sent.
        self.ready = True
        self.log("node.ready", node=self.node_id, epoch=self.state.epoch)

    def _refuse_other_cluster(self) -> None:
        """The directory holds a cluster's log: the configuration must mean that cluster."""
        held, wanted = self.cluster.identity.cluster_name, self.configuration.cluster.name
        if held and held != wanted:
            raise ConfigurationError(
                f"the data directory belongs to cluster {held}, not to {wanted}",
                hint="correct [cluster] name or [node] data_directory; an empty one joins as a new node",
            )

    def _build_request_path(self, generation: int) -> None:
        runtime, state, internode = self.runtime, self.state, self.internode
        self.liveness = Liveness(runtime, state, internode, FailureDetector(), self._own_id, generation)
        cluster = self._cluster_now
        self.replica = ReplicaService(
            runtime, internode, self.engine, cluster, self.catch_up.reach, self._own_id
        )
        self.coordinator = Coordinator(
            runtime,
            internode,
            self.replica,
            cluster,
            self.catch_up.reach,
            self.liveness.alive,
            self._own_id,
            self.new_mutation_id,
        )
        self.streams = StreamService(
            runtime, internode, self.engine, self.replica, cluster, self.catch_up.reach
        )
        streams = StreamClient(runtime, internode, self.engine, cluster)
        self.work = WorkService(
            runtime,
            state,
            internode,
            self.catch_up,
            self.engine,
            streams,
            self._own_id,
            self.liveness.alive,
        )
        self.membership = Membership(
            runtime,
            self.configuration,
            self.identity,
            state,
            internode,
            self.submitter,
            self.log,
        )
        self.membership.founding = self._founding()

    def _founding(self) -> Founding | None:
        founders = self._founders()
        if self.address not in founders:
            return None
        return Founding(
            self.runtime,
            self.state,
            self.internode,
            self.catch_up,
            self.submitter,
            self.founders_file,
            founders=founders,
            own_address=self.address,
            cluster_name=self.configuration.cluster.name,
            describe=self.membership.describe,
            start_consensus=self._start_consensus,
            is_leader=self._leads,
            campaign=self._campaign,
            log=self.log,
        )

    def _founders(self) -> tuple[Address, ...]:
        return tuple(
            split_address(text, self.configuration.network.internode_port)
            for text in self.configuration.cluster.founders
        )

    def _start_consensus(self) -> None:
        """Voters are the founders that are bound to each other; after founding, the metadata says who.

        A voter is a host: whichever address it now has, and whoever else has the address it had.
        """
        own = self.voters.id_of(self.identity.value.host_id)
        if own is None or self.driver is not None:
            return
        raft = self.configuration.raft
        self.driver = RaftDriver(
            self.runtime,
            self.internode,
            group=METADATA_GROUP,
            identity=own,
            voters=self.voters.ids(),
            member=self.voters.member,
            settings=RaftSettings(election_ticks=raft.election_ticks, heartbeat_ticks=raft.heartbeat_ticks),
            tick_ms=raft.tick_ms,
            on_committed=self._committed,
            on_role=self._role_changed,
            on_broken=self._break,
        )
        self.processor = Processor(self.runtime, self.state, self.driver, self.registry)
        self.submitter.processor = self.processor
        self.driver.start()

    async def _greet_configured(self) -> None:
        """After a move, tell the nodes that the configuration names where this one is now.

        So voters that moved together find each other although no metadata can be changed yet.
        """
        port = self.configuration.network.internode_port
        named = (*self.configuration.cluster.founders, *self.configuration.cluster.seeds)
        addresses = [split_address(text, port) for text in named]
        while (info := self.info) is not None and (info.address, info.internode_port) != self.address:
            for address in addresses:
                if address != self.address:
                    self.internode.send(address, verbs.ANNOUNCE, Announce())
            await asyncio.sleep(GREETING_MS / 1000)

    async def stop(self) -> None:
        """Stop serving and end every task; what was acknowledged is durable already."""
        self.ready = False
        if self._engine_open:
            self.coordinator.stop()
        await self.internode.stop()
        await self.runtime.tasks.cancel_all()
        if self._engine_open:
            self._engine_open = False
            self.streams.stop()
            await self.engine.close()

    def _break(self, error: LockstepError) -> None:
        """Stop serving and voting at once; peers see closed connections."""
        if self._end(error):
            self.log("node.broken", error=str(error))
            if self.driver is not None:
                self.driver.halt()
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
        self.state.offer(committed_log_entries(entries))

    def _role_changed(self) -> None:
        if self.processor is not None:
            self.processor.role_changed()
        self.topology.wake()

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
        if before.schema is not after.schema:
            for table_id in sorted(before.schema.tables_by_id.keys() - after.schema.tables_by_id.keys()):
                self.runtime.tasks.spawn(self._forget_table(table_id), f"storage.drop.{table_id}")
        own, host_id = self._own_id(), self.identity.value.host_id
        if own and host_id not in before.directory.by_host_id:
            self.internode.introduce()
        elif self.has_left:
            self._left()
        if self.is_leader:
            self._announce(before, own)

    def _announce(self, before: ClusterMetadata, own: int) -> None:
        """Tell everyone of the new epoch, also the node that it lets go."""
        for node in self.cluster.directory.nodes:
            known = before.directory.by_id.get(node.id)
            gone = known is not None and known.state is NodeState.LEFT
            if node.id != own and not gone:
                self.internode.send((node.address, node.internode_port), verbs.ANNOUNCE, Announce())

    def _left(self) -> None:
        """No new requests; peers and requests in flight are served until this node is stopped."""
        if self._end(
            PreconditionError(
                "this node has left the cluster",
                hint="start it with an empty data directory to join as a new node",
            )
        ):
            self.log("node.left", node=self.node_id, epoch=self.state.epoch)

    async def _forget_table(self, table_id: int) -> None:
        """Its id is never given again, so what a failure leaves behind is only space."""
        try:
            await self.engine.drop_table(table_id)
        except LockstepError as error:
            self.log("storage.drop_failed", table=table_id, error=str(error))

    def _peer_epoch(self, peer: PeerInfo, epoch: int) -> None:
        self.voters.seen(peer.host_id, peer.endpoint)
        self.topology.heard(peer, epoch)
        self.liveness.heard(peer)
        if self.state.epoch or self.membership.founding is None:
            # A founder takes its first entry from consensus, or from a cluster that knows it.
            self.catch_up.heard(peer.endpoint, epoch)

    async def _epoch_query(self, peer: PeerInfo, query: EpochQuery) -> EpochReply:
        await self.catch_up.reach(query.epoch, peer.endpoint)
        if query.drain:
            await self.replica.drain(query.epoch)
        return EpochReply(self.state.epoch)

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
        )

    def _accept(self, hello: Hello) -> str | None:
        known = self.cluster.directory.by_address.get((hello.address, hello.port))
        if known is not None and hello.host_id and known.host_id != hello.host_id:
            return f"{hello.address} belongs to node {known.id} (host {known.host_id}) of this cluster"
        return None

    def _voter_addresses(self) -> tuple[Address, ...]:
        """The likeliest leader first."""
        addresses = [member.address for member in self.voters.members().values()]
        leader = self.driver.leader_address if self.driver is not None else None
        if leader in addresses:
            addresses.remove(leader)
            addresses.insert(0, leader)
        return tuple(addresses)
