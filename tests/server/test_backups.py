"""Which tables a backup and a restore are about."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.cluster import empty_cluster
from lockstep.schema.model import (
    Column,
    ColumnKind,
    KeyspaceHead,
    Replication,
    Schema,
    Table,
    keyspace_of,
    schema_of,
)
from lockstep.server.backups import backed_parts, wanted_tables
from lockstep.storage.backup_manifest import BackedTable, backed_table
from lockstep.values.errors import ConfigurationError, PreconditionError

COLUMNS = (Column(1, "k", "int", ColumnKind.PARTITION_KEY, 0),)
HEADS = [KeyspaceHead(name, Replication("SimpleStrategy", (("", 1),))) for name in ("a", "b")]


def schema(*views: str) -> Schema:
    """a.t with these views, a.u and b.t."""
    made = [
        Table(1, "1", "a", "t", COLUMNS, views=views),
        Table(2, "2", "a", "u", COLUMNS),
        *(Table(10 + at, str(10 + at), "a", name, COLUMNS) for at, name in enumerate(views)),
    ]
    other = (Table(3, "3", "b", "t", COLUMNS),)
    return schema_of([keyspace_of(HEADS[0], tuple(made)), keyspace_of(HEADS[1], other)], 20)


def backed(found: Schema) -> list[BackedTable]:
    return [backed_table(keyspace, table, ()) for keyspace in found.keyspaces for table in keyspace.tables]


def restored(here: Schema, there: Schema, *wanted: str) -> list[str]:
    return [f"{one.keyspace}.{one.name}" for one in wanted_tables(here, backed(there), wanted)]


def test_what_is_named_is_restored_with_the_views_of_it_that_are_here() -> None:
    assert restored(schema(), schema(), "a.t") == ["a.t"]
    assert restored(schema(), schema("v")) == ["a.t", "a.u", "a.v", "b.t"]
    assert restored(schema("v"), schema("v"), "a.t") == ["a.t", "a.v"]
    assert restored(schema(), schema("v"), "a.t", "b") == ["a.t", "b.t"]
    assert restored(schema(), schema(), "c") == []


def test_a_view_that_would_lack_rows_is_refused() -> None:
    with pytest.raises(PreconditionError, match=r"view a\.w was not backed up"):
        restored(schema("w"), schema("v"), "a")
    assert restored(schema("w"), schema("v"), "a.u") == ["a.u"]


def test_names_of_what_is_backed_up() -> None:
    cluster = msgspec.structs.replace(empty_cluster(), schema=schema())
    assert [(part.keyspace, part.tables) for part in backed_parts(cluster, ())] == [
        ("a", (1, 2)),
        ("b", (3,)),
    ]
    assert [(part.keyspace, part.tables) for part in backed_parts(cluster, ("a.u", "b"))] == [
        ("a", (2,)),
        ("b", (3,)),
    ]
    for unknown in ("c", "a.x", "t", "a.t.x"):
        with pytest.raises(ConfigurationError, match="there is no keyspace or table"):
            backed_parts(cluster, (unknown,))
