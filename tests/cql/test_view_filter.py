"""Which rows the WHERE clause of a view keeps, and that its stored text keeps the same ones."""

from __future__ import annotations

import itertools

import pytest

from lockstep.cql.ddl.view_statements import compile_filter, filter_of, where_text
from lockstep.cql.parse import tree
from lockstep.cql.parse.parser import parse
from lockstep.schema.types import parse_type
from lockstep.values.errors import InvalidRequest
from tests.cql.twin import Session

_INT = parse_type("int")
_ROWS = list(itertools.product((0, 1, 2), repeat=3))


@pytest.fixture(scope="module")
def session() -> Session:
    return Session("CREATE TABLE t (a int, b int, c int, PRIMARY KEY (a, b, c))")


def relations_of(where: str) -> tuple[tree.Relation, ...]:
    statement = parse(f"SELECT * FROM t WHERE {where}").statement
    assert isinstance(statement, tree.Select)
    return statement.where


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("(b, c) >= (1, 1)", lambda a, b, c: (b, c) >= (1, 1)),
        ("(b, c) < (1, 1) AND a = 1", lambda a, b, c: (b, c) < (1, 1) and a == 1),
        ("(b, c) IN ((1, 1), (2, 0))", lambda a, b, c: (b, c) in ((1, 1), (2, 0))),
        ("a = blob_as_int(int_as_blob(1))", lambda a, b, c: a == 1),
        ("a = CAST(1.9 AS int)", lambda a, b, c: a == 1),
        ("a > 3 - (1 + 1)", lambda a, b, c: a > 1),
        ("a IN (2, abs(-1)) AND b IS NOT NULL", lambda a, b, c: a in (1, 2)),
    ],
)
def test_rows_that_a_clause_keeps(session: Session, where: str, kept: object) -> None:
    assert callable(kept)
    space = session.catalog.schema.by_name[session.keyspace]
    base = space.by_name["t"]
    ids = [base.by_name[name].id for name in "abc"]
    for check in (
        compile_filter(relations_of(where), base, space),
        filter_of(where_text(relations_of(where)), base, space),
    ):
        found = [row for row in _ROWS if check(dict(zip(ids, map(_INT.serialize, row), strict=True)))]
        assert found == [row for row in _ROWS if kept(*row)]


def test_the_text_of_a_clause_quotes_no_more_than_it_must() -> None:
    text = "a = token(1) AND (b, c) > (1, -2) AND c = CAST(1.5 AS int)"
    assert where_text(relations_of(text)) == text


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("token(a) = token(1)", "Cannot use token relation when defining a materialized view"),
        ("(a, b) > (1, 1)", "can only be applied to clustering columns but was applied to: a"),
        ("(c, b) > (1, 1)", "must appear in the PRIMARY KEY order in multi-column relations: (c, b)"),
        ("(b, c) > (1, 1, 1)", "Expected 2 elements in value tuple"),
        ("a = ?", "Cannot use query parameters in CREATE MATERIALIZED VIEW statements"),
        ("a = CAST(to_unix_timestamp(now()) AS int)", "cannot call now"),
        ("a = elsewhere(1)", "can only call built-in functions"),
        ("a = null", "Invalid null value in condition for column a"),
    ],
)
def test_clauses_that_no_view_has(session: Session, where: str, message: str) -> None:
    space = session.catalog.schema.by_name[session.keyspace]
    with pytest.raises(InvalidRequest) as caught:
        compile_filter(relations_of(where), space.by_name["t"], space)
    assert message in caught.value.message
