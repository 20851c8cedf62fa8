"""What is owed to a table's replicas goes with its rows: hints and batches bring none of them back."""

from __future__ import annotations

import pytest

from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.schema.changes import CreateTable, DropTable, EmptyTable, NewColumn, SchemaChange
from lockstep.schema.model import ColumnKind
from lockstep.sim.door import command_for
from lockstep.sim.load.history import Look
from lockstep.sim.runtime.probes import CrashRule
from lockstep.storage.store import Family
from lockstep.values.ids import Consistency
from tests.node.support import Town
from tests.node.test_batches import KEYS as BATCHED
from tests.node.test_batches import begin_batch, kept
from tests.node.test_hints import KEYS, pending, write_all
from tests.node.test_requests_while_moving import founded, table_of

NODES = (1, 2, 3)
COLUMNS = (
    NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
    NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
    NewColumn("v", "text"),
)
ANEW = CreateTable("ks", "t", "00000000-0000-4000-8000-000000000002", COLUMNS)


def seen(town: Town, number: int) -> int:
    """Rows of the table on one node."""

    async def work(node: Node) -> int:
        found = 0
        for key in (*KEYS, *BATCHED):
            command = command_for(Look("t", key, None, Consistency.ONE, 1000), table_of(node), 1, None)
            found += len((await node.data.engine.read(command)).partitions)
        return found

    return int(town.finish(town.begin(number, work)).value)


def stored(town: Town, number: int) -> int:
    """Fragments of any table, whether it is there or not."""
    low, high = Family.DATA.value, bytes([Family.DATA.value[0] + 1])
    return len(list(town.node(number).data.store.scan(low, high)))


@pytest.mark.parametrize("changes", [(EmptyTable("ks", "t"),), (DropTable("ks", "t"), ANEW)])
def test_hints_and_batches_of_a_table_bring_back_no_rows(changes: tuple[SchemaChange, ...]) -> None:
    with founded(17) as town:
        town.process(3).crash()
        assert write_all(town, 1).error is None
        town.until(lambda: pending(town, 1) == len(KEYS) and not town.node(1).membership.liveness.alive(3))
        town.world.probes.add(CrashRule(label="batches.logged", process="n1", hit=1, restart_after_s=0.2))
        begin_batch(town, 1)
        town.until(lambda: town.process(1).incarnation == 2 and town.ready(1))
        assert [kept(town, number) for number in (1, 2)] == [1, 1] and pending(town, 1) == len(KEYS)
        for change in changes:
            outcome = town.finish(town.submit(1, ChangeSchema(change)))
            assert outcome.error is None, outcome.error
        assert [kept(town, number) for number in (1, 2)] == [1, 1], "what follows comes after the change"
        town.start(3)
        town.until(lambda: town.ready(3) and not kept(town, *NODES) and not pending(town, *NODES))
        assert [town.node(number).data.batch_store.replayed for number in (1, 2)] == [1, 1]
        town.wait(1)
        assert [seen(town, number) for number in NODES] == [0, 0, 0]
        assert [stored(town, number) for number in NODES] == [0, 0, 0]
