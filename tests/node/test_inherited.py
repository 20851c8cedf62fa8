"""Which tables a node wipes of ranges that it owns at once, also when it hears of that late."""

from __future__ import annotations

import pytest

from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.work.lacking import inherited_ranges
from lockstep.schema.changes import AlterKeyspace, CreateTable, NewColumn
from lockstep.schema.model import ColumnKind, Replication
from lockstep.topology.force_remove import ForceRemove
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, network, simple
from tests.topology.test_replication_change import change, finish, options, with_table


def given_up(other: Replication) -> History:
    """Node 4 of four is given up; `ks` has three replicas of all, `k0` as many by `other`, both a table."""
    history = with_table(4, network(dc1=3), others=(other,))
    columns = (NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0),)
    history.submit(ChangeSchema(CreateTable("k0", "t", "uuid-other", columns)))
    history.submit(ForceRemove(NodeId(4), "its disk burnt"))
    return history


def wiped(history: History, after_epoch: int) -> set[int]:
    """Tables of which some node wipes something when it hears of everything since then at once."""
    return {
        table
        for node in (NodeId(1), NodeId(2), NodeId(3))
        for tables, _ in inherited_ranges(history.now, node, after_epoch)
        for table in tables
    }


def ids(history: History, *keyspaces: str) -> set[int]:
    return {table.id for name in keyspaces for table in history.now.schema.by_name[name].tables}


def test_what_a_keyspace_brings_along_to_a_ring_is_not_wiped_for_what_happened_there_before() -> None:
    """`k0` loses node 4 too, of ranges that node 2 owned already; it comes to share the ring later."""
    history = with_table(4, network(dc1=3), others=(simple(1),))
    history.submit(ForceRemove(NodeId(4), "its disk burnt"))
    columns = (NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0),)
    history.submit(ChangeSchema(AlterKeyspace("k0", options(network(dc1=3)))))
    history.submit(ChangeSchema(CreateTable("k0", "t", "uuid-other", columns)))
    assert wiped(history, 0) == ids(history, "ks")


@pytest.mark.parametrize("other", [simple(3), network(dc1=3)])
def test_what_was_given_up_is_wiped_whatever_the_replication_is_called_later(other: Replication) -> None:
    history = given_up(other)
    assert wiped(history, 0) == ids(history, "ks", "k0")
    assert wiped(history, history.now.epoch) == set()
    for target in (simple(3), network(dc1=3)):
        history.submit(ChangeSchema(AlterKeyspace("k0", options(target))))
        assert wiped(history, 0) == ids(history, "ks", "k0")
    change(history, simple(2))
    finish(history)
    assert wiped(history, 0) == ids(history, "ks", "k0")
