"""BAT-1: a logged batch is there whole or not at all, and what was acknowledged reaches every replica.

Invariant: judged when nothing is owed to anyone any more, by what disks certainly hold, before any read could
repair it. Each batch writes rows that no other request writes. A coordinator that lived on left hints for all
replicas that did not acknowledge; for one that died only the level of an acknowledged batch counts, and
nothing where it left with hints that nobody took, which is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Outcome
from lockstep.values.ids import NodeId

#: (table, partition key, clustering) of a row.
Row = tuple[str, bytes, int]


class Batched(msgspec.Struct, frozen=True):
    """`needs`: how many replicas its level asks for. `survived`: its coordinator lives to this day."""

    number: int
    client: str
    rows: tuple[Row, ...]
    logged: bool
    outcome: Outcome
    needs: int
    survived: bool

    def named(self) -> str:
        kind = "logged" if self.logged else "unlogged"
        return f"the {kind} batch {self.number} of {self.client}, which ended {self.outcome}"


#: Of a row: its replicas, and which nodes, replicas or not, hold it durably.
Held = Callable[[Batched, Row], tuple[Sequence[NodeId], Sequence[NodeId]]]


def check_batches(batches: Sequence[Batched], held: Held) -> int:
    """Raise the first Violation; the number of rows judged otherwise."""
    judged = 0
    for batch in batches:
        found = {row: held(batch, row) for row in batch.rows}
        judged += len(found)
        there = [row for row, (_, holders) in found.items() if holders]
        if batch.outcome is Outcome.FAILED and there:
            raise Violation("BAT-1", f"{batch.named()}, has written {there[0]}")
        whole = batch.outcome is Outcome.OK or (batch.logged and bool(there))
        for row in batch.rows if whole else there:
            _check_row(batch, row, *found[row])
    return judged


def _check_row(batch: Batched, row: Row, replicas: Sequence[NodeId], holders: Sequence[NodeId]) -> None:
    if batch.survived:
        needs = len(replicas)
    elif batch.outcome is Outcome.OK or batch.logged:
        needs = min(batch.needs, len(replicas))
    else:
        needs = 0
    having = [node for node in replicas if node in holders]
    if len(having) < needs:
        raise Violation(
            "BAT-1",
            f"{batch.named()}, needs {needs} of {list(replicas)} to hold {row}, and {list(holders)} do",
        )
