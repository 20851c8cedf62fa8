"""ClusterMetadata: the one value that says who is in the cluster, what it stores and who owns what.

Invariant: immutable; `epoch` counts applied entries and `hash` is the hash of the last one. Parts that
an entry did not change are the identical objects in the next value.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import msgspec

from lockstep.metadata.access.roles import ACCESS, Access
from lockstep.metadata.cdc import GENERATIONS, Generation
from lockstep.metadata.degraded import DEGRADED, Degraded
from lockstep.metadata.directory import (
    DIRECTORY,
    EXCLUDED,
    FEATURE_STATE,
    IDENTITY,
    LINEAGE,
    Directory,
    Exclusion,
    FeatureState,
    Identity,
    NodeInfo,
)
from lockstep.metadata.extensions import EXTENSIONS, Extensions
from lockstep.metadata.groups.ringed import RINGED, UpgradeState
from lockstep.metadata.groups.service import MANAGEMENT_PLACE, SERVICE, Service
from lockstep.metadata.loads import LOADS, Loads
from lockstep.metadata.log.entries import HASH_BYTES
from lockstep.metadata.log.recent_ids import RECENT_IDS, RecentIds
from lockstep.metadata.operations import OPERATIONS, Operation, Operations, Session
from lockstep.metadata.part import Change, Part, Parts, Registered
from lockstep.metadata.repairs import REPAIRS, Repairs
from lockstep.metadata.requests import REQUESTS, Requests
from lockstep.metadata.schema_part import PLACEMENTS, SCHEMA
from lockstep.metadata.table_streams import STREAMS, TableStreams
from lockstep.metadata.tablets import TABLETS, Tablets
from lockstep.metadata.transitions import TRANSITIONS, Transitions
from lockstep.placement.placements import Placements, ReplicaGroup, RingPlacement
from lockstep.schema.model import Schema, Table
from lockstep.values.ids import NodeId

#: The parts that the rooms up to this one keep in the metadata.
PARTS: Final[tuple[Part[Any], ...]] = (
    IDENTITY,
    DIRECTORY,
    SCHEMA,
    PLACEMENTS,
    OPERATIONS,
    SERVICE,
    EXTENSIONS,
    REQUESTS,
    EXCLUDED,
    DEGRADED,
    FEATURE_STATE,
    GENERATIONS,
    REPAIRS,
    ACCESS,
    RECENT_IDS,
    TRANSITIONS,
    TABLETS,
    LOADS,
    STREAMS,
    LINEAGE,
    MANAGEMENT_PLACE,
    RINGED,
)
#: What there is when no room above adds a part.
REGISTERED: Final = Registered(PARTS)


#: The previous hash of the first entry.
GENESIS_HASH = bytes(HASH_BYTES)


class ClusterMetadata(msgspec.Struct, frozen=True, dict=True):
    """A head, and parts. A room's own part is read as `cluster.parts[PART]`; those of this room and below
    have names here."""

    epoch: int
    hash: bytes
    parts: Parts

    def changed(self, *changes: Change) -> ClusterMetadata:
        """With other values of some parts."""
        return ClusterMetadata(self.epoch, self.hash, self.parts.changed(changes))

    @cached_property
    def identity(self) -> Identity:
        return self.parts[IDENTITY]

    @cached_property
    def directory(self) -> Directory:
        return self.parts[DIRECTORY]

    @cached_property
    def schema(self) -> Schema:
        return self.parts[SCHEMA]

    @cached_property
    def placements(self) -> Placements:
        return self.parts[PLACEMENTS]

    @cached_property
    def running(self) -> Operations:
        """Running operations with their sessions."""
        return self.parts[OPERATIONS]

    @property
    def operations(self) -> tuple[Operation, ...]:
        return self.running.running

    @property
    def sessions(self) -> tuple[Session, ...]:
        return self.running.sessions

    @cached_property
    def transitions(self) -> Transitions:
        """The ranges that are on their way to other replicas."""
        return self.parts[TRANSITIONS]

    @property
    def next_operation_id(self) -> int:
        return self.running.next_id

    @cached_property
    def service(self) -> Service:
        return self.parts[SERVICE]

    @property
    def extensions(self) -> Extensions:
        """Named values that tools keep in the metadata."""
        return self.parts[EXTENSIONS]

    @cached_property
    def requests(self) -> Requests:
        """What was asked for: queued, running, and what ended lately."""
        return self.parts[REQUESTS]

    @cached_property
    def excluded(self) -> tuple[Exclusion, ...]:
        return self.parts[EXCLUDED]

    @cached_property
    def degraded(self) -> tuple[Degraded, ...]:
        return self.parts[DEGRADED]

    @property
    def features(self) -> FeatureState:
        return self.parts[FEATURE_STATE]

    @cached_property
    def generations(self) -> tuple[Generation, ...]:
        return self.parts[GENERATIONS]

    @cached_property
    def repairs(self) -> Repairs:
        """Repairs, and what they found equal on all its replicas."""
        return self.parts[REPAIRS]

    @cached_property
    def access(self) -> Access:
        """Roles, and what they may do."""
        return self.parts[ACCESS]

    @cached_property
    def tablets(self) -> Tablets:
        """The placement groups that are tablets of one table, and what their rings do not say."""
        return self.parts[TABLETS]

    @cached_property
    def streams_by_group(self) -> dict[int, TableStreams]:
        """By tablet group, which streams take the changes of its table, and took them before."""
        return {streams.group: streams for streams in self.parts[STREAMS]}

    @cached_property
    def loads(self) -> Loads:
        """Bulk loads that are under way, and those that ended lately."""
        return self.parts[LOADS]

    @cached_property
    def shared_rings(self) -> tuple[RingPlacement, ...]:
        """The placement groups whose ranges follow from the token owners, by id: all but those of tablets."""
        of_tables = self.tablets.by_group
        return tuple(ring for ring in self.placements.rings if ring.id not in of_tables)

    @property
    def recent_ids(self) -> RecentIds:
        return self.parts[RECENT_IDS]

    @property
    def features_enabled(self) -> tuple[str, ...]:
        return self.features.enabled

    @property
    def ring_mode(self) -> str:
        """How nodes agree where the cluster runs on the ring without a log; empty where it has one."""
        return self.parts[RINGED].mode

    @property
    def upgrade_state(self) -> UpgradeState:
        """Where it is on its way from the ring to a log."""
        return self.parts[RINGED].upgrade_state

    @property
    def is_on_ring(self) -> bool:
        """Whether the cluster runs on the ring, without a log."""
        return bool(self.ring_mode)

    @property
    def voters(self) -> tuple[NodeId, ...]:
        """The recorded voters of the metadata group, ascending."""
        return self.service.voters

    @property
    def operations_by_id(self) -> dict[int, Operation]:
        return self.running.by_id

    @property
    def sessions_by_id(self) -> dict[str, Session]:
        return self.running.sessions_by_id

    @cached_property
    def excluded_by_node(self) -> dict[NodeId, Exclusion]:
        return {exclusion.node: exclusion for exclusion in self.excluded}

    @cached_property
    def not_served(self) -> frozenset[NodeId]:
        """Nodes to which no requests go: others stand at their addresses, or they are shut out."""
        return self.directory.shadowed | frozenset(self.excluded_by_node)

    @cached_property
    def recounting(self) -> dict[int, Operation]:
        """By placement group, the operation that changes its replication."""
        keyspaces = self.schema.by_name
        changing = (operation for operation in self.operations if operation.about.keyspace)
        return {
            group: operation for operation in changing for group in keyspaces[operation.about.keyspace].groups
        }

    def group_for(self, group: int, token: int) -> ReplicaGroup:
        """The replica group of a token; KeyError when there is no such placement group."""
        return self.placements.group_for(group, token)

    def node(self, node_id: NodeId) -> NodeInfo | None:
        return self.directory.by_id.get(node_id)

    def table(self, table_id: int) -> Table | None:
        return self.schema.tables_by_id.get(table_id)

    def session_open(self, session_id: str) -> bool:
        return (
            session_id in self.sessions_by_id
            or self.transitions.lone_of(session_id) is not None
            or self.repair_open(session_id)
        )

    def repair_open(self, session_id: str) -> bool:
        """Whether it is the session of a repair that runs, driven by a node that has not left."""
        repair = self.repairs.by_session.get(session_id)
        return repair is not None and repair.driver in self.directory.present_ids

    def validate(self, before: ClusterMetadata | None = None) -> None:
        """Assert what must hold of every value, whichever entries made it; where `before` is given, only of
        what changed since."""
        self.parts.validate(before.parts if before is not None else None)
        assert self.recent_ids.last_epoch == self.epoch, "recent ids end at the epoch"


class Newest:
    """The newest value that is applied at this node: whoever applies entries shows it here, to rooms that do
    not know how the log is kept."""

    __slots__ = ("cluster", "epoch", "host_id")

    def __init__(self, cluster: ClusterMetadata) -> None:
        #: Of this node; empty before its identity was read.
        self.host_id = ""
        self.show(cluster)

    def show(self, cluster: ClusterMetadata) -> None:
        self.cluster = cluster
        self.epoch = cluster.epoch


class OwnId:
    """The id of this node, by the metadata of now; 0 until that gave it one."""

    def __init__(self, newest: Newest) -> None:
        self._newest = newest
        #: The metadata value that was looked at last: requests ask often.
        self._known_in: ClusterMetadata | None = None
        self._known = 0

    def __call__(self) -> int:
        cluster = self._newest.cluster
        if cluster is not self._known_in:
            info = cluster.directory.by_host_id.get(self._newest.host_id)
            self._known = info.id if info is not None else 0
            self._known_in = cluster
        return self._known


def empty_cluster(registered: Registered = REGISTERED) -> ClusterMetadata:
    """The value of epoch 0: nothing applied."""
    return ClusterMetadata(0, GENESIS_HASH, registered.empty)
