"""How far a repair is, as the node that drives it counts, and what it found where ids tell of everything.

Invariant: a partition that is named counts once, however many pages of it differ; what is named is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lockstep.replica.messages import AskedRange
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import REPAIR_DISAGREEMENTS_NAMED_MAX
from lockstep.values.tokens import Range


class Disagreement(msgspec.Struct, frozen=True):
    """A partition of which data and ids disagree: `lacks` has by node how many rows (and deletions beside
    them) its tables lack that all participants hold by id; `holds` are those that lack nothing."""

    keyspace: str
    table: str
    range: Range
    token: int
    key: bytes
    lacks: tuple[tuple[NodeId, int], ...]
    holds: tuple[NodeId, ...]

    @property
    def name(self) -> str:
        return f"{self.keyspace}.{self.table}"

    @property
    def wrong(self) -> str:
        """`data` of those that lack it; `ids`, where fewer have it than lack it: then rather nobody's ids
        stand for it."""
        return "ids" if len(self.holds) < len(self.lacks) else "data"

    def joined(self, other: Disagreement) -> Disagreement:
        """With what lacks of another page of the partition."""
        assert (self.name, self.key) == (other.name, other.key), "of one partition"
        counts = dict(self.lacks)
        for node, count in other.lacks:
            counts[node] = counts.get(node, 0) + count
        holds = tuple(node for node in self.holds if node in other.holds)
        return msgspec.structs.replace(self, lacks=tuple(sorted(counts.items())), holds=holds)

    def text(self) -> str:
        lacking = ", ".join(f"node {node} lacks {count}" for node, count in self.lacks)
        holding = ", ".join(f"node {node}" for node in self.holds) or "nobody alone"
        return (
            f"{self.name} ({self.range.left}, {self.range.right}] key {self.key.hex()}: "
            f"{lacking} of what {holding} has; {self.wrong} is wrong"
        )


class RepairProgress:
    """What a repair did so far. `changes_sent` counts each change of a partition once for each receiver."""

    def __init__(self, *, full: bool = False) -> None:
        #: Whether data is compared also where ids tell of everything.
        self.full = full
        self.ranges = 0
        self.ranges_done = 0
        self.ranges_failed = 0
        self.leaves = 0
        self.leaves_different = 0
        self.changes_sent = 0
        self.bytes_sent = 0
        #: Ids that participants are still to hold, by placement group and bounds of a range.
        self.lacking: dict[tuple[int, int, int], int] = {}
        #: Partitions whose data and ids disagree; how many by table, and the first ones with what lacks.
        self.disagreements = 0
        self.by_table: dict[str, int] = {}
        self.named: dict[tuple[str, bytes], Disagreement] = {}

    def waiting(self, group: int, lacking: Mapping[AskedRange, int]) -> None:
        """So many ids of ranges are still lacking."""
        for one, count in lacking.items():
            place = (group, one.left, one.right)
            if count:
                self.lacking[place] = count
            else:
                self.lacking.pop(place, None)

    def found(self, one: Disagreement) -> None:
        """Large partitions are found page by page; one that is named counts once."""
        known = self.named.get((one.name, one.key))
        if known is not None:
            self.named[one.name, one.key] = known.joined(one)
            return
        self.disagreements += 1
        self.by_table[one.name] = self.by_table.get(one.name, 0) + 1
        if len(self.named) < REPAIR_DISAGREEMENTS_NAMED_MAX:
            self.named[one.name, one.key] = one
