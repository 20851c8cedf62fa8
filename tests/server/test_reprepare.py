"""Statements whose table got other columns are prepared again, so that clients take the new columns."""

from __future__ import annotations

import pytest

from lockstep.cql.compile.context import Context
from lockstep.cql.compile.prepare import prepare
from lockstep.cql.compile.prepared import Catalog
from lockstep.cql.ddl.changes import schema_change
from lockstep.schema.changes import apply_change
from lockstep.schema.model import Schema
from lockstep.server.statements.statements import Statements
from lockstep.values.errors import InvalidRequest, Unprepared

KEYSPACE = "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"


class Shelf:
    """A schema that changes, and the statements of a node that follows it."""

    def __init__(self) -> None:
        self.catalog = Catalog(Schema())
        self.epoch = 0
        self.run(KEYSPACE)
        self.run("CREATE TABLE ks.t (k int PRIMARY KEY, v int)")
        self.statements = Statements(lambda: self.catalog)

    def run(self, text: str) -> None:
        self.epoch += 1
        context = Context(
            self.epoch, 0, self.epoch, self.epoch, bytes(14), lambda: self.epoch.to_bytes(16, "big")
        )
        change = schema_change(prepare(text, None, self.catalog), context)
        schema, _ = apply_change(self.catalog.schema, change, self.epoch)
        self.catalog = Catalog(schema)


@pytest.mark.parametrize("text", ["SELECT * FROM ks.t", "INSERT INTO ks.t (k, v) VALUES (?, ?)"])
def test_another_column_outdates_a_statement_until_it_is_prepared_again(text: str) -> None:
    shelf = Shelf()
    first = shelf.statements.prepare(text, None)
    shelf.run("ALTER TABLE ks.t ADD w int")
    with pytest.raises(Unprepared):
        shelf.statements.by_id(first.id)
    again = shelf.statements.prepare(text, None)
    assert again.id == first.id
    assert shelf.statements.by_id(first.id) is again


def test_clients_that_hold_the_old_columns_are_known_after_another_client_prepared_again() -> None:
    shelf = Shelf()
    first = shelf.statements.prepare("SELECT * FROM ks.t", None)
    shelf.run("ALTER TABLE ks.t ADD w int")
    with pytest.raises(Unprepared):
        shelf.statements.by_id(first.id)
    again = shelf.statements.prepare("SELECT * FROM ks.t", None)
    assert again.shape_changed
    assert again.result_id != first.result_id


@pytest.mark.parametrize("text", ["ALTER TABLE ks.t WITH comment = 'x'", "TRUNCATE ks.t"])
def test_what_leaves_the_columns_alone_leaves_the_statement_prepared(text: str) -> None:
    shelf = Shelf()
    first = shelf.statements.prepare("SELECT * FROM ks.t", None)
    shelf.run(text)
    found = shelf.statements.by_id(first.id)
    table = shelf.catalog.schema.table("ks", "t")
    assert table is not None
    assert found is first
    assert found.prepared.table_id == table.id


@pytest.mark.parametrize("change", ["ALTER TYPE ks.inner ADD b int", "ALTER TYPE ks.inner RENAME a TO b"])
def test_another_meaning_of_a_type_outdates_the_statements_that_use_it(change: str) -> None:
    shelf = Shelf()
    shelf.run("CREATE TYPE ks.inner (a int)")
    shelf.run("CREATE TYPE ks.outer (i frozen<inner>)")
    shelf.run("CREATE TABLE ks.u (k int PRIMARY KEY, v list<frozen<outer>>)")
    using = [
        shelf.statements.prepare(text, None)
        for text in ("SELECT v FROM ks.u", "DELETE FROM ks.u WHERE k = ?")
    ]
    other = shelf.statements.prepare("SELECT * FROM ks.t", None)
    shelf.run("CREATE TYPE ks.unrelated (a int)")
    assert [shelf.statements.by_id(statement.id) for statement in using] == using
    shelf.run(change)
    for statement in using:
        with pytest.raises(Unprepared):
            shelf.statements.by_id(statement.id)
    assert shelf.statements.by_id(other.id) is other
    again = shelf.statements.prepare("SELECT v FROM ks.u", None)
    assert again.shape_changed and again.result_id != using[0].result_id


@pytest.mark.parametrize("table", ["t", "u"])
def test_a_batch_is_outdated_by_each_of_its_tables(table: str) -> None:
    shelf = Shelf()
    shelf.run("CREATE TABLE ks.u (k int PRIMARY KEY, v int)")
    first = shelf.statements.prepare(
        "BEGIN BATCH INSERT INTO ks.t (k, v) VALUES (?, ?); "
        "INSERT INTO ks.u (k, v) VALUES (?, ?); APPLY BATCH",
        None,
    )
    shelf.run("CREATE TABLE ks.other (k int PRIMARY KEY, v int)")
    assert shelf.statements.by_id(first.id) is first
    shelf.run(f"ALTER TABLE ks.{table} DROP v")
    shelf.run(f"ALTER TABLE ks.{table} ADD v int")
    with pytest.raises(Unprepared):
        shelf.statements.by_id(first.id)


def test_what_is_kept_of_prepared_statements_is_bounded_by_their_texts() -> None:
    shelf = Shelf()
    first = shelf.statements.prepare("SELECT * FROM ks.t", None)
    long = f"UPDATE ks.t SET v = 1 WHERE k = 1 /* {'x' * (3 << 20)} */"
    kept = [shelf.statements.prepare(f"{long} /* {number} */", None) for number in range(3)]
    assert len(shelf.statements) == 2
    for gone in (first, kept[0]):
        with pytest.raises(Unprepared):
            shelf.statements.by_id(gone.id)
    assert shelf.statements.by_id(kept[2].id) is kept[2]
    with pytest.raises(InvalidRequest, match="larger than allowed maximum of 8 MB"):
        shelf.statements.prepare(f"SELECT * FROM ks.t /* {'x' * (8 << 20)} */", None)
    assert len(shelf.statements) == 2
