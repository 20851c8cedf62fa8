"""Changes of user-defined types: what is refused and in which words, limits, and descriptions."""

from __future__ import annotations

import pytest

from lockstep.cql.compile.prepare import prepare
from lockstep.cql.compile.prepared import Catalog
from lockstep.cql.ddl.describe import ClusterFacts, describe
from lockstep.schema.model import Schema
from lockstep.schema.summaries import ChangeSummary
from lockstep.schema.types import UserDefinedType
from lockstep.schema.user_types import in_order_of_use, type_in
from lockstep.values.errors import LockstepError, Rejected
from lockstep.values.limits import USER_TYPE_DEPTH_MAX, USER_TYPE_LEAVES_MAX
from tests.schema_changes.test_changes import KEYSPACE, build, run

_POINT = "CREATE TYPE point (x int, y int)"
_LINE = "CREATE TYPE line (a frozen<point>, b frozen<point>)"
_TABLE = (
    "CREATE TABLE t (k int, c frozen<tuple<int, point>>, l list<frozen<line>>, p point, PRIMARY KEY (k, c))"
)


def test_changes_tell_drivers_which_type() -> None:
    schema = build(KEYSPACE)
    for text, change in (
        (_POINT, "CREATED"),
        ("ALTER TYPE point ADD z int", "UPDATED"),
        ("ALTER TYPE ks.point RENAME z TO height", "UPDATED"),
        ("DROP TYPE point", "DROPPED"),
    ):
        schema, summary = run(schema, text)
        assert summary == ChangeSummary(change, "TYPE", "ks", "point")


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TYPE IF NOT EXISTS point (other text)",
        "DROP TYPE IF EXISTS nope",
        "DROP TYPE IF EXISTS nope.point",
        "ALTER TYPE IF EXISTS nope ADD x int",
        "ALTER TYPE IF EXISTS nope RENAME x TO z",
        "ALTER TYPE point ADD IF NOT EXISTS x text",
        "ALTER TYPE point RENAME IF EXISTS nope TO z",
    ],
)
def test_what_a_condition_allows_for_changes_nothing(text: str) -> None:
    schema = build(KEYSPACE, _POINT)
    assert run(schema, text) == (schema, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE TYPE nope.p (x int)", "Keyspace 'nope' doesn't exist"),
        ("CREATE TYPE system.p (x int)", "system keyspace is not user-modifiable."),
        ("CREATE TYPE point (x int)", "A user type with name 'point' already exists"),
        ("CREATE TYPE p (x int, y text, x int)", "Duplicate field name 'x' in type 'p'"),
        ("CREATE TYPE p (x counter)", "A user type cannot contain counters"),
        ("CREATE TYPE p (x point)", "A user type cannot contain non-frozen UDTs"),
        ("CREATE TYPE p (x list<point>)", "Non-frozen UDTs are not allowed inside collections: list<point>"),
        ("CREATE TYPE p (x frozen<p>)", "Unknown type ks.p"),
        ("CREATE TYPE p (x frozen<other.point>)",
         "Statement on keyspace ks cannot refer to a user type in keyspace other; user types can only be "
         "used in the keyspace they are defined in"),
        ("ALTER TYPE nope ADD x int", "Type 'ks.nope' doesn't exist"),
        ("ALTER TYPE point ADD x int",
         "Cannot add field x to type point: a field with name x already exists"),
        ("ALTER TYPE point ADD z nope", "Unknown type ks.nope"),
        ("ALTER TYPE point ADD z frozen<list<frozen<line>>>",
         "Cannot add new field z of type frozen<list<frozen<line>>> to user type point as it would create a "
         "circular reference"),
        ("ALTER TYPE point ADD z frozen<point>", "as it would create a circular reference"),
        ("ALTER TYPE keyed ADD z int", "used in partition key by the following tables: ks.by_key"),
        ("ALTER TYPE point ALTER x TYPE text", "Altering field types is no longer supported"),
        ("ALTER TYPE point RENAME nope TO z", "Unkown field nope in user type ks.point"),
        ("ALTER TYPE point RENAME x TO y", "Duplicate field name y in type ks.point"),
        ("DROP TYPE nope", "Type 'ks.nope' doesn't exist"),
        ("DROP TYPE point",
         "Cannot drop user type 'ks.point' as it is still used by user types [line]"),
        ("DROP TYPE line", "Cannot drop user type 'ks.line' as it is still used by tables [t]"),
        ("CREATE TABLE u (k point PRIMARY KEY)",
         "Invalid non-frozen user-defined type point for PRIMARY KEY column 'k'"),
        ("CREATE TABLE u (k frozen<list<frozen<timed>>> PRIMARY KEY)",
         "duration type is not supported for PRIMARY KEY column 'k'"),
        ("CREATE TABLE u (k int PRIMARY KEY, v bag)",
         "Non-frozen UDTs with nested non-frozen collections are not supported"),
        ("ALTER TABLE t ADD v bag", "Non-frozen UDTs with nested non-frozen collections are not supported"),
        ("ALTER TABLE t ADD v frozen<nope>", "Unknown type ks.nope"),
        ("CREATE TABLE u (k int PRIMARY KEY, v map<point, int>)",
         "Non-frozen UDTs are not allowed inside collections: map<point, int>"),
    ],
)  # fmt: skip
def test_refusals_carry_code_and_words(text: str, message: str) -> None:
    schema = build(
        KEYSPACE,
        _POINT,
        _LINE,
        "CREATE TYPE bag (items list<int>)",
        "CREATE TYPE keyed (x int)",
        "CREATE TYPE timed (d duration)",
        _TABLE,
        "CREATE TABLE by_key (k frozen<keyed> PRIMARY KEY)",
    )
    with pytest.raises(LockstepError) as caught:
        run(schema, text)
    assert caught.value.cql_code == 0x2200
    assert message in caught.value.message


