"""State digests kept from entry to entry against digests computed from stored bytes."""

from __future__ import annotations

import random

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.extensions import CHANGES_BEHIND_MAX, NO_EXTENSIONS, extensions_of
from lockstep.metadata.log.apply import state_digest
from lockstep.metadata.log.recent_ids import RecentIds, no_recent_ids
from lockstep.metadata.log.registry import Registry
from lockstep.metadata.log.snapshot import SnapshotDecoder, pieces
from lockstep.metadata.schema_change import KINDS as SCHEMA_KINDS
from lockstep.metadata.schema_change import ChangeSchema
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
from lockstep.topology.kinds.registry import UNIONS
from lockstep.topology.transformations import KINDS as TOPOLOGY_KINDS
from lockstep.values.ids import NodeId
from lockstep.values.limits import RECENT_ENTRY_IDS_MAX
from tests.metadata.histories import History, founder
from tests.metadata.stored import REGISTERED, from_stored, stored

COLUMNS = (NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0), NewColumn("v", "text"))


def history() -> History:
    made = History(Registry(KINDS, TOPOLOGY_KINDS, SCHEMA_KINDS, unions=UNIONS))
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
    decoder = SnapshotDecoder(registered=REGISTERED)
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
                for twin in (from_stored(stored(made.now)), from_snapshot(made.now)):
                    assert state_digest(twin) == state_digest(made.now)
                    assert stored(twin) == stored(made.now)
        assert len(made.now.schema.by_name) >= 1 and len(made.entries) > 60
        assert state_digest(made.replayed()) == state_digest(made.now)


def test_digests_of_a_run_that_comes_back_to_a_schema_are_those_of_that_schema() -> None:
    made = history()
    options = (("class", "SimpleStrategy"), ("replication_factor", "3"))
    made.submit(ChangeSchema(CreateKeyspace("ks", options)))
    made.submit(ChangeSchema(create("ks", "one", 1)))
    before = msgspec.structs.replace(made.now.schema, next_table_id=10)
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


def test_extensions_whose_digest_was_not_asked_for_long_have_the_digest_of_their_listed_form() -> None:
    chosen, seldom, often = random.Random(3), NO_EXTENSIONS, NO_EXTENSIONS
    for step in range(2 * CHANGES_BEHIND_MAX + 300):
        name = f"n{chosen.randrange(40)}"
        if chosen.random() < 0.3:
            seldom, often = seldom.discard(name), often.discard(name)
        else:
            seldom, often = seldom.insert(name, b"%d" % step), often.insert(name, b"%d" % step)
        assert len(seldom.changed) <= CHANGES_BEHIND_MAX
        if step % 10 < 2:
            assert often.digest == extensions_of(often.items()).digest
        if chosen.random() < 0.002:
            assert seldom.digest == often.digest
    assert seldom.digest == often.digest and seldom == often == extensions_of(seldom.items())


def test_a_digest_that_was_asked_for_leaves_the_next_one_only_what_changed_since() -> None:
    many = extensions_of((f"n{number}", b"x") for number in range(500))
    known = many.insert("n7", b"y")
    assert known.digest != many.digest
    after = known.insert("n8", b"z")
    assert after.base is known.tree and list(after.changed) == ["n8"]
    assert sum(old is not new for old, new in zip(known.tree.branches, after.tree.branches, strict=True)) == 1


@pytest.mark.slow
def test_recent_ids_that_were_appended_have_the_digest_of_their_listed_form() -> None:
    recent = no_recent_ids()
    for epoch in range(1, 2 * RECENT_ENTRY_IDS_MAX + 40):
        recent = recent.with_entry(epoch, epoch.to_bytes(16, "big"))
        if epoch % 1_500 < 4 or epoch % 640 < 2 or epoch % RECENT_ENTRY_IDS_MAX in (0, 1):
            twin = RecentIds.from_listed(recent.first_epoch, recent.listed())
            assert twin == recent and twin.digest == recent.digest
            for old in range(max(1, epoch - RECENT_ENTRY_IDS_MAX - 5), epoch + 2):
                entry_id = old.to_bytes(16, "big")
                assert recent.epoch_of(entry_id) == twin.epoch_of(entry_id)
