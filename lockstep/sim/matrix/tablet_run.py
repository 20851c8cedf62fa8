"""One cell of tablets: a small cluster under load, the change, the fault, and the judgement of the end.

Invariant: everything follows from (cell, seed). Every epoch was judged by the watch, every request by the
registers. Beyond that: the tablet that was struck came to an end, the one that its stage allows; the change
came to its own; no tablet is on a node that is gone or twice on one; nobody stores what is not its own.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.operations import Stage
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.operators import Operators
from lockstep.sim.load.workload import Load
from lockstep.sim.matrix.cells import Victim
from lockstep.sim.matrix.run import CellResult
from lockstep.sim.matrix.tablet_cells import LONE, TabletCell, TabletFault, Way, may_end
from lockstep.sim.matrix.tablet_operator import TabletCellOperator, TabletStrike
from lockstep.sim.runtime.streams import Stream
from lockstep.sim.scenario import Run, Scenario
from lockstep.sim.seed_result import SeedResult

#: Virtual seconds for the change, the fault and all that an operator does after it.
_CELL_S = 90.0
_TABLETS = 4


class TabletCellRun(Run):
    """`result()` as of any run."""

    operators: TabletCellOperator

    def __init__(self, cell: TabletCell, seed: int, *, trace: bool = False) -> None:
        self.cell = cell
        scenario = Scenario(
            name="matrix", founders=(cell.founders,), factors=(cell.factor,), spares=1, tablets=_TABLETS
        )
        super().__init__(scenario, seed, trace=trace)
        self.cluster.shape = msgspec.structs.replace(self.cluster.shape, factor=cell.factor)
        self.watch.appliers.append(self.strike.applied)
        self.watch.listeners.append(self.strike.stage_entered)

    @property
    def strike(self) -> TabletStrike:
        return self.operators.strike

    def _load(self, draw: Stream) -> Load:
        """Little data, and all levels."""
        drawn = super()._load(draw)
        return msgspec.structs.replace(
            drawn, clients=2, partitions=12, rows=2, think_ms=40.0, weak_share=0.3, timeout_ms=1000
        )

    def _operators(self, tables: list[str]) -> Operators:
        return TabletCellOperator(self.cluster, self.cell, tables[:1])

    def _phases(self) -> None:
        self.cluster.start()
        self.operators.start()
        self._wait(30.0, "founding", lambda: self.operators.ready)
        self.workload.start()
        self.nemesis.start()
        self._wait(_CELL_S, "the change and what came after it", lambda: self.operators.idle)
        self._heal()
        self._settle()
        self._final_requests()
        self._judge()
        self._judge_strike(self.cluster.newest)

    def _blockers(self) -> str:
        newest, strike = self.cluster.newest, self.strike
        parts = [f"it was {'' if strike.struck else 'not '}struck", super()._blockers()]
        parts += [f"{request.title()} waits" for request in newest.requests.live]
        parts += [f"{newest.transitions.count} ranges are on their way"] * bool(newest.transitions.count)
        return "; ".join(parts)

    def _judge_strike(self, newest: ClusterMetadata) -> None:
        strike, cell = self.strike, self.cell
        if not strike.struck:
            raise Violation("VACUOUS", f"{cell.name}: the place was never reached")
        self._judge_way()
        for ring in newest.placements.rings:
            if ring.id not in newest.tablets.by_group:
                continue
            for placed in ring.ranges:
                for node in placed.group.reads:
                    info = newest.directory.by_id[node]
                    if info.state is not NodeState.NORMAL or node in self.cluster.retired:
                        raise Violation("END", f"a tablet {placed.range} is on node {node}, which is gone")
                if len(set(placed.group.writes)) != ring.replication.total:
                    raise Violation("END", f"a tablet {placed.range} has the replicas {placed.group.writes}")

    def _judge_way(self) -> None:
        strike, cell = self.strike, self.cell
        if cell.kind not in LONE:
            return
        if strike.way is None:
            raise Violation("LIVENESS", f"{cell.name}: the tablet that was struck never came to an end")
        allowed: tuple[Way, ...] = (Way.BACK,) if strike.is_turned else (Way.FORWARD,)
        if (
            cell.fault is TabletFault.EXCLUDED
            and not strike.is_turned
            and cell.victim is not Victim.COORDINATOR
        ):
            if strike.stage != cell.stage and Stage(cell.stage) is not Stage.END_MIGRATION:
                raise Violation("VACUOUS", f"{strike.victim} was shut out in {strike.stage}: {cell.name}")
            allowed = may_end(Stage(cell.stage), cell.victim)
        if strike.way not in allowed:
            raise Violation("END", f"{cell.name}: the tablet went {strike.way}, and not {allowed[0]}")


def run_tablet_cell(cell: TabletCell, seed: int, *, trace: bool = False) -> tuple[CellResult, TabletCellRun]:
    run = TabletCellRun(cell, seed, trace=trace)
    found: SeedResult = run.result()
    result = CellResult(
        cell=cell,
        seed=seed,
        invariant=found.invariant,
        violation=found.violation,
        digest=found.digest,
        events=found.events,
        acknowledged=found.acknowledged,
        judged=found.judged,
    )
    return result, run
