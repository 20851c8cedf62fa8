"""What a cluster does while most of the voters of its metadata are gone, as tablets are on their way."""

from __future__ import annotations

import asyncio
from collections import Counter

from lockstep.metadata.groups.membership import ServiceWish, SetService
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.operations import Stage
from lockstep.metadata.transitions import Transition
from lockstep.runtime.ports import Runtime
from lockstep.sim.load.history import Outcome
from lockstep.sim.load.operators import Operators
from lockstep.sim.runner import failure_text
from lockstep.sim.runtime.process import POWER
from lockstep.sim.scenario import Run, Scenario
from lockstep.topology.tablets.balancing import SetBalancing
from lockstep.topology.tablets.moves import BeginMoves, TabletMove
from lockstep.values.ids import Consistency, NodeId

VOTERS = 3
#: Virtual seconds without a majority; long enough for elections, which nobody wins.
LOST_S = 20.0
#: For stale leaders to step down.
NOTICED_S = 3.0
BALANCED = Scenario(name="majority", founders=(5,), factors=(3,), spares=0, tablets=8, clients=3)


class _Mover(Operators):
    """Has three nodes vote, and then moves one tablet of each table between nodes that do not."""

    async def _run(self, runtime: Runtime) -> None:
        await self._create_schema(runtime)
        while len(self.cluster.newest.voters) != VOTERS or self.cluster.newest.service.change is not None:
            wish = SetService(ServiceWish.SIZE, size=VOTERS)
            if self.cluster.newest.service.size != VOTERS:
                await self.submit(runtime, EntryKind.SET_SERVICE, wish)
            await asyncio.sleep(0.2)
        await self.submit(runtime, EntryKind.SET_BALANCING, SetBalancing(False))
        self.ready = True
        await asyncio.sleep(1.0)
        await self.submit(runtime, EntryKind.BEGIN_MOVES, BeginMoves(0, self._moves(), force=True))

    def _moves(self) -> tuple[TabletMove, ...]:
        newest = self.cluster.newest
        others = [node for node in newest.directory.present_ids if node not in newest.voters]
        found = []
        for group in newest.tablets.groups:
            for placed in newest.placements.ring(group.id).ranges:
                source = [node for node in others if node in placed.group.reads]
                target = [node for node in others if node not in placed.group.reads]
                if source and target:
                    ends = (source[0], 0), (target[0], 0)
                    found.append(TabletMove(group.id, placed.range.right, "migration", *ends))
                    break
        assert found, "a tablet can move between nodes without a vote"
        return tuple(found)


class _LostMajority(Run):
    def __init__(self, seed: int) -> None:
        super().__init__(BALANCED, seed)
        self.during: Counter[tuple[Consistency, Outcome]] = Counter()
        self.parked: tuple[Transition, ...] = ()
        self.gone: list[NodeId] = []

    def _operators(self, tables: list[str]) -> Operators:
        return _Mover(self.cluster, tables)

    def _phases(self) -> None:
        cluster, world = self.cluster, self.world
        cluster.start()
        self.operators.start()
        self._wait(60.0, "founding", lambda: self.operators.ready)
        self.workload.start()
        self._wait(20.0, "a tablet that is filled", self._is_streaming)
        leader = NodeId(cluster.node_id(cluster.leader[1]))
        self.gone = [leader, next(node for node in cluster.newest.voters if node != leader)]
        for node in self.gone:
            cluster.processes[cluster.name_of(node)].crash(POWER)
        world.run_for(NOTICED_S)
        epoch, self.parked = cluster.newest.epoch, tuple(cluster.newest.transitions.listed())
        seen = len(cluster.history.events)
        world.run_for(LOST_S)
        world.check()
        assert cluster.newest.epoch == epoch, "nothing is decided without a majority"
        assert tuple(cluster.newest.transitions.listed()) == self.parked, "what moves stays where it is"
        self.during.update(
            (event.request.consistency, event.outcome) for event in cluster.history.events[seen:]
        )
        self._heal()
        self._settle()
        self._wait(30.0, "the moves", lambda: not cluster.newest.transitions.count)
        self._final_requests()
        self._judge()

    def _is_streaming(self) -> bool:
        moving = self.cluster.newest.transitions.listed()
        return any(one.position is not None and one.position.stage is Stage.STREAMING for one in moving)


def test_scenario_25_a_majority_lost_while_tablets_move_parks_them_and_requests_go_on() -> None:
    """Given two of three voters without power as a tablet is filled, then no entry is made and no tablet goes
    on, requests at quorums of the living replicas succeed, and once voters are back all moves end; every
    acknowledged write is still read."""
    run = _LostMajority(1)
    result = run.result()
    assert not result.violation, failure_text(result)
    assert run.parked and len(run.gone) == 2
    for level in (Consistency.QUORUM, Consistency.LOCAL_QUORUM):
        assert run.during[level, Outcome.OK] > 20, run.during
    moved = {(one.group, one.range.right): set(one.new) for one in run.parked}
    newest = run.cluster.newest
    for (group, right), nodes in moved.items():
        assert set(newest.placements.ring(group).range_at(right).group.reads) == nodes, "forward, once it can"
