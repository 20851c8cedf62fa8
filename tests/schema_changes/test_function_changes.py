"""User functions and aggregates in the schema: what is refused, what follows, and who wins a race."""

from __future__ import annotations

import pytest

from lockstep.cql.compile.context import Context
from lockstep.cql.compile.prepare import prepare
from lockstep.cql.compile.prepared import Catalog
from lockstep.cql.ddl.changes import schema_change
from lockstep.cql.ddl.describe import aggregate_statement, function_statement
from lockstep.schema.changes import apply_change, validate
from lockstep.schema.model import Schema, schema_of_pieces
from lockstep.schema.statements import meant
from lockstep.schema.summaries import CREATED, DROPPED, UPDATED, ChangeSummary, summaries_between
from lockstep.values.errors import LockstepError

_PLUS = "CREATE FUNCTION plus(a int, b int) RETURNS NULL ON NULL INPUT RETURNS int LANGUAGE python AS 'a + b'"
_TEXT = "CREATE FUNCTION plus(a text, b text) CALLED ON NULL INPUT RETURNS text LANGUAGE python AS 'a + b'"
_SUM = "CREATE AGGREGATE total(int) SFUNC plus STYPE int INITCOND 0"


def changed(schema: Schema, statement: str, epoch: int = 9) -> tuple[Schema, ChangeSummary | None]:
    context = Context(1, 0, 1, 1, bytes(14), lambda: bytes(16))
    prepared = prepare(statement, "ks", Catalog(schema))
    found = apply_change(schema, meant(schema, schema_change(prepared, context)), epoch, ("dc1",))
    validate(found[0])
    return found


def after(*statements: str) -> Schema:
    schema = Schema()
    for statement in (
        "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
        "CREATE TYPE pair (a int, b text)",
        *statements,
    ):
        schema, _ = changed(schema, statement)
    return schema


@pytest.mark.parametrize("name", ["my/fancy", "my[fancy", "my]fancy"])
def test_names_that_permissions_could_not_tell_apart_are_refused(name: str) -> None:
    with pytest.raises(LockstepError, match=r"Function name '.*' is invalid"):
        changed(after(), _PLUS.replace("plus", f'"{name}"'))
    with pytest.raises(LockstepError, match=r"Aggregate name '.*' is invalid"):
        changed(after(), _SUM.replace("total", f'"{name}"'))


