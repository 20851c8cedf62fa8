"""State digests kept from entry to entry against digests computed from stored bytes."""

from __future__ import annotations

import random

from lockstep.metadata.cluster import ClusterMetadata, decode_cluster, encode_cluster
from lockstep.metadata.digest import state_digest
from lockstep.metadata.registry import Registry
from lockstep.metadata.schema_change import KINDS as SCHEMA_KINDS
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.snapshot import SnapshotDecoder, pieces
from lockstep.metadata.transformations import KINDS, Initialize, SetExtension, UpdateNode
from lockstep.schema.changes import (
    AddColumns,
    AlterKeyspace,
    CreateKeyspace,
    CreateTable,
    DropColumns,
    DropKeyspace,
    DropTable,
    EmptyTable,
    NewColumn,
    SchemaChange,
    validate,
)
from lockstep.schema.model import ColumnKind
from lockstep.topology.transformations import KINDS as TOPOLOGY_KINDS
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, founder

COLUMNS = (NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0), NewColumn("v", "text"))


def history() -> History:
    made = History(Registry(KINDS, TOPOLOGY_KINDS, SCHEMA_KINDS))
    made.submit(Initialize("c", "test", tuple(founder(at, (at * 1_000,)) for at in range(1, 4))))
    return made


def create(keyspace: str, name: str, number: int) -> CreateTable:
    return CreateTable(keyspace, name, f"00000000-0000-4000-8000-{number:012}", COLUMNS)


def some_change(chosen: random.Random, number: int) -> SchemaChange:
    keyspace, name = chosen.choice("abc"), f"t{chosen.randrange(6)}"
    factor = (("class", "SimpleStrategy"), ("replication_factor", str(chosen.randint(1, 3))))
    changes: list[SchemaChange] = [
        *[create(keyspace, name, number)] * 4,
        CreateKeyspace(keyspace, factor),
        AlterKeyspace(keyspace, factor, chosen.random() < 0.5),
        AddColumns(keyspace, name, (NewColumn(f"c{number}", "int"),)),
        DropColumns(keyspace, name, ("v",), 1_000 + number),
        EmptyTable(keyspace, name),
        DropTable(keyspace, name),
    ]
    return DropKeyspace(keyspace) if chosen.random() < 0.03 else chosen.choice(changes)


def from_snapshot(value: ClusterMetadata) -> ClusterMetadata:
    decoder = SnapshotDecoder()
    for piece in pieces(value):
        decoder.feed(piece)
    return decoder.finish()


def test_digests_kept_over_random_histories_equal_those_of_stored_values() -> None:
    for seed in range(5):
        chosen, made = random.Random(seed), history()
        for number in range(160):
            if chosen.random() < 0.15:
                value = chosen.choice((b"", b"x" * number))
                made.tried(SetExtension(f"n{chosen.randrange(4)}", value))
            elif chosen.random() < 0.1:
                node = chosen.randint(1, 3)
                made.tried(UpdateNode(NodeId(node), f"10.0.1.{number}", 7000, 9042, 7080, "2"))
            else:
                made.tried(ChangeSchema(some_change(chosen, number)))
            if number % 16 == 0:
                validate(made.now.schema)
                for twin in (decode_cluster(encode_cluster(made.now)), from_snapshot(made.now)):
                    assert state_digest(twin) == state_digest(made.now)
                    assert encode_cluster(twin) == encode_cluster(made.now)
        assert len(made.now.schema.by_name) >= 1 and len(made.entries) > 60
        assert state_digest(made.replayed()) == state_digest(made.now)


def test_digests_of_a_run_that_comes_back_to_a_schema_are_those_of_that_schema() -> None:
    made = history()
    options = (("class", "SimpleStrategy"), ("replication_factor", "3"))
    made.submit(ChangeSchema(CreateKeyspace("ks", options)))
    made.submit(ChangeSchema(create("ks", "one", 1)))
    before = made.now.schema
    other = before.with_table(before.tables_by_id[1].__class__(9, "u9", "ks", "nine", ()))
    assert other.digest != before.digest
    assert other.without_table(other.tables_by_id[9]).digest == before.digest
    assert other.without_table(other.tables_by_id[9]) == before


def test_a_change_of_one_table_leaves_the_digests_of_all_other_parts_alone() -> None:
    made = history()
    options = (("class", "SimpleStrategy"), ("replication_factor", "3"))
    made.submit(ChangeSchema(CreateKeyspace("ks", options)))
    for number in range(200):
        made.submit(ChangeSchema(create("ks", f"t{number}", number)))
    before = made.values[-2].schema.table_tree.branches
    after = made.now.schema.table_tree.branches
    assert sum(old is not new for old, new in zip(before, after, strict=True)) == 1
    assert made.values[-2].schema.tables_by_id[7] is made.now.schema.tables_by_id[7]
