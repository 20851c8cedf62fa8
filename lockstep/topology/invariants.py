"""What must hold at every epoch and between neighbouring epochs, as functions that list violations.

Ids are those of the design: PLC-1 replicas and coverage, PLC-2 adjacent quorums, PLC-3 (static half) new
readers were writers, PLC-4 stale coordinators, OP-1 locks and operations, REQ-1 and REQ-2 requests (see
topology.request_invariants). Used by checkers and tests, never by production decisions; counts are made
independently of the code that computed the placements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import Directory, NodeState
from lockstep.metadata.operations import Operation, OperationKind, Stage, Transition
from lockstep.placement.placements import PlacedRange, ReplicaGroup, RingPlacement
from lockstep.placement.quorums import adjacent_safe, dc_factors, intersects, majority
from lockstep.schema.model import Replication
from lockstep.topology.request_invariants import check_requests
from lockstep.topology.stages import Side, stage_row
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range


def violations(before: ClusterMetadata, after: ClusterMetadata) -> tuple[str, ...]:
    """Everything wrong with `after` and with the step from `before` to it (adjacent epochs)."""
    return (
        *check_replica_counts(after),
        *check_locks(after),
        *check_adjacent(before, after),
        *check_endings(before, after),
        *check_requests(before, after),
    )


def check_replica_counts(cluster: ClusterMetadata) -> tuple[str, ...]:
    """PLC-1: full coverage; min(factor, eligible) readers (per data centre); writers as the stage says."""
    found: list[str] = []
    for ring in cluster.placements.rings:
        try:
            ring.validate()
        except AssertionError as problem:
            found.append(f"PLC-1: {problem}")
            continue
        for placed in ring.ranges:
            found.extend(_range_problems(cluster, ring.replication, placed))
    return tuple(found)


def _range_problems(cluster: ClusterMetadata, replication: Replication, placed: PlacedRange) -> Iterator[str]:
    where = f"PLC-1: {replication.strategy} ({placed.range.left}, {placed.range.right}]"
    moving = [(o, t) for o, t in _transitions(cluster, replication) if t.range.intersects(placed.range)]
    if len(moving) > 1:
        yield f"{where}: changed by {moving[0][0].title()} and {moving[1][0].title()}"
        return
    operation, transition = moving[0] if moving else (None, None)
    eligible = _eligible(cluster.directory, operation)
    for dc, factor in dc_factors(replication) or (("", replication.total),):
        readers = [n for n in placed.group.reads if dc in ("", cluster.directory.dc_by_id[n])]
        expected = min(factor, sum(1 for home in eligible.values() if dc in ("", home)))
        if len(readers) != expected:
            yield f"{where}: {len(readers)} readers {dc} {readers}, {expected} expected"
    yield from _writer_problems(where, placed.group, operation, transition)


def _writer_problems(
    where: str, group: ReplicaGroup, operation: Operation | None, transition: Transition | None
) -> Iterator[str]:
    if operation is None or transition is None:
        if group.reads != group.writes:
            yield f"{where}: readers {group.reads} and writers {group.writes} differ outside an operation"
        return
    row = stage_row(operation.kind, operation.stage)
    readers = transition.new if row.reads is Side.NEW else transition.old
    both = set(transition.old) | set(transition.new)
    writers = {Side.OLD: set(transition.old), Side.NEW: set(transition.new), Side.UNION: both}[row.writes]
    if set(group.reads) != set(readers) or set(group.writes) != writers:
        yield f"{where}: {group} is not what {operation.stage} says"


def _eligible(directory: Directory, operation: Operation | None) -> dict[NodeId, str]:
    """Node -> data centre of those that can be readers at the operation's stage."""
    eligible = {node.id: node.dc for node in directory.nodes if node.owns_tokens}
    if operation is not None and stage_row(operation.kind, operation.stage).reads is Side.NEW:
        if operation.kind in (OperationKind.DECOMMISSION, OperationKind.REMOVE):
            eligible.pop(operation.node, None)
        else:
            eligible.pop(operation.replaced, None)
            eligible[operation.node] = directory.by_id[operation.node].dc
    return eligible


