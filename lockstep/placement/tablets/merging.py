"""Bringing together tablets that are to be merged, and the map that a decision makes.

Invariant: a pair is merged when both have the same replicas on the same shards; until then the second one's
replicas follow the first one's, each to the nearest that is missing: on its own node, then in its rack. A
tablet that something else has, or that a drain concerns, waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lockstep.placement.tablets.load import Drain, Host
from lockstep.placement.tablets.map import TabletMap
from lockstep.placement.tablets.moves import Move, MoveKind, Why
from lockstep.placement.tablets.resize import Resize, ResizeKind
from lockstep.placement.tablets.shards import Replica
from lockstep.values.ids import NodeId


def pairs_of(map_: TabletMap, resize: Resize) -> list[tuple[int, int]]:
    """(last token, last token) of the tablets that a decision to merge makes one."""
    assert resize.kind is ResizeKind.MERGE, "pairs are merged"
    if resize.rights:
        return [(right, map_.at(right + 1).right) for right in resize.rights]
    return map_.siblings(resize.isolated)


def apart(map_: TabletMap, resize: Resize) -> list[tuple[int, int]]:
    """The pairs whose replicas are not yet in the same places."""
    return [pair for pair in pairs_of(map_, resize) if map_.merge_refusal(pair[0]) is not None]


def moves_together(
    map_: TabletMap,
    resize: Resize,
    hosts: Sequence[Host],
    busy: Iterable[tuple[int, int]],
    bytes_of: Mapping[int, int],
) -> list[Move]:
    """One move for each pair that is apart: a tablet has one transition at a time, so a pair comes together
    move by move. `bytes_of`: what a replica weighs, by last token."""
    by_node = {host.node: host for host in hosts}
    taken = dict.fromkeys(busy)
    found: list[Move] = []
    for left, right in apart(map_, resize):
        if (map_.id, left) in taken or (map_.id, right) in taken:
            continue
        first, second = map_.ending(left), map_.ending(right)
        assert first is not None and second is not None, "siblings are tablets of the map"
        nodes = (*first.nodes, *second.nodes)
        if any(not _is_settled(by_node.get(node)) for node in nodes):
            continue
        wanted = [one for one in first.replicas if one not in second.replicas]
        spare = [one for one in second.replicas if one not in first.replicas]
        assert len(wanted) == len(spare) > 0, "what is apart lies in as many other places"
        source, target = _nearest(spare, wanted, second.nodes, by_node)
        kind = MoveKind.INTRANODE if source[0] == target[0] else MoveKind.MIGRATION
        found.append(Move(kind, Why.MERGE, map_.id, right, source, target, bytes_of.get(right, 0)))
    return found


def _is_settled(host: Host | None) -> bool:
    return host is not None and host.drain is Drain.NONE and host.is_up and not host.is_excluded


def _nearest(
    spare: Sequence[Replica],
    wanted: Sequence[Replica],
    nodes: Sequence[NodeId],
    by_node: Mapping[NodeId, Host],
) -> tuple[Replica, Replica]:
    """Which replica goes where: to another shard of its node, else to a node that has none, in its rack if
    that is possible."""
    at = {one[0]: one for one in spare}
    for target in wanted:
        if target[0] in at:
            return at[target[0]], target
    # A node that has one and is wanted was found above.
    free = [one for one in wanted if one[0] not in nodes]
    pairs = [(source, target) for source in spare for target in free]
    assert pairs, "as many are wanted as are spare"

    def distance(pair: tuple[Replica, Replica]) -> tuple[bool, bool, tuple[Replica, Replica]]:
        one, two = by_node[pair[0][0]], by_node[pair[1][0]]
        return one.dc != two.dc, one.rack != two.rack, pair

    return min(pairs, key=distance)


def resized(map_: TabletMap, resize: Resize, epoch: int) -> TabletMap:
    """The map after a split of tablets that are ready, or a merge of pairs that are together."""
    if resize.kind is ResizeKind.SPLIT:
        return map_.split(resize.rights, epoch) if resize.rights else map_.split_all(epoch)
    return map_.merge([left for left, _ in pairs_of(map_, resize)], epoch)
