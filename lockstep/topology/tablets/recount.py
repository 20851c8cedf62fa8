"""The change of the replication of a keyspace with tablets: its steps, and who has each tablet after one.

Invariant: a step changes the factor of one data centre by one, so a tablet has at most one replica that comes
or one that goes; all tablets of the keyspace take it together, and count by one factor at any time. What a
step does follows from the metadata as it begins: by then tablets lie elsewhere than when it was asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.schema_part import PLACEMENTS, SCHEMA
from lockstep.metadata.tablet_groups import racks_missed
from lockstep.metadata.tablets import TABLETS, TabletGroup
from lockstep.metadata.transitions import Lone, Transition
from lockstep.placement.quorums import dc_factors
from lockstep.placement.tablets.allocate import NotPlaceable
from lockstep.placement.tablets.recount import Nodes, Places, one_less, one_more
from lockstep.schema.model import Keyspace, Replication
from lockstep.topology.planning import PAUSED, refuse_unsafe
from lockstep.topology.stages import RANGE_MOVEMENT
from lockstep.topology.tablets.drains import drained_by, held_by_node
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range


def refuse_too_many(cluster: ClusterMetadata, keyspace: Keyspace, target: Replication) -> None:
    """Raises Rejected where a data centre has less nodes than each tablet is to have replicas there."""
    owners: dict[str, int] = {}
    for owner in cluster.directory.owners:
        owners[owner.dc] = owners.get(owner.dc, 0) + 1
    for dc, factor in dc_factors(target):
        if factor > max(owners.get(dc, 0), dict(dc_factors(keyspace.replication)).get(dc, 0)):
            raise Rejected(
                f"data centre {dc} has {owners.get(dc, 0)} nodes, and each tablet of keyspace "
                f"{keyspace.name} would have {factor} replicas there",
                cql_code=0x2300,
                keyspace=keyspace.name,
                hint="let more nodes join first (`lockstep cluster add`), or use a smaller factor",
            )


def refuse_moving(cluster: ClusterMetadata, keyspace: Keyspace) -> None:
    """Raises Rejected while tablets of the keyspace move by themselves: a tablet moves once at a time."""
    if not cluster.transitions.lone_count:
        return
    moving = [one for _, one in cluster.transitions.tree.items() if one.group in keyspace.groups]
    if moving:
        first = min(moving, key=lambda one: (one.group, one.range.right))
        raise Rejected(
            f"{PAUSED}{len(moving)} tablets of keyspace {keyspace.name} move, the first in {_title(first)}",
            hint="a request that may wait begins when none does",
        )


def _title(one: Transition) -> str:
    assert one.position is not None, "what moves by itself has its own stage"
    return Lone(one).title()


def resting(cluster: ClusterMetadata) -> frozenset[str]:
    """The keyspaces where nothing moves for balance: those whose replication is to change, or changes and is
    paused between two steps, and those that may go back to the ring."""
    asked = {request.about.keyspace for request in cluster.requests.live if request.about.keyspace}
    heads = {group.head.keyspace for group in cluster.tablets.groups}
    spaces = [cluster.schema.by_name[name] for name in sorted(heads)]
    return frozenset(
        space.name for space in spaces if space.name in asked or (space.tablets and space.tablets.from_ring)
    )


# A step


def step_between(before: Replication, after: Replication) -> tuple[str, int]:
    """(data centre, 1 or -1) in which the two differ."""
    was, now = dict(dc_factors(before)), dict(dc_factors(after))
    found = [(dc, now.get(dc, 0) - was.get(dc, 0)) for dc in sorted({*was, *now})]
    changed = [one for one in found if one[1]]
    assert len(changed) == 1 and abs(changed[0][1]) == 1, "a step changes one factor by one"
    return changed[0]


def tablet_transitions(
    cluster: ClusterMetadata, keyspace: Keyspace, before: Replication, after: Replication
) -> tuple[Transition, ...]:
    """One for each tablet of the keyspace, by group and range; Rejected where one has no place to go to."""
    dc, change = step_between(before, after)
    places, everywhere, racks = _places(cluster), _held(cluster), after.wanted_racks(dc)
    found: list[Transition] = []
    for group in sorted(keyspace.groups):
        ring = cluster.placements.ring(group)
        own = held_by_node(ring)
        others = {node: count - own.get(node, 0) for node, count in everywhere.items()}
        tablets = [placed.group.reads for placed in ring.ranges]
        made = (one_more if change > 0 else one_less)(tablets, dc, places, others, racks)
        if isinstance(made, NotPlaceable):
            table = cluster.tablets.by_group[group].head.table
            raise Rejected(
                f"{PAUSED}table {keyspace.name}.{table}: {made.reason}",
                hint="it goes on when there is a node for it; `lockstep topology cancel` takes it back",
            )
        for placed, new in zip(ring.ranges, made, strict=True):
            assert placed.group.reads == placed.group.writes, "between two steps tablets are at rest"
            found.append(Transition(group, placed.range, placed.group.reads, new, before, after))
        everywhere = others
        for node in itertools.chain(*made):
            everywhere[node] = everywhere.get(node, 0) + 1
    return tuple(found)


def _places(cluster: ClusterMetadata) -> Places:
    directory = cluster.directory
    leaving = {drained_by(request) for request in cluster.requests.live}
    busy = {node for operation in cluster.operations for node in operation.about.nodes}
    barred = {*leaving, *busy, *cluster.not_served}
    open_to = [
        node.id for node in directory.in_state(NodeState.NORMAL) if node.tokens and node.id not in barred
    ]
    gone = {node.id for node in directory.nodes if node.state is NodeState.LEFT}
    return Places(
        directory.dc_by_id,
        {node.id: node.rack for node in directory.nodes},
        frozenset(open_to),
        frozenset({*gone, *leaving, *cluster.excluded_by_node}),
    )


def _held(cluster: ClusterMetadata) -> dict[NodeId, int]:
    """How many tablets each node has."""
    found: dict[NodeId, int] = {}
    for group in cluster.tablets.by_group:
        for node, count in held_by_node(cluster.placements.ring(group)).items():
            found[node] = found.get(node, 0) + count
    return found


def detour(cluster: ClusterMetadata, keyspace: Keyspace, target: Replication) -> Replication:
    """The factors that the way to a list of racks goes over: so many more that each tablet has a replica in
    each rack of the list, before those elsewhere go. Rejected where there are less nodes."""
    now, wanted = dict(keyspace.replication.factors), dict(target.factors)
    nodes: dict[str, int] = {}
    for owner in cluster.directory.owners:
        nodes[owner.dc] = nodes.get(owner.dc, 0) + 1
    most: dict[str, int] = {}
    for dc in sorted({*now, *wanted}):
        missed = racks_missed(cluster, keyspace, dc, target.wanted_racks(dc)) if dc in now else 0
        most[dc] = max(now.get(dc, 0) + missed, wanted.get(dc, 0))
        if missed and most[dc] > max(nodes.get(dc, 0), now[dc]):
            raise Rejected(
                f"tablets of keyspace {keyspace.name} miss {missed} of the racks of {dc}: on the way there "
                f"each has {most[dc]} replicas, and the data centre has {nodes.get(dc, 0)} nodes",
                cql_code=0x2300,
                keyspace=keyspace.name,
                hint="let more nodes join first (`lockstep cluster add`)",
            )
    assert all(most[dc] >= factor for dc, factor in (*now.items(), *wanted.items())), "first more, then less"
    factors = tuple((dc, factor) for dc, factor in most.items() if factor)
    return msgspec.structs.replace(target, counts=factors)


def prove_counts(cluster: ClusterMetadata, before: Replication, after: Replication) -> None:
    """Raises Rejected unless the step is safe for every tablet that has as many replicas as factors say: only
    how many there are in each data centre tells."""
    dc, change = step_between(before, after)
    more, less = (after, before) if change > 0 else (before, after)
    there: dict[str, list[NodeId]] = {}
    for node in cluster.directory.nodes:
        there.setdefault(node.dc, []).append(node.id)
    most = _sample(more, there)
    least: Sequence[NodeId] = [node for node in most if node != there[dc][dict(more.factors)[dc] - 1]]
    assert len(least) == less.total, "one replica less"
    ends: tuple[Nodes, Nodes] = (tuple(least), most) if change > 0 else (most, tuple(least))
    whole = Range(TOKEN_MIN, TOKEN_MAX)
    refuse_unsafe(cluster, RANGE_MOVEMENT, Transition(0, whole, *ends, before, after))


def _sample(replication: Replication, there: Mapping[str, Sequence[NodeId]]) -> Nodes:
    found: list[NodeId] = []
    for dc, factor in dc_factors(replication):
        nodes = there.get(dc, ())
        if len(nodes) < factor:
            raise Rejected(f"data centre {dc} has never had {factor} nodes")
        found.extend(nodes[:factor])
    return tuple(found)


def refuse_emptied_rack(cluster: ClusterMetadata, node: NodeId) -> None:
    """Raises Rejected for what makes a node leave that is the last of a rack of a list."""
    info = cluster.node(node)
    if info is None or not cluster.tablets.by_group:
        return
    assert info.id == node, "a node is known by its id"
    leaving = {drained_by(request) for request in cluster.requests.live}
    others = [
        one.id
        for one in cluster.directory.in_state(NodeState.NORMAL)
        if (one.dc, one.rack) == (info.dc, info.rack) and one.tokens and one.id not in {node, *leaving}
    ]
    for keyspace in cluster.schema.keyspaces if not others else ():
        if info.rack in keyspace.replication.wanted_racks(info.dc):
            raise Rejected(
                f"node {node} is the last of rack {info.rack} of data centre {info.dc}, which is to have a "
                f"replica of each tablet of keyspace {keyspace.name}",
                keyspace=keyspace.name,
                hint="let another node join in this rack first, or ALTER KEYSPACE without it",
            )


def recounted_tablets(
    cluster: ClusterMetadata, keyspace: Keyspace, to: Replication, epoch: int
) -> ClusterMetadata:
    """The value with another replication of the keyspace and all its groups, every tablet changed at
    `epoch`."""
    changed = msgspec.structs.replace(keyspace, replication=to, epoch=epoch)
    rings = [cluster.placements.ring(group).recounted(to, epoch) for group in sorted(keyspace.groups)]
    value: ClusterMetadata = cluster.changed(
        SCHEMA.set(cluster.schema.with_keyspace(changed)),
        PLACEMENTS.set(cluster.placements.with_rings(rings)),
    )
    return value


def without_stray_shards(cluster: ClusterMetadata, keyspace: Keyspace) -> ClusterMetadata:
    """The value without the shards of replicas that tablets of the keyspace have no more."""
    found = []
    for group_id in sorted(keyspace.groups):
        group, ring = cluster.tablets.by_group[group_id], cluster.placements.ring(group_id)
        edits = {
            right: tuple(one for one in known if one[0] in ring.range_at(right).group.writes)
            for right, known in group.shards.everything().items()
        }
        shards = group.shards.changed(edits)
        if shards is not group.shards:
            found.append(TabletGroup(group.head, shards))
    value: ClusterMetadata = cluster.changed(TABLETS.set(cluster.tablets.with_groups(found)))
    return value if found else cluster
