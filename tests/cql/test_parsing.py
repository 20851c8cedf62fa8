"""Texts to trees and syntax errors."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.cql.compile.prepare import prepare
from lockstep.cql.parse import grammar, tree
from lockstep.cql.parse.grammar_table import PACKED
from lockstep.cql.parse.parser import parse, tokenize
from lockstep.values.errors import InvalidRequest, SyntaxError_
from tests.cql.twin import Session


@pytest.mark.slow
def test_the_kept_tables_are_those_of_the_grammar() -> None:
    assert grammar.unpacked(PACKED) == grammar.build_table()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("select frm t", "line 1:11 no viable alternative at input 't' (select frm [t])"),
        ("SELECT * FORM t", "line 1:9 mismatched input 'FORM' expecting K_FROM (SELECT * [FORM]...)"),
        ("SELECT *\n  FROM", "line 2:6 no viable alternative at input '<EOF>'"),
        ("USE ks foo", "line 1:7 no viable alternative at input 'foo' (USE ks [foo])"),
        ("SELECT 'abc", "line 1:11 mismatched character '<EOF>' expecting '''"),
        ("SELECT ^", "line 1:7 no viable alternative at character '^'"),
        ("CREATE TABLE select (k int PRIMARY KEY)", "line 1:13 no viable alternative at input 'select'"),
        ('ALTER TABLE t RENAME c TO ""', "line 1:26 no viable alternative at input '\"\"'"),
        ("INSERT INTO t (a) VALUES (1) USING TTL 1 AND TTL 2", "Multiple definitions for property 'ttl'"),
    ],
)
def test_syntax_errors_say_where(text: str, expected: str) -> None:
    with pytest.raises(SyntaxError_) as caught:
        parse(text)
    assert caught.value.message.startswith(expected)


def test_known_statements_that_are_missing_are_named() -> None:
    with pytest.raises(InvalidRequest, match="CREATE TRIGGER statements are not supported"):
        parse("create trigger foo on t using 'a'")


@pytest.mark.parametrize(
    ("between", "low", "high"),
    [("1..2", "1", "2"), ("1...2.", "1.", "2."), ("1.5..2.5", "1.5", "2.5"), ("-1...-2", "-1.", "-2")],
)
def test_ends_of_slices_may_be_numbers_with_a_point(between: str, low: str, high: str) -> None:
    [selector] = parse(f"SELECT m[{between}] FROM t").statement.selectors
    span = selector.expression
    assert (span.low.text, span.high.text) == (low, high)


@pytest.mark.parametrize(
    ("literal", "kind", "text"),
    [
        ("'it''s'", "string", "it's"),
        ("$$it's$$", "string", "it's"),
        ("-12", "integer", "-12"),
        ("1.5e-3", "float", "1.5e-3"),
        ("1e3", "float", "1e3"),
        ("NaN", "float", "NaN"),
        ("-infinity", "float", "-Infinity"),
        ("0xCAFE", "hex", "0xCAFE"),
        ("1h30m", "duration", "1h30m"),
        ("1Y2MO3Ms", "duration", "1Y2MO3Ms"),
        ("P1Y2M", "duration", "P1Y2M"),
        ("TRUE", "boolean", "true"),
        ("NULL", "null", "null"),
        ("12345678-1234-1234-1234-123456789abc", "uuid", "12345678-1234-1234-1234-123456789abc"),
    ],
)
def test_literals_are_recognised(literal: str, kind: str, text: str) -> None:
    statement = parse(f"SELECT * FROM t WHERE a = {literal}").statement
    assert isinstance(statement, tree.Select)
    assert statement.where[0].value == tree.Literal(kind, text)


def test_unreserved_words_are_names_and_case_folds_unless_quoted() -> None:
    words = [
        "json",
        "distinct",
        "ttl",
        "key",
        "values",
        "type",
        "counter",
        "static",
        "clustering",
        "timestamp",
    ]
    columns = ", ".join(f"{word} int" for word in words)
    created = parse(f'CREATE TABLE Filtering ("K k" int PRIMARY KEY, {columns})').statement
    assert isinstance(created, tree.CreateTableStatement)
    assert created.table.name == "filtering"
    assert [column.name for column in created.columns] == ["K k", *words]
    chosen = parse(f"SELECT {', '.join(words)} FROM t WHERE key = 1").statement
    assert isinstance(chosen, tree.Select)
    assert [s.expression for s in chosen.selectors] == [tree.ColumnName(word) for word in words]


def test_comments_and_a_trailing_semicolon_are_ignored() -> None:
    text = "SELECT /* a */ * -- b\n FROM // c\n t ;"
    assert parse(text).statement == parse("select * from t").statement


def test_bind_markers_are_numbered_in_text_order() -> None:
    parsed = parse("UPDATE t USING TTL ? SET a = :x, b[?] = ? WHERE k IN (?, :y)")
    assert parsed.binds == (None, "x", None, None, None, "y")


def test_deep_nesting_is_refused_and_long_lists_are_not() -> None:
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        parse("SELECT * FROM t WHERE a = " + "[" * 5000)
    parse(f"SELECT * FROM t WHERE a IN ({', '.join(['1'] * 5000)})")


_WORDS = [
    *sorted(grammar.unpacked(PACKED)["literals"]),
    *("t", "k", "c", "v", "m", "ks", "1", "-2", "'x'", "0xab", "1.5", "1h", "now", "int", "text", "count"),
    *('"Q"', "$$z$$", "99999999-9999-9999-9999-999999999999", "--x\n", "/*", "'", "é"),
]


def outcome_of(text: str) -> str:
    """Of which kind a statement is, or what is wrong with it."""
    try:
        return prepare(text, "ks", _CATALOG).kind
    except (SyntaxError_, InvalidRequest) as error:
        return error.message


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(_WORDS), max_size=12),
    st.sampled_from(["", "SELECT * FROM t WHERE ", "INSERT INTO t "]),
)
def test_random_words_raise_nothing_but_request_errors(words: list[str], start: str) -> None:
    assert outcome_of(start + " ".join(words)) == outcome_of(start + " ".join(words)) != ""


_SEEDS = (
    "SELECT a, count(*) FROM t WHERE k = 1 AND c > 2 ORDER BY c DESC LIMIT 3 ALLOW FILTERING",
    "INSERT INTO t (k, c, v, m) VALUES (1, 2, now(), {'a': 1}) USING TTL 5",
    "UPDATE t SET m['a'] = 1, v = (1, 2) WHERE k = 1 AND c IN (1, 2)",
    "DELETE m['a'] FROM t WHERE (k, c) = (1, 2) AND token(k) > 3",
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(_SEEDS), st.integers(0, 60), st.sampled_from(_WORDS), st.booleans())
def test_statements_with_one_word_changed_raise_nothing_but_request_errors(
    seed: str, at: int, word: str, insert: bool
) -> None:
    words = seed.replace("(", " ( ").replace(")", " ) ").replace(",", " , ").split()
    at %= len(words)
    words[at : at if insert else at + 1] = [word]
    assert outcome_of(" ".join(words)) == outcome_of(" ".join(words)) != ""


_CATALOG = Session(
    "CREATE TABLE t (k int, c int, a int, v text, m map<text, int>, PRIMARY KEY (k, c))"
).catalog


@pytest.mark.slow
def test_time_grows_with_the_length_of_a_list_and_not_with_its_square() -> None:
    def seconds(elements: int) -> float:
        text = f"INSERT INTO t (k, m) VALUES (1, {{{', '.join(f'{i}: {i}' for i in range(elements))}}})"
        began = time.process_time()
        parse(text)
        return time.process_time() - began

    short = min(seconds(5_000) for _ in range(2))
    assert seconds(20_000) < 8 * short


@pytest.mark.slow
def test_a_statement_that_takes_long_to_read_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most 32768 words"):
        parse(f"SELECT * FROM t WHERE k IN ({'1,' * 16_384}1)")
    with pytest.raises(InvalidRequest, match="at most 300000 words"):
        parse(f"UPDATE t SET l = [{'1,' * 150_000}1] WHERE k = 1")
    with pytest.raises(InvalidRequest, match="at most 1048576 characters"):
        parse(f"/* */ SELECT /* {'x' * (1 << 20)} */ v FROM t")
    with pytest.raises(InvalidRequest, match="at most 65000 digits"):
        parse(f"SELECT v FROM t WHERE k = -{'9' * 65_000}")


@pytest.mark.parametrize("quote", ["'", '"'])
def test_doubled_quotes_are_one_each_and_the_next_single_one_ends(quote: str) -> None:
    inside = f"a{quote}{quote}b{quote}{quote}{quote}{quote}c"
    tokens = tokenize(f"x {quote}{inside}{quote} y")
    assert [token.value for token in tokens[:-1]] == ["x", inside.replace(quote * 2, quote), "y"]
    for text in (f"x {quote}{inside}", f"x {quote}{quote}{quote}", f"x {quote}a{quote}{quote}"):
        with pytest.raises(SyntaxError_, match="mismatched character '<EOF>'"):
            tokenize(text)


@pytest.mark.slow
def test_a_literal_of_as_many_entries_as_clients_send_is_read() -> None:
    entries = ", ".join(f"{i}: {i}" for i in range(65_535))
    assert isinstance(parse(f"INSERT INTO t (k, m) VALUES (1, {{{entries}}})").statement, tree.Insert)
