"""When a table with tablets may become tracked, and go from the ring to tablets or back."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.tablet_migration import MigrateKeyspace, Step
from lockstep.schema.changes import AlterKeyspace, AlterOptions, CreateKeyspace
from lockstep.schema.tracking import tracked_tables
from lockstep.values.errors import Rejected
from tests.topology.tablets.worlds import TABLE, begin, change, cluster, move

SPREAD = (("class", "NetworkTopologyStrategy"), ("dc1", "3"))
TRACKED = AlterOptions("k", "t", (("replication_type", "tracked"),))


def test_a_table_does_not_become_tracked_while_its_own_tablets_move() -> None:
    history = cluster(tablets=4)
    change(history, msgspec.structs.replace(TABLE, name="u", uuid=TABLE.uuid[:-1] + "2"))
    wanted = next(group.id for group in history.now.tablets.groups if group.head.table == "t")
    begin(history, msgspec.structs.replace(move(history), group=wanted))
    with pytest.raises(Rejected, match="while replicas move") as refused:
        change(history, TRACKED)
    assert "tablets balance off k.t" in refused.value.hint
    with pytest.raises(Rejected, match=r"k\.t does not become tracked"):
        change(history, AlterKeyspace("k", replication_type="tracked"))
    change(history, msgspec.structs.replace(TRACKED, name="u"))
    assert [table.name for table in tracked_tables(history.now.schema)] == ["u"]


def test_a_tracked_keyspace_does_not_go_from_the_ring_to_tablets_nor_back() -> None:
    history = cluster()
    change(history, CreateKeyspace("r", SPREAD, replication_type="tracked"))
    change(history, msgspec.structs.replace(TABLE, keyspace="r", uuid=TABLE.uuid[:-1] + "3"))
    with pytest.raises(Rejected, match="while its tables are tracked") as refused:
        history.submit(MigrateKeyspace("r", Step.START))
    assert "untracked first" in refused.value.hint
    change(history, AlterKeyspace("r", replication_type="untracked"))
    history.submit(MigrateKeyspace("r", Step.START))
    with pytest.raises(Rejected, match="on its way from the ring"):
        change(history, AlterKeyspace("r", replication_type="tracked"))
    history.submit(MigrateKeyspace("r", Step.FINALIZE))
    change(history, AlterKeyspace("r", replication_type="tracked"))
    assert [table.keyspace for table in tracked_tables(history.now.schema)] == ["r"]
