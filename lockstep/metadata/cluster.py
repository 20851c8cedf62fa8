"""ClusterMetadata: the one value that says who is in the cluster, what it stores and who owns what.

Invariant: immutable; `epoch` counts applied entries and `hash` is the hash of the last one. Parts that
an entry did not change are the identical objects in the next value.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from lockstep.metadata import cdc
from lockstep.metadata.cdc import Generation
from lockstep.metadata.degraded import Degraded
from lockstep.metadata.directory import EMPTY_DIRECTORY, Directory, NodeInfo
from lockstep.metadata.exclusions import Exclusion
from lockstep.metadata.extensions import NO_EXTENSIONS, Extensions, extensions_of
from lockstep.metadata.feature_names import NO_FEATURES, FeatureState
from lockstep.metadata.operations import Lock, Operation, Session
from lockstep.metadata.recent_ids import RecentIds, no_recent_ids
from lockstep.metadata.repairs import NO_REPAIRS, Repairs
from lockstep.metadata.requests import NO_REQUESTS, Request, Requests
from lockstep.metadata.roles import NO_ACCESS, Access, Grant, Role, access_of
from lockstep.metadata.service import NO_SERVICE, Service
from lockstep.placement.placements import NO_PLACEMENTS, Placements, ReplicaGroup
from lockstep.schema.model import Replication, Schema, SchemaImage, Table, schema_of_pieces
from lockstep.values import codec
from lockstep.values.ids import NodeId

HASH_BYTES = 32
#: The previous hash of the first entry.
GENESIS_HASH = bytes(HASH_BYTES)


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """`lineage` lists the ids this cluster had, oldest first, the present one last."""

    cluster_id: str = ""
    cluster_name: str = ""
    lineage: tuple[str, ...] = ()


class ClusterMetadata(msgspec.Struct, frozen=True, dict=True):
    """Operations, locks and sessions are sorted by operation id; one lock belongs to each operation."""

    epoch: int
    hash: bytes
    identity: Identity
    directory: Directory
    schema: Schema
    placements: Placements
    operations: tuple[Operation, ...]
    locks: tuple[Lock, ...]
    sessions: tuple[Session, ...]
    service: Service
    next_operation_id: int
    recent_ids: RecentIds
    #: Named values that tools keep in the metadata.
    extensions: Extensions
    #: What was asked for: queued, running, and what ended lately.
    requests: Requests = NO_REQUESTS
    #: Nodes that are shut out, by id.
    excluded: tuple[Exclusion, ...] = ()
    #: Ranges with replicas that may lack writes, oldest first.
    degraded: tuple[Degraded, ...] = ()
    #: What all nodes can do and do, and since when the nodes' support is as it is.
    features: FeatureState = NO_FEATURES
    #: Generations of change data capture, oldest first.
    generations: tuple[Generation, ...] = ()
    #: Repairs, and what they found equal on all its replicas.
    repairs: Repairs = NO_REPAIRS
    #: Roles, and what they may do.
    access: Access = NO_ACCESS

    @property
    def features_enabled(self) -> tuple[str, ...]:
        return self.features.enabled

    @property
    def voters(self) -> tuple[NodeId, ...]:
        """The recorded voters of the metadata group, ascending."""
        return self.service.voters

    @cached_property
    def operations_by_id(self) -> dict[int, Operation]:
        return {operation.id: operation for operation in self.operations}

    @cached_property
    def sessions_by_id(self) -> dict[str, Session]:
        return {session.id: session for session in self.sessions}

    @cached_property
    def excluded_by_node(self) -> dict[NodeId, Exclusion]:
        return {exclusion.node: exclusion for exclusion in self.excluded}

    @cached_property
    def not_served(self) -> frozenset[NodeId]:
        """Nodes to which no requests go: others stand at their addresses, or they are shut out."""
        return self.directory.shadowed | frozenset(self.excluded_by_node)

    @cached_property
    def replications(self) -> tuple[Replication, ...]:
        """Replication settings that keyspaces use, sorted and unique."""
        return tuple(sorted({keyspace.replication for keyspace in self.schema.keyspaces}))

    def group_for(self, replication: Replication, token: int) -> ReplicaGroup:
        """The replica group of a token; KeyError when no keyspace uses the replication."""
        return self.placements.group_for(replication, token)

    def node(self, node_id: NodeId) -> NodeInfo | None:
        return self.directory.by_id.get(node_id)

    def table(self, table_id: int) -> Table | None:
        return self.schema.tables_by_id.get(table_id)

    def session_open(self, session_id: str) -> bool:
        return session_id in self.sessions_by_id or self.repair_open(session_id)

    def repair_open(self, session_id: str) -> bool:
        """Whether it is the session of a repair that runs, driven by a node that has not left."""
        repair = self.repairs.by_session.get(session_id)
        return repair is not None and repair.driver in self.directory.present_ids

    def validate(self) -> None:
        """Assert what must hold of every value, whichever entries made it."""
        self.directory.validate()
        self.placements.validate()
        self.service.validate()
        self.features.validate()
        cdc.validate(self.generations)
        self.access.validate()
        assert tuple(ring.replication for ring in self.placements.rings) == self.replications
        excluded = [exclusion.node for exclusion in self.excluded]
        assert excluded == sorted(set(excluded)), "the exclude list is sorted by node"
        assert all(one.replication in self.replications for one in self.degraded), "degraded ranges are used"
        self.validate_operations()

    def validate_operations(self) -> None:
        """The part of `validate` whose cost depends on running operations only."""
        ids = [operation.id for operation in self.operations]
        assert ids == sorted(set(ids)), "operations are sorted by id"
        assert [lock.operation_id for lock in self.locks] == ids, "every operation holds one lock"
        assert not ids or ids[-1] < self.next_operation_id, "operation ids are never reused"
        self.requests.validate(tuple(ids))
        open_sessions = {operation.session_id for operation in self.operations if operation.session_id}
        assert {session.id for session in self.sessions} == open_sessions, "sessions match operations"
        assert self.recent_ids.last_epoch == self.epoch, "recent ids end at the epoch"


def empty_cluster() -> ClusterMetadata:
    """The value of epoch 0: nothing applied."""
    return ClusterMetadata(
        epoch=0,
        hash=GENESIS_HASH,
        identity=Identity(),
        directory=EMPTY_DIRECTORY,
        schema=Schema(),
        placements=NO_PLACEMENTS,
        operations=(),
        locks=(),
        sessions=(),
        service=NO_SERVICE,
        next_operation_id=1,
        recent_ids=no_recent_ids(),
        extensions=NO_EXTENSIONS,
    )


class _ClusterImage(msgspec.Struct, frozen=True, array_like=True):
    """Canonical stored form of a ClusterMetadata; fields are only appended."""

    epoch: int
    hash: bytes
    identity: Identity
    directory: Directory
    schema: SchemaImage
    placements: Placements
    operations: tuple[Operation, ...]
    locks: tuple[Lock, ...]
    sessions: tuple[Session, ...]
    service: Service
    next_operation_id: int
    recent_first_epoch: int
    recent_ids: tuple[bytes, ...]
    extensions: tuple[tuple[str, bytes], ...] = ()
    live_requests: tuple[Request, ...] = ()
    ended_requests: tuple[Request, ...] = ()
    next_request_id: int = 1
    excluded: tuple[Exclusion, ...] = ()
    degraded: tuple[Degraded, ...] = ()
    features: FeatureState = NO_FEATURES
    generations: tuple[Generation, ...] = ()
    repairs: Repairs = NO_REPAIRS
    roles: tuple[Role, ...] = ()
    grants: tuple[Grant, ...] = ()


_IMAGE_DECODER = codec.decoder(_ClusterImage)


def encode_cluster(cluster: ClusterMetadata) -> bytes:
    """Canonical bytes: equal values give equal bytes on every node."""
    image = _ClusterImage(
        cluster.epoch,
        cluster.hash,
        cluster.identity,
        cluster.directory,
        cluster.schema.image(),
        cluster.placements,
        cluster.operations,
        cluster.locks,
        cluster.sessions,
        cluster.service,
        cluster.next_operation_id,
        cluster.recent_ids.first_epoch,
        cluster.recent_ids.listed(),
        tuple(cluster.extensions.items()),
        cluster.requests.live,
        cluster.requests.ended,
        cluster.requests.next_id,
        cluster.excluded,
        cluster.degraded,
        cluster.features,
        cluster.generations,
        cluster.repairs,
        tuple(cluster.access.listed_roles()),
        tuple(cluster.access.listed_grants()),
    )
    return codec.encode(image)


def decode_cluster(data: bytes) -> ClusterMetadata:
    """Inverse of `encode_cluster`; raises one of codec.UNREADABLE on foreign bytes."""
    image = _IMAGE_DECODER.decode(data)
    return ClusterMetadata(
        image.epoch,
        image.hash,
        image.identity,
        image.directory,
        schema_of_pieces((image.schema,)),
        image.placements,
        image.operations,
        image.locks,
        image.sessions,
        image.service,
        image.next_operation_id,
        RecentIds.from_listed(image.recent_first_epoch, image.recent_ids),
        extensions_of(image.extensions),
        Requests(image.live_requests, image.ended_requests, image.next_request_id),
        image.excluded,
        image.degraded,
        image.features,
        image.generations,
        image.repairs,
        access_of(image.roles, image.grants),
    )
