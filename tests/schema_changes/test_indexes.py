"""Secondary indexes as schema changes: names, ids, refusals, and that descriptions re-create them."""

from __future__ import annotations

import pytest

from lockstep.schema.model import Schema
from lockstep.schema.objects import Index
from lockstep.schema.summaries import ChangeSummary
from lockstep.values.errors import Rejected, RequestError
from tests.schema_changes.test_changes import KEYSPACE, build, described, run

TABLE = (
    "CREATE TABLE ks.t (k int, k2 int, c int, s int static, v int, d duration, m map<text, int>, l list<int>,"
    " f frozen<map<text, int>>, u ut, fu frozen<ut>, b blob, PRIMARY KEY ((k, k2), c))"
)
TYPE = "CREATE TYPE ks.ut (a int)"
ONE = "CREATE TABLE ks.one (k int PRIMARY KEY, v int)"
COUNTS = "CREATE TABLE ks.counts (k int PRIMARY KEY, n counter)"
ALL = (KEYSPACE, TYPE, TABLE, ONE, COUNTS)


def indexes(schema: Schema, table: str = "t") -> tuple[Index, ...]:
    found = schema.table("ks", table)
    assert found is not None
    return found.indexes


def test_an_index_gets_a_name_and_an_id_and_its_table_the_epoch() -> None:
    schema = build(*ALL)
    after, summary = run(schema, "CREATE INDEX ON t (v)", 9)
    assert summary == ChangeSummary("UPDATED", "TABLE", "ks", "t")
    (index,) = indexes(after)
    assert (index.name, index.id, index.target, index.epoch) == ("t_v_idx", schema.next_table_id, "values", 9)
    table = after.table("ks", "t")
    assert table is not None and table.epoch == 9 and after.next_table_id == schema.next_table_id + 1
    again, _ = run(after, "CREATE INDEX ON ks.t (c)", 10)
    assert [index.name for index in indexes(again)] == ["t_c_idx", "t_v_idx"]


def test_a_taken_name_gets_a_number() -> None:
    schema = build(*ALL, "CREATE INDEX t_v_idx ON t (c)", "CREATE INDEX ON t (v)")
    assert [index.name for index in indexes(schema)] == ["t_v_idx", "t_v_idx_1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE INDEX ON nope (v)", "Table 'ks.nope' doesn't exist"),
        ("CREATE INDEX ON t (nope)", "Column 'nope' doesn't exist"),
        ("CREATE INDEX ON one (k)", "Cannot create secondary index on the only partition key column k"),
        ("CREATE INDEX ON counts (n)", "Secondary indexes on counter tables aren't supported"),
        ("CREATE INDEX ON t (d)", "Secondary indexes are not supported on duration columns"),
        ("CREATE INDEX ON t (f)", "Cannot create values() index on frozen column f. Frozen collections"),
        ("CREATE INDEX ON t (keys(f))", "Cannot create keys() index on frozen column f."),
        ("CREATE INDEX ON t (full(m))", "full() indexes can only be created on frozen collections"),
        ("CREATE INDEX ON t (values(v))", "Non-collection columns only support simple indexes"),
        ("CREATE INDEX ON t (keys(l))", "Cannot create index on keys of column l with non-map type"),
        ("CREATE INDEX ON t (u)", "Cannot create index on non-frozen UDT column u"),
        ("CREATE INDEX taken ON one (v)", "Index 'taken' already exists"),
        ("CREATE INDEX other ON t (values(m))", "Index other is a duplicate of existing index taken"),
        ("CREATE INDEX ON t (v, c)", "Only CUSTOM indexes support multiple columns"),
        ("CREATE INDEX ON t (v) WITH OPTIONS = {'a': 'b'}", "Cannot specify options for a non-CUSTOM index"),
        ("CREATE CUSTOM INDEX ON t (v)", "CUSTOM index requires specifying the index class"),
        ("CREATE CUSTOM INDEX ON t (v) USING 'Nope'", "Unable to find custom indexer class 'Nope'"),
        ("CREATE CUSTOM INDEX ON t (b) USING 'sai'", "Unsupported type for SAI: blob"),
        (
            "CREATE CUSTOM INDEX ON t (v) USING 'sai' WITH OPTIONS = {'x': '1'}",
            "are not understood by StorageAttachedIndex",
        ),
        ("DROP INDEX nope", "Index 'ks.nope' doesn't exist"),
        ("ALTER TABLE t DROP m", "Cannot drop column m because it has dependent secondary indexes (taken)"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    schema = build(*ALL, "CREATE INDEX taken ON t (m)")
    with pytest.raises((Rejected, RequestError)) as refused:
        run(schema, text, 9)
    assert message in refused.value.message


@pytest.mark.parametrize(
    "text",
    [
        "CREATE INDEX IF NOT EXISTS taken ON one (v)",
        "CREATE INDEX IF NOT EXISTS other ON t (m)",
        "DROP INDEX IF EXISTS nope",
    ],
)
def test_what_holds_already_changes_nothing(text: str) -> None:
    schema = build(*ALL, "CREATE INDEX taken ON t (m)")
    after, summary = run(schema, text, 9)
    assert after is schema and summary is None


def test_descriptions_make_the_indexes_again() -> None:
    texts = [
        "CREATE INDEX by_value ON ks.t (v)",
        "CREATE INDEX by_part ON ks.t (k2)",
        "CREATE INDEX by_static ON ks.t (s)",
        "CREATE INDEX by_keys ON ks.t (keys(m))",
        "CREATE INDEX by_values ON ks.t (values(m))",
        "CREATE INDEX by_entries ON ks.t (entries(m))",
        "CREATE INDEX by_all ON ks.t (full(f))",
        "CREATE CUSTOM INDEX by_range ON ks.t (v) USING 'sai' WITH OPTIONS = {'case_sensitive': 'true'}",
    ]
    schema = build(*ALL, *texts)
    made = [row[3] for row in described(schema, "DESCRIBE TABLE ks.t") if row[1] == "index"]
    assert made == [f"{text};" for text in sorted(texts, key=lambda text: text.split(" ON ")[0].split()[-1])]
    again = schema
    for index in indexes(schema):
        again, _ = run(again, f"DROP INDEX {index.name}", 30)
    assert not indexes(again)
    for text in made:
        again, _ = run(again, text, 31)
    bare = [(index.name, index.column, index.target, index.class_, index.options) for index in indexes(again)]
    assert bare == [(i.name, i.column, i.target, i.class_, i.options) for i in indexes(schema)]
    assert described(schema, "DESCRIBE INDEX ks.by_value")[0][:3] == ("ks", "index", "by_value")


def test_an_emptied_table_keeps_its_indexes_and_a_dropped_one_does_not() -> None:
    schema = build(*ALL, "CREATE INDEX ON t (v)")
    emptied, _ = run(schema, "TRUNCATE t", 9)
    assert indexes(emptied) == indexes(schema)
    dropped, _ = run(schema, "DROP TABLE t", 9)
    assert dropped.table("ks", "t") is None
    run(dropped, "CREATE INDEX t_v_idx ON one (v)", 10)
