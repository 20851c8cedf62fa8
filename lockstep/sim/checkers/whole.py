"""REP-2b and REP-2a of partitions that are written whole: how many reads show part of a mutation, or go back.

Each write puts its version, a number of its own, into every row of a partition, with the version as its
timestamp. So whatever mutations a replica holds, whole, its rows have one version; and once a read at a
quorum has shown a version, or a write of it was acknowledged there, no read that begins later shows less in
any row.
Answers are judged as they come, in constant memory a partition: the same judge sees simulated clients and
those of real nodes, where it runs in an environment that has nothing else of this package.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Final

#: The first findings are told in words.
EXAMPLES_MAX: Final = 5
#: What a row has that was never written.
NOTHING: Final = 0


class WholeReads:
    """Of partitions with rows 0 to `rows` - 1. `whole`: reads of all of them that were judged."""

    def __init__(self, rows: int) -> None:
        self._rows = range(rows)
        self._floors: dict[Hashable, int] = {}
        self.whole = 0
        self.single = 0
        self.torn = 0
        self.back = 0
        self.examples: list[str] = []

    def begun(self, partition: Hashable) -> int:
        """What a read that is sent now must not go behind."""
        return self._floors.get(partition, NOTHING)

    def reached(self, partition: Hashable, version: int) -> None:
        """A write was acknowledged at a quorum, or shown there."""
        self._floors[partition] = max(self.begun(partition), version)

    def saw(self, partition: Hashable, floor: int, seen: Mapping[int, int], row: int | None = None) -> None:
        """A read at a quorum ended that began when `begun` was `floor`: row -> version, of all rows or of
        one."""
        asked: Iterable[int] = self._rows if row is None else (row,)
        found = {at: seen.get(at, NOTHING) for at in asked}
        if row is None:
            self.whole += 1
        else:
            self.single += 1
        if min(found.values()) != max(found.values()):
            self.torn += 1
            self._tell(f"torn: {partition} shows {found}")
        if min(found.values()) < floor:
            self.back += 1
            self._tell(f"back: {partition} shows {found} after {floor}")
        self.reached(partition, max(found.values()))

    def _tell(self, example: str) -> None:
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(example)
