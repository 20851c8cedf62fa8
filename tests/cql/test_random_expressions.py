"""Random expressions have a value or an error that clients understand, and the same in pages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.cql.functions.native import function_names
from lockstep.values.errors import RequestError
from tests.cql.twin import Session

_COLUMNS = {
    "a": ("tinyint", "-128"),
    "c": ("int", "7"),
    "d": ("bigint", "9223372036854775807"),
    "e": ("float", "1.5"),
    "f": ("double", "NaN"),
    "g": ("varint", "123456789012345678901234567890"),
    "h": ("decimal", "1e-7"),
    "x": ("text", "'it''s'"),
    "y": ("blob", "0x00ff"),
    "t": ("timestamp", "'2024-02-29T12:00:00Z'"),
    "u": ("date", "'2024-02-29'"),
    "w": ("time", "'12:00:00'"),
    "z": ("duration", "1mo2d3h"),
    "b": ("boolean", "true"),
    "i": ("inet", "'10.0.0.1'"),
    "l": ("list<int>", "[1, 2]"),
    "s": ("set<text>", "{'a'}"),
    "m": ("map<text, int>", "{'a': 1}"),
    "v": ("vector<float, 2>", "[1, 2]"),
    "p": ("frozen<tuple<int, text>>", "(1, 'a')"),
    "o": ("q", "{a: 1}"),
}
_LITERALS = (
    "1",
    "0",
    "-3",
    "2.5",
    "'a'",
    "'2024-01-01'",
    "null",
    "true",
    "0x01",
    "1h",
    "3mo",
    "'a'",
    "[1]",
    "{}",
)
#: Without those that give something else whenever they are asked.
_NAMES = [
    *(
        name
        for name in function_names()
        if not any(part in name for part in ("blob", "now", "uuid", "current"))
    ),
    *("count", "min", "max", "sum", "avg", "ttl", "writetime", "maxwritetime", "token"),
]
_TYPES = ("int", "text", "double", "decimal", "varint", "timestamp", "date", "list<int>", "tinyint")


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds(lambda a, o, b: f"{a} {o} {b}", inner, st.sampled_from("+-*/%"), inner),
        st.builds(lambda a: f"- {a}", inner),
        st.builds(lambda a: f"({a})", inner),
        st.builds(lambda a, b: f"({a}, {b})", inner, inner),
        st.builds(lambda n, a: f"{n}({', '.join(a)})", st.sampled_from(_NAMES), st.lists(inner, max_size=3)),
        st.builds(lambda a, k: f"CAST({a} AS {k})", inner, st.sampled_from(_TYPES)),
        st.builds(lambda a, k: f"({k}){a}", inner, st.sampled_from(_TYPES)),
        st.builds(
            lambda a, k: f"{a}[{k}]", st.sampled_from("msl"), st.sampled_from(("'a'", "1", "'a'..", "..2"))
        ),
    )


_EXPRESSIONS = st.recursive(st.sampled_from([*_COLUMNS, *_LITERALS]), _grown, max_leaves=6)


@pytest.fixture(scope="module")
def session() -> Session:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in _COLUMNS.items())
    made = Session("CREATE TYPE q (a int, b text)", f"CREATE TABLE t (k int PRIMARY KEY, {columns})")
    values = ", ".join(text for _, text in _COLUMNS.values())
    made.run(f"INSERT INTO t (k, {', '.join(_COLUMNS)}) VALUES (1, {values})")
    made.run("INSERT INTO t (k) VALUES (2)")
    made.run("INSERT INTO t (k, y, x, s) VALUES (3, 0x, '', {})")
    return made


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(_EXPRESSIONS)
def test_an_expression_has_a_value_or_a_known_error(session: Session, expression: str) -> None:
    for clause in ("", " GROUP BY k"):
        query = f"SELECT {expression} FROM t{clause}"
        try:
            whole = session.run(query)
        except RequestError:
            continue
        if clause:
            assert repr(session.run(query, page_size=1)) == repr(whole)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(_COLUMNS)), _EXPRESSIONS)
def test_a_term_is_written_as_what_is_read_or_refused(session: Session, column: str, term: str) -> None:
    try:
        session.run(f"INSERT INTO t (k, {column}) VALUES (9, {term})")
    except RequestError:
        return
    [(key, _)] = session.run(f"SELECT k, {column} FROM t WHERE k = 9")
    assert key == 9
