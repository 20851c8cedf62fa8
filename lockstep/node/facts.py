"""What a node knows of itself: who and where it is, what it leads, and ids that only it gives.

Invariant: functions of the metadata value, of the identity file and of live parts; nothing is kept but the
last looked up node id, which requests ask for often.
"""

from __future__ import annotations

from typing import Any

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.node.configuration import Configuration
from lockstep.node.identity import Identity, IdentityFile
from lockstep.node.liveness import Liveness
from lockstep.node.metadata_member import MetadataMember
from lockstep.node.metadata_state import MetadataState
from lockstep.node.processors.base import Processor
from lockstep.node.raft_driver import RaftDriver
from lockstep.node.submission import Submitter
from lockstep.replication.handshake import Address
from lockstep.values.ids import mutation_id


class NodeFacts:
    """The attributes are made by node.parts."""

    configuration: Configuration
    identity: IdentityFile
    state: MetadataState
    member: MetadataMember
    submitter: Submitter
    liveness: Liveness
    _engine_open: bool

    def __init__(self) -> None:
        self._sequence = 0
        #: The metadata value and identity for which `_known_id` was looked up.
        self._id_of: tuple[ClusterMetadata, Identity] | None = None
        self._known_id = 0

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
    def driver(self) -> RaftDriver | None:
        """This node's member of the metadata group, while it takes part."""
        return self.member.driver

    @property
    def processor(self) -> Processor | None:
        """What judges submissions here, if anything does."""
        return self.member.processor

    @property
    def is_leader(self) -> bool:
        return self.member.leads

    @property
    def leader_id(self) -> int | None:
        """Node id of the metadata leader as far as this node knows."""
        if self.driver is not None:
            return self.driver.raft.leader
        if self.is_leader:
            return self.node_id
        return self.liveness.leading if self._engine_open else None

    def new_mutation_id(self) -> bytes:
        self._sequence += 1
        return mutation_id(self._own_id(), self.identity.value.generation, self._sequence)

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

    def _heard_since(self, node: int, wall_us: int) -> bool:
        return self.liveness.heard_since(node, wall_us)

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

    def _leading_term(self) -> int | None:
        """The term of the metadata group in which this node leads it."""
        driver = self.driver
        return driver.raft.term if driver is not None and self.is_leader else None

    def _host_id(self) -> str:
        return self.identity.value.host_id
