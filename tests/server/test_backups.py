"""Which tables a backup and a restore are about."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.cluster import empty_cluster
from lockstep.metadata.schema_part import SCHEMA
from lockstep.node.work.backup_choice import chosen_parts
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
from lockstep.schema.objects import View
from lockstep.server.admin.backups import WantedRestore, as_kept, backed_parts, to_empty, wanted_tables
from lockstep.storage.backup_manifest import (
    BackedFile,
    BackedTable,
    Manifest,
    backed_table,
    sealed,
    stand_in,
)
from lockstep.values.errors import ConfigurationError, PreconditionError
from lockstep.values.limits import ADMIN_BODY_BYTES_MAX

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


def test_a_log_of_captured_changes_is_not_emptied_while_its_table_captures() -> None:
    """That is refused for the log alone, when other tables are empty already."""

    def captured(cdc: str) -> Schema:
        tables = (
            Table(1, "1", "a", "t", COLUMNS, options=(("cdc", cdc),), views=("v",)),
            Table(2, "2", "a", "t_scylla_cdc_log", COLUMNS),
            Table(3, "3", "a", "v", COLUMNS, view=View("t", "k IS NOT NULL", True, ((1, 1),))),
        )
        return schema_of([keyspace_of(HEADS[0], tables)], 20)

    for cdc, emptied in (("true", ["t"]), ("false", ["t", "t_scylla_cdc_log"])):
        found = captured(cdc)
        assert to_empty(found, backed(found)) == tuple(("a", name) for name in emptied)
    assert to_empty(schema(), backed(captured("true"))) == (("a", "t"),)


def test_names_of_what_is_backed_up() -> None:
    cluster = empty_cluster().changed(SCHEMA.set(schema()))
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


def test_a_plan_for_a_thousand_parts_that_no_node_keeps_fits_into_a_request() -> None:
    hosts = tuple(f"00000000-0000-4000-8000-{number:012d}" for number in range(1000))
    metadata = BackedFile("metadata", 1, 2, "", "", "cc")

    def part(host_id: str) -> Manifest:
        files = tuple(BackedFile(name, 5, 7, "00", "ff", "dd") for name in ("0", "1"))
        tables = tuple(
            backed_table(keyspace, table, files)
            for keyspace in schema("v").keyspaces
            for table in keyspace.tables
        )
        return Manifest(1, "b", "id", "c", "n", 4, 5, 1, host_id, hosts, (), (), {}, tables, metadata)

    parts = [{"node": 1 + at % 3, "host_id": host_id} for at, host_id in enumerate(hosts)]
    body = {
        "dry_run": True,
        "brought": {"manifest": sealed(stand_in([part(host) for host in hosts])).decode(), "parts": parts},
    }
    assert len(msgspec.json.encode(body)) < ADMIN_BODY_BYTES_MAX // 4
    brought = msgspec.convert(body, WantedRestore).brought
    assert brought is not None
    found = chosen_parts("b", as_kept("b", brought), ())
    assert sum(len(ids) for ids in found.host_ids.values()) == len(hosts)
    assert {table.name: table.size_bytes for table in found.tables()} == dict.fromkeys("tuv", 14_000)
    lacking = msgspec.structs.replace(brought, parts=brought.parts[1:])
    with pytest.raises(PreconditionError, match=f"1 of 1000 parts of backup b are missing: {hosts[0]}"):
        chosen_parts("b", as_kept("b", lacking), ())
