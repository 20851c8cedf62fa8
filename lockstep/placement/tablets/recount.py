"""Who gets one more replica of each tablet of a table, and who gives one up, in one data centre.

Invariant: what is decided follows from the arguments alone, so every node decides the same; statistics
are not asked. A tablet gets its replica in the rack that has fewest of it, and gives one up where there are
most, or where none should be any more; between such nodes the table stays as evenly spread as it was. What
is left over, the balancer evens out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from lockstep.placement.tablets.allocate import NotPlaceable
from lockstep.values.ids import NodeId

Nodes = tuple[NodeId, ...]


class Places(msgspec.Struct, frozen=True):
    """`dc` and `rack` of every node that there ever was. `open_to`: the nodes that may get tablets;
    `unwanted`: those that are to have none."""

    dc: Mapping[NodeId, str]
    rack: Mapping[NodeId, str]
    open_to: Collection[NodeId]
    unwanted: Collection[NodeId] = ()


class _Counts:
    """How many tablets nodes have while replicas are dealt out: of this table, and of others."""

    def __init__(self, tablets: Sequence[Nodes], others: Mapping[NodeId, int]) -> None:
        self.own: dict[NodeId, int] = {}
        self.others = others
        for nodes in tablets:
            for node in nodes:
                self.add(node, 1)

    def add(self, node: NodeId, count: int) -> None:
        self.own[node] = self.own.get(node, 0) + count
        assert self.own[node] >= 0, "nobody gives up what it does not have"

    def of(self, node: NodeId) -> tuple[int, int]:
        return self.own.get(node, 0), self.others.get(node, 0)


def one_more(
    tablets: Sequence[Nodes],
    dc: str,
    places: Places,
    others: Mapping[NodeId, int],
    racks: Collection[str] = (),
) -> list[Nodes] | NotPlaceable:
    """The replicas of each tablet with one more in the data centre, which comes last; in one of `racks`
    that has none of it, where there is such a one. `others`: how many tablets of other tables nodes have."""
    there = sorted(node for node in places.open_to if places.dc[node] == dc)
    counts = _Counts(tablets, others)
    found: list[Nodes] = []
    for nodes in tablets:
        left = [node for node in there if node not in nodes]
        in_rack = _by_rack(nodes, dc, places)
        missing = [rack for rack in racks if rack not in in_rack]
        if missing:
            left = [node for node in left if places.rack[node] in missing]
        if not left and missing:
            return NotPlaceable(
                f"no node of rack {' or '.join(missing)} of data centre {dc} can get one more replica of a "
                f"tablet that nodes {', '.join(map(str, nodes))} have"
            )
        if not left:
            return NotPlaceable(
                f"no node of data centre {dc} can get one more replica of a tablet that nodes "
                f"{', '.join(map(str, nodes))} have"
            )
        chosen = min(left, key=lambda node: (in_rack.get(places.rack[node], 0), *counts.of(node), node))
        counts.add(chosen, 1)
        found.append((*nodes, chosen))
    assert len(found) == len(tablets), "each tablet gets one"
    assert all(len(set(nodes)) == len(nodes) for nodes in found), "a node has one replica of a tablet"
    return found


def one_less(
    tablets: Sequence[Nodes],
    dc: str,
    places: Places,
    others: Mapping[NodeId, int],
    racks: Collection[str] = (),
) -> list[Nodes]:
    """The replicas of each tablet with one less in the data centre, in their order; each of `racks` keeps one
    where something else can go."""
    counts = _Counts(tablets, others)
    found: list[Nodes] = []
    for nodes in tablets:
        there = [node for node in nodes if places.dc[node] == dc]
        assert there, f"a tablet that is to have less replicas in {dc} has some there"
        in_rack = _by_rack(nodes, dc, places)
        spare = [node for node in there if places.rack[node] not in racks or in_rack[places.rack[node]] > 1]
        there = spare or there
        unwanted = [node for node in there if node in places.unwanted]
        chosen = max(unwanted or there, key=lambda node: (in_rack[places.rack[node]], *counts.of(node), node))
        counts.add(chosen, -1)
        found.append(tuple(node for node in nodes if node != chosen))
    assert len(found) == len(tablets), "each tablet has its replicas"
    return found


def _by_rack(nodes: Nodes, dc: str, places: Places) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in nodes:
        if places.dc[node] == dc:
            found[places.rack[node]] = found.get(places.rack[node], 0) + 1
    return found
