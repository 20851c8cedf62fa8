"""Who tells whom of a new epoch, and who asks whom for a sign of life.

Invariants: nobody sends more than ANNOUNCEMENTS_MAX announcements for one epoch however large the cluster is,
and every member is told by somebody when nothing is lost; what an epoch's announcements look like follows
from the members at that epoch alone, so that nodes agree on it without talking; in each round of pings a node
asks at most PINGED_MAX others, is asked by as many, and over the rounds by every other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from lockstep.values.limits import ANNOUNCEMENTS_MAX, PINGED_MAX

#: Members that one member tells; four hops reach 1554 nodes.
FAN_OUT: Final = 6
#: Of the nodes asked for a sign of life in one round, those asked at one moment; the others follow within the
#: round, so that nobody answers with news to so many at once.
PINGED_AT_ONCE: Final = 4


class Tree:
    """The announcement tree of one epoch over `ids` (ascending).

    Members stand in a row that is turned from epoch to epoch, so that those who pass news on differ. The
    first FAN_OUT of the row are the roots; member p tells members FAN_OUT * (p + 1) and following.
    """

    def __init__(self, ids: Sequence[int], epoch: int) -> None:
        assert epoch >= 0, "epochs count from 1, and 0 is the empty value"
        self._ids = ids
        inner = max(1, (len(ids) - 1) // FAN_OUT)
        self._turn = (epoch * inner) % len(ids) if ids else 0

    def at(self, place: int) -> int:
        """The member at a place of the row."""
        assert 0 <= place < len(self._ids), f"place {place} of {len(self._ids)}"
        return self._ids[(place + self._turn) % len(self._ids)]

    def place_of(self, node: int) -> int | None:
        """None for a node that is no member."""
        index = bisect_left(self._ids, node)
        if index == len(self._ids) or self._ids[index] != node:
            return None
        return (index - self._turn) % len(self._ids)

    def roots(self) -> range:
        """Places of those whom the node that made the epoch tells first."""
        return range(min(FAN_OUT, len(self._ids)))

    def below(self, place: int) -> range:
        """Places of those whom the member at `place` tells."""
        first = FAN_OUT * (place + 1)
        return range(min(first, len(self._ids)), min(first + FAN_OUT, len(self._ids)))


def receivers(tree: Tree, own: int, *, leads: bool, alive: Callable[[int], bool]) -> tuple[int, ...]:
    """Whom `own` tells of the tree's epoch once it has applied it: no one twice, never itself.

    The leader tells the roots. Everyone tells those below. One that seems dead is told all the same, and
    those below it are told in its stead.
    """
    places = list(tree.roots()) if leads else []
    place = tree.place_of(own)
    if place is not None:
        places.extend(tree.below(place))
    chosen: dict[int, None] = {}
    for place in places:  # grows: those below the silent are looked at after all that come first
        node = tree.at(place)
        if node == own or node in chosen:
            continue
        chosen[node] = None
        if len(chosen) == ANNOUNCEMENTS_MAX:
            break
        if not alive(node):
            places.extend(tree.below(place))
    return tuple(chosen)


def ping_rounds(members: int) -> int:
    """Rounds until a node has asked every other one of a cluster with so many members."""
    return max(1, -(-(members - 1) // PINGED_MAX))


def pinged(ids: Sequence[int], own: int, round_number: int) -> tuple[int, ...]:
    """Whom `own` asks for a sign of life in this round: the next ones after it in the row of all ids.

    `ids` ascending. A node without a place in the row asks as if it stood where its id belongs.
    """
    others = bisect_left(ids, own)
    known = others < len(ids) and ids[others] == own
    count = len(ids) - 1 if known else len(ids)
    if count <= 0:
        return ()
    first = (round_number * PINGED_MAX) % count if count > PINGED_MAX else 0
    start = others + 1 if known else others
    chosen = []
    for step in range(min(count, PINGED_MAX)):
        chosen.append(ids[(start + (first + step) % count) % len(ids)])
    return tuple(chosen)