def _transitions(
    cluster: ClusterMetadata, replication: Replication
) -> Iterator[tuple[Operation, Transition]]:
    for operation in cluster.operations:
        for transition in operation.transitions:
            if transition.replication == replication:
                yield operation, transition


def check_locks(cluster: ClusterMetadata) -> tuple[str, ...]:
    """OP-1, in one value: locks are exactly the transitions of the operations, and disjoint."""
    found: list[str] = []
    locks = {lock.operation_id: lock for lock in cluster.locks}
    if sorted(locks) != [operation.id for operation in cluster.operations]:
        found.append(f"OP-1: locks of {sorted(locks)}, operations {[o.id for o in cluster.operations]}")
    for operation in cluster.operations:
        lock = locks.get(operation.id)
        wanted = tuple((t.replication, t.range) for t in operation.transitions)
        if lock is not None and lock.ranges != wanted:
            found.append(f"OP-1: the lock of {operation.title()} is not its ranges")
    for at, lock in enumerate(cluster.locks):
        for other in cluster.locks[at + 1 :]:
            if any(other.conflict(replication, range_) for replication, range_ in lock.ranges):
                found.append(f"OP-1: operations {lock.operation_id} and {other.operation_id} lock one range")
    return tuple(found)


def check_adjacent(before: ClusterMetadata, after: ClusterMetadata) -> tuple[str, ...]:
    """PLC-2 and the static half of PLC-3 for every range whose group changed."""
    found: list[str] = []
    dc_of = after.directory.dc_by_id.__getitem__
    for ring in after.placements.rings:
        former = before.placements.by_replication.get(ring.replication)
        if former is None or former is ring:
            continue
        for range_, old, new in overlaid(former, ring):
            if (old.reads, old.writes) == (new.reads, new.writes):
                continue
            where = f"({range_.left}, {range_.right}]"
            if new.epoch == after.epoch and given_up(after, ring.replication, range_, before.epoch):
                continue
            fresh = [node for node in new.reads if node not in old.writes]
            if fresh:
                found.append(f"PLC-3: {where} is read from {fresh}, which got no writes before")
            missed = adjacent_safe(old, new, ring.replication, dc_of)
            if missed is not None:
                found.append(f"PLC-2: {where} {missed.text()}")
            if new.epoch != after.epoch:
                found.append(f"PLC-2: {where} changed at {after.epoch} and says {new.epoch}")
    return tuple(found)


def given_up(cluster: ClusterMetadata, replication: Replication, range_: Range, since: int = 0) -> bool:
    """Whether a node of the range was given up without its data later than `since`: it promises no more."""
    return any(
        one.replication == replication and one.since_epoch > since and one.range.intersects(range_)
        for one in cluster.degraded
    )


def overlaid(one: RingPlacement, other: RingPlacement) -> Iterator[tuple[Range, ReplicaGroup, ReplicaGroup]]:
    """Both rings cut at the bounds of both."""
    at = to = 0
    while at < len(one.ranges) and to < len(other.ranges):
        mine, theirs = one.ranges[at], other.ranges[to]
        shared = mine.range.intersection(theirs.range)
        if shared is not None:
            yield shared, mine.group, theirs.group
        at += mine.range.right <= theirs.range.right
        to += theirs.range.right <= mine.range.right


def check_endings(before: ClusterMetadata, after: ClusterMetadata) -> tuple[str, ...]:
    """OP-1, at the end of an operation: only from a last stage; a cancelled one leaves no trace."""
    found: list[str] = []
    for operation in before.operations:
        if operation.id in after.operations_by_id:
            continue
        node = after.directory.by_id[operation.node]
        if operation.stage is Stage.ROLLBACK_TO_NORMAL:
            newcomer = operation.kind in (OperationKind.BOOTSTRAP, OperationKind.REPLACE)
            side, states = Side.OLD, (NodeState.NONE if newcomer else NodeState.NORMAL,)
        else:
            gone = operation.kind in (OperationKind.DECOMMISSION, OperationKind.REMOVE)
            side, states = Side.NEW, (NodeState.LEFT if gone else NodeState.NORMAL,)
            if operation.replaced and after.directory.by_id[operation.replaced].state is not NodeState.LEFT:
                found.append(f"OP-1: {operation.title()} left the replaced node in the ring")
            if not gone and node.tokens != operation.tokens:
                found.append(f"OP-1: {operation.title()} left its node without its tokens")
        if stage_row(operation.kind, operation.stage).next is not None and not operation.moves_nothing:
            found.append(f"OP-1: {operation.title()} ended in stage {operation.stage}")
        if node.state not in states:
            found.append(f"OP-1: {operation.title()} left its node {node.state}")
        found.extend(_restored(after, operation, side))
    return tuple(found)


