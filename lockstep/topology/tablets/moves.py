"""The entry by which replicas of tablets begin to move, and what refuses it.

Invariant: all moves of an entry begin or none; each is proved through every stage that it may go through
before it begins. The replicas stay as they are in the first stage. A tablet has one move at a time, and what
begins names what was there: a plan is refused at another epoch than its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.tablets import TabletGroup
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.metadata.transitions import TRANSITIONS, Position, Transition
from lockstep.placement.tablets.map import Tablet
from lockstep.placement.tablets.shards import Replica
from lockstep.topology.lone_steps import entered
from lockstep.topology.planning import differently_shaped, holder_of, refuse_unsafe
from lockstep.topology.stages import Course
from lockstep.topology.tablets import stages as courses
from lockstep.topology.tablets.resizes import refuse_held_still
from lockstep.topology.tablets.stages import INTRANODE
from lockstep.values import node_limits
from lockstep.values.errors import Rejected
from lockstep.values.node_limits import MOVES_BEGUN_MAX

_WAIT: Final = "wait for its end (`lockstep tablets list KEYSPACE.TABLE` shows it)"
_FORCE: Final = "`--force` moves it all the same"


class TabletMove(msgspec.Struct, frozen=True, array_like=True):
    """The replica `source` of the tablet of `group` with the last token `right` becomes `target`; `kind`
    names a course."""

    group: int
    right: int
    kind: str
    source: Replica
    target: Replica


class BeginMoves(msgspec.Struct, frozen=True, array_like=True):
    """`plan_epoch`: the epoch of the value for which the moves were planned; 0 for an operator's, at whatever
    epoch. `force`: also to another data centre, and to where a rack has more replicas of a tablet then."""

    plan_epoch: int
    moves: tuple[TabletMove, ...]
    force: bool = False

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        self._refuse(cluster)
        begun: dict[int, Transition] = {}
        by_course: dict[str, list[Transition]] = {}
        for move in self.moves:
            tablet = _tablet_of(cluster, move)
            refuse_held_still(cluster, _group_of(cluster, move), move.source[0])
            _refuse_held(cluster, move, tablet)
            _refuse_move(cluster, move, tablet)
            if not self.force:
                _refuse_apart(cluster, move, tablet)
            one = _first(cluster, move, tablet, epoch)
            if one.key in begun:
                raise Rejected(f"{_where(cluster, move)} moves once at a time")
            begun[one.key] = one
            by_course.setdefault(move.kind, []).append(one)
        assert len(begun) == len(self.moves), "all moves of an entry begin"
        for name, transitions in by_course.items():
            for one in differently_shaped(cluster, transitions):
                refuse_unsafe(cluster, courses.COURSES[name].stages, one)
        return cluster.changed(TRANSITIONS.set(cluster.transitions.moved(list(begun.values()))))

    def _refuse(self, cluster: ClusterMetadata) -> None:
        if self.plan_epoch and self.plan_epoch != cluster.epoch:
            raise Rejected(f"planned at epoch {self.plan_epoch}, and it is {cluster.epoch} by now")
        if not 0 < len(self.moves) <= MOVES_BEGUN_MAX:
            raise Rejected(f"1 to {MOVES_BEGUN_MAX} tablets begin to move at once")
        if cluster.service.frozen:
            raise Rejected(
                f"no tablet moves while the metadata is frozen: {cluster.service.frozen}",
                hint="`lockstep cms thaw`",
            )


def _where(cluster: ClusterMetadata, move: TabletMove) -> str:
    """The tablet, as people refer to it."""
    group = _group_of(cluster, move)
    return f"the tablet of {group.head.keyspace}.{group.head.table} up to {move.right}"


def _group_of(cluster: ClusterMetadata, move: TabletMove) -> TabletGroup:
    group = cluster.tablets.by_group.get(move.group)
    if group is None:
        raise Rejected(
            f"group {move.group} is of no table with tablets",
            hint="`lockstep tablets list` shows the tables that have tablets",
        )
    return group


def _course_of(move: TabletMove) -> Course:
    found = courses.COURSES.get(move.kind)
    if found is None:
        raise Rejected(
            f"tablets do not move by {move.kind!r}", hint=f"there are: {', '.join(courses.COURSES)}"
        )
    return found


def _tablet_of(cluster: ClusterMetadata, move: TabletMove) -> Tablet:
    group = _group_of(cluster, move)
    tablet = group.map(cluster.placements).ending(move.right)
    if tablet is None:
        raise Rejected(
            f"no tablet of {group.head.keyspace}.{group.head.table} ends at {move.right}",
            hint=f"`lockstep tablets list {group.head.keyspace}.{group.head.table}` shows them",
        )
    return tablet


def _refuse_held(cluster: ClusterMetadata, move: TabletMove, tablet: Tablet) -> None:
    held = cluster.transitions.at(move.group, move.right)
    if held is not None:
        stage = f", in {held.position.stage}" if held.position is not None else ""
        raise Rejected(
            f"{_where(cluster, move)} is on its way: {holder_of(cluster, held)}{stage}", hint=_WAIT
        )
    for repair in cluster.repairs.running:
        for part in repair.parts:
            if part.group == move.group and any(one.intersects(tablet.range) for one in part.ranges):
                raise Rejected(
                    f"{_where(cluster, move)} is held by {repair.title()}",
                    hint="wait for its end (`lockstep repair status`)",
                )


def _refuse_move(cluster: ClusterMetadata, move: TabletMove, tablet: Tablet) -> None:
    """What force does not help against."""
    course, where = _course_of(move), _where(cluster, move)
    (source, source_shard), (target, target_shard) = move.source, move.target
    inside = course is INTRANODE
    if source not in tablet.nodes or (inside and move.source not in tablet.replicas):
        raise Rejected(
            f"node {source} has no replica of {where}",
            hint=f"it is on {', '.join(f'node {node}' for node in tablet.nodes)}",
        )
    for node, shard in (move.source, move.target):
        if not 0 <= shard < node_limits.SHARDS_PER_NODE:
            raise Rejected(
                f"node {node} has no shard {shard}",
                hint=f"nodes have {node_limits.SHARDS_PER_NODE}, counted from 0",
            )
    if inside and (source != target or source_shard == target_shard):
        raise Rejected(f"{where}: an {course.name} move is from one shard to another of the same node")
    if not inside and target in tablet.nodes:
        raise Rejected(
            f"node {target} has a replica of {where} already", hint="choose a node that has none of it"
        )
    _refuse_target(cluster, move)
    by_id, ring = cluster.directory.by_id, cluster.placements.ring(move.group)
    if ring.replication.has_witnesses and by_id[source].dc != by_id[target].dc:
        raise Rejected(
            f"{where} has witnesses, whose numbers are of each data centre: no replica goes to another one",
            hint=f"choose a node of data centre {by_id[source].dc}",
        )


def _refuse_target(cluster: ClusterMetadata, move: TabletMove) -> None:
    target = move.target[0]
    node = cluster.node(target)
    if node is None:
        raise Rejected(f"there is no node {target}", hint="`lockstep status` lists the nodes")
    if target in cluster.excluded_by_node:
        raise Rejected(
            f"node {target} is excluded and gets no tablet",
            hint=f"take it back: `lockstep topology exclude {target} --undo`",
        )
    if node.state is not NodeState.NORMAL:
        raise Rejected(f"node {target} is {node.state}; only a normal node gets tablets")
    if not node.tokens:
        raise Rejected(f"node {target} has no tokens, so it stores nothing")
    running = next((one for one in cluster.operations if target in one.about.nodes), None)
    if running is not None:
        raise Rejected(f"node {target} takes part in {running.title()}", hint="wait for its end")
    leaving = next((r for r in cluster.requests.live if r.about.departing == target), None)
    if leaving is not None:
        raise Rejected(f"node {target} is to leave: {leaving.title()}", hint="choose another node")


def _refuse_apart(cluster: ClusterMetadata, move: TabletMove, tablet: Tablet) -> None:
    """Raises Rejected where replicas would be less apart than they are."""
    by_id = cluster.directory.by_id
    before, after = by_id[move.source[0]], by_id[move.target[0]]
    if before.dc != after.dc:
        raise Rejected(
            f"node {after.id} is in data centre {after.dc}, and the replica is of {before.dc}", hint=_FORCE
        )
    if before.rack == after.rack:
        return
    listed = cluster.placements.ring(move.group).replication.wanted_racks(before.dc)
    if before.rack in listed:
        raise Rejected(
            f"rack {before.rack} is to have a replica of {_where(cluster, move)}, and node {after.id} is in "
            f"rack {after.rack}",
            hint="choose a node of the same rack, or ALTER KEYSPACE",
        )
    there = _in_rack(by_id, tablet, after)
    if there + 1 > max(_in_rack(by_id, tablet, by_id[node]) for node in tablet.nodes):
        raise Rejected(
            f"rack {after.rack} would hold {there + 1} replicas of {_where(cluster, move)}, "
            "and no rack holds so many now",
            hint=_FORCE,
        )


def _in_rack(by_id: Mapping[Any, NodeInfo], tablet: Tablet, like: NodeInfo) -> int:
    return sum((by_id[node].dc, by_id[node].rack) == (like.dc, like.rack) for node in tablet.nodes)


def _first(cluster: ClusterMetadata, move: TabletMove, tablet: Tablet, epoch: int) -> Transition:
    """Its transition, in the first stage; the newcomer has the place of the other."""
    ring, course = cluster.placements.ring(move.group), _course_of(move)
    group = ring.range_at(move.right).group
    assert group.reads == group.writes, "what is not on its way is read where it is written"
    first = course.stages[0].stage
    new = _replaced(group.reads, move)
    assert (new == group.reads) is (course is INTRANODE), "another node gets it, but for another shard of one"
    position = Position(course.name, first, epoch, target=move.target)
    one = Transition(move.group, tablet.range, group.reads, new, ring.replication, position=position)
    return entered(one, first, epoch)


def _replaced(nodes: Sequence[Any], move: TabletMove) -> tuple[Any, ...]:
    assert move.source[0] in nodes, "who gives a tablet up has it"
    new = tuple(move.target[0] if node == move.source[0] else node for node in nodes)
    assert len(set(new)) == len(nodes), "a node has a tablet once"
    return new


KINDS: Final[Mapping[int, type[Any]]] = {EntryKind.BEGIN_MOVES: BeginMoves}
