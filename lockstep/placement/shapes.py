"""What of some replica lists a proof of quorums depends on, so that it is made once for all alike.

Invariant: lists have equal shapes exactly when nodes can be renamed within their data centres so that they
become the same sets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockstep.values.ids import NodeId

#: By data centre, for how many nodes each combination of the lists is the one they are in.
Shape = tuple[tuple[str, int], ...]


def shape_of(lists: Sequence[Sequence[NodeId]], dc_of: Callable[[NodeId], str]) -> Shape:
    """The shape of these lists taken together; their order counts, that of the nodes in them does not."""
    member = dict.fromkeys(lists[0], 1)
    bit = 1
    for nodes in lists[1:]:
        bit <<= 1
        for node in nodes:
            member[node] = member.get(node, 0) | bit
    return tuple(sorted(zip(map(dc_of, member), member.values(), strict=True)))
