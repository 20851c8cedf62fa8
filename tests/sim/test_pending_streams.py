"""Streams of new tablets while a replica that does not know them is down."""

from __future__ import annotations

import asyncio

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import AlterOptions
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.captured_load import TABLE, CaptureWorkload
from lockstep.sim.load.history import Outcome
from lockstep.sim.load.operators import Operators
from lockstep.sim.runner import failure_text
from lockstep.sim.runtime.process import KILL
from lockstep.sim.scenario import Run, Scenario
from lockstep.values.node_limits import CDC_TABLETS_AHEAD_MS

CALM = Scenario(name="pending", founders=(4,), factors=(3,), spares=0, tablets=4, clients=1, capturing=2)
HINTS = (("tablets", (("min_tablet_count", "8"),)),)
#: Virtual seconds: past the time from which on the streams were to count.
DOWN_S = CDC_TABLETS_AHEAD_MS / 1000 + 15


class _Splitter(Operators):
    async def _run(self, runtime: Runtime) -> None:
        await self._create_schema(runtime)
        self.ready = True
        for begin_more in self.when_ready:
            begin_more(runtime)
        while self.cluster.newest.schema.table(KEYSPACE, TABLE) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)
        change = ChangeSchema(AlterOptions(KEYSPACE, TABLE, HINTS))
        await self.submit(runtime, EntryKind.SCHEMA_CHANGE, change)


class _ReplicaDown(Run):
    def __init__(self, seed: int) -> None:
        super().__init__(CALM, seed)
        self.watch.appliers.append(self._applied)
        self.down = ""
        self.late: list[Outcome] = []

    def _operators(self, tables: list[str]) -> Operators:
        return _Splitter(self.cluster, tables)

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        """A replica goes down with the entry that makes new streams, which it has not applied."""
        made = [one for one in after.streams_by_group.values() if one.newest.is_pending]
        if made and not self.down:
            first = next(name for name in self.cluster.in_service() if name != self.cluster.leader[1])
            self.down = first
            self.world.after(0.0, lambda: self.cluster.processes[first].crash(KILL), label="down")

    def _phases(self) -> None:
        self.cluster.start()
        self.operators.start()
        self._wait(60.0, "founding", lambda: self.operators.ready)
        self.workload.start()
        self._wait(60.0, "new streams", lambda: bool(self.down))
        self.world.run_for(DOWN_S)
        self.world.check()
        (streams,) = self.cluster.newest.streams_by_group.values()
        assert streams.newest.is_pending, "a replica does not know them"
        (side,) = [side for side in self.sides if isinstance(side, CaptureWorkload)]
        seen = len(side.written)
        self.world.run_for(5.0)
        self.late = [write.outcome for write in side.written[seen:] if write.needs_quorum]
        self._heal()
        self._settle()
        self._wait(120.0, "publication", self._is_published)
        self._final_requests()
        self._judge()

    def _is_published(self) -> bool:
        (streams,) = self.cluster.newest.streams_by_group.values()
        return streams.newest.is_published


def test_streams_count_later_while_a_replica_is_down_and_writes_go_on() -> None:
    run = _ReplicaDown(1)
    result = run.result()
    assert not result.violation, failure_text(result)
    assert result.facts["streams postponed"] >= 1
    assert run.late.count(Outcome.OK) > 20
    assert run.late.count(Outcome.OK) > 0.9 * len(run.late)
