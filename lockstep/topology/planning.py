"""Planning an operation: which ranges change, from which replicas to which, and whether it may start.

Invariant: a plan holds whichever of the running operations finish or are cancelled. So it is computed
against every combination of their outcomes; it is refused when an outcome would change it, or when it
touches a locked range.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import Directory, NodeInfo, NodeState
from lockstep.metadata.operations import Operation, OperationKind, Stage, Transition
from lockstep.metadata.transformations import refuse_bad_tokens, refuse_before_initialize
from lockstep.placement.deltas import Delta, differences
from lockstep.placement.placements import ReplicaGroup
from lockstep.placement.quorums import adjacent_safe, dc_factors
from lockstep.placement.strategies import Owner, compute
from lockstep.schema.model import Replication
from lockstep.topology.stages import TABLES, StageRow, group_at
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import PARALLEL_OPERATIONS_MAX

#: The state a node must have for each kind, and the state it then has.
STATES: dict[OperationKind, tuple[NodeState, NodeState]] = {
    OperationKind.BOOTSTRAP: (NodeState.NONE, NodeState.BOOTSTRAPPING),
    OperationKind.DECOMMISSION: (NodeState.NORMAL, NodeState.DECOMMISSIONING),
}


def check_start(
    cluster: ClusterMetadata, kind: OperationKind, node_id: NodeId, tokens: tuple[int, ...]
) -> NodeInfo:
    """The node, when it may start this operation as far as nodes and tokens tell; raises Rejected."""
    refuse_before_initialize(cluster)
    node = cluster.node(node_id)
    if node is None:
        raise Rejected(f"there is no node {node_id}")
    if len(cluster.operations) >= PARALLEL_OPERATIONS_MAX:
        holders = ", ".join(operation.title() for operation in cluster.operations)
        raise Rejected(f"at most {PARALLEL_OPERATIONS_MAX} operations run at once: {holders}")
    needed = STATES[kind][0]
    if node.state is not needed:
        running = next((f", by {o.title()}" for o in cluster.operations if o.node == node_id), "")
        raise Rejected(f"{kind} needs a node in state {needed}; node {node_id} is {node.state}{running}")
    if kind is OperationKind.BOOTSTRAP:
        _check_new_tokens(cluster, tokens)
    else:
        _check_leave(cluster, node)
    return node


def _check_new_tokens(cluster: ClusterMetadata, tokens: tuple[int, ...]) -> None:
    refuse_bad_tokens(cluster.directory, tokens)
    for operation in cluster.operations:
        taken = sorted(set(operation.tokens) & set(tokens))
        if taken:
            raise Rejected(f"token {taken[0]} is wanted by {operation.title()}")


def _check_leave(cluster: ClusterMetadata, node: NodeInfo) -> None:
    if node.id in cluster.service.members:
        raise Rejected(
            f"node {node.id} is a voter of the metadata group",
            hint="`lockstep topology decommission` has it substituted first",
        )
    remaining = [n for n in cluster.directory.in_state(NodeState.NORMAL) if n.id != node.id]
    if not remaining:
        raise Rejected(f"node {node.id} is the last normal node")
    for replication in cluster.replications:
        for dc, factor in dc_factors(replication) or (("", replication.total),):
            if dc not in ("", node.dc):
                continue
            left = sum(1 for other in remaining if dc in ("", other.dc))
            if left < factor:
                where = f" in data centre {dc}" if dc else ""
                names = ", ".join(k.name for k in cluster.schema.keyspaces if k.replication == replication)
                raise Rejected(
                    f"{left} normal nodes would be left{where}, but {names} has replication factor {factor}",
                    hint="let another node join first (`lockstep cluster add`), or drop the keyspace",
                )


def owners_with(
    directory: Directory, changes: Sequence[tuple[OperationKind, NodeId, tuple[int, ...]]]
) -> tuple[Owner, ...]:
    """The token owners once these operations have finished."""
    owners = {owner.node: owner for owner in directory.owners}
    for kind, node_id, tokens in changes:
        if kind is OperationKind.BOOTSTRAP:
            node = directory.by_id[node_id]
            owners[node_id] = Owner(node_id, node.dc, node.rack, tokens)
        else:
            owners.pop(node_id, None)
    return tuple(owners[node_id] for node_id in sorted(owners))


def plan(
    cluster: ClusterMetadata, kind: OperationKind, node: NodeId, tokens: tuple[int, ...]
) -> tuple[Transition, ...]:
    """The transitions of a new operation, by replication and range.

    Raises Rejected when a range is locked, when the outcome of a running operation would change the
    plan, or when a step would let a read miss an acknowledged write.
    """
    mine = (kind, node, tokens)
    transitions: list[Transition] = []
    for replication in cluster.replications:
        plans = [_deltas(cluster.directory, replication, done, mine) for done in _outcomes(cluster)]
        for deltas in plans:
            _refuse_locked(cluster, replication, deltas)
        if any(deltas != plans[0] for deltas in plans):
            holders = ", ".join(operation.title() for operation in cluster.operations)
            raise Rejected(f"the ranges of this {kind} depend on how {holders} ends", hint="wait for its end")
        transitions.extend(Transition(replication, d.range, d.old, d.new) for d in plans[0])
    for transition in transitions:
        _refuse_unsafe(cluster, kind, transition)
    return tuple(transitions)


def _outcomes(cluster: ClusterMetadata) -> Iterator[list[tuple[OperationKind, NodeId, tuple[int, ...]]]]:
    """Every set of running operations that may finish; one that is rolling back does not."""
    open_ended: list[Operation] = [o for o in cluster.operations if o.stage is not Stage.ROLLBACK_TO_NORMAL]
    for count in range(len(open_ended) + 1):
        for chosen in itertools.combinations(open_ended, count):
            yield [(o.kind, o.node, o.tokens) for o in chosen]


def _deltas(
    directory: Directory,
    replication: Replication,
    done: list[tuple[OperationKind, NodeId, tuple[int, ...]]],
    mine: tuple[OperationKind, NodeId, tuple[int, ...]],
) -> tuple[Delta, ...]:
    before = compute(replication, owners_with(directory, done))
    after = compute(replication, owners_with(directory, [*done, mine]))
    return differences(before, after)


def _refuse_locked(cluster: ClusterMetadata, replication: Replication, deltas: Sequence[Delta]) -> None:
    for lock in cluster.locks:
        for delta in deltas:
            held = lock.conflict(replication, delta.range)
            if held is not None:
                holder = cluster.operations_by_id[lock.operation_id]
                raise Rejected(
                    f"{holder.title()} holds range ({held.left}, {held.right}] of {replication.strategy}",
                    hint="wait for it to finish (`lockstep topology watch`) or cancel it",
                )


def _refuse_unsafe(cluster: ClusterMetadata, kind: OperationKind, transition: Transition) -> None:
    """Prove every pair of stages this transition can go through before it begins."""
    dc_of = cluster.directory.dc_by_id.__getitem__
    rows = {row.stage: row for row in TABLES[kind]}
    for row in TABLES[kind]:
        for target in (row.next, row.on_failure):
            if target is not None:
                _refuse_step(transition, row, rows[target], dc_of)


def _refuse_step(
    transition: Transition, row: StageRow, target: StageRow, dc_of: Callable[[NodeId], str]
) -> None:
    before, after = (
        ReplicaGroup(*group_at(row, transition), 0),
        ReplicaGroup(*group_at(target, transition), 0),
    )
    refuse_unsafe_change(before, after, transition, dc_of)


def refuse_unsafe_change(
    before: ReplicaGroup, after: ReplicaGroup, transition: Transition, dc_of: Callable[[NodeId], str]
) -> None:
    """Raises Rejected unless coordinators at either group see each other's writes and no reader is new."""
    where = f"range ({transition.range.left}, {transition.range.right}]"
    for reader in after.reads:
        if reader not in before.writes:
            raise Rejected(f"{where}: node {reader} would be read before it was written")
    found = adjacent_safe(before, after, transition.replication, dc_of)
    if found is not None:
        raise Rejected(f"{where}: {found.text()}")
