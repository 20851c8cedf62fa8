"""What excludes what: the one table that says which change waits for, or is refused during, which other.

Invariant: every pair of a change that is wanted and something that may be under way has a row, and whoever
refuses one because of the other asks this table. Rows with scope SAME_RANGE, SAME_KEYSPACE and SAME_NODE are
decided by what the two touch; where that is decided, the row says which scope it is.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.registry import EntryKind
from lockstep.values.errors import OperationRunning, Rejected
from lockstep.values.ids import NodeId


class Wanted(enum.StrEnum):
    """Changes that may have to wait."""

    RING = "ring operation"
    REPLICATION = "change of a keyspace's replication"
    FORCE = "giving a node up by force"
    SCHEMA_MOVING = "schema change that makes or drops a ring or moves tables to another"
    SCHEMA = "any other schema change"
    MEMBERSHIP = "registration of a node, feature, extension, generation of streams"
    VOTERS = "change of the voters"
    FACTS = "address of a node, exclude list, snapshot, truncation, wish about the service"
    REPAIR = "repair"


class Held(enum.StrEnum):
    """What may be under way."""

    RING = "running ring operation"
    REPLICATION = "running change of a keyspace's replication"
    VOTERS = "running change of the voters"
    VOTE = "vote of a node"
    EXCLUSION = "exclusion of a node"
    FREEZE = "frozen metadata"


class Scope(enum.StrEnum):
    NEVER = "never"
    SAME_NODE = "same node"
    SAME_RANGE = "same range"
    SAME_KEYSPACE = "same keyspace"
    ALWAYS = "always"


class Conflict(msgspec.Struct, frozen=True):
    """`why` says what would go wrong, for people."""

    scope: Scope
    why: str


_FREE = Conflict(Scope.NEVER, "")
_COUNTED_ON = Conflict(Scope.ALWAYS, "a running operation counts on the replicas that it would take away")
_PLANNED = Conflict(Scope.ALWAYS, "a running operation planned the rings and the tables on them as they were")
_FROZEN = Conflict(Scope.ALWAYS, "operators froze what is not about the service itself or where nodes are")

#: Every pair that is not free.
_ROWS: Mapping[tuple[Wanted, Held], Conflict] = {
    (Wanted.RING, Held.RING): Conflict(
        Scope.SAME_RANGE, "a range goes from one group of replicas to one other at a time"
    ),
    (Wanted.RING, Held.REPLICATION): Conflict(
        Scope.ALWAYS, "each of its steps is planned for the token owners as they are"
    ),
    (Wanted.REPLICATION, Held.RING): _PLANNED,
    (Wanted.REPLICATION, Held.REPLICATION): Conflict(
        Scope.SAME_KEYSPACE, "a keyspace goes from one replication to one other at a time"
    ),
    (Wanted.REPLICATION, Held.FREEZE): _FROZEN,
    (Wanted.FORCE, Held.REPLICATION): _COUNTED_ON,
    (Wanted.SCHEMA_MOVING, Held.REPLICATION): Conflict(
        Scope.SAME_KEYSPACE, "the keyspace has a ring of its own until the change has ended"
    ),
    (Wanted.RING, Held.VOTE): Conflict(
        Scope.SAME_NODE, "a node that leaves or is replaced gives its vote to another one first"
    ),
    (Wanted.RING, Held.EXCLUSION): Conflict(
        Scope.SAME_NODE, "nobody hears a node that is shut out, so it takes no part and gets no ranges"
    ),
    (Wanted.RING, Held.FREEZE): _FROZEN,
    (Wanted.FORCE, Held.RING): _COUNTED_ON,
    (Wanted.FORCE, Held.VOTE): Conflict(Scope.SAME_NODE, "another node gets its vote first"),
    (Wanted.FORCE, Held.FREEZE): _FROZEN,
    (Wanted.SCHEMA_MOVING, Held.RING): _PLANNED,
    (Wanted.SCHEMA_MOVING, Held.FREEZE): _FROZEN,
    (Wanted.SCHEMA, Held.FREEZE): _FROZEN,
    (Wanted.MEMBERSHIP, Held.FREEZE): _FROZEN,
    (Wanted.VOTERS, Held.VOTERS): Conflict(
        Scope.ALWAYS, "two changes of the voters at once could make disjoint majorities"
    ),
    (Wanted.VOTERS, Held.RING): Conflict(
        Scope.SAME_NODE, "only nodes of the cluster get votes, and who takes a dead one's place"
    ),
    (Wanted.VOTERS, Held.EXCLUSION): Conflict(Scope.SAME_NODE, "a node that is shut out gets no vote"),
    (Wanted.REPAIR, Held.RING): Conflict(
        Scope.SAME_RANGE, "replicas that get or give up a range are not made equal meanwhile"
    ),
    (Wanted.REPAIR, Held.REPLICATION): Conflict(
        Scope.SAME_KEYSPACE, "replicas that get or give up a range are not made equal meanwhile"
    ),
    (Wanted.REPAIR, Held.FREEZE): _FROZEN,
}

#: The complete table.
TABLE: Mapping[tuple[Wanted, Held], Conflict] = {
    (wanted, held): _ROWS.get((wanted, held), _FREE) for wanted in Wanted for held in Held
}

#: Which change an entry's kind is. A schema change is SCHEMA until it is found to touch rings.
WANTED_OF_KIND: Mapping[int, Wanted] = {
    EntryKind.INITIALIZE: Wanted.MEMBERSHIP,
    EntryKind.REGISTER: Wanted.MEMBERSHIP,
    EntryKind.ENABLE_FEATURES: Wanted.MEMBERSHIP,
    EntryKind.SET_EXTENSION: Wanted.MEMBERSHIP,
    EntryKind.SCHEMA_CHANGE: Wanted.SCHEMA,
    EntryKind.ROLE_CHANGE: Wanted.SCHEMA,
    EntryKind.ROLE_MEMBERSHIP: Wanted.SCHEMA,
    EntryKind.PERMISSIONS: Wanted.SCHEMA,
    EntryKind.FORCE_REMOVE: Wanted.FORCE,
    EntryKind.UPDATE_NODE: Wanted.FACTS,
    EntryKind.SNAPSHOT: Wanted.FACTS,
    EntryKind.TRUNCATE_LOG: Wanted.FACTS,
    EntryKind.SET_SERVICE: Wanted.FACTS,
    EntryKind.EXCLUDE_NODES: Wanted.FACTS,
    EntryKind.INCLUDE_NODES: Wanted.FACTS,
    EntryKind.PREPARE_MEMBERSHIP: Wanted.VOTERS,
    EntryKind.ADVANCE_MEMBERSHIP: Wanted.VOTERS,
    EntryKind.CANCEL_MEMBERSHIP: Wanted.VOTERS,
    EntryKind.BEGIN_REPAIR: Wanted.REPAIR,
    EntryKind.END_REPAIR: Wanted.FACTS,
    EntryKind.RECORD_UNDELIVERED: Wanted.FACTS,
    EntryKind.BEGIN_LOAD: Wanted.SCHEMA,
    EntryKind.COMMIT_LOAD: Wanted.SCHEMA,
    EntryKind.END_LOAD: Wanted.FACTS,
    EntryKind.REPAIR_STREAMS: Wanted.MEMBERSHIP,
    EntryKind.PUBLISH_GENERATIONS: Wanted.FACTS,
    EntryKind.RESET_CLUSTER: Wanted.FACTS,
    EntryKind.PLACE_MANAGEMENT: Wanted.FACTS,
    EntryKind.RESET_MANAGEMENT: Wanted.FACTS,
    EntryKind.CHANGE_CAPTURED: Wanted.SCHEMA,
    EntryKind.BEGIN_UPGRADE: Wanted.MEMBERSHIP,
    EntryKind.BUILD_LOG: Wanted.FACTS,
    EntryKind.ABORT_UPGRADE: Wanted.FACTS,
    EntryKind.END_RING: Wanted.FACTS,
}


def wanted_of(kind: int) -> Wanted:
    """The change that entries of this kind are; ring operations and kinds of tests are all alike."""
    return WANTED_OF_KIND.get(kind, Wanted.RING)


def holders(cluster: ClusterMetadata, held: Held) -> tuple[str, ...]:
    """Names of what is under way of this sort."""
    service = cluster.service
    if held in (Held.RING, Held.REPLICATION):
        wanted = held is Held.REPLICATION
        return tuple(o.title() for o in cluster.operations if o.about.is_global is wanted)
    if held is Held.VOTERS:
        return (service.change.title(),) if service.change is not None else ()
    if held is Held.VOTE:
        return tuple(f"the vote of node {node}" for node in service.members)
    if held is Held.EXCLUSION:
        return tuple(f"the exclusion of node {exclusion.node}" for exclusion in cluster.excluded)
    return (f"the freeze: {service.frozen}",) if service.frozen else ()


def excluded_by(
    cluster: ClusterMetadata, wanted: Wanted, nodes: tuple[NodeId, ...] = ()
) -> Iterator[tuple[Held, NodeId]]:
    """What keeps the change from beginning now: the sort, and the node where it is about one (else 0).

    Ranges are not looked at: a plan does.
    """
    for held in Held:
        scope = TABLE[wanted, held].scope
        if scope is Scope.ALWAYS and holders(cluster, held):
            yield held, NodeId(0)
        elif scope is Scope.SAME_NODE:
            yield from ((held, node) for node in nodes if node in _nodes_of(cluster, held))


def _nodes_of(cluster: ClusterMetadata, held: Held) -> tuple[NodeId, ...]:
    if held is Held.RING:
        return tuple(node for operation in cluster.operations for node in operation.about.nodes)
    if held is Held.EXCLUSION:
        return tuple(cluster.excluded_by_node)
    return cluster.service.members


def refuse_during(cluster: ClusterMetadata, wanted: Wanted, held: Held, what: str, hint: str) -> None:
    """Raises Rejected (OperationRunning for ranges) when `held` is under way and the table says that this
    excludes `wanted`."""
    assert TABLE[wanted, held].scope is Scope.ALWAYS, "what is decided by nodes or ranges is asked otherwise"
    names = holders(cluster, held)
    if not names:
        return
    if held is Held.RING:
        ids = ", ".join(f"operation {o.id}" for o in cluster.operations if not o.about.is_global)
        raise OperationRunning(f"{what} while {ids} holds ranges", hint=hint)
    raise Rejected(f"{what} while {', '.join(names)} is running", hint=hint)