def _restored(after: ClusterMetadata, operation: Operation, side: Side) -> Iterator[str]:
    for transition in operation.transitions:
        wanted = transition.old if side is Side.OLD else transition.new
        for placed in after.placements.ring(transition.replication).overlapping(transition.range):
            if placed.group.reads != wanted or placed.group.writes != wanted:
                yield f"OP-1: {operation.title()} left {placed}, not {wanted}"


def check_restored(before: ClusterMetadata, after: ClusterMetadata) -> tuple[str, ...]:
    """OP-1 for a cancelled operation: placements, owners and locks are those before it was prepared."""
    found: list[str] = []
    if before.directory.owners != after.directory.owners:
        found.append("OP-1: the token owners differ after a cancel")
    if before.locks != after.locks:
        found.append("OP-1: the locks differ after a cancel")
    if _shape(before) != _shape(after):
        found.append("OP-1: the placements differ after a cancel")
    return tuple(found)


def _shape(cluster: ClusterMetadata) -> list[tuple[Replication, Range, tuple[int, ...], tuple[int, ...]]]:
    return [
        (ring.replication, placed.range, placed.group.reads, placed.group.writes)
        for ring in cluster.placements.rings
        for placed in ring.ranges
    ]


def check_stale_coordinators(
    history: Sequence[ClusterMetadata], seen: Mapping[NodeId, int]
) -> tuple[str, ...]:
    """PLC-4: no coordinator at any epoch of `history` can miss, or be missed by, the newest quorum.

    `seen` is the epoch each node is at; a replica refuses a request planned before a change of the
    range that it knows. Epochs of `history` are dense; nodes without an entry have seen the oldest.
    """
    newest, oldest = history[-1], history[0].epoch
    found: list[str] = []
    for ring in newest.placements.rings:
        for stale in reversed(history[:-1]):
            former = stale.placements.by_replication.get(ring.replication)
            if former is None:
                break
            for range_, old, new in overlaid(former, ring):
                if old.epoch == new.epoch or given_up(newest, ring.replication, range_, stale.epoch):
                    continue
                willing = [
                    node
                    for node in old.writes
                    if _willing(history[max(seen.get(node, oldest), oldest) - oldest], ring, range_, old)
                ]
                found.extend(_stale_problems(newest, stale.epoch, ring, range_, old, new, willing))
    return tuple(found)


def _willing(known: ClusterMetadata, ring: RingPlacement, range_: Range, planned: ReplicaGroup) -> bool:
    """Whether a replica that knows `known` takes a request planned with `planned`."""
    mine = known.placements.by_replication.get(ring.replication)
    return mine is None or mine.group_for(range_.right).epoch <= planned.epoch


def _stale_problems(
    newest: ClusterMetadata,
    epoch: int,
    ring: RingPlacement,
    range_: Range,
    old: ReplicaGroup,
    new: ReplicaGroup,
    willing: Sequence[NodeId],
) -> Iterator[str]:
    dc_of, replication = newest.directory.dc_by_id, ring.replication
    for dc, factor in (("", replication.total), *dc_factors(replication)):

        def local(nodes: Sequence[NodeId], dc: str = dc) -> list[NodeId]:
            return [node for node in nodes if dc in ("", dc_of[node])]

        count = majority(factor)
        readers = local([node for node in old.reads if node in willing])
        where = f"PLC-4: ({range_.left}, {range_.right}] {dc} at epoch {epoch}"
        if not intersects(readers, count, local(new.writes), count + len(local(new.write_only))):
            yield f"{where}: a stale read misses the newest write"
        writers = local([node for node in old.writes if node in willing])
        if not intersects(local(new.reads), count, writers, count + len(local(old.write_only))):
            yield f"{where}: the newest read misses a stale write"
