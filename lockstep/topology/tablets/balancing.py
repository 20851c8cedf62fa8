"""What the balancer does next: from the metadata and what nodes said of their load to an entry of the log.

Invariant: the planner decides; this room puts its question and says its answer in entries. A plan is begun at
the epoch that it was made at or not at all. Statistics follow the moves that end until nodes are asked again.
What nodes are told of is never guessed: a live node that did not answer is neither source nor target.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.requests import Request, RequestState
from lockstep.metadata.tablets import TABLETS, Tablets
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.metadata.transitions import Lone
from lockstep.placement.placements import RingPlacement
from lockstep.placement.tablets import balancer
from lockstep.placement.tablets.balancer import Plan, Target
from lockstep.placement.tablets.load import (
    NO_LOAD,
    Drain,
    Host,
    LoadStatistics,
    NodeLoad,
    TabletLoad,
    is_measured,
)
from lockstep.placement.tablets.map import TabletMap
from lockstep.placement.tablets.moves import Move, MoveKind, Running, Why
from lockstep.placement.tablets.shards import Shards
from lockstep.placement.tablets.target import BalancedTable, Cluster
from lockstep.topology.kind import stage_row
from lockstep.topology.requests import FailRequest
from lockstep.topology.stages import Side
from lockstep.topology.tablets.drains import drained_by, drains, left_holders, wants_filling
from lockstep.topology.tablets.moves import BeginMoves, TabletMove
from lockstep.topology.tablets.recount import resting
from lockstep.topology.tablets.stages import goes_back
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import SERVICE_TEXT_CHARACTERS_MAX
from lockstep.values.node_limits import TARGET_TABLET_BYTES


class Planned(msgspec.Struct, frozen=True):
    """A plan, what it was made from, and what follows: the moves to begin, and requests that must fail.
    `waits`: what is not planned, and why."""

    cluster: Cluster
    plan: Plan
    target: Target
    begins: BeginMoves | None
    fails: tuple[FailRequest, ...]
    waits: tuple[str, ...]


class Planner:
    """The coordinator's memory of what it knows of load, and where it is heading."""

    def __init__(self, target_bytes: int = TARGET_TABLET_BYTES) -> None:
        self.statistics = LoadStatistics()
        self._target_bytes = target_bytes
        self._target: Target | None = None
        #: Whoever begins to plan finds a cluster that another one has made even, or was about to: what is
        #: left of that is more than chance, or does not matter.
        self._is_calm = True
        self._maps: dict[int, tuple[RingPlacement, Shards, TabletMap]] = {}
        self._running: dict[tuple[int, int], Running] = {}

    def refreshed(self, nodes: Mapping[NodeId, NodeLoad]) -> None:
        """All nodes were asked, and these answered."""
        self.statistics = self.statistics.refreshed(nodes)

    def look(self, cluster: ClusterMetadata, dead: Collection[NodeId]) -> Planned:
        """What there is to do; looking again comes to the same until something changes."""
        self._follow(cluster)
        asked = self._question(cluster, dead)
        plan, target = balancer.plan(asked, self._target)
        assert len(plan.moves) <= balancer.PLAN_MOVES_MAX, "an entry has room for the moves of a plan"
        moves = tuple([_entry(move) for move in plan.moves])
        assert len({(move.group, move.right) for move in moves}) == len(moves), (
            "a tablet has one move at a time"
        )
        fails, waits = _failures(cluster, plan, asked)
        begins = BeginMoves(cluster.epoch, moves) if moves and not cluster.service.frozen else None
        frozen = (f"the metadata is frozen: {cluster.service.frozen}",) if cluster.service.frozen else ()
        return Planned(
            asked, plan, target, begins, fails, (*frozen, *plan.waits, *waits, *_unmeasured(asked))
        )

    def begun(self, planned: Planned) -> None:
        """The moves of a plan are on their way, or there are none: what is left of the target comes next."""
        self._target = planned.target

    def refused(self) -> None:
        """The moves of a plan cannot be begun: the target is computed anew."""
        self._target, self._is_calm = None, False

    def _follow(self, cluster: ClusterMetadata) -> None:
        """Take in what has moved since the last look."""
        running = running_moves(cluster, self.statistics)
        for (group, right), one in self._running.items():
            if (group, right) in running or group not in cluster.tablets.by_group:
                continue
            source, target = one.move.source[0], one.move.target[0]
            reads = cluster.placements.ring(group).group_for(right).reads
            assert source != target or one.move.kind is MoveKind.INTRANODE, "only shards of one node share it"
            if source != target and target in reads and source not in reads:
                self.statistics = self.statistics.moved(group, right, source, target)
        self._running = running
        for ring, _, _ in self._maps.values():
            now = cluster.placements.by_id.get(ring.id)
            if now is not None and now.count != ring.count:
                self.statistics = recut(self.statistics, ring, now)

    def _question(self, cluster: ClusterMetadata, dead: Collection[NodeId]) -> Cluster:
        return Cluster(
            hosts=hosts_of(cluster, dead),
            tables=self._tables(cluster),
            statistics=self.statistics,
            running=tuple(self._running.values()),
            held=held_tablets_of(cluster, self._running),
            is_on=cluster.tablets.is_balanced,
            is_calm=self._is_calm and self._target is None,
        )

    def _tables(self, cluster: ClusterMetadata) -> tuple[BalancedTable, ...]:
        """The identical map as long as nothing of a group has changed, by which the planner knows that."""
        known, self._maps = self._maps, {}
        at_rest = resting(cluster)
        found = []
        for group in cluster.tablets.groups:
            ring = cluster.placements.ring(group.id)
            kept = known.get(group.id)
            if kept is None or kept[0] is not ring or kept[1] is not group.shards:
                kept = (ring, group.shards, group.map(cluster.placements))
            self._maps[group.id] = kept
            assert kept[2].id == group.id, "a map is that of its group"
            head = group.head
            found.append(
                BalancedTable(
                    kept[2],
                    lists=ring.replication.lists,
                    is_on=head.is_balanced and head.keyspace not in at_rest,
                    target_bytes=self._target_bytes,
                    resize=head.resizing.resize,
                    is_finalising=head.resizing.holds_still,
                )
            )
        return tuple(found)


