"""What must hold at every epoch and between neighbouring epochs, as functions that list violations.

Ids are those of the design: PLC-1 replicas and coverage, PLC-2 adjacent quorums, PLC-3 (static half) new
readers were writers, PLC-4 stale coordinators, OP-1 operations and the ranges they hold, REQ-1 and REQ-2
requests (see topology.request_invariants). Used by checkers and tests, never by production decisions; counts
are made independently of the code that computed the placements.

What must hold of requests at every epoch and between neighbours, as a function that lists violations.

REQ-1: a request goes from queued to running to one end, or from queued to an end, never back (but for a
change of replication that rests between two steps), and what ended never changes. REQ-2: no operation without
its request, none for two, and one live request a node.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import Directory, NodeState
from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.requests import Request, RequestState
from lockstep.metadata.transitions import Lone, Transition
from lockstep.placement.placements import PlacedRange, ReplicaGroup, RingPlacement
from lockstep.placement.quorums import adjacent_safe, dc_factors, intersects, majority
from lockstep.schema.model import Replication
from lockstep.topology.kind import Mover, kind_of, moves_nothing, stage_row
from lockstep.topology.planning import holder_of
from lockstep.topology.stages import Side
from lockstep.values.hash_tree import changed
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range

_NEXT = {
    RequestState.QUEUED: (
        RequestState.QUEUED,
        RequestState.RUNNING,
        RequestState.FAILED,
        RequestState.CANCELLED,
    ),
    RequestState.RUNNING: (
        RequestState.RUNNING,
        RequestState.DONE,
        RequestState.FAILED,
        RequestState.CANCELLED,
    ),
}


def check_requests(before: ClusterMetadata, after: ClusterMetadata) -> tuple[str, ...]:
    """REQ-1 and REQ-2 for `after` and the step from `before` to it."""
    if before.requests is after.requests and before.operations is after.operations:
        return ()
    return (*_steps(before, after), *_holders(after))


def _steps(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[str]:
    now = after.requests.by_id
    for old in before.requests.live:
        new = now.get(old.id)
        if new is None:
            yield f"REQ-1: {old.title()} was {old.state} and is forgotten"
        elif new.state not in _NEXT[old.state] and not _rests(old, new):
            yield f"REQ-1: {old.title()} went from {old.state} to {new.state}"
        elif old.body != new.body:
            yield f"REQ-1: {old.title()} asks for something else now"
        elif not new.is_live and new.ended_epoch != after.epoch:
            yield f"REQ-1: {old.title()} ended at {after.epoch} and says {new.ended_epoch}"
    for ended in before.requests.ended:
        if ended.id in now and now[ended.id] != ended:
            yield f"REQ-1: {ended.title()} changed after its end"
    known = before.requests.by_id
    for request in now.values():
        if request.id not in known and request.id < before.requests.next_id:
            yield f"REQ-1: {request.title()} came back"


def _rests(old: Request, new: Request) -> bool:
    return old.about.is_global and new.state is RequestState.QUEUED and new.original is not None


def _holders(cluster: ClusterMetadata) -> Iterator[str]:
    running = [r for r in cluster.requests.live if r.state is RequestState.RUNNING]
    held = Counter(request.operation_id for request in running)
    for operation in cluster.operations:
        if held.pop(operation.id, 0) != 1:
            yield f"REQ-2: {operation.title()} has not exactly one request"
    yield from (f"REQ-2: operation {number} has ended, its request has not" for number in held)
    yield from _crowded(cluster.requests.live)


def _crowded(live: tuple[Request, ...]) -> Iterator[str]:
    keyspaces = Counter(request.about.keyspace for request in live if request.about.keyspace)
    yield from (
        f"REQ-2: keyspace {name} has {count} requests" for name, count in keyspaces.items() if count > 1
    )
    nodes = Counter(node for request in live for node in request.about.nodes)
    yield from (f"REQ-2: node {node} has {count} requests" for node, count in nodes.items() if count > 1)


def violations(before: ClusterMetadata, after: ClusterMetadata) -> tuple[str, ...]:
    """Everything wrong with `after` and with the step from `before` to it (adjacent epochs)."""
    return (
        *check_replica_counts(after),
        *check_transitions(after),
        *check_adjacent(before, after),
        *check_endings(before, after),
        *check_requests(before, after),
    )


def check_replica_counts(cluster: ClusterMetadata) -> tuple[str, ...]:
    """PLC-1: full coverage; min(factor, eligible) readers (per data centre); writers as the stage says."""
    found: list[str] = []
    by_group = _by_group(cluster)
    for ring in cluster.placements.rings:
        try:
            ring.validate()
        except AssertionError as problem:
            found.append(f"PLC-1: {problem}")
            continue
        transitions = by_group.get(ring.id, [])
        rights = [transition.range.right for transition in transitions]
        for placed in ring.ranges:
            at = bisect_right(rights, placed.range.left)
            moving = itertools.takewhile(
                lambda t, placed=placed: t.range.intersects(placed.range),  # type: ignore[misc]
                itertools.islice(transitions, at, None),
            )
            found.extend(_range_problems(cluster, ring, placed, list(moving)))
    return tuple(found)


def _by_group(cluster: ClusterMetadata) -> dict[int, list[Transition]]:
    """All transitions, and those that an operation has and a look-up does not find, by group and range."""
    everyone = {one: None for _, one in cluster.transitions.tree.items()}
    for operation_id in cluster.transitions.owned:
        everyone.update(dict.fromkeys(cluster.transitions.of(operation_id)))
    found: dict[int, list[Transition]] = {}
    for one in sorted(everyone, key=lambda t: (t.group, t.range.right, t.range.left)):
        found.setdefault(one.group, []).append(one)
    return found


def _range_problems(
    cluster: ClusterMetadata, ring: RingPlacement, placed: PlacedRange, moving: Sequence[Transition]
) -> Iterator[str]:
    replication = ring.replication
    where = f"PLC-1: {replication.strategy} ({placed.range.left}, {placed.range.right}]"
    if len(moving) > 1:
        yield f"{where}: changed by {holder_of(cluster, moving[0])} and {holder_of(cluster, moving[1])}"
        return
    mover = _mover_of(cluster, moving[0]) if moving else None
    if ring.id in cluster.tablets.by_group:
        yield from _tablet_problems(where, replication, placed, moving[0] if moving else None)
        yield from _writer_problems(where, placed.group, mover, moving[0] if moving else None)
        return
    eligible = _eligible(cluster.directory, mover)
    for dc, factor in dc_factors(replication) or (("", replication.total),):
        readers = [n for n in placed.group.reads if dc in ("", cluster.directory.dc_by_id[n])]
        expected = min(factor, sum(1 for home in eligible.values() if dc in ("", home)))
        if len(readers) != expected:
            yield f"{where}: {len(readers)} readers {dc} {readers}, {expected} expected"
    yield from _writer_problems(where, placed.group, mover, moving[0] if moving else None)


def _tablet_problems(
    where: str, replication: Replication, placed: PlacedRange, moving: Transition | None
) -> Iterator[str]:
    """A tablet has exactly as many readers as copies are wanted, whoever else could be one, and while it
    moves at most one writer beside them."""
    reads, writes = placed.group.reads, placed.group.writes
    if len(reads) != replication.total or len(set(reads)) != len(reads):
        yield f"{where}: a tablet has readers {reads}, {replication.total} expected"
    pending = 1 if moving is not None else 0
    if len(set(writes) - set(reads)) > pending:
        yield f"{where}: a tablet has writers {writes} beside readers {reads}"


def _mover_of(cluster: ClusterMetadata, transition: Transition) -> Mover | None:
    """Whose stages the transition goes through; None when its operation has ended."""
    if transition.position is not None:
        return Lone(transition)
    return cluster.operations_by_id.get(transition.operation_id)


def _writer_problems(
    where: str, group: ReplicaGroup, mover: Mover | None, transition: Transition | None
) -> Iterator[str]:
    if mover is None or transition is None:
        if group.reads != group.writes:
            yield f"{where}: readers {group.reads} and writers {group.writes} differ outside an operation"
        return
    row = stage_row(mover)
    readers = transition.new if row.reads is Side.NEW else transition.old
    both = set(transition.old) | set(transition.new)
    writers = {Side.OLD: set(transition.old), Side.NEW: set(transition.new), Side.UNION: both}[row.writes]
    if set(group.reads) != set(readers) or set(group.writes) != writers:
        yield f"{where}: {group} is not what {mover.stage} says"


def _eligible(directory: Directory, mover: Mover | None) -> dict[NodeId, str]:
    """Node -> data centre of those that can be readers at the stage."""
    eligible = {node.id: node.dc for node in directory.nodes if node.owns_tokens}
    about = mover.about if mover is not None else None
    if mover is not None and about is not None and about.nodes and stage_row(mover).reads is Side.NEW:
        eligible.pop(about.departing, None)
        if about.departing != about.node:
            eligible[about.node] = directory.by_id[about.node].dc
    return eligible


def check_transitions(cluster: ClusterMetadata) -> tuple[str, ...]:
    """OP-1, in one value: who holds ranges runs, and holds each placed range alone."""
    found: list[str] = []
    for operation in cluster.operations:
        found.extend(kind_of(operation).running_problems(cluster, operation))
    running = {operation.id for operation in cluster.operations}
    gone = set(cluster.transitions.owned) - running
    found.extend(f"OP-1: operation {one} has ended and holds ranges" for one in sorted(gone))
    for group, transitions in _by_group(cluster).items():
        ring = cluster.placements.by_id.get(group)
        for one, next_ in itertools.pairwise(transitions):
            if one.range.intersects(next_.range):
                ids = sorted((one.operation_id, next_.operation_id))
                found.append(f"OP-1: operations {ids[0]} and {ids[1]} hold one range")
        for one in transitions:
            where = f"({one.range.left}, {one.range.right}]"
            if ring is None or ring.range_at(one.range.right).range != one.range:
                found.append(f"OP-1: {where} of group {group} is on its way, and no placed range")
            elif cluster.transitions.at(group, one.range.right) is not one:
                found.append(f"OP-1: {where} of operation {one.operation_id} is not found as its range's")
    return tuple(found)


def _followed(before: ClusterMetadata, after: ClusterMetadata) -> list[tuple[int, int]]:
    """(then, now) of the groups that stayed, and of those that keyspaces with data went from and to."""
    pairs = {(ring.id, ring.id): None for ring in after.placements.rings}
    for now in after.schema.keyspaces:
        then = before.schema.by_name.get(now.name)
        changes = now.group in after.recounting or (then is not None and then.group in before.recounting)
        if then is not None and then.group and now.group and (then.by_name or changes):
            pairs[then.group, now.group] = None
    return list(pairs)


def _changed_at(group: ReplicaGroup, cluster: ClusterMetadata, keyspace: str) -> int:
    """The newest epoch that matters to a request for the group: replicas refuse what was planned before."""
    return max(group.epoch, cluster.schema.by_name[keyspace].epoch) if keyspace else group.epoch


def check_adjacent(before: ClusterMetadata, after: ClusterMetadata) -> tuple[str, ...]:
    """PLC-2 and the static half of PLC-3 for every range whose group changed."""
    found: list[str] = []
    dc_of = after.directory.dc_by_id.__getitem__
    for then, now in _followed(before, after):
        ring = after.placements.ring(now)
        former = before.placements.by_id.get(then)
        if former is None or former is ring:
            continue
        recounts = then in before.recounting or now in after.recounting
        later = ring.replication if recounts or former.replication != ring.replication else None
        for range_, old, new in overlaid(former, ring):
            if (old.reads, old.writes) == (new.reads, new.writes) and former.replication == ring.replication:
                continue
            where = f"({range_.left}, {range_.right}]"
            if new.epoch == after.epoch and given_up(after, ring.id, range_, before.epoch):
                continue
            fresh = [node for node in new.reads if node not in old.writes]
            if fresh:
                found.append(f"PLC-3: {where} is read from {fresh}, which got no writes before")
            missed = adjacent_safe(old, new, former.replication, dc_of, later)
            if missed is not None:
                found.append(f"PLC-2: {where} {missed.text()}")
            if new.epoch != after.epoch and (recounts or then == now):
                found.append(f"PLC-2: {where} changed at {after.epoch} and says {new.epoch}")
    return tuple(found)


def given_up(cluster: ClusterMetadata, group: int, range_: Range, since: int = 0) -> bool:
    """Whether a node of the range was given up without its data later than `since`: it promises no more."""
    return any(
        one.group == group and one.since_epoch > since and one.range.intersects(range_)
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
        kind, about = kind_of(operation), operation.about
        found.extend(kind.end_problems(before, after, operation))
        if kind.ring is None:
            continue
        node = after.directory.by_id[about.node]
        if operation.stage is Stage.ROLLBACK_TO_NORMAL:
            side, state = Side.OLD, kind.ring.needs
        else:
            gone = about.departing == about.node
            side, state = Side.NEW, NodeState.LEFT if gone else NodeState.NORMAL
            if about.replaced and after.directory.by_id[about.replaced].state is not NodeState.LEFT:
                found.append(f"OP-1: {operation.title()} left the replaced node in the ring")
            if not gone and node.tokens != operation.tokens:
                found.append(f"OP-1: {operation.title()} left its node without its tokens")
        if stage_row(operation).next is not None and not moves_nothing(operation):
            found.append(f"OP-1: {operation.title()} ended in stage {operation.stage}")
        if node.state is not state:
            found.append(f"OP-1: {operation.title()} left its node {node.state}")
        found.extend(_restored(before, after, operation, side))
    return (*found, *_lone_endings(before, after))


def _lone_endings(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[str]:
    """What moved by itself ends in a last stage, with the replicas of that."""
    for _, was, now in changed(before.transitions.tree, after.transitions.tree):
        if was is None or was.position is None or now is not None:
            continue
        lone = Lone(was)
        row = stage_row(lone)
        if row.next is not None:
            yield f"OP-1: the {lone.title()} ended in stage {lone.stage}"
        wanted = was.old if row.reads is Side.OLD else was.new
        group = after.placements.ring(was.group).range_at(was.range.right).group
        if group.reads != wanted or group.writes != wanted:
            yield f"OP-1: the {lone.title()} left {group}, not {wanted}"


def _restored(
    before: ClusterMetadata, after: ClusterMetadata, operation: Operation, side: Side
) -> Iterator[str]:
    for transition in before.transitions.of(operation.id):
        wanted = transition.old if side is Side.OLD else transition.new
        for placed in after.placements.ring(transition.group).overlapping(transition.range):
            if placed.group.reads != wanted or placed.group.writes != wanted:
                yield f"OP-1: {operation.title()} left {placed}, not {wanted}"


def check_restored(before: ClusterMetadata, after: ClusterMetadata) -> tuple[str, ...]:
    """OP-1 for a cancelled operation: placements, owners and held ranges are those before it was prepared."""
    found: list[str] = []
    if before.directory.owners != after.directory.owners:
        found.append("OP-1: the token owners differ after a cancel")
    if before.transitions.tree != after.transitions.tree:
        found.append("OP-1: the ranges on their way differ after a cancel")
    if _shape(before) != _shape(after):
        found.append("OP-1: the placements differ after a cancel")
    return tuple(found)


def _shape(cluster: ClusterMetadata) -> list[tuple[Replication, Range, tuple[int, ...], tuple[int, ...]]]:
    return [
        (ring.replication, placed.range, placed.group.reads, placed.group.writes)
        for ring in sorted(cluster.placements.rings, key=attrgetter("replication"))
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
    for keyspace, group in _groups_by_keyspace(newest):
        ring = newest.placements.ring(group)
        for stale in reversed(history[:-1]):
            former = _ring_then(stale, keyspace, group)
            if former is None:
                break
            for range_, old, new in overlaid(former, ring):
                planned = _changed_at(old, stale, keyspace)
                if planned == _changed_at(new, newest, keyspace):
                    continue
                if given_up(newest, ring.id, range_, stale.epoch):
                    continue
                willing = [
                    node
                    for node in old.writes
                    if _willing(
                        history[max(seen.get(node, oldest), oldest) - oldest],
                        (keyspace, group),
                        range_,
                        planned,
                    )
                ]
                where = f"PLC-4: ({range_.left}, {range_.right}]", stale.epoch
                found.extend(
                    _stale_problems(newest, where, (former.replication, ring.replication), old, new, willing)
                )
    return tuple(found)


def _groups_by_keyspace(cluster: ClusterMetadata) -> list[tuple[str, int]]:
    """Each group by itself (""), and that of every keyspace with tables, which goes from group to group."""
    groups = [("", ring.id) for ring in cluster.placements.rings]
    placed = (keyspace for keyspace in cluster.schema.keyspaces if keyspace.group)
    followed = (k for k in placed if k.by_name or k.group in cluster.recounting)
    return groups + [(keyspace.name, keyspace.group) for keyspace in followed]


def _ring_then(stale: ClusterMetadata, keyspace: str, group: int) -> RingPlacement | None:
    if not keyspace:
        return stale.placements.by_id.get(group)
    then = stale.schema.by_name.get(keyspace)
    if then is None or not (then.by_name or then.group in stale.recounting):
        return None
    return stale.placements.by_id.get(then.group)


def _willing(known: ClusterMetadata, wanted: tuple[str, int], range_: Range, planned: int) -> bool:
    """Whether a replica that knows `known` takes a request for a group that had changed at `planned`."""
    keyspace, group = wanted
    mine = _ring_then(known, keyspace, group)
    return mine is None or _changed_at(mine.group_for(range_.right), known, keyspace) <= planned


def _stale_problems(
    newest: ClusterMetadata,
    at: tuple[str, int],
    counts: tuple[Replication, Replication],
    old: ReplicaGroup,
    new: ReplicaGroup,
    willing: Sequence[NodeId],
) -> Iterator[str]:
    dc_of, (then, now) = newest.directory.dc_by_id, counts
    before, after = dict(dc_factors(then)), dict(dc_factors(now))
    both = ((dc, before[dc], after[dc]) for dc in before if dc in after)
    for dc, stale_factor, factor in (("", then.total, now.total), *both):

        def local(nodes: Sequence[NodeId], dc: str = dc) -> list[NodeId]:
            return [node for node in nodes if dc in ("", dc_of[node])]

        stale_count, count = majority(stale_factor), majority(factor)
        readers = local([node for node in old.reads if node in willing])
        where = f"{at[0]} {dc} at epoch {at[1]}"
        if not intersects(readers, stale_count, local(new.writes), count + len(local(new.write_only))):
            yield f"{where}: a stale read misses the newest write"
        writers = local([node for node in old.writes if node in willing])
        acknowledged = stale_count + len(local(old.write_only))
        if not intersects(local(new.reads), count, writers, acknowledged):
            yield f"{where}: the newest read misses a stale write"
