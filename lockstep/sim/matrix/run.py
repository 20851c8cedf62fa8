"""One cell: a small cluster under load, an operation, the fault at its place, and the judgement of the end.

Invariant: everything follows from (cell, seed). Every epoch was judged by the watch, every request by the
registers; beyond that the end is that of the same operation without the fault: the same tokens with
the same groups, each place of a lost node taken by one other.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.operators import Operators
from lockstep.sim.load.workload import Load
from lockstep.sim.matrix.cells import Cell, Fault
from lockstep.sim.matrix.operator import CellOperator, Strike
from lockstep.sim.matrix.tablet_cells import TabletCell
from lockstep.sim.runtime.streams import Stream
from lockstep.sim.scenario import Run, Scenario
from lockstep.sim.seed_result import SeedResult
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range

#: Virtual seconds for the operation, the fault and all that an operator does after it.
_CELL_S = 150.0
#: Range, who reads it, who writes it.
Groups = list[tuple[Range, tuple[NodeId, ...], tuple[NodeId, ...]]]


class Ending(msgspec.Struct, frozen=True):
    """Who owns each token in the end, and who serves each range of the data."""

    owners: dict[int, NodeId]
    groups: Groups


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """`violation` is empty when the cell held."""

    cell: Cell | TabletCell
    seed: int
    invariant: str = ""
    violation: str = ""
    digest: str = ""
    events: int = 0
    cpu_s: float = 0.0
    acknowledged: int = 0
    judged: int = 0


def ending(cluster: ClusterMetadata) -> Ending:
    owners = {token: node.id for node in cluster.directory.nodes for token in node.tokens}
    ring = cluster.placements.ring(cluster.schema.by_name[KEYSPACE].group)
    return Ending(owners, [(one.range, one.group.reads, one.group.writes) for one in ring.ranges])


def difference(wanted: Ending, found: Ending) -> str:
    """How two endings differ, but for who took whose place; empty when they do not."""
    if sorted(wanted.owners) != sorted(found.owners):
        return f"the tokens are {sorted(found.owners)}, not {sorted(wanted.owners)}"
    places: dict[NodeId, NodeId] = {}
    for token, node in wanted.owners.items():
        if places.setdefault(node, found.owners[token]) != found.owners[token]:
            return f"the tokens of node {node} are now of several: {found.owners}, not {wanted.owners}"
    if len(set(places.values())) != len(places):
        return f"one node has the tokens of several: {places}"
    expected = [
        (range_, tuple(places[node] for node in reads), tuple(places[node] for node in writes))
        for range_, reads, writes in wanted.groups
    ]
    for one, other in zip(expected, found.groups, strict=False):
        if one != other:
            return f"there is {other}, not {one}"
    return "" if len(expected) == len(found.groups) else f"{len(found.groups)} ranges, not {len(expected)}"


class CellRun(Run):
    """`result()` as of any run. Without a strike it is the undisturbed run of the cell's kind."""

    operators: CellOperator

    def __init__(self, cell: Cell, seed: int, *, disturbed: bool = True, trace: bool = False) -> None:
        self.cell = cell
        scenario = Scenario(name="matrix", founders=(cell.founders,), factors=(cell.factor,), spares=3)
        super().__init__(scenario, seed, trace=trace)
        self.strike: Strike | None = None
        if disturbed:
            self.strike = self.operators.strike = Strike(
                cell, self.cluster, self.nemesis.means, self.operators.take_back
            )
            self.watch.listeners.append(self.strike.stage_entered)
        self.watch.appliers.append(self.operators.applied)

    def _load(self, draw: Stream) -> Load:
        """Little data, and all levels."""
        drawn = super()._load(draw)
        return msgspec.structs.replace(
            drawn, clients=2, partitions=12, rows=2, think_ms=40.0, weak_share=0.3, timeout_ms=1000
        )

    def _operators(self, tables: list[str]) -> Operators:
        return CellOperator(self.cluster, self.cell, tables)

    def _phases(self) -> None:
        self.cluster.start()
        self.operators.start()
        self._wait(30.0, "founding", lambda: self.operators.ready)
        self.workload.start()
        self.nemesis.start()
        self._wait(_CELL_S, "the operation and what came after it", lambda: self.operators.idle)
        self._heal()
        self._settle()
        self._final_requests()
        self._judge()
        self._judge_strike()

    def _judge_strike(self) -> None:
        operators, strike = self.operators, self.strike
        if strike is None:
            return
        if not strike.struck:
            raise Violation("VACUOUS", f"{self.cell.name}: the place was never reached")
        if self.cell.goes_back or (self.cell.fault is Fault.CANCEL and self._can_return()):
            if operators.cancelled and not operators.restored:
                raise Violation("OP-1", "it was cancelled in time and did not go back")
        elif self.cell.fault is Fault.CANCEL and operators.cancelled and not operators.restored:
            raise Violation("OP-1", "it was cancelled past the point of return")
        if self.cell.fault is Fault.CANCEL and not (operators.cancelled or operators.refused):
            raise Violation("VACUOUS", "nobody answered the cancel")

    def _can_return(self) -> bool:
        row = self.cell.row
        return row is not None and row.on_failure is not None


def run_cell(
    cell: Cell, seed: int, wanted: Ending | None = None, *, trace: bool = False
) -> tuple[CellResult, CellRun]:
    """`wanted` is how the operation ends without the fault; found out first when it is not given."""
    run = CellRun(cell, seed, trace=trace)
    found: SeedResult = run.result()
    invariant, violation = found.invariant, found.violation
    if not violation:
        problem = difference(wanted or undisturbed(cell, seed), ending(run.cluster.newest))
        if problem:
            invariant, violation = "END", f"the end differs from that without the fault: {problem}"
    result = CellResult(
        cell=cell,
        seed=seed,
        invariant=invariant,
        violation=violation,
        digest=found.digest,
        events=found.events,
        acknowledged=found.acknowledged,
        judged=found.judged,
    )
    return result, run


def undisturbed(cell: Cell, seed: int) -> Ending:
    """How the cell's operation ends when nothing happens."""
    run = CellRun(cell, seed, disturbed=False)
    result = run.result()
    if result.violation:
        raise Violation(result.invariant, f"without any fault: {result.violation}")
    stored = run.watch.unowned(run.cluster.newest)
    if stored:
        raise Violation("REP-3", f"without any fault, what was given away is kept: {stored[0]}")
    return ending(run.cluster.newest)
