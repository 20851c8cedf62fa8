"""Plans: which of the moves toward a target are to be started now.

Invariants. A plan starts at most one move of a tablet, none of one that is on its way or that something else
has, and none that a shard has no slot for. The target is kept from plan to plan, while what it follows from
stays: each plan makes what is left of it shorter, so that plans end after at most as many moves as the target
has; a target that is computed at another place on the way lowers the same measures. Drains come first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, Final

import msgspec

from lockstep.placement.tablets.load import Drain, is_measured
from lockstep.placement.tablets.map import Tablet, TabletMap
from lockstep.placement.tablets.moves import Move, MoveKind, Slots, duration_ms
from lockstep.placement.tablets.shards import Replica
from lockstep.placement.tablets.target import DISK_SHARE_MAX, Cluster, DrainFailure, goal_of
from lockstep.values.ids import NodeId

#: Moves that one plan starts: one entry of the log begins them, and each costs a proof when it is applied.
PLAN_MOVES_MAX: Final = 512


class Target(msgspec.Struct, frozen=True):
    """What is left of a goal. `places` are those that tablets may lie in, `basis` what it follows from
    besides, and `round` the statistics; `seen_round` are the newest in which there was room for it. `maps`
    are those that it was computed for, which matters when nothing was left to do. `is_calm`: it was computed
    for a cluster that was."""

    places: tuple[Any, ...]
    basis: tuple[Any, ...]
    round: int
    seen_round: int
    is_calm: bool
    maps: tuple[TabletMap, ...]
    left: tuple[Move, ...]
    failures: tuple[DrainFailure, ...]
    waits: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True):
    """`moves` are to be started, `left` are still to come. `failures`: drains that cannot be; `waits`: what
    is not planned, and why."""

    moves: tuple[Move, ...]
    left: tuple[Move, ...]
    failures: tuple[DrainFailure, ...]
    waits: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        return not self.moves and not self.left

    @property
    def bytes(self) -> int:
        return sum(move.bytes for move in (*self.moves, *self.left))

    def remaining_ms(self, bytes_per_s: int) -> int:
        """How long all of it takes when every shard streams at this rate."""
        return duration_ms((*self.moves, *self.left), bytes_per_s)


def plan(cluster: Cluster, target: Target | None = None) -> tuple[Plan, Target]:
    """What to start now, and the target to give to the next call. Without one it is computed, as is one that
    follows from something else than there is now.

    While tablets may lie in the places that a target was for, the cluster is calm: what new statistics or
    other tablets lead to moves nothing for what may be chance."""
    known = target if target is not None and _holds(target, cluster) else None
    if known is None:
        is_calm = target is not None and _is_calm(target, cluster)
        known = _target(msgspec.structs.replace(cluster, is_calm=True) if is_calm else cluster)
    chosen, left = _chosen(cluster, known.left)
    assert known.places == _places(cluster), "a target is for the places that there are"
    after = msgspec.structs.replace(known, seen_round=cluster.statistics.round, left=left)
    return Plan(chosen, left, known.failures, known.waits), after


def _places(cluster: Cluster) -> tuple[Any, ...]:
    """Where tablets may lie, if all nodes are up; one that comes, or is to go, begins a target that is as
    even as can be."""
    hosts = [
        (host.node, host.dc, host.rack, host.shards, is_measured(host, cluster.statistics))
        for host in sorted(cluster.hosts, key=lambda host: host.node)
        if host.drain is Drain.NONE and not host.is_excluded
    ]
    return cluster.is_on, tuple(hosts)


def _basis(cluster: Cluster) -> tuple[Any, ...]:
    tables = tuple(
        [
            (
                *(table.map.id, table.map.count, table.is_on, table.target_bytes, table.lists),
                *(table.resize, table.is_finalising),
            )
            for table in cluster.tables
        ]
    )
    hosts = sorted([(host.node, host.drain, host.is_up, host.is_excluded) for host in cluster.hosts])
    return tables, tuple(hosts)


def _holds(target: Target, cluster: Cluster) -> bool:
    """Whether a target is still one: what it follows from is there and, once it is reached, the statistics
    and maps that it was computed for. While there is something left of it, new statistics do not make another
    one: it would be as good, and what was moved for this one in vain. While moves run, they change the maps
    as the target has it."""
    if target.places != _places(cluster) or target.basis != _basis(cluster):
        return False
    if target.left:
        return target.seen_round == cluster.statistics.round or _has_room(target, cluster)
    if target.round != cluster.statistics.round:
        return False
    maps = [table.map for table in cluster.tables]
    return bool(cluster.running) or all(map(is_, maps, target.maps))


def _is_calm(target: Target, cluster: Cluster) -> bool:
    """Whether a target that is none any more was for the places that there are: then what it made even, or
    was about to, is uneven by what is new alone. One that was reached is looked at once more from where it
    led to, for the same numbers: so another planner comes to the same."""
    if target.places != _places(cluster):
        return False
    is_news = target.round != cluster.statistics.round or target.basis != _basis(cluster)
    return is_news or target.is_calm


def _has_room(target: Target, cluster: Cluster) -> bool:
    """Whether nodes can take what is left for them, by what they hold now."""
    coming: dict[NodeId, int] = {}
    for move in target.left:
        if move.kind is not MoveKind.INTRANODE:
            coming[move.target[0]] = coming.get(move.target[0], 0) + move.bytes
    for node, size in coming.items():
        known = cluster.statistics.nodes[node]
        held = sum([load.bytes for loads in known.tablets.values() for load in loads.values()])
        if held + size > DISK_SHARE_MAX * known.capacity_bytes:
            return False
    return True


def _target(cluster: Cluster) -> Target:
    goal = goal_of(cluster)
    maps = tuple([table.map for table in cluster.tables])
    return Target(
        places=_places(cluster),
        basis=_basis(cluster),
        round=cluster.statistics.round,
        seen_round=cluster.statistics.round,
        is_calm=cluster.is_calm,
        maps=maps,
        left=goal.moves,
        failures=goal.failures,
        waits=goal.waits,
    )


def _chosen(cluster: Cluster, wanted: Sequence[Move]) -> tuple[tuple[Move, ...], tuple[Move, ...]]:
    """The moves that can be started now, and those left for later; what came otherwise is in neither."""
    maps = {table.map.id: table.map for table in cluster.tables}
    slots = Slots(cluster.running)
    busy = dict.fromkeys([(one.move.group, one.move.right) for one in cluster.running])
    lost = {host.node: None for host in cluster.hosts if host.is_excluded or not host.is_up}
    chosen: list[Move] = []
    left: list[Move] = []
    for move in wanted:
        key = (move.group, move.right)
        if key in busy or key in cluster.held or slots.is_full(move.target) or len(chosen) == PLAN_MOVES_MAX:
            left.append(move)
            continue
        if move.kind is not MoveKind.REBUILD and not slots.has_room(move, move.source):
            left.append(move)
            continue
        tablet = maps[move.group].ending(move.right)
        if tablet is None or refusal(move, tablet) is not None:
            continue
        if slots.admit(move, _reader(move, tablet, lost)):
            chosen.append(move)
            busy[key] = None
        else:
            left.append(move)
    assert len({(move.group, move.right) for move in chosen}) == len(chosen), "a tablet moves once at a time"
    assert len(chosen) + len(left) <= len(wanted), "nothing moves that was not wanted"
    return tuple(chosen), tuple(left)


def refusal(move: Move, tablet: Tablet) -> str | None:
    """Why a move of a tablet cannot be; the checks of a place are those of whoever chose it."""
    if move.source not in tablet.replicas:
        return f"node {move.source[0]}, shard {move.source[1]}, has no replica of it"
    if move.target[0] in tablet.nodes and move.target[0] != move.source[0]:
        return f"node {move.target[0]} has a replica of it already"
    if move.target == move.source:
        return "it is there already"
    return None


def _reader(move: Move, tablet: Tablet, lost: Mapping[Any, None]) -> Replica:
    """Whom the newcomer streams from: the replica that goes, or, if that is lost, the first other one."""
    if move.kind is not MoveKind.REBUILD:
        return move.source
    assert move.source in tablet.replicas, "what goes is there"
    others = [one for one in tablet.replicas if one != move.source and one[0] not in lost]
    return others[0] if others else move.source