def test_a_dropped_column_no_longer_holds_its_type() -> None:
    schema = build(
        KEYSPACE, _POINT, "CREATE TABLE t (k int PRIMARY KEY, v frozen<point>)", "ALTER TABLE t DROP v"
    )
    schema, _ = run(schema, "DROP TYPE point")
    assert schema.by_name["ks"].types == ()


def test_renamed_and_added_fields_are_seen_in_every_place_at_once() -> None:
    schema = build(KEYSPACE, _POINT, _LINE, _TABLE, "ALTER TYPE point RENAME x TO east AND y TO north")
    schema, _ = run(schema, "ALTER TYPE point ADD up int", 9)
    space = schema.by_name["ks"]
    line = type_in(space, "list<frozen<line>>").element
    assert isinstance(line, UserDefinedType)
    for kind in (*line.elements, type_in(space, "point")):
        assert isinstance(kind, UserDefinedType)
        assert kind.field_names == ("east", "north", "up")


def test_types_inside_each_other_have_a_limit() -> None:
    schema = build(KEYSPACE, "CREATE TYPE t0 (x int)")
    for level in range(1, USER_TYPE_DEPTH_MAX):
        schema, _ = run(schema, f"CREATE TYPE t{level} (x frozen<t{level - 1}>)")
    with pytest.raises(Rejected, match="nested too deeply"):
        run(schema, f"CREATE TYPE deeper (x frozen<list<frozen<t{USER_TYPE_DEPTH_MAX - 1}>>>)")
    schema, _ = run(schema, "CREATE TYPE other (x int)")
    with pytest.raises(Rejected, match="nested too deeply"):
        # The types above grow with the one at the bottom.
        run(schema, "ALTER TYPE t0 ADD o frozen<other>")


def test_types_that_double_with_each_level_have_a_limit() -> None:
    schema = build(KEYSPACE, "CREATE TYPE t0 (x int, y int)")
    with pytest.raises(Rejected, match=f"more than {USER_TYPE_LEAVES_MAX}"):
        for level in range(1, 20):
            schema, _ = run(schema, f"CREATE TYPE t{level} (x frozen<t{level - 1}>, y frozen<t{level - 1}>)")
    assert len(schema.by_name["ks"].types) == 13


def test_a_description_makes_types_in_the_order_they_need_each_other() -> None:
    schema = build(
        KEYSPACE,
        'CREATE TYPE "Zoo" (x int)',
        'CREATE TYPE middle (m map<text, frozen<"Zoo">>, "Select" int)',
        "CREATE TYPE alone (x int)",
        "CREATE TYPE a (m frozen<tuple<int, middle>>)",
        'CREATE TABLE t (k int PRIMARY KEY, v frozen<a>, z "Zoo")',
    )
    assert [found.name for found in in_order_of_use(schema.by_name["ks"])] == ["Zoo", "middle", "a", "alone"]
    prepared = prepare("DESCRIBE KEYSPACE ks", None, Catalog(schema))
    rows = describe(prepared, Catalog(schema), ClusterFacts("c")).rows
    assert [row[1] for row in rows] == [b"keyspace", b"type", b"type", b"type", b"type", b"table"]
    again = build(*[(row[3] or b"").decode() for row in rows])
    assert describe(prepared, Catalog(again), ClusterFacts("c")).rows == rows
    types = {found.name: (found.field_names, found.field_types) for found in schema.by_name["ks"].types}
    assert types == {f.name: (f.field_names, f.field_types) for f in again.by_name["ks"].types}


def test_tables_of_other_keyspaces_do_not_know_a_type() -> None:
    schema: Schema = build(KEYSPACE, KEYSPACE.replace("ks", "other", 1), _POINT)
    with pytest.raises(LockstepError, match=r"Unknown type other\.point"):
        run(schema, "CREATE TABLE other.t (k int PRIMARY KEY, v frozen<point>)")
    schema, _ = run(schema, "CREATE TABLE u (k int PRIMARY KEY, v frozen<ks.point>)")
    assert schema.table("ks", "u").by_name["v"].type == "frozen<point>"
