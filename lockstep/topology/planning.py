"""Planning an operation: which ranges change, from which replicas to which, and whether it may start.

Invariant: a plan holds whichever of the running operations finish or are cancelled. It is refused when an
outcome would change it, or when it touches a locked range. So it is computed against every combination of
outcomes of the operations that it touches; others cannot change it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.conflicts import TABLE, Held, Wanted, refuse_during
from lockstep.metadata.directory import Directory, NodeInfo, NodeState
from lockstep.metadata.operations import Operation, OperationKind, Stage, Transition
from lockstep.metadata.transformations import refuse_bad_tokens, refuse_before_initialize
from lockstep.placement.circle import Circle, Owner
from lockstep.placement.deltas import Delta, changes, plan_of
from lockstep.placement.placements import ReplicaGroup
from lockstep.placement.quorums import adjacent_safe, dc_factors
from lockstep.placement.shapes import shape_of
from lockstep.schema.model import Replication
from lockstep.topology.stages import TABLES, StageRow, group_at, replication_at
from lockstep.topology.streams import lost_copies
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import PARALLEL_OPERATIONS_MAX
from lockstep.values.tokens import any_within, first_shared

#: The state a node must have for each kind, and the state it then has. A move shows in its tokens alone.
STATES: dict[OperationKind, tuple[NodeState, NodeState]] = {
    OperationKind.BOOTSTRAP: (NodeState.NONE, NodeState.BOOTSTRAPPING),
    OperationKind.DECOMMISSION: (NodeState.NORMAL, NodeState.DECOMMISSIONING),
    OperationKind.MOVE: (NodeState.NORMAL, NodeState.NORMAL),
    OperationKind.REPLACE: (NodeState.NONE, NodeState.REPLACING),
    OperationKind.REMOVE: (NodeState.NORMAL, NodeState.REMOVING),
    OperationKind.REBUILD: (NodeState.NORMAL, NodeState.REBUILDING),
}
#: Kinds that end with fewer nodes than they began with.
_SHRINKING = (OperationKind.DECOMMISSION, OperationKind.REMOVE)
#: Kinds whose request names tokens.
TOKENS_GIVEN = (OperationKind.BOOTSTRAP, OperationKind.MOVE)
#: States of nodes that will own tokens whatever becomes of the running operations.
_STAYING = (NodeState.NORMAL, NodeState.REBUILDING)


#: How a plan says that an excluded node is in its way; whoever reads refusals looks for it.
EXCLUDED = "node {node} is excluded"
#: The way out for a person whom a running operation is in the way; it may wait for a node that is dead.
_WAIT_OR_CANCEL = "wait for its end (`lockstep topology watch`) or cancel it"


class Change(msgspec.Struct, frozen=True, array_like=True):
    """What an operation, asked for or running, does to the ring when it succeeds.

    `tokens` are those asked for; `full_change` fills in those that follow from the nodes.
    """

    kind: OperationKind
    node: NodeId
    tokens: tuple[int, ...] = ()
    replaced: NodeId = NodeId(0)
    source_dc: str = ""


def change_of(operation: Operation) -> Change:
    return Change(operation.kind, operation.node, operation.tokens, operation.replaced, operation.source_dc)


def full_change(cluster: ClusterMetadata, asked: Change) -> Change:
    """The change with its tokens, when it may start as far as nodes and tokens tell; raises Rejected."""
    refuse_before_initialize(cluster)
    node = cluster.node(asked.node)
    if node is None:
        raise Rejected(f"there is no node {asked.node}")
    refuse_during(
        cluster,
        Wanted.RING,
        Held.REPLICATION,
        f"a {asked.kind} cannot begin",
        _WAIT_OR_CANCEL,
    )
    if len(cluster.operations) >= PARALLEL_OPERATIONS_MAX:
        holders = ", ".join(operation.title() for operation in cluster.operations)
        raise Rejected(f"at most {PARALLEL_OPERATIONS_MAX} operations run at once: {holders}")
    needed = STATES[asked.kind][0]
    running = next((o for o in cluster.operations if asked.node in o.subjects), None)
    if node.state is not needed:
        by = f", by {running.title()}" if running is not None else ""
        raise Rejected(f"{asked.kind} needs a node in state {needed}; node {node.id} is {node.state}{by}")
    if running is not None:
        raise Rejected(f"node {node.id} takes part in {running.title()}", hint=_WAIT_OR_CANCEL)
    wanted = msgspec.structs.replace(asked, tokens=tuple(sorted(asked.tokens)))
    _refuse_stray_fields(wanted)
    if asked.kind in TOKENS_GIVEN:
        _check_new_tokens(cluster, node, wanted)
        return wanted
    if asked.kind is OperationKind.REPLACE:
        return msgspec.structs.replace(wanted, tokens=_replaced_node(cluster, node, asked.replaced).tokens)
    if asked.kind in _SHRINKING:
        _check_leave(cluster, node)
    elif asked.source_dc and asked.source_dc not in cluster.directory.data_centers:
        raise Rejected(f"there is no data centre {asked.source_dc!r}")
    return msgspec.structs.replace(wanted, tokens=node.tokens)


def _refuse_stray_fields(asked: Change) -> None:
    if asked.tokens and asked.kind not in TOKENS_GIVEN:
        raise Rejected(f"a {asked.kind} is told no tokens")
    if asked.replaced and asked.kind is not OperationKind.REPLACE:
        raise Rejected(f"a {asked.kind} replaces no node")
    if asked.source_dc and asked.kind is not OperationKind.REBUILD:
        raise Rejected(f"a {asked.kind} is told no data centre")


def _check_new_tokens(cluster: ClusterMetadata, node: NodeInfo, asked: Change) -> None:
    if node.replaces and asked.kind is OperationKind.BOOTSTRAP:
        raise Rejected(f"node {node.id} was admitted to replace node {node.replaces}, not to join beside it")
    directory = cluster.directory
    if asked.kind is OperationKind.MOVE:
        if asked.tokens == node.tokens:
            raise Rejected(f"node {node.id} owns exactly these tokens")
        # It may keep some of its own.
        directory = directory.with_node(msgspec.structs.replace(node, tokens=()))
    if node.is_zero_token:
        if asked.kind is OperationKind.MOVE:
            raise Rejected(f"node {node.id} owns no tokens, so there is nothing to move")
        if asked.tokens:
            raise Rejected(f"node {node.id} joined to own no tokens")
        return
    refuse_bad_tokens(directory, asked.tokens)
    for operation in cluster.operations:
        taken = sorted(set(operation.tokens) & set(asked.tokens))
        if taken:
            raise Rejected(f"token {taken[0]} is wanted by {operation.title()}")


def _replaced_node(cluster: ClusterMetadata, node: NodeInfo, replaced: NodeId) -> NodeInfo:
    dead = cluster.node(replaced)
    if dead is None:
        raise Rejected(f"there is no node {replaced} to replace")
    running = next((o for o in cluster.operations if replaced in o.subjects), None)
    if running is not None:
        raise Rejected(f"node {replaced} takes part in {running.title()}", hint=_WAIT_OR_CANCEL)
    if dead.state is not NodeState.NORMAL:
        raise Rejected(f"only a normal node is replaced; node {replaced} is {dead.state}")
    if node.replaces not in (0, replaced):
        raise Rejected(f"node {node.id} was admitted to replace node {node.replaces}, not node {replaced}")
    if (dead.dc, dead.rack) != (node.dc, node.rack):
        raise Rejected(
            f"node {replaced} stands in {dead.dc}/{dead.rack}, its replacement in {node.dc}/{node.rack}",
            hint="a replacement takes over the place; remove the node and let the other join instead",
        )
    if node.is_zero_token == bool(dead.tokens):
        which = "owns tokens" if dead.tokens else "owns no tokens"
        raise Rejected(f"node {replaced} {which}, and node {node.id} joined otherwise")
    refuse_voter(cluster, dead)
    return dead


def refuse_voter(cluster: ClusterMetadata, node: NodeInfo) -> None:
    """Raises Rejected when the node still votes on the metadata."""
    if node.id in cluster.service.members:
        raise Rejected(
            f"node {node.id} is a voter of the metadata group",
            hint="`lockstep topology decommission` has it substituted first; "
            "`lockstep cms reconfigure` does when it is dead",
        )


def _check_leave(cluster: ClusterMetadata, node: NodeInfo) -> None:
    """Nodes that leave in other running operations are taken as gone, those that join as not there."""
    refuse_voter(cluster, node)
    if not node.tokens:
        return
    remaining = [n for n in cluster.directory.nodes if n.state in _STAYING and n.tokens and n.id != node.id]
    if not remaining:
        raise Rejected(f"node {node.id} is the last normal node that owns tokens")
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


def circle_with(directory: Directory, changes: Sequence[Change]) -> Circle:
    """The token owners once these operations have finished."""
    owners: dict[NodeId, Owner | None] = {}
    for change in changes:
        if change.kind is OperationKind.REBUILD:
            continue
        if change.replaced:
            owners[change.replaced] = None
        node = directory.by_id[change.node]
        leaves = change.kind in _SHRINKING
        owners[node.id] = None if leaves else Owner(node.id, node.dc, node.rack, change.tokens)
    return directory.circle.changed(owners)


def plan(cluster: ClusterMetadata, mine: Change) -> tuple[Transition, ...]:
    """The transitions of a new operation, by replication and range.

    Raises Rejected when a range is locked, when the outcome of a running operation would change the
    plan, when a step would let a read miss an acknowledged write, or when the node that is given up as
    dead has the only copies of some.
    """
    transitions: list[Transition] = []
    for replication in cluster.replications:
        deltas = _deltas(cluster.directory, replication, [], mine)
        _refuse_locked(cluster, replication, deltas)
        for done in _outcomes(_touching(cluster, replication, deltas, mine)):
            others = _deltas(cluster.directory, replication, done, mine)
            _refuse_locked(cluster, replication, others)
            if others != deltas:
                holders = ", ".join(operation.title() for operation in cluster.operations)
                raise Rejected(
                    f"the ranges of this {mine.kind} depend on how {holders} ends", hint="wait for its end"
                )
        transitions.extend(Transition(replication, d.range, d.old, d.new) for d in deltas)
    refuse_excluded_targets(cluster, transitions)
    for transition in differently_shaped(cluster, transitions):
        refuse_unsafe(cluster, mine.kind, transition)
    _refuse_lost_copies(cluster, mine, transitions)
    return tuple(transitions)


def refuse_excluded_targets(cluster: ClusterMetadata, transitions: Sequence[Transition]) -> None:
    """Raises Rejected when a node that is shut out would get a range: nobody would hear that it has it."""
    if not cluster.excluded:
        return
    for transition in transitions:
        for node in transition.gained:
            if node in cluster.excluded_by_node:
                where = f"range ({transition.range.left}, {transition.range.right}]"
                why = TABLE[Wanted.RING, Held.EXCLUSION].why
                raise Rejected(
                    f"{EXCLUDED.format(node=node)} and would get {where}: {why}",
                    hint=f"take it back (`lockstep topology exclude {node} --undo`), or remove it first",
                )


def _refuse_lost_copies(cluster: ClusterMetadata, mine: Change, transitions: Sequence[Transition]) -> None:
    dead = mine.node if mine.kind is OperationKind.REMOVE else mine.replaced
    dc_of = cluster.directory.dc_by_id.__getitem__
    for transition in transitions:
        if dead and lost_copies(transition, dc_of, dead, cluster.degraded):
            range_ = transition.range
            raise Rejected(
                f"only node {dead} is sure to have all of range ({range_.left}, {range_.right}] of "
                f"{transition.replication.strategy} with factor {transition.replication.total}",
                hint=f"bring node {dead} back, or give that up: `lockstep topology remove {dead} --force`",
            )


def _touching(
    cluster: ClusterMetadata, replication: Replication, deltas: Sequence[Delta], mine: Change
) -> list[Operation]:
    """Running operations whose outcome may change the plan; one that is rolling back never finishes.

    The replicas of a range follow from its own token and the replicas of the next range. So the changes of
    two operations do not see each other where neither changes a token in, or at the end of, a range that the
    other changes; those of a running one are what it locked.
    """
    directory = cluster.directory
    if not cluster.operations:
        return []
    moved = directory.circle.changed_tokens(circle_with(directory, [mine]))
    mine_closed = [delta.range for delta in deltas]
    found = []
    for operation in cluster.operations:
        if operation.stage is Stage.ROLLBACK_TO_NORMAL or operation.kind is OperationKind.REBUILD:
            continue
        theirs = directory.circle.changed_tokens(circle_with(directory, [change_of(operation)]))
        held = [t.range for t in operation.transitions if t.replication == replication]
        refilled = mine.kind is OperationKind.REBUILD and any(
            mine.node in t.new for t in operation.transitions if t.replication == replication
        )
        if refilled or any_within(theirs, mine_closed) or any_within(moved, held):
            found.append(operation)
    return found


def _outcomes(operations: Sequence[Operation]) -> Iterator[list[Change]]:
    """Every set of these that may finish, but the empty one."""
    for count in range(1, len(operations) + 1):
        for chosen in itertools.combinations(operations, count):
            yield [change_of(operation) for operation in chosen]


def _deltas(
    directory: Directory, replication: Replication, done: list[Change], mine: Change
) -> tuple[Delta, ...]:
    before = circle_with(directory, done)
    if mine.kind is OperationKind.REBUILD:
        own = ((range_, nodes) for range_, nodes in plan_of(replication, before) if mine.node in nodes)
        return tuple(Delta(range_, replicas, replicas) for range_, replicas in own)
    return changes(replication, before, circle_with(directory, [*done, mine]))


def _refuse_locked(cluster: ClusterMetadata, replication: Replication, deltas: Sequence[Delta]) -> None:
    wanted = [delta.range for delta in deltas]
    for lock in cluster.locks:
        held = first_shared([range_ for other, range_ in lock.ranges if other == replication], wanted)
        if held is not None:
            holder = cluster.operations_by_id[lock.operation_id]
            raise Rejected(
                f"{holder.title()} holds range ({held.left}, {held.right}] of {replication.strategy}",
                hint="wait for it to finish (`lockstep topology watch`) or cancel it",
            )


def differently_shaped(cluster: ClusterMetadata, transitions: Sequence[Transition]) -> list[Transition]:
    """One transition of each kind that a proof can tell apart."""
    dc_of = cluster.directory.dc_by_id.__getitem__
    found: dict[object, Transition] = {}
    for transition in transitions:
        shape = shape_of((transition.old, transition.new), dc_of)
        found.setdefault((transition.replication, transition.new_replication, shape), transition)
    return list(found.values())


def refuse_unsafe(cluster: ClusterMetadata, kind: OperationKind, transition: Transition) -> None:
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
    counts = replication_at(row, transition), replication_at(target, transition)
    refuse_unsafe_change(before, after, transition, dc_of, counts)


def refuse_unsafe_change(
    before: ReplicaGroup,
    after: ReplicaGroup,
    transition: Transition,
    dc_of: Callable[[NodeId], str],
    counts: tuple[Replication, Replication],
) -> None:
    """Raises Rejected unless coordinators at either group see each other's writes and no reader is new.

    `counts`: the replications that coordinators count by before and after.
    """
    where = f"range ({transition.range.left}, {transition.range.right}]"
    for reader in after.reads:
        if reader not in before.writes:
            raise Rejected(f"{where}: node {reader} would be read before it was written")
    found = adjacent_safe(before, after, counts[0], dc_of, counts[1])
    if found is not None:
        raise Rejected(f"{where}: {found.text()}")