def test_overloads_and_what_clients_are_told() -> None:
    schema, summary = changed(after(_TEXT), _PLUS)
    assert summary == ChangeSummary(CREATED, "FUNCTION", "ks", "plus", ("int", "int"))
    assert [one.argument_types for one in schema.by_name["ks"].functions] == [
        ("int", "int"),
        ("text", "text"),
    ]
    schema, summary = changed(schema, _SUM)
    assert summary == ChangeSummary(CREATED, "AGGREGATE", "ks", "total", ("int",))
    replaced, summary = changed(schema, _PLUS.replace("CREATE", "CREATE OR REPLACE").replace("a + b'", "b'"))
    assert summary == ChangeSummary(UPDATED, "FUNCTION", "ks", "plus", ("int", "int"))
    assert summaries_between(schema, replaced) == [summary]
    same, summary = changed(schema, _PLUS.replace("CREATE", "CREATE OR REPLACE"))
    assert same is schema and summary is None
    assert changed(schema, _PLUS.replace("FUNCTION", "FUNCTION IF NOT EXISTS"))[1] is None
    less, summary = changed(schema, "DROP AGGREGATE total")
    assert summary == ChangeSummary(DROPPED, "AGGREGATE", "ks", "total", ("int",))
    assert changed(less, "DROP FUNCTION plus(int, int)")[0] == after(_TEXT)
    assert schema_of_pieces([schema.image()]) == schema


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (_PLUS, "Function 'plus' already exists"),
        (_PLUS.replace("(a int, b int)", "(a int, a int)"), "Duplicate argument names"),
        (_PLUS.replace("a int", "a frozen<list<int>>"), "Argument 'frozen<list<int>>' cannot be frozen"),
        (_PLUS.replace("RETURNS int", "RETURNS frozen<pair>"), "Return type 'frozen<pair>' cannot be frozen"),
        (_PLUS.replace("a int", "a nothing"), "Unknown type ks.nothing"),
        (_PLUS.replace("plus", "other.plus"), "Keyspace 'other' doesn't exist"),
        (_PLUS.replace("plus", "system.plus"), "system keyspace is not user-modifiable"),
        (_PLUS.replace("CREATE", "CREATE OR REPLACE").replace("RETURNS NULL", "CALLED"), "must have RETURNS"),
        (
            _PLUS.replace("CREATE", "CREATE OR REPLACE").replace("RETURNS int", "RETURNS bigint"),
            "the new return type bigint is not compatible with the return type int",
        ),
        (_PLUS.replace("plus(a int, b int)", "total(a int)"), "Function 'total' cannot replace an aggregate"),
        ("DROP FUNCTION plus", "matches multiple function definitions"),
        ("DROP FUNCTION plus(bigint)", "Function 'ks.plus(bigint)' doesn't exist"),
        ("DROP FUNCTION plus(int, int)", "is still referenced by aggregates [ks.total]"),
        ("DROP AGGREGATE nothing", "Aggregate 'ks.nothing' doesn't exist"),
        (_SUM, "Aggregate 'total' already exists"),
        (_SUM.replace("total(int)", "id(pair)"), "State function ks.plus(int, pair) doesn't exist"),
        (_SUM.replace("total(int)", "other(text)").replace("STYPE int", "STYPE text"), ""),
        (_SUM.replace("total(int)", "t(int)").replace(" INITCOND 0", ""), "without INITCOND"),
        (_SUM.replace("total", "t").replace("INITCOND", "FINALFUNC none INITCOND"), "Final function ks.none"),
        (_SUM.replace("total(int)", "wide(int)").replace("plus", "wide"), "return type must be the same"),
        (_SUM.replace("total(int)", "id(pair)").replace("CREATE", "CREATE OR REPLACE"), "doesn't exist"),
        ("CREATE AGGREGATE id(pair) SFUNC plus STYPE int INITCOND 0", "doesn't exist"),
        ("DROP TYPE pair", "as it is still used by functions [id]"),
    ],
)
def test_refusals(statement: str, message: str) -> None:
    schema = after(
        _PLUS,
        _TEXT,
        _SUM,
        "CREATE FUNCTION id(a list<frozen<pair>>) CALLED ON NULL INPUT RETURNS int LANGUAGE python AS '1'",
        "CREATE FUNCTION wide(a int, b int) CALLED ON NULL INPUT RETURNS bigint LANGUAGE python AS 'a'",
    )
    if not message:
        changed(schema, statement)
        return
    with pytest.raises(LockstepError) as refused:
        changed(schema, statement)
    assert message in refused.value.message


def test_a_function_that_is_dropped_and_an_aggregate_that_needs_it_have_one_winner() -> None:
    schema, drop = after(_PLUS), "DROP FUNCTION plus"
    for first, second in ((drop, _SUM), (_SUM, drop)):
        left, summary = changed(schema, first)
        assert summary is not None
        with pytest.raises(LockstepError):
            changed(left, second)


@pytest.mark.parametrize("body", ["a + b", "'it''s'", "x = '$$'\nreturn x", "return '$'", "costs $"])
def test_statements_of_a_description_make_the_same_again(body: str) -> None:
    quoted = body.replace("'", "''")
    function = _PLUS.replace("'a + b'", f"'{quoted}'").replace("a int", '"A" pair')
    folding = "CREATE FUNCTION f(s text, a int) CALLED ON NULL INPUT RETURNS text LANGUAGE python AS 's'"
    ending = "CREATE FUNCTION g(s text) CALLED ON NULL INPUT RETURNS int LANGUAGE python AS '1'"
    schema = after(
        function, folding, ending, "CREATE AGGREGATE x(int) SFUNC f STYPE text FINALFUNC g INITCOND 'a''b'"
    )
    space = schema.by_name["ks"]
    again = after(
        *(function_statement(space, one) for one in space.functions),
        *(aggregate_statement(space, one) for one in space.aggregates),
    )
    assert again == schema