def recut(statistics: LoadStatistics, before: RingPlacement, now: RingPlacement) -> LoadStatistics:
    """What is known once tablets were cut, or joined: halves share what a tablet had, a pair adds it up.
    Costs as many as there are tablets, and replicas that are known."""
    heirs = {placed.range.right: [now.range_at(placed.range.right).range.right] for placed in before.ranges}
    for placed in now.ranges:
        known = heirs[before.range_at(placed.range.right).range.right]
        if placed.range.right not in known:
            known.append(placed.range.right)
    assert before.id == now.id and len(heirs) == before.count, "one map after the other"
    nodes: dict[NodeId, NodeLoad] = {}
    for node, load in statistics.nodes.items():
        held: dict[int, TabletLoad] = {}
        for right, one in load.tablets.get(before.id, {}).items():
            for heir in heirs.get(right, ()):
                had, share = held.get(heir, NO_LOAD), len(heirs[right])
                held[heir] = TabletLoad(
                    had.bytes + one.bytes // share,
                    had.reads_per_s + one.reads_per_s / share,
                    had.writes_per_s + one.writes_per_s / share,
                )
        tablets = {**load.tablets, before.id: held} if before.id in load.tablets else load.tablets
        nodes[node] = msgspec.structs.replace(load, tablets=tablets)
    return msgspec.structs.replace(statistics, nodes=nodes)


def hosts_of(cluster: ClusterMetadata, dead: Collection[NodeId]) -> tuple[Host, ...]:
    """The nodes that may hold tablets, and those that hold some although they are gone, or on their way out:
    what a node that has left holds is built anew elsewhere."""
    leaving, holders = drains(cluster), left_holders(cluster)
    busy = {node for operation in cluster.operations for node in operation.about.nodes}
    busy.update(wants_filling(cluster))
    found = []
    for node in cluster.directory.nodes:
        has_left = node.state is NodeState.LEFT
        drain = Drain.REMOVE if has_left else leaving.get(node.id, Drain.NONE)
        if node.state is not NodeState.NORMAL and node.id not in holders and drain is Drain.NONE:
            continue
        if node.is_zero_token:
            continue
        found.append(
            Host(
                node.id,
                node.dc,
                node.rack,
                drain=drain,
                # Nothing is moved to a node, or from it, while its place in the ring changes or it is to be
                # filled anew.
                is_up=not has_left and node.id not in dead and node.id not in busy,
                is_excluded=has_left or node.id in cluster.excluded_by_node,
            )
        )
    assert len({host.node for host in found}) == len(found), "a node is one host"
    return tuple(found)


def running_moves(cluster: ClusterMetadata, statistics: LoadStatistics) -> dict[tuple[int, int], Running]:
    """The moves of tablets that go forward, by group and last token."""
    found: dict[tuple[int, int], Running] = {}
    if not cluster.transitions.lone_count:
        return found
    emptied, gone = drains(cluster), left_holders(cluster)
    for _, one in cluster.transitions.tree.items():
        if one.position is None or one.group not in cluster.tablets.by_group or goes_back(one):
            continue
        if len(one.lost) != 1 or len(one.gained) != 1:
            continue
        source, target = one.lost[0], one.gained[0]
        shards = cluster.tablets.by_group[one.group].map(cluster.placements).ending(one.range.right)
        shard_of = dict(shards.replicas) if shards is not None else {}
        assert source != target, "a move is to another node"
        is_lost = source in gone or emptied.get(source) is Drain.REMOVE
        to_shard = one.position.target[1] if one.position.target is not None else 0
        move = Move(
            MoveKind.REBUILD if is_lost else MoveKind.MIGRATION,
            Why.BALANCE,
            one.group,
            one.range.right,
            (source, shard_of.get(source, 0)),
            (target, to_shard),
            statistics.tablet(one.group, one.range.right, one.old).bytes,
        )
        row = stage_row(Lone(one))
        found[one.group, one.range.right] = Running(move, is_streaming=row.reads is Side.OLD)
    return found


