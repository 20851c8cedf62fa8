"""Schema changes as pure functions: outcomes, refusals, ids, and that descriptions re-create a schema."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.cql.compile.context import Context
from lockstep.cql.compile.prepare import prepare
from lockstep.cql.compile.prepared import Catalog
from lockstep.cql.ddl.changes import schema_change
from lockstep.cql.ddl.describe import ClusterFacts, describe
from lockstep.schema.changes import SchemaChange, apply_change, validate
from lockstep.schema.model import (
    ColumnKind,
    Keyspace,
    Replication,
    Schema,
    SchemaImage,
    schema_of,
    schema_of_pieces,
)
from lockstep.schema.statements import meant
from lockstep.schema.summaries import ChangeSummary
from lockstep.schema.table_options import option, option_map
from lockstep.values import codec
from lockstep.values.errors import LockstepError, Rejected, RequestError

KEYSPACE = "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
TABLE = "CREATE TABLE ks.t (k int, c int, s int static, v map<text, int>, PRIMARY KEY (k, c))"
_DECODER = codec.decoder(SchemaChange)
_THREE = "CREATE TABLE u (k int, a int, b int, PRIMARY KEY (k, a, b)) WITH CLUSTERING ORDER BY"


def run(schema: Schema, text: str, epoch: int = 1) -> tuple[Schema, ChangeSummary | None]:
    """Apply one statement by way of the bytes a log entry would hold."""
    seed = len(schema.tables_by_id) + 16 * epoch
    context = Context(5000, 0, 5000, 5000, bytes(14), lambda: seed.to_bytes(16, "big"))
    change = meant(schema, schema_change(prepare(text, "ks", Catalog(schema)), context))
    decoded = _DECODER.decode(codec.encode(change))
    assert decoded == change
    after, summary = apply_change(schema, decoded, epoch, ("dc1", "dc2"))
    validate(after)
    return after, summary


def build(*texts: str) -> Schema:
    schema = Schema()
    for epoch, text in enumerate(texts, 1):
        schema, _ = run(schema, text, epoch)
    return schema


def test_a_table_gets_its_ids_epoch_and_sorted_columns() -> None:
    schema = build(KEYSPACE, TABLE)
    table = schema.table("ks", "t")
    assert table is not None
    assert (table.id, table.epoch, table.next_column_id) == (1, 2, 5)
    assert [(c.id, c.name, c.kind) for c in table.columns] == [
        (1, "k", ColumnKind.PARTITION_KEY),
        (2, "c", ColumnKind.CLUSTERING),
        (3, "s", ColumnKind.STATIC),
        (4, "v", ColumnKind.REGULAR),
    ]


def test_a_column_id_is_given_again_to_the_column_of_its_name_alone() -> None:
    schema = build(KEYSPACE, TABLE, "ALTER TABLE t DROP v", "ALTER TABLE t ADD (v map<text, int>, w int)")
    table = schema.table("ks", "t")
    assert table is not None
    assert [(c.id, c.name) for c in table.regular] == [(4, "v"), (5, "w")]
    assert [(d.id, d.name, d.dropped_at_us) for d in table.dropped] == [(4, "v", 5000)]


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("CREATE TABLE ks.u (k int PRIMARY KEY)", ChangeSummary("CREATED", "TABLE", "ks", "u")),
        ("ALTER TABLE t ADD w int", ChangeSummary("UPDATED", "TABLE", "ks", "t")),
        ("ALTER TABLE t WITH comment = 'x'", ChangeSummary("UPDATED", "TABLE", "ks", "t")),
        ("ALTER TABLE t RENAME k TO kk AND c TO cc", ChangeSummary("UPDATED", "TABLE", "ks", "t")),
        ("DROP TABLE t", ChangeSummary("DROPPED", "TABLE", "ks", "t")),
        ("DROP KEYSPACE ks", ChangeSummary("DROPPED", "KEYSPACE", "ks")),
        ("ALTER KEYSPACE ks WITH durable_writes = false", ChangeSummary("UPDATED", "KEYSPACE", "ks")),
        ("CREATE KEYSPACE IF NOT EXISTS ks WITH replication = {'class': 'x'}", None),
        ("CREATE TABLE IF NOT EXISTS t (k int PRIMARY KEY)", None),
        ("DROP TABLE IF EXISTS ks.zz", None),
        ("DROP TABLE IF EXISTS zz.zz", None),
        ("DROP KEYSPACE IF EXISTS zz", None),
        ("ALTER TABLE IF EXISTS zz DROP v", None),
        ("ALTER TABLE t ADD IF NOT EXISTS v int", None),
        ("ALTER TABLE t DROP IF EXISTS zz", None),
    ],
)
def test_changes_say_what_they_did(text: str, summary: ChangeSummary | None) -> None:
    schema = build(KEYSPACE, TABLE)
    after, found = run(schema, text, 9)
    assert found == summary
    assert (after is schema) == (summary is None)


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (KEYSPACE, 0x2400, 'Cannot add existing keyspace "ks"'),
        (TABLE, 0x2400, 'Cannot add already existing table "t" to keyspace "ks"'),
        ("CREATE TABLE nope.t (k int PRIMARY KEY)", 0x2200, "Keyspace 'nope' doesn't exist"),
        ("DROP TABLE nope", 0x2200, "Table 'ks.nope' doesn't exist"),
        ("DROP KEYSPACE nope", 0x2200, "Keyspace 'nope' doesn't exist"),
        ("DROP KEYSPACE system", 0x2200, "system keyspace is not user-modifiable."),
        ("ALTER TABLE nope ADD x int", 0x2200, "Table 'ks.nope' doesn't exist"),
        ("ALTER TABLE t ADD v int", 0x2200, "Column with name 'v' already exists"),
        ("ALTER TABLE t DROP x", 0x2200, "Column x was not found in table 'ks.t'"),
        ("ALTER TABLE t DROP k", 0x2200, "Cannot drop PRIMARY KEY column k"),
        ("ALTER TABLE t RENAME v TO w", 0x2200, "Cannot rename non PRIMARY KEY column v"),
        ("ALTER TABLE t RENAME k TO c", 0x2200, "another column with that name already exists"),
        ("ALTER TABLE t ALTER v TYPE int", 0x2200, "Altering column types is no longer supported"),
        ("CREATE TABLE u (k int)", 0x2200, "No PRIMARY KEY specifed for table 'ks.u' (exactly one required)"),
        ("CREATE TABLE u (k int PRIMARY KEY, c int PRIMARY KEY)", 0x2200, "Multiple PRIMARY KEYs specified"),
        (
            "CREATE TABLE u (k int PRIMARY KEY, k int)",
            0x2200,
            "Duplicate column 'k' declaration for table 'u'",
        ),
        ("CREATE TABLE u (k int, PRIMARY KEY (z))", 0x2200, "Unknown column 'z' referenced in PRIMARY KEY"),
        ("CREATE TABLE u (k list<int> PRIMARY KEY)", 0x2200, "Invalid non-frozen collection type list<int>"),
        ("CREATE TABLE u (k duration PRIMARY KEY)", 0x2200, "duration type is not supported for PRIMARY KEY"),
        ("CREATE TABLE u (k int PRIMARY KEY, s int static)", 0x2200, "Static columns are only useful"),
        ("CREATE TABLE u (k nope PRIMARY KEY)", 0x2200, "Unknown type ks.nope"),
        ("CREATE TABLE u (k int PRIMARY KEY, n counter, v int)", 0x2200, "Cannot mix counter and non"),
        ("CREATE TABLE u (k int PRIMARY KEY) WITH COMPACT STORAGE", 0x2200, "COMPACT STORAGE tables are not"),
        ("CREATE TABLE u (k int PRIMARY KEY) WITH nope = 1", 0x2000, "Unknown property 'nope'"),
        ("CREATE TABLE u (k int PRIMARY KEY) WITH gc_grace_seconds = -1", 0x2300, "gc_grace_seconds must be"),
        ("CREATE TABLE u (k int PRIMARY KEY) WITH gc_grace_seconds = 'x'", 0x2000, "Invalid integer value x"),
        (
            "CREATE TABLE u (k int PRIMARY KEY) WITH compaction = 'x'",
            0x2000,
            "It should be a map of options.",
        ),
        ("CREATE TABLE u (k int PRIMARY KEY) WITH compaction = {}", 0x2300, "Missing sub-option 'class'"),
        (
            "CREATE TABLE u (k int, c int, PRIMARY KEY (k, c)) WITH CLUSTERING ORDER BY (k DESC)",
            0x2200,
            "Only clustering key columns can be defined in CLUSTERING ORDER directive",
        ),
        (f"{_THREE} (b ASC)", 0x2200, "Missing CLUSTERING ORDER for column a"),
        (f"{_THREE} (b ASC, a ASC)", 0x2200, "(a must appear before b)"),
        (f"{_THREE} (a ASC, a ASC)", 0x2200, "Duplicate column 'a' in CLUSTERING ORDER BY clause for table"),
        ("DROP TABLE nowhere.u", 0x2200, "Table 'nowhere.u' doesn't exist"),
        ("ALTER TABLE nowhere.u ADD x int", 0x2200, "Table 'nowhere.u' doesn't exist"),
        (
            "CREATE KEYSPACE x WITH durable_writes = true",
            0x2300,
            "Missing mandatory replication strategy class",
        ),
        (
            "CREATE KEYSPACE x WITH replication = {'class': 'Nope'}",
            0x2300,
            "Unable to find replication strategy",
        ),
        (
            "CREATE KEYSPACE x WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1, 'dc1': 2}",
            0x2000,
            "Multiple definition for property dc1",
        ),
        (
            "ALTER TABLE t WITH compression = {'class': ''}",
            0x2300,
            "The 'class' option must not be empty. To disable compression use 'enabled' : false",
        ),
        (
            "CREATE ROLE r WITH OPTIONS = {'a': 1, 'a': 2}",
            0x2000,
            "Multiple definition for property a",
        ),
        (
            "CREATE KEYSPACE x WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 'a'}",
            0x2300,
            "Replication factor must be numeric; found a",
        ),
        (
            "CREATE KEYSPACE x WITH replication = {'class': 'NetworkTopologyStrategy', 'dc9': 1}",
            0x2300,
            "Unrecognized strategy option {dc9} passed to NetworkTopologyStrategy for keyspace x",
        ),
        (
            "CREATE KEYSPACE x WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 0}",
            0x2300,
            "Configuration for at least one datacenter must be present",
        ),
    ],
)
def test_refusals_carry_code_and_words(text: str, code: int, message: str) -> None:
    schema = build(KEYSPACE, TABLE)
    with pytest.raises(LockstepError) as caught:
        run(schema, text)
    assert isinstance(caught.value, Rejected | RequestError)
    assert caught.value.cql_code == code and message in caught.value.message


@pytest.mark.parametrize(
    ("options", "factors"),
    [
        ("'replication_factor': 2", (("dc1", 2), ("dc2", 2))),
        ("'replication_factor': 2, 'dc2': 1", (("dc1", 2), ("dc2", 1))),
        ("'replication_factor': 2, 'dc2': 0", (("dc1", 2),)),
        ("'dc2': 3", (("dc2", 3),)),
    ],
)
def test_one_factor_stands_for_every_data_center_not_named(options: str, factors: tuple) -> None:
    schema = build(f"CREATE KEYSPACE x WITH replication = {{'class': 'NetworkTopologyStrategy', {options}}}")
    assert schema.by_name["x"].replication.factors == factors


def test_an_order_may_be_given_for_the_first_clustering_columns_only() -> None:
    table = build(KEYSPACE, f"{_THREE} (a DESC)").table("ks", "u")
    assert table is not None
    assert [(column.name, column.descending) for column in table.clustering] == [("a", True), ("b", False)]


def test_a_keyspace_without_a_factor_keeps_the_simple_one_or_has_one_replica() -> None:
    def factors(*texts: str) -> tuple:
        return build(*texts).by_name["x"].replication.factors

    simple = "WITH replication = {'class': 'SimpleStrategy'}"
    topology = simple.replace("Simple", "NetworkTopology")
    three = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
    assert factors(f"CREATE KEYSPACE x {simple}") == (("", 1),)
    assert factors(f"CREATE KEYSPACE x {topology}") == (("dc1", 1), ("dc2", 1))
    assert factors(f"CREATE KEYSPACE x {three}", f"ALTER KEYSPACE x {simple}") == (("", 3),)
    everywhere = factors(f"CREATE KEYSPACE x {three}", f"ALTER KEYSPACE x {topology}")
    assert everywhere == (("dc1", 3), ("dc2", 3))


def test_options_are_canonical_and_kept_over_alters() -> None:
    schema = build(
        KEYSPACE,
        "CREATE TABLE t (k int PRIMARY KEY) WITH gc_grace_seconds = 007 AND "
        "compaction = {'class': 'LeveledCompactionStrategy', 'sstable_size_in_mb': 10}",
        "ALTER TABLE t WITH comment = 'it''s'",
    )
    table = schema.table("ks", "t")
    assert table is not None and [name for name, _ in table.options] == [
        "comment",
        "compaction",
        "gc_grace_seconds",
    ]
    assert option(table.options, "gc_grace_seconds") == "7"
    assert option(table.options, "comment") == "it's"
    assert option_map(option(table.options, "compaction"))["class"].endswith(
        "compaction.LeveledCompactionStrategy"
    )
    assert option(table.options, "read_repair") == "BLOCKING"


def described(schema: Schema, text: str, keyspace: str | None = None) -> list[tuple[str, ...]]:
    found = describe(prepare(text, keyspace, Catalog(schema)), Catalog(schema), ClusterFacts("c"))
    assert [column.type.text for column in found.columns] == ["text"] * len(found.columns)
    return [tuple(value.decode() for value in row if value is not None) for row in found.rows]


def test_what_there_is_to_say_of_a_keyspace_stands_behind_its_statement() -> None:
    schema = schema_of([Keyspace("K", Replication("NetworkTopologyStrategy", (("dc1", 1),)))])
    catalog = Catalog(schema)
    facts = ClusterFacts("c", notes={"K": "on its way to three copies", "other": "not shown"})
    (row,) = describe(prepare('DESCRIBE KEYSPACE "K"', None, catalog), catalog, facts).rows
    text = row[-1]
    assert text is not None and text.decode().endswith(";\n-- on its way to three copies")
    ((*_, plain),) = described(schema, 'DESCRIBE KEYSPACE "K"')
    assert text.decode() == f"{plain}\n-- on its way to three copies"


_TYPES = (
    "int",
    "text",
    "list<int>",
    "map<text, frozen<set<int>>>",
    "frozen<tuple<int, text>>",
    "vector<float, 3>",
)
_KEY_TYPES = ("int", "text", "timeuuid", "frozen<list<int>>")
_NAMES = st.sampled_from(["a", "b", "c", "d", "Ee", "select", 'q"q', "f f"])


@st.composite
def tables(draw: st.DrawFn) -> str:
    names = draw(st.lists(_NAMES, min_size=2, max_size=7, unique=True))
    key = draw(st.integers(1, len(names)))
    split = draw(st.integers(1, key))
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    lines = []
    for at, name in enumerate(quoted):
        kind = draw(st.sampled_from(_KEY_TYPES if at < key else _TYPES))
        static = " static" if at >= key and key > split and draw(st.booleans()) else ""
        lines.append(f"{name} {kind}{static}")
    clustering = quoted[split:key]
    lines.append(f"PRIMARY KEY ({', '.join([f'({chr(44).join(quoted[:split])})', *clustering])})")
    orders = ", ".join(f"{name} {draw(st.sampled_from(['ASC', 'DESC']))}" for name in clustering)
    options = ["comment = 'it''s'", *([f"CLUSTERING ORDER BY ({orders})"] if orders else [])]
    return f"CREATE TABLE t ({', '.join(lines)}) WITH {' AND '.join(options)}"


@settings(max_examples=60, deadline=None)
@given(tables())
def test_a_described_keyspace_creates_an_equal_one(text: str) -> None:
    schema = build(KEYSPACE, text)
    rows = described(schema, "DESCRIBE KEYSPACE ks WITH INTERNALS")
    again = build(*(row[3] for row in rows))
    first, second = schema.table("ks", "t"), again.table("ks", "t")
    assert first is not None and second is not None and first.uuid == second.uuid
    assert _shape(first) == _shape(second)
    assert schema.by_name["ks"].replication == again.by_name["ks"].replication
    assert described(again, "DESC SCHEMA") == described(schema, "DESC SCHEMA")


def _shape(table) -> list[tuple]:
    return [(c.name, c.type, c.kind, c.position, c.descending) for c in table.columns]


def test_descriptions_list_names() -> None:
    schema = build(KEYSPACE, TABLE, 'CREATE TABLE "Tt" (k int PRIMARY KEY)')
    assert described(schema, "DESC KEYSPACES") == [("ks", "keyspace", "ks")]
    assert described(schema, "DESCRIBE TABLES", "ks") == [("ks", "table", '"Tt"'), ("ks", "table", "t")]
    assert described(schema, "DESCRIBE t", "ks") == described(schema, "DESC TABLE ks.t")
    assert [row[1] for row in described(schema, "DESCRIBE ONLY KEYSPACE ks")] == ["keyspace"]
    assert described(schema, "DESCRIBE CLUSTER")[0][0] == "c"
    with pytest.raises(RequestError, match="'zz' not found in keyspaces"):
        described(schema, "DESCRIBE KEYSPACE zz")
    with pytest.raises(RequestError, match="'zz' not found in keyspace 'ks'"):
        described(schema, "DESCRIBE TABLE ks.zz")


def test_equal_histories_give_equal_bytes() -> None:
    texts = (KEYSPACE, TABLE, "ALTER TABLE t ADD w int", "CREATE TABLE a (k int PRIMARY KEY)")
    one, other = build(*texts), build(*texts)
    assert codec.encode(one.image()) == codec.encode(other.image()) and one.digest == other.digest
    stored = msgspec.msgpack.decode(codec.encode(one.image()), type=SchemaImage)
    assert schema_of_pieces([stored]) == schema_of_pieces(one.image_pieces(1)) == one


def test_an_emptied_table_gets_a_new_storage_id_and_keeps_all_else() -> None:
    before = build(KEYSPACE, TABLE, "CREATE TABLE ks.u (k int PRIMARY KEY)")
    after, summary = run(before, "TRUNCATE ks.t", 9)
    old, new = before.table("ks", "t"), after.table("ks", "t")
    assert old is not None and new is not None
    assert summary == ChangeSummary("EMPTIED", "TABLE", "ks", "t")
    assert new == msgspec.structs.replace(old, id=3, epoch=9)
    assert before.table("ks", "u") == after.table("ks", "u")


def test_a_missing_table_cannot_be_emptied() -> None:
    schema = build(KEYSPACE, TABLE)
    change = schema_change(
        prepare("TRUNCATE ks.t", None, Catalog(schema)), Context(0, 0, 0, 0, bytes(14), lambda: bytes(16))
    )
    with pytest.raises(Rejected):
        apply_change(build(KEYSPACE), change, 5)
