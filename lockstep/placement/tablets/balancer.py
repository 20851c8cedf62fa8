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

from lockstep.placement.tablets.map import Tablet, TabletMap
from lockstep.placement.tablets.moves import Move, MoveKind, Slots, duration_ms
from lockstep.placement.tablets.shards import Replica
from lockstep.placement.tablets.target import Cluster, DrainFailure, goal_of

#: Moves that one plan starts: one entry of the log begins them, and each costs a proof when it is applied.
PLAN_MOVES_MAX: Final = 512


class Target(msgspec.Struct, frozen=True):
    """What is left of a goal. `basis` is what it follows from; `maps` are those that it was computed for,
    which matters when nothing was left to do."""

    basis: tuple[Any, ...]
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
    follows from something else than there is now."""
    known = target if target is not None and _holds(target, cluster) else _target(cluster)
    chosen, left = _chosen(cluster, known.left)
    after = Target(known.basis, known.maps, left, known.failures, known.waits)
    return Plan(chosen, left, known.failures, known.waits), after


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
    hosts = tuple(sorted(cluster.hosts, key=lambda host: host.node))
    return hosts, tables, cluster.statistics.round, cluster.is_on


def _holds(target: Target, cluster: Cluster) -> bool:
    """Whether a target is still one: its basis is there and, once it is reached, the maps that it was
    computed for. While moves run, they change the maps as the target has it."""
    if target.basis != _basis(cluster):
        return False
    maps = [table.map for table in cluster.tables]
    return bool(target.left or cluster.running) or all(map(is_, maps, target.maps))


def _target(cluster: Cluster) -> Target:
    goal = goal_of(cluster)
    maps = tuple([table.map for table in cluster.tables])
    return Target(_basis(cluster), maps, goal.moves, goal.failures, goal.waits)


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