def held_tablets_of(
    cluster: ClusterMetadata, running: Mapping[tuple[int, int], Running]
) -> dict[tuple[int, int], str]:
    """Tablets that something else has than a move that goes forward, by group and last token."""
    held: dict[tuple[int, int], str] = {}
    for _, one in cluster.transitions.tree.items() if cluster.transitions.count else ():
        key = (one.group, one.range.right)
        if one.group in cluster.tablets.by_group and key not in running:
            operation = cluster.operations_by_id.get(one.operation_id)
            held[key] = operation.title() if operation is not None else Lone(one).title()
    for repair in cluster.repairs.running:
        for part in repair.parts:
            if part.group in cluster.tablets.by_group:
                ring = cluster.placements.ring(part.group)
                for range_ in part.ranges:
                    for placed in ring.overlapping(range_):
                        held[part.group, placed.range.right] = repair.title()
    return held


def _entry(move: Move) -> TabletMove:
    return TabletMove(move.group, move.right, move.kind.name.lower(), move.source, move.target)


def _draining(cluster: ClusterMetadata) -> dict[NodeId, Request]:
    """Queued requests by the node that they empty."""
    return {
        node: request
        for request in cluster.requests.live
        if request.state is RequestState.QUEUED and (node := drained_by(request))
    }


def _failures(
    cluster: ClusterMetadata, plan: Plan, asked: Cluster
) -> tuple[tuple[FailRequest, ...], tuple[str, ...]]:
    """The requests that cannot be, and what only waits for a node that is down."""
    queued = _draining(cluster)
    hosts = {host.node: host for host in asked.hosts}
    fails: list[FailRequest] = []
    waits: list[str] = []
    for one in plan.failures:
        group = cluster.tablets.by_group[one.group].head
        where = f"the tablet of {group.keyspace}.{group.table} that ends at {one.right}"
        text = f"{where} cannot leave node {one.node}: {one.reason}"
        dc = hosts[one.node].dc
        down = [
            host.node
            for host in asked.hosts
            if host.dc == dc and host.drain is Drain.NONE and not host.is_up and not host.is_excluded
        ]
        request = queued.get(one.node)
        if request is None or down:
            waits.append(f"{text}; node {down[0]} is down, or changes its place" if down else text)
        else:
            fails.append(FailRequest(request.id, text[:SERVICE_TEXT_CHARACTERS_MAX]))
    # What is in the way of one may be that another one goes: the last that was asked for makes room.
    return tuple(sorted(fails, key=lambda fail: fail.request_id)[-1:]), tuple(waits)


def _unmeasured(asked: Cluster) -> tuple[str, ...]:
    return tuple(
        f"node {host.node} has no statistics: nothing moves to it, or from it"
        for host in asked.hosts
        if host.drain is Drain.NONE and not is_measured(host, asked.statistics)
    )


class SetBalancing(msgspec.Struct, frozen=True, array_like=True):
    """Have tablets moved to even out the load, or not: those of one tablet group, or with group 0 all.

    It changes what is moved for balance, never what is emptied, or built anew."""

    is_on: bool
    group: int = 0

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        tablets = cluster.tablets
        if not self.group:
            if tablets.is_balanced is self.is_on:
                raise Rejected(f"the balancer is {_word(self.is_on)} already")
            return cluster.changed(TABLETS.set(Tablets(tablets.by_group, self.is_on)))
        group = tablets.by_group.get(self.group)
        if group is None:
            raise Rejected(f"there is no tablet group {self.group}")
        if group.head.is_balanced is self.is_on:
            name = f"{group.head.keyspace}.{group.head.table}"
            raise Rejected(f"the balancer is {_word(self.is_on)} for {name} already")
        head = msgspec.structs.replace(group.head, is_balanced=self.is_on)
        changed = msgspec.structs.replace(group, head=head)
        return cluster.changed(TABLETS.set(tablets.with_groups((changed,))))


def _word(is_on: bool) -> str:
    return "on" if is_on else "off"


KINDS: Final[Mapping[int, type[Any]]] = {EntryKind.SET_BALANCING: SetBalancing}
