"""Schema changes as log entries: which rings they make, and when they are refused."""

from __future__ import annotations

import pytest

from lockstep.metadata.log.registry import Registry
from lockstep.metadata.schema_change import KINDS as SCHEMA_KINDS
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.transformations import KINDS, Initialize
from lockstep.schema.changes import (
    AlterKeyspace,
    ChangeSummary,
    CreateKeyspace,
    CreateTable,
    DropKeyspace,
    DropTable,
    NewColumn,
    SchemaChange,
)
from lockstep.schema.model import ColumnKind
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.registry import UNIONS
from lockstep.topology.transformations import KINDS as TOPOLOGY_KINDS
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, founder, network, simple
from tests.metadata.stored import stored


def options(**factors: int) -> tuple[tuple[str, str], ...]:
    """NetworkTopologyStrategy with these factors, or SimpleStrategy for `any`."""
    if "any" in factors:
        return (("class", "SimpleStrategy"), ("replication_factor", str(factors["any"])))
    return (("class", "NetworkTopologyStrategy"), *((dc, str(rf)) for dc, rf in factors.items()))


def table(keyspace: str, name: str) -> CreateTable:
    key = NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0)
    return CreateTable(keyspace, name, f"00000000-0000-0000-0000-{len(name):012d}", (key,))


@pytest.fixture
def history() -> History:
    made = History(Registry(KINDS, SCHEMA_KINDS, TOPOLOGY_KINDS, unions=UNIONS))
    founders = tuple(founder(n, (n * 10,)) for n in range(1, 5))
    made.submit(Initialize("c", "n", founders))
    return made


def tried(history: History, change: SchemaChange) -> str | None:
    refusal = history.tried(ChangeSchema(change))
    return refusal.message if refusal is not None else None


#: (change, the group that each keyspace has then)
GROUPS: list[tuple[SchemaChange, dict[str, int]]] = [
    (CreateKeyspace("a", options(any=2)), {"a": 1}),
    (CreateKeyspace("b", options(any=2)), {"a": 1, "b": 1}),
    (CreateKeyspace("c", options(any=3)), {"a": 1, "b": 1, "c": 2}),
    (AlterKeyspace("b", durable_writes=False), {"a": 1, "b": 1, "c": 2}),
    (AlterKeyspace("b", options(any=3)), {"a": 1, "b": 2, "c": 2}),
    (AlterKeyspace("a", options(any=1)), {"a": 3, "b": 2, "c": 2}),
    (AlterKeyspace("a", options(any=2)), {"a": 4, "b": 2, "c": 2}),
    (DropKeyspace("b"), {"a": 4, "c": 2}),
    (DropKeyspace("c"), {"a": 4}),
    (CreateKeyspace("c", options(any=3)), {"a": 4, "c": 5}),
]


def test_a_keyspace_gets_its_group_when_it_is_made_or_changes_replication(history: History) -> None:
    for change, groups in GROUPS:
        before = history.now
        history.submit(ChangeSchema(change))
        now = history.now
        now.validate(before)
        assert {keyspace.name: keyspace.group for keyspace in now.schema.keyspaces} == groups, change
        assert sorted(now.placements.by_id) == sorted(set(groups.values())), change
        for group in set(groups.values()) & set(before.placements.by_id):
            assert now.placements.ring(group) is before.placements.ring(group), "others keep their rings"
    history.now.validate()
    assert history.replayed() == history.now


def test_keyspaces_with_equal_replication_share_one_ring(history: History) -> None:
    history.submit(ChangeSchema(CreateKeyspace("a", options(any=2))))
    placements = history.now.placements
    history.submit(ChangeSchema(CreateKeyspace("b", options(any=2))))
    history.submit(ChangeSchema(table("b", "t")))
    assert history.now.placements is placements
    assert history.now.table(1) is not None
    history.submit(ChangeSchema(CreateKeyspace("c", options(dc1=3))))
    assert [ring.replication for ring in history.now.placements.rings] == [simple(2), network(dc1=3)]
    assert [keyspace.group for keyspace in history.now.schema.keyspaces] == [1, 1, 2]
    history.submit(ChangeSchema(DropKeyspace("a")))
    assert len(history.now.placements.rings) == 2
    history.submit(ChangeSchema(DropTable("b", "t")))
    history.submit(ChangeSchema(DropKeyspace("b")))
    assert [ring.replication for ring in history.now.placements.rings] == [network(dc1=3)]
    history.now.validate()
    assert stored(history.replayed()) == stored(history.now)


def test_a_refused_change_says_how_a_client_is_told(history: History) -> None:
    history.submit(ChangeSchema(CreateKeyspace("a", options(any=1))))
    for change, code in (
        (CreateKeyspace("a", options(any=1)), 0x2400),
        (CreateKeyspace("b", options(dc9=1)), 0x2300),
        (DropKeyspace("b"), 0x2200),
    ):
        refusal = history.tried(ChangeSchema(change))
        assert refusal is not None and refusal.cql_code == code, change


def test_a_change_that_finds_nothing_to_do_keeps_the_schema(history: History) -> None:
    history.submit(ChangeSchema(CreateKeyspace("a", options(any=1))))
    before = history.now
    again = ChangeSchema(CreateKeyspace("a", options(any=3), if_not_exists=True))
    history.submit(again)
    assert history.now.schema is before.schema and history.now.placements is before.placements
    assert again.summary(before, history.now.epoch) is None
    made = ChangeSchema(CreateKeyspace("b", options(any=1)))
    assert made.summary(before, 9) == ChangeSummary("CREATED", "KEYSPACE", "b")


def test_a_keyspace_with_tables_keeps_its_replicas(history: History) -> None:
    history.submit(ChangeSchema(CreateKeyspace("a", options(any=2))))
    assert tried(history, AlterKeyspace("a", options(any=3))) is None
    history.submit(ChangeSchema(table("a", "t")))
    message = tried(history, AlterKeyspace("a", options(any=2)))
    assert message is not None and "would move their data" in message
    assert tried(history, AlterKeyspace("a", options(dc1=3))) is None
    assert history.now.schema.by_name["a"].replication == network(dc1=3)


def test_only_changes_that_touch_no_ring_are_accepted_during_an_operation(history: History) -> None:
    history.submit(ChangeSchema(CreateKeyspace("a", options(any=2))))
    history.submit(PrepareOperation(Decommission(NodeId(4))))
    for change in (
        CreateKeyspace("b", options(any=1)),
        DropKeyspace("a"),
        AlterKeyspace("a", options(any=3)),
    ):
        message = tried(history, change)
        assert message is not None and "while operation 1 holds ranges" in message
    assert tried(history, table("a", "t")) is None
    assert tried(history, CreateKeyspace("c", options(any=2))) is None


def test_a_keyspace_with_tables_changes_rings_only_while_nothing_moves(history: History) -> None:
    """Its tables would drop out of work that lists those of each ring in turn."""
    for name, setting in (("a", options(any=2)), ("b", options(any=2)), ("c", options(dc1=2))):
        history.submit(ChangeSchema(CreateKeyspace(name, setting)))
    history.submit(ChangeSchema(table("a", "t")))
    history.submit(PrepareOperation(Decommission(NodeId(4))))
    message = tried(history, AlterKeyspace("a", options(dc1=2)))
    assert message is not None and "while operation 1 holds ranges" in message
    assert tried(history, AlterKeyspace("a", durable_writes=False)) is None
    assert tried(history, AlterKeyspace("b", options(dc1=2))) is None, "it has no tables"
